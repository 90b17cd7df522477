package admission

import (
	"cmp"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/qos"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Resize is a pod that runs here and asks for other resources than it has.
type Resize struct {
	Want  scheduler.Pod // by what its specification asks for now
	Has   scheduler.Pod // by what it is allocated and really has, whichever is larger
	Class qos.Class
	Since unit.Wall // when it began to wait; zero: it is new
	Never string    // why this node can never allocate it (see func Never); empty: it may
}

// Verdict is the answer to a Resize.
type Verdict struct {
	Allocated bool   // it has what it asks for now
	Reason    string // if not: Deferred or Infeasible
	Message   string
}

// The reasons why a resize is pending, spelled as the API spells them.
const (
	Deferred   = "Deferred"   // there is no room now
	Infeasible = "Infeasible" // and there never will be, on this node
)

// turns lists pending, by index, in the order in which they get their verdicts.
func turns(pending []Resize) []int {
	list := make([]int, len(pending))
	for i := range list {
		list[i] = i
	}
	slices.SortFunc(list, func(a, b int) int { return turn(pending[a], pending[b]) })
	return list
}

func turn(a, b Resize) int {
	yes := func(b bool) int {
		if b {
			return 0
		}
		return 1
	}
	waits := func(r Resize) unit.Wall { // the new come last
		if r.Since == 0 {
			return unit.Wall(1<<63 - 1)
		}
		return r.Since
	}
	return cmp.Or(
		yes(len(growth(a)) == 0)-yes(len(growth(b)) == 0),
		cmp.Compare(b.Want.Priority, a.Want.Priority),
		yes(a.Class == qos.Guaranteed)-yes(b.Class == qos.Guaranteed),
		cmp.Compare(waits(a), waits(b)),
		cmp.Compare(a.Want.Namespace, b.Want.Namespace), cmp.Compare(a.Want.Name, b.Want.Name),
		cmp.Compare(a.Want.ID, b.Want.ID),
	)
}

// growth is how much more of each resource a resize asks for than the pod has. What becomes less is not in it: the pod
// has it until it has released it.
func growth(r Resize) map[string]int64 {
	has := map[string]int64{}
	for _, a := range r.Has.Requests {
		has[a.Resource] = a.Value
	}
	more := map[string]int64{}
	for _, a := range r.Want.Requests {
		if a.Value > has[a.Resource] {
			more[a.Resource] = a.Value - has[a.Resource]
		}
	}
	return more
}

func judgeResize(r Resize, requested, allocatable map[string]int64) Verdict {
	if r.Never != "" {
		return Verdict{Reason: Infeasible, Message: r.Never}
	}
	more := growth(r)
	for _, a := range inOrder(r.Want.Requests) {
		if scheduler.Fits(more[a.Resource], requested[a.Resource], allocatable[a.Resource]) {
			continue
		}
		lacks := shortage{
			resource:  a.Resource,
			requested: a.Value,
			// Upstream counts what others use, and requested is the whole of what this pod asks for.
			used:     requested[a.Resource] + more[a.Resource] - a.Value,
			capacity: allocatable[a.Resource],
		}
		return Verdict{Reason: Deferred, Message: outOf(lacks).Message}
	}
	return Verdict{Allocated: true}
}

// Change is what a resize changes, and what of the node stands against it.
type Change struct {
	Class        qos.Class
	CPU, Memory  bool // some container's request of it changes
	StaticCPUs   bool // cpuManagerPolicy is static
	StaticMemory bool // memoryManagerPolicy is Static
	Swap         bool // a container that may swap changes its memory request without a restart
}

// Never says why this node can never allocate a change, in upstream's words; empty: it can, given room.
func Never(c Change) string {
	switch {
	case c.Swap:
		return "In-place resize of containers with swap is not supported."
	case c.Class == qos.Guaranteed && c.StaticCPUs && c.CPU:
		return `Resize is infeasible for Guaranteed Pods alongside CPU Manager policy "static"`
	case c.Class == qos.Guaranteed && c.StaticMemory && c.Memory:
		return `Resize is infeasible for Guaranteed Pods alongside Memory Manager policy "Static"`
	}
	return ""
}
