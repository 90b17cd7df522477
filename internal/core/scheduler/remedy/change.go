package remedy

import (
	"slices"
	"strings"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/core/wellknown"
)

// Kind says what a Change changes. The names are a part of the output for programs.
type Kind string

// Changes of a pod.
const (
	RemoveGate       Kind = "RemoveGate"       // Name: the scheduling gate
	LowerRequest     Kind = "LowerRequest"     // Name: the resource; From, To
	Tolerate         Kind = "Tolerate"         // Taint
	DropSelector     Kind = "DropSelector"     // Name: the label key; Value
	DropNodeAffinity Kind = "DropNodeAffinity" // all required terms of node affinity
	SoftenSpread     Kind = "SoftenSpread"     // Name: the topology key; Index in Pod.Spread
	DropAffinity     Kind = "DropAffinity"     // Name: the topology key; Index in Pod.Affinity
	DropAntiAffinity Kind = "DropAntiAffinity" // Name: the topology key; Index in Pod.AntiAffinity
	DropPort         Kind = "DropPort"         // Value: the address, Name: the protocol, To: the port; Index in Pod.Ports
	RaisePriority    Kind = "RaisePriority"    // From, To
	AllowPreemption  Kind = "AllowPreemption"  // preemptionPolicy PreemptLowerPriority
)

// Changes of a node, and of a budget.
const (
	Uncordon         Kind = "Uncordon"
	RemoveTaint      Kind = "RemoveTaint"      // Taint
	EndCondition     Kind = "EndCondition"     // Taint: a controller removes it when the node's condition has ended
	SetLabel         Kind = "SetLabel"         // Name, Value
	RemoveLabel      Kind = "RemoveLabel"      // Name
	FreeResource     Kind = "FreeResource"     // Name: the resource; From: what is free, To: what must be
	GrowNode         Kind = "GrowNode"         // Name: the resource; From: what is allocatable, To: what must be
	AddNode          Kind = "AddNode"          // Name: the node that the new one is like
	AllowDisruptions Kind = "AllowDisruptions" // Name: the budget's namespace and name; From, To: disruptions
)

// A Change is one thing that would be different. Amounts are in the base unit of the resource.
type Change struct {
	Kind        Kind
	Name, Value string
	Taint       scheduler.Taint
	From, To    int64
	Index       int
}

// ChangePod returns a pod with changes made. It ignores changes of other things.
func ChangePod(pod scheduler.Pod, changes []Change) scheduler.Pod {
	drop := map[Kind]map[int]bool{}
	for _, c := range changes {
		switch c.Kind {
		case RemoveGate:
			pod.Gates = slices.DeleteFunc(slices.Clone(pod.Gates), func(g string) bool { return g == c.Name })
		case LowerRequest:
			pod.Requests = withAmount(pod.Requests, c.Name, c.To)
		case Tolerate:
			pod.Tolerations = append(slices.Clone(pod.Tolerations), scheduler.Toleration{
				Key:    c.Taint.Key,
				Value:  c.Taint.Value,
				Effect: c.Taint.Effect,
			})
		case DropSelector:
			pod.NodeSelector = slices.DeleteFunc(slices.Clone(pod.NodeSelector), func(l scheduler.Label) bool {
				return l.Key == c.Name && l.Value == c.Value
			})
		case DropNodeAffinity:
			pod.NodeAffinity = nil
		case RaisePriority:
			pod.Priority = int32(c.To)
		case AllowPreemption:
			pod.NeverPreempts = false
		case SoftenSpread, DropAffinity, DropAntiAffinity, DropPort:
			if drop[c.Kind] == nil {
				drop[c.Kind] = map[int]bool{}
			}
			drop[c.Kind][c.Index] = true
		}
	}
	pod.Spread = softened(pod.Spread, drop[SoftenSpread])
	pod.Affinity = without(pod.Affinity, drop[DropAffinity])
	pod.AntiAffinity = without(pod.AntiAffinity, drop[DropAntiAffinity])
	pod.Ports = without(pod.Ports, drop[DropPort])
	return pod
}

// softened returns list with the constraints at some indexes soft.
func softened(list []scheduler.SpreadConstraint, at map[int]bool) []scheduler.SpreadConstraint {
	if len(at) == 0 {
		return list
	}
	list = slices.Clone(list)
	for i := range at {
		list[i].Hard = false
	}
	return list
}

// without returns list without what is at some indexes.
func without[T any](list []T, at map[int]bool) []T {
	if len(at) == 0 {
		return list
	}
	var out []T
	for i, x := range list {
		if !at[i] {
			out = append(out, x)
		}
	}
	return out
}

// withAmount returns list with another amount of one resource.
func withAmount(list []scheduler.Amount, resource string, value int64) []scheduler.Amount {
	list = slices.Clone(list)
	for i := range list {
		if list[i].Resource == resource {
			list[i].Value = value
			return list
		}
	}
	return append(list, scheduler.Amount{Resource: resource, Value: value})
}

// ChangeNode returns a node with changes made. It ignores changes of other things.
func ChangeNode(n scheduler.Node, changes []Change) scheduler.Node {
	removeTaint := func(drop func(scheduler.Taint) bool) { n.Taints = slices.DeleteFunc(slices.Clone(n.Taints), drop) }
	removeLabel := func(key string) {
		n.Labels = slices.DeleteFunc(slices.Clone(n.Labels), func(l scheduler.Label) bool { return l.Key == key })
	}
	for _, c := range changes {
		switch c.Kind {
		case Uncordon: // a controller removes the taint
			n.Unschedulable = false
			removeTaint(func(t scheduler.Taint) bool { return t.Key == wellknown.TaintUnschedulable })
		case RemoveTaint, EndCondition:
			removeTaint(func(t scheduler.Taint) bool { return t == c.Taint })
		case SetLabel:
			removeLabel(c.Name)
			n.Labels = append(n.Labels, scheduler.Label{Key: c.Name, Value: c.Value})
		case RemoveLabel:
			removeLabel(c.Name)
		case FreeResource, GrowNode:
			n = withMore(n, c.Name, c.To-c.From)
		}
	}
	return n
}

// withMore returns a node that has more of one resource. For the rules it makes no difference whether a node has more,
// or its pods take less.
func withMore(n scheduler.Node, resource string, more int64) scheduler.Node {
	if resource == scheduler.Pods {
		n.PodsMax += more
		return n
	}
	for _, a := range n.Allocatable {
		if a.Resource == resource {
			more += a.Value
			break
		}
	}
	n.Allocatable = withAmount(n.Allocatable, resource, more)
	return n
}

// Another returns a node like n, new and empty, with another name. It is not cordoned, and has no taint that says that
// n is in a bad condition.
func Another(n scheduler.Node, name string) scheduler.Node {
	n = ChangeNode(n, []Change{{Kind: Uncordon}})
	n.Taints = slices.DeleteFunc(slices.Clone(n.Taints), isCondition)
	if slices.ContainsFunc(n.Labels, func(l scheduler.Label) bool { return l.Key == wellknown.LabelHostname }) {
		n = ChangeNode(n, []Change{{Kind: SetLabel, Name: wellknown.LabelHostname, Value: name}})
	}
	n.Name = name
	return n
}

// conditionPrefix begins the keys of the taints that controllers set for conditions of nodes, and remove when these
// have ended (k8s.io/api/core/v1, well_known_taints.go).
const conditionPrefix = "node.kubernetes.io/"

func isCondition(t scheduler.Taint) bool { return strings.HasPrefix(t.Key, conditionPrefix) }
