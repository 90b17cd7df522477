// Package admission decides whether a node admits or rejects a pod that comes to it.
//
// The scheduler has checked a pod already, with what it knew a moment earlier. The node checks again with the pods that
// are really on it, because a pod may be bound by another scheduler, be static, or have been bound twice in a race. A
// pod that runs here already is not checked again, except when it asks for more: a resize is allocated, deferred until
// there is room, or infeasible (Node.Resizes). Both answers depend only on what the node offers and on the pods that it
// has at that moment (Node): no verdict is remembered, so a shell misses none if it asks again whenever one of the two
// has changed.
//
// Where a critical pod lacks nothing but amounts, Preempt chooses the pods that end for it.
//
// A node under pressure also rejects pods that it would have room for (UnderPressure). Of pods that come together,
// Order says which is admitted first. Suits says which pods cannot run on the system at all.
//
// The types, the amounts and the rules are the scheduler's (core/scheduler), so that both count alike. The package does
// not evict. core/numa assigns CPUs, memory and devices to containers.
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
	Room    bool // an empty node would admit the pod: other pods have what it lacks
}

// Reasons of rejections by what others may change at any moment: labels and taints.
const (
	NodeAffinity    = scheduler.PluginNodeAffinity
	TaintToleration = scheduler.PluginTaintToleration
)

func outOf(s shortage) *Rejection {
	return &Rejection{
		Reason: "OutOf" + s.resource,
		Message: fmt.Sprintf("Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d",
			s.resource, s.requested, s.used, s.capacity),
	}
}

// isExtended reports whether a resource is not one of Kubernetes' own.
func isExtended(resource string) bool { return strings.Contains(resource, "/") }

// inOrder sorts amounts as a check looks at them.
func inOrder(amounts []scheduler.Amount) []scheduler.Amount {
	rank := func(a scheduler.Amount) int {
		return slices.Index([]string{scheduler.EphemeralStorage, scheduler.Memory, scheduler.CPU}, a.Resource)
	}
	return slices.SortedFunc(slices.Values(amounts), func(a, b scheduler.Amount) int {
		return cmp.Or(cmp.Compare(rank(b), rank(a)), cmp.Compare(a.Resource, b.Resource))
	})
}
