package admission

import (
	"fmt"
	"iter"
	"maps"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/selector"
)

// Node is what a node offers to pods, and what the pods on it take of that. Its caller reports changes (Offer, Set,
// Remove), and it keeps sums. So the cost of a check depends on the pod in question, not on the number of pods.
//
// It has no lock. The values that it is given are kept, and must not be written to afterwards.
type Node struct {
	// offers is what the node offers, allocatable the amounts among that by resource. Offer writes both.
	offers      scheduler.Node
	allocatable map[string]int64
	// pods are the pods on the node, each as Set was told last. requested and ports are their sums; no entry of either
	// is zero. Set and Remove write all three.
	pods      map[scheduler.PodID]taken
	requested map[string]int64
	ports     scheduler.PortsTaken
	// onNode is how many pods are on the node: the length of pods, except where a Basis is repeated.
	onNode int64
}

// taken is what a pod takes of its node.
type taken struct {
	requests []scheduler.Amount
	ports    []scheduler.HostPort
}

// NewNode returns a node that offers so much and has these pods.
func NewNode(offers scheduler.Node, pods ...scheduler.Pod) *Node {
	n := &Node{
		pods:      map[scheduler.PodID]taken{},
		requested: map[string]int64{},
		ports:     scheduler.PortsTaken{},
	}
	n.Offer(offers)
	for i := range pods {
		n.Set(pods[i])
	}
	return n
}

// Offer notes what the node offers from now on. A node without a name is not known well enough to judge pods by its
// labels, taints and ports.
func (n *Node) Offer(offers scheduler.Node) {
	n.offers = offers
	n.allocatable = make(map[string]int64, len(offers.Allocatable))
	for _, a := range offers.Allocatable {
		n.allocatable[a.Resource] = a.Value
	}
}

// Set notes that a pod is on the node, and what it takes from now on.
func (n *Node) Set(pod scheduler.Pod) {
	n.Remove(pod.ID)
	p := taken{requests: pod.Requests, ports: pod.Ports}
	n.pods[pod.ID] = p
	n.onNode = int64(len(n.pods))
	n.count(p, 1)
}

// Remove notes that a pod is not on the node any more. Nothing happens if it was not.
func (n *Node) Remove(id scheduler.PodID) {
	p, known := n.pods[id]
	if !known {
		return
	}
	delete(n.pods, id)
	n.onNode = int64(len(n.pods))
	n.count(p, -1)
}

func (n *Node) count(p taken, sign int64) {
	for _, a := range p.requests {
		if n.requested[a.Resource] += sign * a.Value; n.requested[a.Resource] == 0 {
			delete(n.requested, a.Resource)
		}
	}
	for _, port := range p.ports {
		n.ports.Count(port, int(sign))
	}
}

// Pods is how many pods are on the node.
func (n *Node) Pods() int { return len(n.pods) }

// Requested is how much of a resource the pods on the node request together.
func (n *Node) Requested(resource string) int64 { return n.requested[resource] }

// Check reports whether the node has room for a pod that is not on it yet; nil means that it has. Resources are looked
// at in a fixed order, so that the same pod is always rejected for the same reason: pods, then by name with CPU and
// memory first; then labels, host ports and taints.
func (n *Node) Check(pod scheduler.Pod) *Rejection {
	r := n.check(pod)
	if r != nil {
		r.Room = NewNode(n.offers).check(pod) == nil
	}
	return r
}

func (n *Node) check(pod scheduler.Pod) *Rejection {
	for s := range n.shortages(pod) {
		return outOf(s)
	}
	if n.offers.Name == "" {
		return nil
	}
	return n.objection(pod)
}

// shortage is an amount that the node does not have for a pod.
type shortage struct {
	resource                  string
	requested, used, capacity int64
}

// shortages are all that the node lacks for a pod that is not on it yet, in the order of Check.
func (n *Node) shortages(pod scheduler.Pod) iter.Seq[shortage] {
	return func(yield func(shortage) bool) {
		if !scheduler.FitsOneMore(n.onNode, n.offers.PodsMax) {
			if !yield(shortage{resource: pods, requested: 1, used: n.onNode, capacity: n.offers.PodsMax}) {
				return
			}
		}
		for _, a := range inOrder(pod.Requests) {
			allocatable, known := n.allocatable[a.Resource]
			if !known && isExtended(a.Resource) {
				continue // something else counts it, cluster-wide (upstream does the same)
			}
			used := n.requested[a.Resource]
			if scheduler.Fits(a.Value, used, allocatable) {
				continue
			}
			if !yield(shortage{resource: a.Resource, requested: a.Value, used: used, capacity: allocatable}) {
				return
			}
		}
	}
}

// pods is the resource of which each pod takes one.
const pods = "pods"

// objection applies the scheduler's rules about more than amounts.
func (n *Node) objection(pod scheduler.Pod) *Rejection {
	if !selector.Allow(pod.NodeSelector, pod.NodeAffinity, n.offers.Name, n.offers.Labels) {
		return failed(scheduler.PluginNodeAffinity, scheduler.ReasonNodeAffinity)
	}
	for _, port := range pod.Ports {
		if n.ports.Taken(port) {
			return failed(scheduler.PluginNodePorts, scheduler.ReasonNodePorts)
		}
	}
	// Only a taint that would evict the pod again rejects it: NoSchedule is for schedulers.
	if !selector.TolerateAll(pod.Tolerations, selector.WithEffects(n.offers.Taints, scheduler.NoExecute)) {
		return failed(scheduler.PluginTaintToleration, scheduler.ReasonTaintToleration)
	}
	return nil
}

func failed(plugin, reason string) *Rejection {
	return &Rejection{Reason: plugin, Message: fmt.Sprintf("Predicate %s failed: %s", plugin, reason)}
}

// Resizes gives every pending resize its verdict, in the order of pending. The pods that ask are on the node. What is
// allocated to one pod counts for the next, but is not noted: the caller calls Set when the pod has it. The order is
// upstream's: first the pods that ask for no more of anything, then by priority, Guaranteed before others, the one that
// waits longest, and name. Whatever fits when its turn comes is allocated, so a large resize that waits does not delay
// small ones. An allocation may make room for another (what was allocated before it and not used yet), so a shell asks
// again until nothing is allocated.
//
// Only what grows is compared with the room there is. Where allocatable fell below what the pods request, upstream
// defers even a resize that gives something back. Labels and taints defer nothing: the pod runs here already.
func (n *Node) Resizes(pending []Resize) []Verdict {
	requested := maps.Clone(n.requested)
	verdicts := make([]Verdict, len(pending))
	for _, i := range turns(pending) {
		v := judgeResize(pending[i], requested, n.allocatable)
		if v.Allocated {
			for resource, more := range growth(pending[i]) {
				requested[resource] += more
			}
		}
		verdicts[i] = v
	}
	return verdicts
}
