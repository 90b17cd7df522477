package scheduler

import (
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/census"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/rows"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/selector"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/volumes"
	"github.com/plimsoll-dev/plimsoll/internal/core/wellknown"
)

// state is everything that rules may read besides the demand: facts about nodes, what pods take from each node, the
// counters of pods, and what was computed about rows for all demands. Everything else, such as waiting pods, victims
// and assumed pods, is in cluster.
type state struct {
	nodes
	*census.Census

	intern  *selector.Interner
	hostKey int32 // the label kubernetes.io/hostname
	images  map[string]*image
	storage *volumes.Store
	columns columns // what rows have of each resource, and what pods take

	nodeImages rows.Column[[]*image] // the images of the node, by name
	// podCount is how many pods are on the row.
	podCount     rows.Column[int64]
	ports        rows.Column[PortsTaken]    // host ports in use, with the number of pods that use each; nil: none
	scoreCPU     rows.Column[int64]         // millicores that the pods count in scores; see Pod.PlacedLoad
	scoreMemory  rows.Column[int64]         // bytes that the pods count in scores
	podsOn       rows.Column[[]*placedPod]  // the pods on the row
	nominated    rows.Column[[]*nominated]  // the pods nominated on the row
	expected     rows.Column[*expectedNUMA] // the state of the NUMA nodes; nil: no report
	numaVerdicts map[numaStateKey]*numaVerdicts

	evicting, nominating trial // of evictions, and of nominated pods; in progress while trial.on is true

	// Computed from rows, and updated when they change.
	marks      marks
	predicates predicates
	tiling     tiling
	spaces     map[string]*space // by storage class

	// Working space: what it has between calls is not used.
	masks   maskSpace
	scratch []byte
	stamps  []uint64
	stamp   uint64
}

func newState(seed uint64) state {
	s := state{
		nodes:        nodes{seed: seed, rows: map[string]row{}, keys: map[int32]int{}},
		intern:       selector.NewInterner(),
		images:       map[string]*image{},
		columns:      newColumns(),
		numaVerdicts: map[numaStateKey]*numaVerdicts{},
		predicates:   predicates{byKey: map[string]*predicate{}},
		spaces:       map[string]*space{},
	}
	s.hostKey = s.intern.ID(wellknown.LabelHostname)
	return s
}

// countOnRow adds (sign 1) or subtracts (sign -1) what one pod of class k takes from row r.
func (c *state) countOnRow(r row, k *class, sign int64) {
	c.podCount[r] += sign
	for _, q := range k.requests {
		c.columns.take(q.column, r, sign*q.value)
	}
	c.scoreCPU[r] += sign * int64(k.placedLoad.CPU)
	c.scoreMemory[r] += sign * int64(k.placedLoad.Memory)
	c.storage.Mount(r, &k.mounts, int32(sign))
	for _, port := range k.ports {
		if c.ports[r] == nil {
			c.ports[r] = PortsTaken{}
		}
		c.ports[r].Count(port, int(sign))
	}
}
