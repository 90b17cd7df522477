package lifecycle

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/core/wellknown"
)

// TestAgainstPlainTwin drives a Monitor through random histories of nodes that die, return, move between zones and are
// tainted by others, of pods that come and go, and of leaders that change. Next to it runs a twin without heaps, sums
// and dirty lists: it evaluates everything, every time. Both must agree on which node's pods may be evicted and when,
// on which pods are evicted and when, and on the room.
func TestAgainstPlainTwin(t *testing.T) {
	seeds := uint64(30)
	if testing.Short() {
		seeds = 10
	}
	stops := 0
	for seed := range seeds {
		h := newHistory(t, seed)
		for range 2400 {
			if h.tick(); t.Failed() {
				t.Fatalf("seed %d, at %v", seed, h.now.Sub(h.began))
			}
		}
		if stops += h.stops; seed == 0 {
			t.Logf("seed 0: %d grants, %d evictions, %d stops", h.grants, h.evictions, h.stops)
		}
		if h.grants == 0 || h.evictions == 0 {
			t.Errorf("seed %d: %d grants, %d evictions: too few for a test", seed, h.grants, h.evictions)
		}
	}
	if stops == 0 {
		t.Error("no history had a stop")
	}
}

type history struct {
	t          *testing.T
	rng        *rand.Rand
	count      int // number of nodes that change
	m          *Monitor
	now, began unit.Instant
	nodes      map[string]*Node
	pods       map[PodID]Pod
	twin       twin

	grants, evictions, stops int
}

// twin is the plain version: only what must be remembered, and nothing computed from it.
type twin struct {
	zones             map[string]*twinZone
	down              map[string]unit.Instant
	granted           map[string]bool
	tainted           map[string]map[string]unit.Instant // by node and key (one key for both readiness taints): since when
	arrived           map[PodID]unit.Instant
	stopped           bool
	noEvictionsBefore unit.Instant
}

type twinZone struct {
	rate float32
	next unit.Instant
}

const historyTick = 500 * time.Millisecond

func newHistory(t *testing.T, seed uint64) *history {
	h := &history{
		t:     t,
		rng:   rand.New(rand.NewPCG(seed, 11)),
		now:   unit.Instant(time.Hour),
		nodes: map[string]*Node{},
		pods:  map[PodID]Pod{},
	}
	h.began = h.now
	o := Defaults()
	o.EvictionRate, o.SecondaryRate, o.LargeZone = 0.5, 0.1, 3+h.rng.IntN(8)
	// Every other history has few nodes, so that all may be down at once, and does not use ByRoom. The others always
	// do.
	h.count, o.ByRoom = 24, seed%2 == 0
	if !o.ByRoom {
		h.count = 5
	}
	// Silence is tested in TestHistories; here nodes report their state.
	o.Grace, o.StartupGrace = 1000*time.Hour, 1000*time.Hour
	h.m = New(h.now, o)
	h.twin = twin{zones: map[string]*twinZone{}, down: map[string]unit.Instant{}, granted: map[string]bool{},
		tainted: map[string]map[string]unit.Instant{}, arrived: map[PodID]unit.Instant{},
		noEvictionsBefore: h.now.Add(o.FirstSightGrace),
	}
	for i := range h.count + one(o.ByRoom) { // the last node is spare room: it never changes
		name := fmt.Sprintf("n%02d", i)
		h.nodes[name] = &Node{
			Name:        name,
			UID:         name,
			Status:      map[ConditionType]Status{Ready: True},
			Zone:        h.zone(),
			Allocatable: Load{CPU: 1 << 40, Memory: 1 << 40, Pods: 1 << 20},
		}
		h.see(name)
	}
	return h
}

func (h *history) zone() string { return fmt.Sprint("z", h.rng.IntN(3)) }

func (h *history) wall() unit.Wall { return unit.Wall(h.now) + unit.Wall(20*365*24*time.Hour) }

func (h *history) see(name string) {
	h.m.NodeSeen(h.now, h.wall(), *h.nodes[name])
	seen := map[string]unit.Instant{}
	for _, t := range h.nodes[name].Taints {
		if t.Effect != NoExecute {
			continue
		}
		key := t.Key
		if t.isReadiness() {
			key = "readiness"
		}
		seen[key] = cmp.Or(h.twin.tainted[name][key], h.now)
	}
	h.twin.tainted[name] = seen
	if _, down := readinessTaint(h.nodes[name].Status[Ready]); !down {
		delete(h.twin.down, name)
		delete(h.twin.granted, name)
	} else if _, known := h.twin.down[name]; !known && !h.nodes[name].hasReadiness() && !h.twin.granted[name] {
		h.twin.down[name] = h.now
	}
}

func (h *history) tick() {
	h.now = h.now.Add(historyTick)
	h.m.Contact(h.now, true)
	for range h.rng.IntN(3) {
		h.happen()
	}
	wantEmptied := h.decide()
	for {
		d := h.m.Advance(h.now)
		if len(d.Actions) == 0 {
			break
		}
		for _, a := range d.Actions {
			b := h.m.Basis(h.now, a)
			if why := b.Differs(a); why != "" {
				h.t.Fatalf("%+v: repeated: %s", a, why)
			}
		}
		for _, a := range d.Actions {
			if a.Pod == nil {
				h.writeNode(a)
			} else {
				h.writePod(a)
			}
		}
	}
	for name, n := range h.nodes {
		_, down := readinessTaint(n.Status[Ready])
		// Otherwise its taint is about to be removed.
		emptied := down && (h.m.nodes[name].granted || n.hasReadiness()) && !h.twin.stopped
		if emptied != wantEmptied[name] {
			h.t.Errorf("node %s in %s: pods may be evicted %v, by the twin %v", name, n.Zone, emptied, wantEmptied[name])
		}
	}
	for _, p := range h.pods {
		if at, leaves := h.due(p); p.Node != "" && leaves && at <= h.now {
			h.t.Errorf("pod %s is still there, %v after its time", p.ID, h.now.Sub(at))
		}
	}
	if h.m.o.ByRoom && h.rng.IntN(8) == 0 {
		h.checkSums()
	}
}

// happen changes something in the cluster.
func (h *history) happen() {
	name := fmt.Sprintf("n%02d", h.rng.IntN(h.count))
	n := h.nodes[name]
	n.Status = maps.Clone(n.Status)
	switch h.rng.IntN(14) {
	case 0, 1, 2:
		n.Status[Ready] = False
	case 3:
		n.Status[Ready] = Unknown
	case 4, 5, 6, 7:
		n.Status[Ready] = True
	case 8:
		n.Zone = h.zone()
	case 9:
		n.Excluded = !n.Excluded
	case 10:
		theirs := Taint{Key: "example.com/theirs", Effect: NoExecute}
		if _, has := n.taint(theirs); has {
			n.Taints = slices.DeleteFunc(slices.Clone(n.Taints), theirs.Same)
		} else {
			n.Taints = append(slices.Clone(n.Taints), theirs)
		}
	default:
		h.addPod(name)
		return
	}
	h.see(name)
}

func (h *history) addPod(node string) {
	p := Pod{
		ID:       PodID(fmt.Sprintf("p%05d", len(h.twin.arrived))),
		Node:     node,
		Requests: Load{unit.MilliCPU(h.rng.IntN(1000)), unit.Bytes(h.rng.IntN(1000)), 1},
	}
	p.Name = string(p.ID)
	for _, key := range []string{wellknown.TaintNotReady, wellknown.TaintUnreachable, "example.com/theirs", ""} {
		if h.rng.IntN(3) > 0 {
			p.Tolerations = append(p.Tolerations, Toleration{
				Key:     key,
				Exists:  true,
				Effect:  NoExecute,
				Bounded: h.rng.IntN(4) > 0,
				Seconds: h.rng.Int64N(90) - 3,
			})
		}
	}
	if h.rng.IntN(8) == 0 {
		p.Node = "" // it waits
	}
	h.pods[p.ID] = p
	h.twin.arrived[p.ID] = h.now
	h.m.PodSeen(h.now, p)
}

func (h *history) writeNode(a Action) {
	if h.rng.IntN(5) == 0 {
		h.m.Done(h.now, a, false)
		return
	}
	n := h.nodes[a.Node]
	n.Taints = slices.DeleteFunc(slices.Clone(n.Taints), func(t Taint) bool { return slices.ContainsFunc(a.Drop, t.Same) })
	n.Taints = append(n.Taints, a.Add...)
	if a.StartsEvictions() {
		h.grants++
	}
	h.see(a.Node)
	h.m.Done(h.now, a, true)
}

func (h *history) writePod(a Action) {
	if at, leaves := h.due(h.pods[a.Pod.ID]); a.Do != Evict || !leaves || at > h.now {
		h.t.Errorf("pod %s: verb %d, which the twin wants at %v (%v)", a.Pod.ID, a.Do, at.Sub(h.now), leaves)
	}
	delete(h.pods, a.Pod.ID)
	h.evictions++
	h.m.PodGone(h.now, a.Pod.ID)
}

// decide is the twin's Advance: it returns which nodes may have their NoExecute taint by now.
func (h *history) decide() (emptied map[string]bool) {
	t, o := &h.twin, h.m.o
	zones := map[string][]string{}
	for _, name := range slices.Sorted(maps.Keys(h.nodes)) {
		zones[h.nodes[name].Zone] = append(zones[h.nodes[name].Zone], name)
	}
	states, all, counted := map[string]State{}, true, 0
	sizes := map[string]int{}
	for z, names := range zones {
		size, down := 0, 0
		for _, name := range names {
			if !h.nodes[name].Excluded {
				size++
				down += one(h.nodes[name].Status[Ready] != True)
			}
		}
		states[z], sizes[z] = StateOf(size, down, o.UnhealthyZone), size
		all = all && (size == 0 || down == size)
		counted += size
	}
	if all = all && counted > 0; all != t.stopped {
		t.stopped = all
		h.stops += one(all)
		if !all {
			t.noEvictionsBefore = max(t.noEvictionsBefore, h.now.Add(o.FirstSightGrace))
		}
	}
	emptied = map[string]bool{}
	for _, z := range slices.Sorted(maps.Keys(t.zones)) {
		if zones[z] == nil {
			delete(t.zones, z)
		}
	}
	for _, z := range slices.Sorted(maps.Keys(zones)) {
		h.decideZone(z, zones[z], states[z], sizes[z], emptied)
	}
	return emptied
}

func (h *history) decideZone(key string, names []string, state State, size int, emptied map[string]bool) {
	t, o := &h.twin, h.m.o
	z := t.zones[key]
	if z == nil {
		z = &twinZone{rate: o.EvictionRate}
		t.zones[key] = z
	}
	rate := map[State]float32{Normal: o.EvictionRate, FullDisruption: o.EvictionRate,
		PartialDisruption: o.SecondaryRate}[state]
	if t.stopped || state == PartialDisruption && size <= o.LargeZone {
		rate = 0
	}
	if rate != z.rate {
		if z.rate == 0 || z.next > h.now {
			z.next = h.now.Add(interval(rate))
		}
		z.rate = rate
	}
	var waiting []string
	for _, name := range names {
		n := h.nodes[name]
		_, down := readinessTaint(n.Status[Ready])
		switch {
		case !down || t.stopped:
			delete(t.granted, name)
		case n.hasReadiness():
			delete(t.granted, name)
			emptied[name] = true
		case t.granted[name]:
			emptied[name] = true
		}
		switch {
		case !down || emptied[name] || n.hasReadiness():
			delete(t.down, name)
		default:
			if _, known := t.down[name]; !known {
				t.down[name] = h.now
			}
			waiting = append(waiting, name)
		}
	}
	slices.SortFunc(waiting, func(a, b string) int { return cmp.Or(cmp.Compare(t.down[a], t.down[b]), cmp.Compare(a, b)) })
	if len(waiting) > 0 && z.rate > 0 && z.next <= h.now && t.noEvictionsBefore <= h.now {
		t.granted[waiting[0]], emptied[waiting[0]] = true, true
		delete(t.down, waiting[0])
		z.next = h.now.Add(interval(z.rate))
	}
}

// due is when the twin evicts p because of its node's taints.
func (h *history) due(p Pod) (at unit.Instant, leaves bool) {
	var right Taint
	if n := h.nodes[p.Node]; n != nil {
		right, _ = readinessTaint(n.Status[Ready])
	}
	for _, t := range h.taintsOf(p.Node) {
		d, ends := ToleratedTime([]Taint{t}, p.Tolerations)
		if !ends || t.isReadiness() && (h.twin.stopped || !t.Same(right)) {
			continue
		}
		key, listen := t.Key, unit.Instant(0)
		if t.isReadiness() {
			key, listen = "readiness", h.twin.noEvictionsBefore
		}
		due := max(max(h.twin.tainted[p.Node][key], h.twin.arrived[p.ID]).Add(d), listen)
		if !leaves || due < at {
			at, leaves = due, true
		}
	}
	return at, leaves
}

func (h *history) taintsOf(node string) []Taint {
	if n := h.nodes[node]; n != nil {
		return n.Taints
	}
	return nil
}

// checkSums compares the sums of room.go with a fresh count.
func (h *history) checkSums() {
	var room, leaving, waiting Load
	for name, n := range h.nodes {
		var used, goes Load
		for _, p := range h.pods {
			if p.Node != name {
				continue
			}
			used = used.plus(p.Requests)
			if _, ends := ToleratedTime([]Taint{{Key: wellknown.TaintUnreachable, Effect: NoExecute}}, p.Tolerations); ends {
				goes = goes.plus(p.Requests)
			}
		}
		if n.Status[Ready] == True && !slices.ContainsFunc(n.Taints, func(x Taint) bool {
			return x.Key != "example.com/theirs"
		}) {
			room = room.plus(n.Allocatable.minus(used))
		}
		if h.m.nodes[name].granted || n.hasReadiness() {
			leaving = leaving.plus(goes)
		}
	}
	for id := range h.pods {
		if p := h.m.pods[id]; p.Node == "" && p.waits {
			waiting = waiting.plus(p.Requests)
		}
	}
	if h.m.room != room || h.m.capacity.leaving != leaving || h.m.waiting != waiting {
		h.t.Errorf("room %v, leaving %v, waiting %v; by the twin %v, %v, %v", h.m.room, h.m.capacity.leaving, h.m.waiting,
			room, leaving, waiting)
	}
}
