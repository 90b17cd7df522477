package lab

import (
	"maps"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Names are those of the ready-made machines, in order.
func Names() []string { return slices.Sorted(maps.Keys(boards)) }

var boards = map[string]board{
	"tiny": {sockets: 1, dies: 1, cores: 2, threads: 1, node: []int{0, 0}, nodes: []boardNode{{memory: unit.GiB}}, nodeFS: boardFS{4 * unit.GiB, 1 << 18}},
	"two-socket": {sockets: 2, dies: 1, cores: 2, threads: 2, node: []int{0, 0, 0, 0, 1, 1, 1, 1},
		nodes:  []boardNode{{memory: unit.GiB, distances: []int{10, 21}}, {memory: unit.GiB, distances: []int{21, 10}}},
		nodeFS: boardFS{4 * unit.GiB, 1 << 18}},
}
