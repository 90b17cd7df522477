package admission

import (
	"cmp"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/qos"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Resize is what a pod that runs here asks for in the place of what it has.
type Resize struct {
	Want  scheduler.Pod // by what its specification asks for now
	Has   scheduler.Pod // by what it is allocated and really has, whichever is larger
	Class qos.Class
	Since unit.Wall // when it began to wait; zero: it is new
	Never string    // why this node can never grant it (see func Never); empty: it may
}

// Verdict is the answer to a Resize.
type Verdict struct {
	Granted bool
	Reason  string // if not granted: Deferred or Infeasible
	Message string
}

// The reasons why a resize is pending, spelled as the API spells them.
const (
	Deferred   = "Deferred"   // there is no room now
	Infeasible = "Infeasible" // and there never will be, on this node
)

// Resizes gives every pending resize its verdict, in the order of pending, for a node that holds the pods in held, those that
// ask among them. What is granted to one counts for the next. The turn is upstream's: first those that ask for no more
// of anything, then by priority, Guaranteed before others, who waits longest, and name. Whatever fits when its turn comes
// is granted, so a large resize that waits does not hold up small ones. A grant may make room for another (what was granted
// before it and not used yet), so a shell asks again until nothing is granted.
//
// Only what grows is held against the room there is. Where allocatable fell below what the pods hold, upstream defers even
// a resize that gives something back; nor do labels and taints, which a pod that runs is past, defer anything here.
func Resizes(pending []Resize, held []scheduler.Pod, node scheduler.Node) []Verdict {
	turns := make([]int, len(pending))
	for i := range turns {
		turns[i] = i
	}
	slices.SortFunc(turns, func(a, b int) int { return turn(pending[a], pending[b]) })
	used, capacity := usedBy(held), capacityOf(node)
	verdicts := make([]Verdict, len(pending))
	for _, i := range turns {
		v := judgeResize(pending[i], used, capacity)
		if v.Granted {
			for resource, more := range growth(pending[i]) {
				used[resource] += more
			}
		}
		verdicts[i] = v
	}
	return verdicts
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
		cmp.Compare(a.Want.Namespace, b.Want.Namespace), cmp.Compare(a.Want.Name, b.Want.Name), cmp.Compare(a.Want.ID, b.Want.ID),
	)
}

// growth is how much more of each resource a resize asks for than the pod holds. What becomes less is not in it: the pod
// holds it until it has given it back.
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

func judgeResize(r Resize, used, capacity map[string]int64) Verdict {
	if r.Never != "" {
		return Verdict{Reason: Infeasible, Message: r.Never}
	}
	more := growth(r)
	for _, a := range inOrder(r.Want.Requests) {
		if more[a.Resource] == 0 || used[a.Resource]+more[a.Resource] <= capacity[a.Resource] {
			continue
		}
		// Upstream counts what others use, and requested is the whole of what this pod asks for.
		others := used[a.Resource] + more[a.Resource] - a.Value
		return Verdict{Reason: Deferred, Message: outOf(a.Resource, a.Value, others, capacity[a.Resource]).Message}
	}
	return Verdict{Granted: true}
}

// Change is what a resize changes, and what of the node stands against it.
type Change struct {
	Class        qos.Class
	CPU, Memory  bool // some container's request of it changes
	StaticCPUs   bool // cpuManagerPolicy is static
	StaticMemory bool // memoryManagerPolicy is Static
	Swap         bool // a container that may swap changes its memory request without a restart
}

// Never says why this node can never grant a change, in upstream's words; empty: it can, given room.
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
