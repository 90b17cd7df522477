package handover

import (
	"maps"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/kube/kubeletstate"
)

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// union returns all nodes of both lists, sorted.
func union(a, b []machine.NUMAID) []machine.NUMAID {
	all := slices.Concat(a, b)
	slices.Sort(all)
	return slices.Compact(all)
}

// idsOf returns the devices of all NUMA nodes, sorted.
func idsOf(g kubeletstate.Given) []string {
	var ids []string
	for _, of := range g.IDs {
		ids = append(ids, of...)
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}
