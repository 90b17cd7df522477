package sim

import (
	"cmp"
	"fmt"
	"hash"
	"hash/fnv"
	"slices"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/fault"
	"github.com/plimsoll-dev/plimsoll/internal/core/heap"
	"github.com/plimsoll-dev/plimsoll/internal/core/lifecycle"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

const (
	// latency is the duration of a request without load. Chosen: what an API server and etcd on one machine take.
	latency = 5 * time.Millisecond
	// contactEvery is the interval of the controller's probes of the API server, as in internal/lifecycle.
	contactEvery = 5 * time.Second
)

// world is the state of the simulation of one policy.
type world struct {
	o      *Options
	policy Policy
	now    unit.Instant
	end    unit.Instant // when the run ends

	events heap.Heap[*event] // requests and other events to come
	wakes  heap.Heap[*node]  // nodes by their next step
	seq    uint64            // number of the next event
	script []Event           // events that are still to come
	// horizon is when something may next happen to every node: no node coasts beyond it.
	horizon unit.Instant
	apiDown bool

	nodes  []*node
	due    []*node // nodes to which something happened at this moment
	byName map[string]*node
	pods   podSet
	control

	trace   hash.Hash64 // hash of everything observable
	notes   []string    // lines of notedAt that are not in the trace yet
	notedAt unit.Instant
	tally
}

// event is something that happens at a moment.
type event struct {
	at    unit.Instant
	order uint64 // among the events of the same moment
	do    func()
	place int
}

func newWorld(o *Options, p Policy) *world {
	w := &world{o: o, policy: p, now: start, end: start.Add(o.For), script: o.Script, byName: make(map[string]*node,
		o.Nodes), trace: fnv.New64a(),
		events: heap.New(func(a, b *event) int { return inTurn(a.at, a.order, b.at, b.order) },
			func(e *event) *int { return &e.place }),
		wakes: heap.New(func(a, b *node) int { return inTurn(a.wake, a.order, b.wake, b.order) },
			func(n *node) *int { return &n.place }),
	}
	w.setHorizon()
	for i := range o.Nodes {
		n := newNode(w, i)
		w.nodes = append(w.nodes, n)
		w.byName[n.name] = n
		n.wake = w.now
		w.wakes.Set(n)
	}
	w.pods.init(w)
	w.startController()
	return w
}

// inTurn compares moments, and for the same moment the shuffled order. It reads the order only if necessary: no other
// function is called as often.
func inTurn(a unit.Instant, orderA uint64, b unit.Instant, orderB uint64) int {
	if a != b {
		if a < b {
			return -1
		}
		return 1
	}
	return cmp.Compare(orderA, orderB)
}

func nodeName(i int) string { return fmt.Sprintf("node-%05d", i) }
func zoneName(i int) string { return fmt.Sprintf("zone-%d", i) }

// wall returns the wall clock of all processes.
func (w *world) wall(at unit.Instant) unit.Wall { return epoch + unit.Wall(at.Sub(start)) }

// after runs do after d. Events of one moment run in an order that Options.Shuffle determines.
func (w *world) after(d time.Duration, do func()) { w.at(w.now.Add(d), do) }

func (w *world) at(at unit.Instant, do func()) {
	w.seq++
	w.events.Set(&event{at: at, order: fault.Chance(w.o.Shuffle+w.seq, ""), do: do})
}

func (w *world) setHorizon() {
	w.horizon = w.end
	if len(w.script) > 0 {
		w.horizon = min(w.end, start.Add(w.script[0].At))
	}
}

// play simulates to the end. At one moment the script comes first, then events, then nodes, then the controller.
func (w *world) play() {
	for {
		w.followScript()
		for w.events.Len() > 0 && w.events.First().at <= w.now {
			e := w.events.First()
			w.events.Remove(e)
			e.do()
		}
		w.stepNodes()
		wake := w.control.step(w)
		next := w.end
		if w.events.Len() > 0 {
			next = min(next, w.events.First().at)
		}
		if w.wakes.Len() > 0 {
			next = min(next, w.wakes.First().wake)
		}
		if len(w.script) > 0 {
			next = min(next, start.Add(w.script[0].At))
		}
		if !wake.IsZero() {
			next = min(next, wake)
		}
		if next >= w.end {
			return
		}
		w.now = max(w.now, next)
	}
}

// stepNodes steps the nodes to which something happened at this moment, and those that are due.
func (w *world) stepNodes() {
	for len(w.due) > 0 {
		due := w.due
		w.due = nil
		slices.SortFunc(due, func(a, b *node) int { return cmp.Compare(a.order, b.order) })
		for _, n := range due {
			n.step()
		}
	}
	for w.wakes.Len() > 0 && w.wakes.First().wake <= w.now {
		w.wakes.First().step()
	}
}

// followScript executes the events of the script that are due. Then all nodes coast to its next moment.
func (w *world) followScript() {
	if len(w.script) == 0 || start.Add(w.script[0].At) > w.now {
		return
	}
	for len(w.script) > 0 && start.Add(w.script[0].At) <= w.now {
		e := w.script[0]
		w.script = w.script[1:]
		w.note("script", e.String())
		switch e.What {
		case apiDown:
			w.apiDown = true
		case apiUp:
			w.apiDown = false
		case controllerRestart:
			w.startController()
		default:
			w.order(e.Order)
		}
	}
	w.setHorizon()
	w.coastAll()
}

func (w *world) order(o fault.Order) {
	all := make([]fault.Candidate, len(w.nodes))
	for i, n := range w.nodes {
		all[i] = fault.Candidate{Name: n.name, Zone: n.zone, Faulty: n.fault.Kind(w.now) != ""}
	}
	picked, err := o.Pick(w.o.Seed, all)
	if err != nil {
		return // checked before the start
	}
	for _, i := range picked {
		n := w.nodes[i]
		n.fault = o.Begin(w.now, fault.Chance(w.o.Seed, n.name))
		n.changes = w.now
		n.schedule()
	}
}

// note adds a line to the trace. Lines of one moment are sorted by their text, since the order in which they happened
// is arbitrary.
func (w *world) note(what, about string) {
	if w.now != w.notedAt {
		w.flushNotes()
		w.notedAt = w.now
	}
	w.notes = append(w.notes, what+" "+about)
}

func (w *world) flushNotes() {
	slices.Sort(w.notes)
	for _, line := range w.notes {
		fmt.Fprintf(w.trace, "%d %s\n", w.notedAt-start, line)
	}
	w.notes = w.notes[:0]
}

// healthOptions returns the policy's options with the seed of the run: retries must not depend on the policy's name.
func (w *world) healthOptions() lifecycle.Options {
	h := w.policy.Health
	h.Seed = w.o.Seed
	return h
}
