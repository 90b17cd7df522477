package explain

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/journal"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// Node is the answer about one node.
type Node struct {
	Journal // what the node's agent recorded

	Kubelet       string      `json:"kubelet"` // the version that its agent reports
	Unschedulable bool        `json:"unschedulable,omitempty"`
	Conditions    []Condition `json:"conditions"`
	Taints        []Taint     `json:"taints,omitempty"`
	Judged
	// Story is what the lifecycle controller decided about it, the newest last.
	Story  []Moment `json:"story,omitempty"`
	Notes  []string `json:"notes,omitempty"`
	Unseen []Unseen `json:"unseen,omitempty"`
}

// Judged is what follows from the cluster for a node.
type Judged struct {
	From string `json:"from,omitempty"` // as in Waiting
	Load []Load `json:"load,omitempty"` // by resource; empty: the pods were not seen
	// Pods are those that request most of the resource that is shortest, the largest first; PodCount is how many there
	// are.
	Pods     []Holder `json:"pods,omitempty"`
	PodCount int      `json:"podCount"`
	Waiting  int      `json:"waiting"`         // how many pods wait in the cluster
	Takes    int      `json:"takes,omitempty"` // how many of them would fit here, each alone
	KeptOff  []Miss   `json:"keptOff,omitempty"`
	Unjudged int      `json:"unjudged,omitempty"` // how many of them the core cannot judge
}

// Load is what a node has of a resource, and what its pods request. Amounts are quantities.
type Load struct {
	Resource    string `json:"resource"`
	Capacity    string `json:"capacity,omitempty"` // empty: the node's agent does not report it
	Reserved    string `json:"reserved,omitempty"` // for the system, and what hard eviction thresholds keep free
	Allocatable string `json:"allocatable"`
	Requested   string `json:"requested"`
	Free        string `json:"free"` // negative: the node is over-committed
}

// Taint is a taint of a node.
type Taint struct {
	Taint string     `json:"taint"`
	Since *time.Time `json:"since,omitempty"`
	From  string     `json:"from,omitempty"` // the condition for which a controller sets it
}

// Holder is a pod on the node.
type Holder struct {
	Pod      string            `json:"pod"`
	Priority int32             `json:"priority"`
	Requests map[string]string `json:"requests,omitempty"`
}

// Miss is a reason for which the node rejects waiting pods.
type Miss struct {
	Count  int      `json:"count"`
	Plugin string   `json:"plugin"`
	Reason string   `json:"reason"`
	Pods   []string `json:"pods"` // some of them
}

// holdersMax is how many pods are listed at most (chosen: a screen).
const holdersMax = 10

// Node asks what a node carries, and what keeps pods off it.
func (a *Asker) Node(ctx context.Context, name string) (*Node, error) {
	node := &corev1.Node{}
	err := a.Client.Get(ctx, kube.Nodes, "", name, node)
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("explain node %s: the API has no such node; list them with kubectl get nodes: %w", name, err)
	} else if err != nil {
		return nil, fmt.Errorf("explain node %s: %w", name, withRole(err))
	}
	out := &Node{
		Journal:       noJournal(name),
		Kubelet:       node.Status.NodeInfo.KubeletVersion,
		Unschedulable: node.Spec.Unschedulable,
		Conditions:    []Condition{},
	}
	for _, c := range node.Status.Conditions {
		out.Conditions = append(out.Conditions, Condition{Type: string(c.Type), Status: string(c.Status),
			Since: c.LastTransitionTime.Time, Reason: c.Reason, Message: c.Message})
	}
	for _, t := range node.Spec.Taints {
		taint := Taint{Taint: taintText(scheduler.Taint{Key: t.Key, Value: t.Value, Effect: scheduler.Effect(t.Effect)})}
		if t.TimeAdded != nil {
			taint.Since = &t.TimeAdded.Time
		}
		taint.From = conditionOfTaint[t.Key]
		out.Taints = append(out.Taints, taint)
	}
	if told, err := a.askWatcher(ctx, askedQuestion{node: node}); err != nil {
		out.Unseen = append(out.Unseen, Unseen{What: "the cluster", Error: err.Error(),
			Effect: "what its pods request and what keeps pods off it is not known"})
	} else {
		out.Judged = told.Node.Judged
		out.Notes, out.Unseen = told.Node.Notes, told.Node.Unseen
	}
	a.addNodeStory(ctx, out)
	if !translate.OurAgent(node) {
		return out, nil
	}
	if found, err := askJournal(ctx, a.Client, journalQuestion{node: name, newest: a.Newest}); err == nil {
		out.Journal = found
	} else {
		out.Unseen = append(out.Unseen, Unseen{What: "the journal of node " + name, Error: err.Error(),
			Effect: "its evictions are not known"})
	}
	return out, nil
}

// addNodeStory adds what the lifecycle controller decided about a node.
func (a *Asker) addNodeStory(ctx context.Context, out *Node) {
	asked := a.askSources(ctx, journal.Query{Node: out.Node}, time.Time{})
	s := &story{has: map[journal.Kind]bool{}, runs: map[string]bool{}}
	for _, found := range asked.by["lifecycle"] {
		var list []journal.Record
		for _, r := range found.Records {
			if len(r.Pods) == 0 && r.Node == out.Node {
				list = append(list, r)
			}
		}
		if a.Newest > 0 && len(list) > a.Newest {
			list = list[len(list)-a.Newest:]
		}
		s.records("lifecycle", pod{}, list)
	}
	out.Story = s.told()
	out.Notes = append(out.Notes, asked.notes...)
	out.Unseen = append(out.Unseen, asked.unseen...)
}

// conditionOfTaint says for which condition of a node the node-lifecycle controller sets a taint.
var conditionOfTaint = map[string]string{
	corev1.TaintNodeNotReady:           "Ready is False",
	corev1.TaintNodeUnreachable:        "Ready is Unknown",
	corev1.TaintNodeMemoryPressure:     "MemoryPressure",
	corev1.TaintNodeDiskPressure:       "DiskPressure",
	corev1.TaintNodePIDPressure:        "PIDPressure",
	corev1.TaintNodeNetworkUnavailable: "NetworkUnavailable",
	corev1.TaintNodeUnschedulable:      "the node is cordoned",
}

// node says what follows from the cluster for a node.
func (s *snapshot) node(node *corev1.Node) *nodeJudged {
	out := &nodeJudged{}
	room, known := s.world.Placer().RoomOn(node.Name)
	if !known {
		out.Notes = []string{"the node was deleted while the cluster was read"}
		return out
	}
	out.judge(s, node, room)
	out.Notes, out.Unseen = s.notes(s.waiting), s.unseen
	return out
}

// judge adds what follows from the cluster.
func (n *Judged) judge(s *snapshot, node *corev1.Node, room scheduler.Room) {
	n.PodCount = len(s.placedOn[node.Name])
	shortest := n.addLoad(room, node)
	pods := s.placedOn[node.Name]
	slices.SortStableFunc(pods, func(a, b scheduler.Pod) int {
		return cmp.Or(cmp.Compare(request(&b, shortest), request(&a, shortest)), cmp.Compare(a.Namespace, b.Namespace),
			cmp.Compare(a.Name, b.Name))
	})
	for _, p := range pods[:min(len(pods), holdersMax)] {
		h := Holder{Pod: p.Namespace + "/" + p.Name, Priority: p.Priority, Requests: map[string]string{}}
		for _, r := range p.Requests {
			h.Requests[r.Resource] = quantity(r.Resource, r.Value)
		}
		n.Pods = append(n.Pods, h)
	}
	var facts []scheduler.Pod
	for _, p := range s.waiting {
		if s.notJudged(&p.fact) != "" {
			n.Unjudged++
			continue
		}
		facts = append(facts, p.fact)
	}
	slices.SortFunc(facts, func(a, b scheduler.Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	misses, takes := s.world.MissesOn(node.Name, facts)
	n.Waiting, n.Takes = len(s.waiting), len(takes)
	for _, m := range misses {
		miss := Miss{Count: len(m.Pods), Plugin: m.Plugin, Reason: m.Text}
		for _, p := range m.Pods[:min(len(m.Pods), examplesMax)] {
			miss.Pods = append(miss.Pods, p.Namespace+"/"+p.Name)
		}
		n.KeptOff = append(n.KeptOff, miss)
	}
}

// addLoad adds what the node carries, and returns the resource of which the largest share is requested.
func (n *Judged) addLoad(room scheduler.Room, node *corev1.Node) (shortest string) {
	most := -1.0
	capacity, podsMax := capacityOf(node)
	add := func(resource string, capacity, allocatable, requested int64) {
		l := Load{
			Resource:    resource,
			Allocatable: quantity(resource, allocatable),
			Requested:   quantity(resource, requested),
			Free:        quantity(resource, allocatable-requested),
		}
		if capacity != 0 || allocatable == 0 {
			l.Capacity, l.Reserved = quantity(resource, capacity), quantity(resource, capacity-allocatable)
		}
		n.Load = append(n.Load, l)
	}
	for _, r := range room.Resources {
		add(r.Resource, capacity[r.Resource], r.Allocatable, r.Requested)
		if share := float64(r.Requested) / float64(max(r.Allocatable, 1)); share > most {
			most, shortest = share, r.Resource
		}
	}
	add(scheduler.Pods, podsMax, room.PodsMax, room.Pods)
	return shortest
}

func request(p *scheduler.Pod, resource string) int64 {
	for _, r := range p.Requests {
		if r.Resource == resource {
			return r.Value
		}
	}
	return 0
}

// Table returns the answer for people.
func (n *Node) Table() []byte {
	var out bytes.Buffer
	state := "pods may be placed on it"
	if len(n.Taints) > 0 {
		state = "pods may be placed on it if they tolerate its taints"
	}
	if n.Unschedulable {
		state = "cordoned: no pod is placed on it"
	}
	fmt.Fprintf(&out, "Node %s (%s): %s.\n", n.Node, n.Kubelet, state)
	table := newTable(&out)
	if len(n.Load) > 0 {
		fmt.Fprintln(table, "\nRESOURCE\tCAPACITY\t- RESERVED\t= ALLOCATABLE\t- REQUESTED\t= FREE")
		for _, l := range n.Load {
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", l.Resource, l.Capacity, l.Reserved, l.Allocatable, l.Requested,
				l.Free)
		}
		table.Flush()
	}
	writeConditions(&out, n.Conditions)
	if len(n.Taints) > 0 {
		fmt.Fprintln(table, "\nTAINT\tSINCE\tBECAUSE")
		for _, t := range n.Taints {
			since := ""
			if t.Since != nil {
				since = timeText(*t.Since)
			}
			fmt.Fprintf(table, "%s\t%s\t%s\n", t.Taint, since, t.From)
		}
		table.Flush()
	}
	n.writePods(&out)
	writeStory(&out, n.Story)
	n.writeRecords(&out)
	writeUnseen(&out, n.Notes, n.Unseen)
	return out.Bytes()
}

// writePods prints the pods on the node, and those that it keeps off.
func (n *Node) writePods(out *bytes.Buffer) {
	table := newTable(out)
	if len(n.Pods) > 0 {
		fmt.Fprintf(table, "\nPOD (%d of %d)\tPRIORITY\tREQUESTS\n", len(n.Pods), n.PodCount)
		for _, p := range n.Pods {
			var requests []string
			for _, l := range n.Load {
				if value, has := p.Requests[l.Resource]; has {
					requests = append(requests, l.Resource+" "+value)
				}
			}
			fmt.Fprintf(table, "%s\t%d\t%s\n", p.Pod, p.Priority, cmp.Or(strings.Join(requests, ", "), "nothing"))
		}
		table.Flush()
	}
	if len(n.Load) == 0 {
		return
	}
	if n.Waiting == 0 {
		fmt.Fprintf(out, "\nNo pod waits in the cluster.\n")
		return
	}
	fmt.Fprintf(out, "\nOf %s in the cluster, %d would fit here, each alone.\n",
		countOf(n.Waiting, "waiting pod", "waiting pods"), n.Takes)
	for _, m := range n.KeptOff {
		fmt.Fprintf(table, "  %s\t%s: %s\t%s\n", countOf(m.Count, "pod", "pods"), m.Plugin, m.Reason, names(m.Pods, m.Count))
	}
	table.Flush()
	if n.Unjudged > 0 {
		fmt.Fprintf(out, "  %s not judged: plimsoll explain pending says why.\n", countOf(n.Unjudged, "pod is", "pods are"))
	}
}
