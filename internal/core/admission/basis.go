package admission

import (
	"cmp"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/eviction"
	"github.com/plimsoll-dev/plimsoll/internal/core/qos"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
)

// Basis is what decided about one pod, so that the decision can be told and repeated later. It has what was read of the
// pod and of the node, and nothing else: a node's labels are in it only if the pod selects nodes by them.
type Basis struct {
	// What UnderPressure read. Without conditions, the rest of these four says nothing.
	Conditions []eviction.Condition `json:",omitempty"`
	Class      qos.Class            `json:",omitempty"`
	Critical   bool                 `json:",omitempty"`
	Started    bool                 `json:",omitempty"`

	Tolerations []scheduler.Toleration `json:",omitempty"`

	// Checked says that the node was checked for room. If it is false, what follows is not set.
	Checked      bool
	Node         string                `json:",omitempty"` // empty: labels, taints and ports were not judged
	Pods         int64                 // on the node
	PodsMax      int64                 // that the node takes
	Room         []Room                `json:",omitempty"` // of the resources that the pod requests, in the order of Check
	NodeSelector []scheduler.Label     `json:",omitempty"`
	NodeAffinity *[]scheduler.NodeTerm `json:",omitempty"`
	Labels       []scheduler.Label     `json:",omitempty"` // of the node
	Taints       []scheduler.Taint     `json:",omitempty"` // of the node, those with the effect NoExecute
	Ports        []scheduler.HostPort  `json:",omitempty"` // that the pod asks for
	Taken        []scheduler.HostPort  `json:",omitempty"` // ports of other pods, if the pod asks for any
}

// Room is one resource of the node when the pod came, in its base unit: millicores of cpu, bytes, else a count.
type Room struct {
	Resource    string
	Requested   int64 // by the pod
	Used        int64 // by the other pods: what they request
	Allocatable int64
}

// PressureBasis returns the Basis of a pod that was not checked for room yet.
func PressureBasis(a Applicant, conditions []eviction.Condition) *Basis {
	b := &Basis{}
	if len(conditions) > 0 {
		b.Conditions = conditions
		b.Class = a.Class
		b.Critical = a.Critical
		b.Started = a.Started
		b.Tolerations = a.Pod.Tolerations
	}
	return b
}

// AddTo adds to b what Check reads about a pod at this moment.
func (n *Node) AddTo(b *Basis, pod scheduler.Pod) {
	*b = Basis{
		Conditions: b.Conditions, Class: b.Class, Critical: b.Critical, Started: b.Started, Tolerations: b.Tolerations,
		Checked: true, Node: n.offers.Name, Pods: n.onNode, PodsMax: n.offers.PodsMax,
		Room: make([]Room, 0, len(pod.Requests)),
	}
	for _, a := range inOrder(pod.Requests) {
		allocatable, known := n.allocatable[a.Resource]
		if !known && isExtended(a.Resource) {
			continue // it is not counted here
		}
		b.Room = append(b.Room, Room{
			Resource:    a.Resource,
			Requested:   a.Value,
			Used:        n.requested[a.Resource],
			Allocatable: allocatable,
		})
	}
	if len(pod.NodeSelector) > 0 || pod.NodeAffinity != nil {
		b.NodeSelector = pod.NodeSelector
		b.NodeAffinity = pod.NodeAffinity
		b.Labels = n.offers.Labels
	}
	for _, t := range n.offers.Taints {
		if t.Effect == scheduler.NoExecute {
			b.Taints = append(b.Taints, t)
			b.Tolerations = pod.Tolerations
		}
	}
	if len(pod.Ports) > 0 {
		b.Ports = pod.Ports
		for port := range n.ports {
			b.Taken = append(b.Taken, port)
		}
		slices.SortFunc(b.Taken, func(a, b scheduler.HostPort) int {
			return cmp.Or(cmp.Compare(a.Port, b.Port), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.IP, b.IP))
		})
	}
}

// Repeat decides again: UnderPressure, and then Check, if the node was checked.
func (b *Basis) Repeat() *Rejection {
	pod := scheduler.Pod{
		Tolerations:  b.Tolerations,
		NodeSelector: b.NodeSelector,
		NodeAffinity: b.NodeAffinity,
		Ports:        b.Ports,
	}
	applicant := Applicant{Pod: pod, Critical: b.Critical, Class: b.Class, Started: b.Started}
	if r := UnderPressure(applicant, b.Conditions); r != nil || !b.Checked {
		return r
	}
	offers := scheduler.Node{Name: b.Node, Labels: b.Labels, Taints: b.Taints, PodsMax: b.PodsMax}
	others := scheduler.Pod{Ports: b.Taken} // all other pods as one
	for _, r := range b.Room {
		offers.Allocatable = append(offers.Allocatable, scheduler.Amount{Resource: r.Resource, Value: r.Allocatable})
		pod.Requests = append(pod.Requests, scheduler.Amount{Resource: r.Resource, Value: r.Requested})
		others.Requests = append(others.Requests, scheduler.Amount{Resource: r.Resource, Value: r.Used})
	}
	n := NewNode(offers)
	n.Set(others)
	n.onNode = b.Pods
	return n.Check(pod)
}
