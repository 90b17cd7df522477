package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/fault"
	"github.com/plimsoll-dev/plimsoll/internal/core/lifecycle"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/core/wellknown"
)

const (
	// podsMax is how many pods a node may have at the start. Chosen: with one CPU each, there is room for successors of
	// other nodes' pods.
	podsMax = 16
	// startTime is how long a pod takes from its creation to Running; stopTime from its deletion to its end. Chosen.
	startTime = 2 * time.Second
	stopTime  = time.Second
	// placeAgain is how often a pod that fits nowhere is tried again, and placeTries on how many nodes each time. Chosen.
	placeAgain = 10 * time.Second
	placeTries = 50
)

// pod is one pod of a ReplicaSet.
type pod struct {
	id          lifecycle.PodID
	node        *node     // the node to which it is bound; nil: none
	bound       unit.Wall // when it was bound
	ready       bool
	terminating bool
	gone        bool         // deleted from the API
	tries       uint64       // on how many nodes it was tried
	out         unit.Instant // since when neither it nor a successor has served; zero: one serves
}

// The requests and tolerations of a pod; the API server gives every pod these tolerations.
var (
	podRequests = lifecycle.Load{CPU: unit.CPU, Memory: unit.GiB, Pods: 1}
	tolerations = []lifecycle.Toleration{
		{Key: wellknown.TaintNotReady, Exists: true, Effect: lifecycle.NoExecute, Bounded: true, Seconds: 300},
		{Key: wellknown.TaintUnreachable, Exists: true, Effect: lifecycle.NoExecute, Bounded: true, Seconds: 300},
	}
)

// podSet is all pods.
type podSet struct {
	all  []*pod // in the order of their creation, including those that are gone
	byID map[lifecycle.PodID]*pod
}

// init binds the first pods, which already run.
func (s *podSet) init(w *world) {
	s.byID = make(map[lifecycle.PodID]*pod, w.o.Nodes*w.o.PodsPerNode)
	for _, n := range w.nodes {
		for i := range w.o.PodsPerNode {
			p := s.add(lifecycle.PodID(fmt.Sprintf("%s-pod-%d", n.name, i)))
			p.ready = true
			w.bind(p, n)
		}
	}
}

func (s *podSet) add(id lifecycle.PodID) *pod {
	p := &pod{id: id}
	s.all, s.byID[id] = append(s.all, p), p
	return p
}

func (w *world) bind(p *pod, n *node) {
	p.node, p.bound = n, w.wall(w.now)
	n.pods = append(n.pods, p)
	n.used.CPU += podRequests.CPU
	n.used.Memory += podRequests.Memory
	n.used.Pods++
}

func (w *world) podChanged(p *pod) {
	seen := lifecycle.Pod{ID: p.id, Namespace: "default", Name: string(p.id), Bound: p.bound, Ready: p.ready,
		Terminating: p.terminating, Tolerations: tolerations, Requests: podRequests}
	if p.node != nil {
		seen.Node = p.node.name
	}
	w.control.monitor.PodSeen(w.now, seen)
}

func (w *world) podGone(p *pod) {
	if p.gone {
		return
	}
	p.gone = true
	n := p.node
	n.pods = slices.DeleteFunc(n.pods, func(q *pod) bool { return q == p })
	n.used.CPU -= podRequests.CPU
	n.used.Memory -= podRequests.Memory
	n.used.Pods--
	w.control.monitor.PodGone(w.now, p.id)
}

// writePod executes a write of the controller about a pod.
func (w *world) writePod(o *order) {
	p := w.pods.byID[o.Pod.ID]
	if p.gone || p.node == nil || p.node.name != o.Pod.Node {
		return
	}
	switch o.Do {
	case lifecycle.MarkNotReady:
		p.ready = false
		w.podChanged(p)
	case lifecycle.Evict:
		w.evict(p)
	default: // a write about a pod of a deleted node; nothing in the simulation deletes nodes
		w.podGone(p)
	}
}

func (w *world) evict(p *pod) {
	if p.terminating {
		return
	}
	w.note("evict", string(p.id)+" "+p.node.name)
	w.evicted++
	if p.out.IsZero() { // it served until now
		w.evictedWell++
		p.out = w.now
	}
	p.terminating = true
	w.podChanged(p)
	successor := w.pods.add(p.id + "'") // a name that does not depend on other evictions at this moment
	successor.out, p.out = p.out, 0
	w.podChanged(successor)
	w.after(startTime/2, func() { w.place(successor) })
	if !p.node.isStopped(p.node.effect) {
		w.after(stopTime, func() { w.podGone(p) })
	}
}

// place binds p to a node with room, if some tries find one.
func (w *world) place(p *pod) {
	for range placeTries {
		p.tries++
		n := w.nodes[fault.Chance(w.o.Seed+p.tries, string(p.id))%uint64(len(w.nodes))]
		if n.ready != lifecycle.True || len(n.taints) > 0 || n.used.CPU+podRequests.CPU > allocatable.CPU ||
			n.used.Pods >= allocatable.Pods {
			continue
		}
		w.bind(p, n)
		w.podChanged(p)
		w.after(startTime/2, func() { w.run(p) })
		return
	}
	w.after(placeAgain, func() { w.place(p) })
}

// run simulates the agent that starts p. On a node that is stopped p waits for the node's return.
func (w *world) run(p *pod) {
	if p.gone || p.terminating || p.node.isStopped(p.node.effect) {
		return
	}
	p.ready = true
	w.podChanged(p)
	w.served(p)
}

// served records that p or a successor serves again.
func (w *world) served(p *pod) {
	if !p.out.IsZero() {
		w.outages = append(w.outages, w.now.Sub(p.out))
		p.out = 0
	}
}

// loseContact records that n's pods can no longer be reached.
func (w *world) loseContact(n *node) {
	for _, p := range n.pods {
		if p.out.IsZero() && !p.terminating {
			p.out = w.now
		}
	}
}

// resume lets the agent of n, which has returned, continue with its pods.
func (s *podSet) resume(n *node) {
	w := n.w
	w.after(stopTime, func() {
		if n.isStopped(n.effect) {
			return
		}
		for _, p := range slices.Clone(n.pods) {
			switch {
			case p.terminating:
				w.podGone(p)
			case !p.ready || !p.out.IsZero():
				w.run(p)
			}
		}
	})
}
