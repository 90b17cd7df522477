package numa

import (
	"math/bits"
	"math/rand/v2"
	"testing"

	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
)

// plainBest is the twin of merger.best: every set of every family written out, and all intersections folded set by set.
func plainBest(m *merger, wants []*want, impossible bool) hint {
	if len(wants) == 0 {
		return hint{full(m.nodes), !impossible}
	}
	results := make([]bool, 1<<m.nodes) // by set: some combination has it
	results[1<<m.nodes-1] = true
	aim, all := 0, !impossible
	preferred := make([]int, 1<<m.nodes) // by set: how many wants prefer it
	for _, w := range wants {
		var members []int
		smallest := m.nodes + 1
		for x := 1; x < 1<<m.nodes; x++ {
			nodes := set{uint64(x)}
			for _, f := range w.families {
				if f.admits(nodes) {
					members = append(members, x)
					smallest = min(smallest, bits.OnesCount(uint(x)))
					if nodes.count() == w.width || w.sockets > 0 && m.socketsOf(nodes) == w.sockets {
						preferred[x]++
					}
					break
				}
			}
		}
		aim = max(aim, smallest)
		for range w.copies {
			next := make([]bool, 1<<m.nodes)
			for x := range results {
				if results[x] {
					for _, y := range members {
						next[x&y] = true
					}
				}
			}
			results = next
		}
	}
	var best set
	for x := 1; x < 1<<m.nodes; x++ {
		if nodes := (set{uint64(x)}); all && preferred[x] == len(wants) && (best == nil || m.less(nodes, best)) {
			best = nodes
		}
	}
	if best != nil {
		return hint{best, true}
	}
	for x := 1; x < 1<<m.nodes; x++ {
		if nodes := (set{uint64(x)}); results[x] && (best == nil || m.betterCompromise(nodes, best, aim)) {
			best = nodes
		}
	}
	if best == nil {
		best = full(m.nodes)
	}
	return hint{best, false}
}

// TestMergeAgainstPlainTwin goes where upstream is too slow to judge: up to 8 nodes, up to 7 wants, memory of several kinds
// with groups, devices near several nodes.
func TestMergeAgainstPlainTwin(t *testing.T) {
	const seed, rounds = 6, 4000
	rng := rand.New(rand.NewPCG(seed, 0))
	fewest, preferred := searchSteps, 0
	for round := range rounds {
		m := merger{nodes: 1 + rng.IntN(8)}
		if round%40 == 0 {
			m.nodes = mixtureAbove + 1 + rng.IntN(2)
		}
		if rng.IntN(3) == 0 {
			m.distance = randomDistances(rng, m.nodes)
		}
		perSocket := 1 + rng.IntN(3)
		m.socketsOf = func(nodes set) int {
			sockets := map[int]bool{}
			for i := range nodes.all {
				sockets[i/perSocket] = true
			}
			return len(sockets)
		}
		wants, impossible := randomWants(rng, &m, perSocket)
		got, want := m.best(wants, impossible), plainBest(&m, wants, impossible)
		if !got.nodes.equal(want.nodes) || got.preferred != want.preferred {
			t.Fatalf("seed %d round %d: %d nodes, got %v %v, want %v %v", seed, round, m.nodes, got.nodes.members(), got.preferred, want.nodes.members(), want.preferred)
		}
		if m.nodes <= mixtureAbove {
			fewest = min(fewest, m.steps)
		}
		if got.preferred {
			preferred++
		}
	}
	if preferred < rounds/10 || preferred > rounds*9/10 {
		t.Errorf("%d of %d hints were preferred: too one-sided to judge", preferred, rounds)
	}
	if used := searchSteps - fewest; used > searchSteps/10 {
		t.Errorf("a search took %d steps of %d: too near to the bound for a small machine", used, searchSteps)
	}
}

// TestLargeMachines makes sure that with unequal amounts on up to 64 nodes no search for a hint runs out of steps; with
// distances, only one for a compromise may.
func TestLargeMachines(t *testing.T) {
	const seed, rounds = 8, 400
	rng := rand.New(rand.NewPCG(seed, 0))
	cut := 0
	for round := range rounds {
		m := merger{nodes: []int{16, 32, 64}[rng.IntN(3)]}
		if rng.IntN(2) == 0 {
			m.distance = randomDistances(rng, m.nodes)
		}
		var wants []*want
		for range 2 + rng.IntN(3) {
			s, sum := Supply{}, int64(0)
			for range m.nodes {
				free := rng.Int64N(65)
				s.Total, s.Free = append(s.Total, 64), append(s.Free, free)
				sum += free
			}
			s.Need = 1 + rng.Int64N([]int64{64, 300, sum}[rng.IntN(3)])
			wants = append(wants, s.want(m.nodes))
		}
		h := m.best(wants, false)
		if m.steps >= 0 {
			continue
		}
		if cut++; h.preferred || m.distance == nil {
			t.Errorf("seed %d round %d: %d nodes: out of steps, preferred %v, distances %v", seed, round, m.nodes, h.preferred, m.distance != nil)
		}
	}
	t.Logf("%d of %d searches ran out of steps", cut, rounds)
}

func randomDistances(rng *rand.Rand, nodes int) [][]int {
	d := make([][]int, nodes)
	for i := range d {
		d[i] = make([]int, nodes)
		for j := range d {
			if d[i][j] = 11 + 5*rng.IntN(4); i == j {
				d[i][j] = 10
			}
		}
	}
	return d
}

func randomWants(rng *rand.Rand, m *merger, perSocket int) (wants []*want, impossible bool) {
	for range rng.IntN(5) {
		f := randomFamily(rng, m.nodes)
		if f.isEmpty() {
			impossible = true
			continue
		}
		steps := searchSteps
		w := &want{families: []*family{f}, copies: 1, width: f.narrowest(m.nodes, m.nodes, &steps).count()}
		if rng.IntN(2) == 0 { // an empty machine might do with fewer, never needs more
			w.width = 1 + rng.IntN(w.width)
		}
		if rng.IntN(8) == 0 && (len(wants) == 0 || wants[0].sockets == 0) {
			w.sockets = (w.width + perSocket - 1) / perSocket
		}
		wants = append(wants, w)
	}
	if rng.IntN(2) == 0 {
		if w := randomMemory(rng, m.nodes); w != nil {
			wants = append(wants, w)
		}
	}
	return wants, impossible
}

// randomFamily draws amounts by node, sometimes few nodes, nodes that have to be there, and devices near several nodes.
func randomFamily(rng *rand.Rand, nodes int) *family {
	f := &family{within: full(nodes), must: newSet(nodes)}
	weight, total := make([]int64, nodes), int64(0)
	for i := range weight {
		weight[i] = rng.Int64N(6)
		total += weight[i]
		if rng.IntN(8) == 0 {
			f.within.remove(i)
		}
	}
	f.loads = []load{{weight, rng.Int64N(total + 1)}}
	if rng.IntN(6) == 0 {
		f.must.add(rng.IntN(nodes))
	}
	if rng.IntN(3) == 0 {
		f.must = newSet(nodes)
		clear(weight)
		for range 1 + rng.IntN(6) {
			d := setOf(nodes, rng.IntN(nodes), rng.IntN(nodes))
			f.near = append(f.near, near{d, 1})
			for i := range d.all {
				weight[i]++
			}
		}
		f.need = int64(rng.IntN(len(f.near) + 1))
		f.loads[0].need = f.need
		if rng.IntN(3) == 0 {
			f.hit = []set{f.near[0].nodes}
		}
	}
	return f
}

func randomMemory(rng *rand.Rand, nodes int) *want {
	l := &Layout{nodeID: nil, kinds: nil}
	for i := range nodes {
		l.nodeID = append(l.nodeID, numaID(i))
	}
	l.kinds = append(l.kinds, 0, 2<<20)
	for range len(l.kinds) * nodes {
		l.allocatable = append(l.allocatable, 4+rng.Int64N(8))
	}
	mem := l.noMemoryUsed()
	for range rng.IntN(4) {
		nodes := setOf(nodes, rng.IntN(nodes), rng.IntN(nodes), rng.IntN(nodes))
		if !mem.mixes(nodes) {
			mem.change(l, nodes, rng.IntN(2), 1, rng.Int64N(6))
		}
	}
	asked := []amount{{0, rng.Int64N(20)}}
	if rng.IntN(2) == 0 {
		asked = append(asked, amount{1, rng.Int64N(12)})
	}
	families := mem.families(l, asked, nil)
	if len(families) == 0 {
		return nil
	}
	return &want{families: families, copies: len(asked), width: l.memoryWidth(asked)}
}

func numaID(i int) machine.NUMAID { return machine.NUMAID(i) }
