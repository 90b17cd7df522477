package lifecycle

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// TestLeadersNeitherForgetNorRepeat changes the leader at random moments, also while many nodes fail, and with writes
// in flight whose outcome is not known. The calendars of the leaders differ by seconds. Whichever process leads, the
// rate of a zone is never exceeded, no pod is evicted twice or too early, and every pod that must be evicted is evicted
// when the new leader's FirstSightGrace is over.
func TestLeadersNeitherForgetNorRepeat(t *testing.T) {
	for seed := range uint64(20) {
		h := newSuccession(seed)
		for range 4000 {
			h.tick(t)
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
		if h.evicted == 0 || h.leaders < 5 {
			t.Errorf("seed %d: %d evictions under %d leaders: too few for a test", seed, h.evicted, h.leaders)
		}
	}
}

// succession is what the API shows, and what the test remembers across leaders.
type succession struct {
	rng      *rand.Rand
	now      unit.Instant
	m        *Monitor
	since    unit.Instant  // when the leader began
	offset   time.Duration // of the leader's calendar
	nodes    map[string]*Node
	pods     map[PodID]Pod
	died     map[string]unit.Instant // zero: it is alive
	tainted  map[string]unit.Instant // when it was tainted, by the test's clock
	lastGive map[string]unit.Instant // per zone
	renewed  map[string]unit.Wall

	evicted, leaders int
}

const (
	successionTick = 500 * time.Millisecond
	skewMax        = 3 * time.Second // between the calendars of two leaders
)

func newSuccession(seed uint64) *succession {
	h := &succession{
		rng: rand.New(rand.NewPCG(seed, 13)), now: unit.Instant(time.Hour), nodes: map[string]*Node{}, pods: map[PodID]Pod{},
		died:     map[string]unit.Instant{},
		tainted:  map[string]unit.Instant{},
		lastGive: map[string]unit.Instant{},
		renewed:  map[string]unit.Wall{},
	}
	for i := range 40 {
		name := fmt.Sprintf("n%02d", i)
		h.nodes[name] = &Node{Name: name, UID: name, Zone: fmt.Sprint("z", i%2),
			Status:      map[ConditionType]Status{Ready: True},
			Allocatable: Load{CPU: 1 << 30, Memory: 1 << 30, Pods: 1 << 20}}
		for j := range 2 {
			p := Pod{
				ID:       PodID(fmt.Sprintf("%s-%d", name, j)),
				Node:     name,
				Bound:    h.wall() - unit.Wall(time.Hour),
				Requests: Load{Pods: 1},
			}
			p.Tolerations = []Toleration{{Exists: true, Effect: NoExecute, Bounded: true, Seconds: 20 + int64(h.rng.IntN(60))}}
			h.pods[p.ID] = p
		}
	}
	h.lead()
	return h
}

func (h *succession) wall() unit.Wall {
	return unit.Wall(30*365*24*time.Hour) + unit.Wall(h.now) + unit.Wall(h.offset)
}

// lead begins with a Monitor that knows only what is written.
func (h *succession) lead() {
	h.offset = time.Duration(h.rng.Int64N(int64(2*skewMax))) - skewMax
	h.m, h.since = New(h.now, Defaults()), h.now
	h.leaders++
	for _, name := range slices.Sorted(maps.Keys(h.nodes)) {
		h.m.NodeSeen(h.now, h.wall(), *h.nodes[name])
		if r := h.renewed[name]; r != 0 {
			h.m.LeaseSeen(h.now, h.wall(), name, r)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(h.pods)) {
		h.m.PodSeen(h.now, h.pods[id])
	}
}

func (h *succession) tick(t *testing.T) {
	h.now = h.now.Add(successionTick)
	h.m.Contact(h.now, true)
	for i := range 40 {
		h.live(fmt.Sprintf("n%02d", i), i)
	}
	if h.rng.IntN(250) == 0 {
		h.lead()
	}
	for range 3 {
		for _, a := range h.m.Advance(h.now).Actions {
			switch fate := h.rng.IntN(20); {
			case fate == 0: // the write failed
				h.m.Done(h.now, a, false)
			case fate == 1: // the write succeeded, but the leader dies before it gets the answer
				h.write(t, a)
				h.lead()
				return
			default:
				h.write(t, a)
				h.m.Done(h.now, a, true)
			}
		}
	}
	h.checkLate(t)
}

// live makes a node renew its lease, die or return. It never makes so many die that a zone is unhealthy.
func (h *succession) live(name string, i int) {
	n := h.nodes[name]
	switch {
	case h.died[name] == 0 && h.rng.IntN(6000) == 0 && len(h.died) < 8:
		h.died[name] = h.now
	case h.died[name] != 0 && h.rng.IntN(800) == 0:
		delete(h.died, name)
		n.Status = map[ConditionType]Status{Ready: True}
		n.Heartbeat = unit.Wall(h.now)
		h.m.NodeSeen(h.now, h.wall(), *n)
		for j := range 2 { // evicted pods end now; they are not replaced
			if p, ok := h.pods[PodID(fmt.Sprintf("%s-%d", name, j))]; ok && p.Terminating {
				delete(h.pods, p.ID)
				h.m.PodGone(h.now, p.ID)
			}
		}
	}
	if h.died[name] == 0 && (int(h.now.Sub(0)/successionTick)+i)%20 == 0 {
		h.renewed[name] = unit.Wall(h.now)
		h.m.LeaseSeen(h.now, h.wall(), name, h.renewed[name])
	}
}

func (h *succession) write(t *testing.T, a Action) {
	if a.Pod != nil {
		h.writePod(t, a)
		return
	}
	n := h.nodes[a.Node]
	if a.StartsEvictions() {
		if last := h.lastGive[n.Zone]; last != 0 && h.now.Sub(last) < 10*time.Second-skewMax*2 {
			t.Errorf("%s is tainted NoExecute %v after another node of its zone", a.Node, h.now.Sub(last))
		}
		h.lastGive[n.Zone], h.tainted[a.Node] = h.now, h.now
	}
	if len(a.Unknown) > 0 {
		n.Status = map[ConditionType]Status{Ready: Unknown}
		if h.died[a.Node] == 0 {
			t.Errorf("%s is alive, but is marked silent", a.Node)
		}
	}
	n.Taints = slices.DeleteFunc(slices.Clone(n.Taints), func(x Taint) bool { return slices.ContainsFunc(a.Drop, x.Same) })
	for _, x := range a.Add {
		if x.Added == 0 {
			x.Added = h.wall()
		}
		n.Taints = append(n.Taints, x)
	}
	if !n.hasReadiness() {
		delete(h.tainted, a.Node)
	}
	h.m.NodeSeen(h.now, h.wall(), *n)
}

func (h *succession) writePod(t *testing.T, a Action) {
	p := h.pods[a.Pod.ID]
	if a.Do == MarkNotReady {
		return
	}
	due, ok := h.due(p)
	switch {
	case p.Terminating:
		t.Errorf("%s is evicted twice", p.ID)
	case !ok || h.now < due.Add(-2*skewMax):
		t.Errorf("%s is evicted %v before its time", p.ID, due.Sub(h.now))
	}
	p.Terminating = true
	h.pods[p.ID] = p
	h.evicted++
	h.m.PodSeen(h.now, p)
}

// due is when p should be evicted, by one clock that is never set and does not change with the leader.
func (h *succession) due(p Pod) (unit.Instant, bool) {
	at, tainted := h.tainted[p.Node]
	return at.Add(time.Duration(p.Tolerations[0].Seconds) * time.Second), tainted
}

// checkLate checks that no pod stays long after its time. It allows for FirstSightGrace, for clock differences, and for
// some failed writes.
func (h *succession) checkLate(t *testing.T) {
	const slack = 15*time.Second + 2*skewMax + 10*time.Second
	for _, p := range h.pods {
		if due, ok := h.due(p); ok && !p.Terminating && h.died[p.Node] != 0 && h.now > max(due, h.since).Add(slack) {
			t.Errorf("%s is still there %v after its time", p.ID, h.now.Sub(due))
		}
	}
}
