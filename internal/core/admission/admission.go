// Package admission is the node's last word on a pod: whether what this machine has left carries it.
//
// The scheduler has looked already, from further away and a moment earlier. The node looks again with what it really
// holds, because pods may be bound by others, be static, or have been bound twice in a race. A pod that runs here
// already is never asked about again, except when it asks for more: a resize is granted, deferred until there is room,
// or infeasible (Resizes). Both answers are functions of what is here now; nothing is remembered, so nothing can be
// missed as long as the shell asks again whenever what is here has changed.
//
// A node under pressure also refuses pods that it would have room for (UnderPressure). Of pods that come together,
// Order says who is let in first.
//
// It uses the scheduler's own types and amounts (core/scheduler), so that both count alike. It does not evict, and does
// not look at NUMA yet.
package admission

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
)

// Rejection says why a pod may not run here. Reason and Message are spelled as upstream's, which alerts parse.
type Rejection struct {
	Reason  string // OutOf<resource>, NodeAffinity, NodePorts, TaintToleration
	Message string
	Room    bool // an empty node would carry it: what it lacks, others hold
}

// Check reports whether node, holding the pods in held, can carry pod as well; nil means that it can. Resources are
// looked at in a fixed order, so that the same pod is always refused for the same reason: pods, then by name with CPU
// and memory first; then labels, host ports and taints.
func Check(pod scheduler.Pod, held []scheduler.Pod, node scheduler.Node) *Rejection {
	r := check(pod, held, node)
	if r != nil {
		r.Room = check(pod, nil, node) == nil
	}
	return r
}

func check(pod scheduler.Pod, held []scheduler.Pod, node scheduler.Node) *Rejection {
	if used := int64(len(held)); used+1 > node.PodsMax {
		return outOf("pods", 1, used, node.PodsMax)
	}
	used, capacity := usedBy(held), capacityOf(node)
	for _, a := range inOrder(pod.Requests) {
		if _, known := capacity[a.Resource]; !known && strings.Contains(a.Resource, "/") {
			continue // counted by somebody else, cluster-wide (upstream does the same)
		}
		if a.Value > 0 && used[a.Resource]+a.Value > capacity[a.Resource] {
			return outOf(a.Resource, a.Value, used[a.Resource], capacity[a.Resource])
		}
	}
	return objection(pod, held, node)
}

func usedBy(held []scheduler.Pod) map[string]int64 {
	used := map[string]int64{}
	for _, h := range held {
		for _, a := range h.Requests {
			used[a.Resource] += a.Value
		}
	}
	return used
}

func capacityOf(node scheduler.Node) map[string]int64 {
	capacity := map[string]int64{}
	for _, a := range node.Allocatable {
		capacity[a.Resource] = a.Value
	}
	return capacity
}

// objection applies what the scheduler's rules say of more than amounts. A node without a name is not known well
// enough: its labels are still to come.
func objection(pod scheduler.Pod, held []scheduler.Pod, node scheduler.Node) *Rejection {
	if node.Name == "" {
		return nil
	}
	v := scheduler.Judge(pod, node, held, scheduler.RuleNames|scheduler.RuleNodeAffinity|scheduler.RulePorts)
	if v.Plugin == NodeAffinity {
		v.Reasons = []string{"node(s) didn't match Pod's node affinity/selector"} // of names, too
	}
	if v.Plugin == "" {
		// Only what would drive the pod away again: NoSchedule binds schedulers.
		node.Taints = slices.DeleteFunc(slices.Clone(node.Taints), func(t scheduler.Taint) bool { return t.Effect != scheduler.NoExecute })
		v = scheduler.Judge(pod, node, nil, scheduler.RuleTaints)
	}
	if v.Plugin == "" {
		return nil
	}
	return &Rejection{Reason: v.Plugin, Message: fmt.Sprintf("Predicate %s failed: %s", v.Plugin, strings.Join(v.Reasons, ", "))}
}

// Reasons of rejections by what others may change at any moment: labels and taints.
const (
	NodeAffinity    = "NodeAffinity"
	TaintToleration = "TaintToleration"
)

func outOf(resource string, requested, used, capacity int64) *Rejection {
	return &Rejection{
		Reason: "OutOf" + resource,
		Message: fmt.Sprintf("Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d",
			resource, requested, used, capacity),
	}
}

func inOrder(amounts []scheduler.Amount) []scheduler.Amount {
	rank := func(a scheduler.Amount) int {
		return slices.Index([]string{scheduler.EphemeralStorage, scheduler.Memory, scheduler.CPU}, a.Resource)
	}
	return slices.SortedFunc(slices.Values(amounts), func(a, b scheduler.Amount) int {
		return cmp.Or(cmp.Compare(rank(b), rank(a)), cmp.Compare(a.Resource, b.Resource))
	})
}
