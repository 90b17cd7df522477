package scheduler

import (
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/census"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/rows"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/selector"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/volumes"
)

// state is all that rules may look at besides the demand that they judge: nodes as rows, what pods take from each, who
// is where, and what was found out about rows for demands of all kinds. Who waits, who is to be evicted, what was
// assumed and when, is not their business; cluster has that.
type state struct {
	nodes
	*census.Census

	intern  *selector.Interner
	hostKey int32 // the label kubernetes.io/hostname
	images  map[string]*image
	storage *volumes.Store
	columns columns // what rows have of each resource, and what pods take

	pictures    rows.Column[[]*image] // images it has, by name
	podsHeld    rows.Column[int64]
	ports       rows.Column[map[HostPort]int] // held ports with their number of holders; nil: none
	scoreCPU    rows.Column[int64]            // what LeastAllocated counts as taken
	scoreMemory rows.Column[int64]
	held        rows.Column[[]*held]      // the pods counted on it
	nominated   rows.Column[[]*nominated] // the pods for which room is being made on it
	beliefs     rows.Column[*belief]      // of what its NUMA nodes have; nil: no report
	alikes      map[alikeKey]*alike

	evicting, beside trial // that go on, if they are on

	// Found out about rows, and corrected where they change.
	marks  marks
	atoms  atoms
	tiling tiling
	spaces map[string]*space // by storage class

	// Working space, of no meaning between calls.
	survey  survey
	scratch []byte
	stamps  []uint64
	stamp   uint64
}

func newState(seed uint64) state {
	s := state{
		nodes:   nodes{seed: seed, rows: map[string]row{}, keys: map[int32]int{}},
		intern:  selector.NewInterner(),
		images:  map[string]*image{},
		columns: newColumns(),
		alikes:  map[alikeKey]*alike{},
		atoms:   atoms{byKey: map[string]*atom{}},
		spaces:  map[string]*space{},
	}
	s.hostKey = s.intern.ID("kubernetes.io/hostname")
	return s
}

// countOnRow counts what one pod of class k takes from row r.
func (c *state) countOnRow(r row, k *class, sign int64) {
	c.podsHeld[r] += sign
	for _, q := range k.requests {
		c.columns.take(q.column, r, sign*q.value)
	}
	c.scoreCPU[r] += sign * int64(k.held.CPU)
	c.scoreMemory[r] += sign * int64(k.held.Memory)
	c.storage.Mount(r, &k.wants, int32(sign))
	for _, port := range k.ports {
		if c.ports[r] == nil {
			c.ports[r] = map[HostPort]int{}
		}
		if c.ports[r][port] += int(sign); c.ports[r][port] == 0 {
			delete(c.ports[r], port)
		}
	}
}
