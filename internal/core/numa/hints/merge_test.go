package hints

import (
	"math/bits"
	"math/rand/v2"
	"testing"

	"github.com/plimsoll-dev/plimsoll/internal/core/numa/bitset"
)

// plainBest is the plain twin of Merger.best: it writes out every set of every family, and intersects all combinations.
func plainBest(m *Merger, wants []*Want, impossible bool) Hint {
	if len(wants) == 0 {
		return Hint{bitset.Full(m.nodes), !impossible}
	}
	results := make([]bool, 1<<m.nodes) // by set: some combination has it as its result
	results[1<<m.nodes-1] = true
	aim, all := 0, !impossible
	preferred := make([]int, 1<<m.nodes) // by set: how many wants prefer it
	for _, w := range wants {
		var members []int
		smallest := m.nodes + 1
		for x := 1; x < 1<<m.nodes; x++ {
			nodes := bitset.Set{uint64(x)}
			for _, f := range w.Families {
				if f.admits(nodes) {
					members = append(members, x)
					smallest = min(smallest, bits.OnesCount(uint(x)))
					if nodes.Count() == w.Width || w.Sockets > 0 && m.SocketsOf(nodes) == w.Sockets {
						preferred[x]++
					}
					break
				}
			}
		}
		aim = max(aim, smallest)
		for range w.Copies {
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
	var best bitset.Set
	for x := 1; x < 1<<m.nodes; x++ {
		if nodes := (bitset.Set{uint64(x)}); all && preferred[x] == len(wants) && (best == nil || m.less(nodes, best)) {
			best = nodes
		}
	}
	if best != nil {
		return Hint{best, true}
	}
	for x := 1; x < 1<<m.nodes; x++ {
		if nodes := (bitset.Set{uint64(x)}); results[x] && (best == nil || m.betterCompromise(nodes, best, aim)) {
			best = nodes
		}
	}
	if best == nil {
		best = bitset.Full(m.nodes)
	}
	return Hint{best, false}
}

// TestMergeAgainstPlainTwin covers inputs for which upstream's code is too slow: up to 8 nodes, up to 7 wants, memory
// of several kinds with groups, devices near several nodes.
func TestMergeAgainstPlainTwin(t *testing.T) {
	const seed, rounds = 6, 4000
	rng := rand.New(rand.NewPCG(seed, 0))
	fewest, preferred := searchSteps, 0
	for round := range rounds {
		m := Merger{nodes: 1 + rng.IntN(8)}
		if round%40 == 0 {
			m.nodes = mixtureAbove + 1 + rng.IntN(2)
		}
		if rng.IntN(3) == 0 {
			m.Distance = randomDistances(rng, m.nodes)
		}
		perSocket := 1 + rng.IntN(3)
		m.SocketsOf = func(nodes bitset.Set) int {
			sockets := map[int]bool{}
			for i := range nodes.All {
				sockets[i/perSocket] = true
			}
			return len(sockets)
		}
		wants, impossible := randomWants(rng, &m, perSocket)
		got, want := m.best(wants, impossible), plainBest(&m, wants, impossible)
		if !got.Nodes.Equal(want.Nodes) || got.Preferred != want.Preferred {
			t.Fatalf("seed %d round %d: %d nodes, got %v %v, want %v %v", seed, round, m.nodes, got.Nodes.Members(),
				got.Preferred, want.Nodes.Members(), want.Preferred)
		}
		if m.nodes <= mixtureAbove {
			fewest = min(fewest, m.steps)
		}
		if got.Preferred {
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

// TestLargeMachines checks that with unequal amounts on up to 64 nodes no search runs out of steps; with distances,
// only a search for a result that is not preferred may.
func TestLargeMachines(t *testing.T) {
	const seed, rounds = 8, 400
	rng := rand.New(rand.NewPCG(seed, 0))
	cut := 0
	for round := range rounds {
		m := Merger{nodes: []int{16, 32, 64}[rng.IntN(3)]}
		if rng.IntN(2) == 0 {
			m.Distance = randomDistances(rng, m.nodes)
		}
		var wants []*Want
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
		if cut++; h.Preferred || m.Distance == nil {
			t.Errorf("seed %d round %d: %d nodes: out of steps, preferred %v, distances %v", seed, round, m.nodes, h.Preferred,
				m.Distance != nil)
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

func randomWants(rng *rand.Rand, m *Merger, perSocket int) (wants []*Want, impossible bool) {
	for range rng.IntN(5) {
		f := randomFamily(rng, m.nodes)
		if f.IsEmpty() {
			impossible = true
			continue
		}
		steps := searchSteps
		w := &Want{Families: []*Family{f}, Copies: 1, Width: f.narrowest(m.nodes, m.nodes, &steps).Count()}
		if rng.IntN(2) == 0 { // an empty machine may need fewer nodes, never more
			w.Width = 1 + rng.IntN(w.Width)
		}
		if rng.IntN(8) == 0 && (len(wants) == 0 || wants[0].Sockets == 0) {
			w.Sockets = (w.Width + perSocket - 1) / perSocket
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

// randomFamily draws amounts by node, sometimes few nodes, nodes that must be included, and devices near several nodes.
func randomFamily(rng *rand.Rand, nodes int) *Family {
	f := &Family{Within: bitset.Full(nodes), Must: bitset.New(nodes)}
	weight, total := make([]int64, nodes), int64(0)
	for i := range weight {
		weight[i] = rng.Int64N(6)
		total += weight[i]
		if rng.IntN(8) == 0 {
			f.Within.Remove(i)
		}
	}
	f.Loads = []Load{{weight, rng.Int64N(total + 1)}}
	if rng.IntN(6) == 0 {
		f.Must.Add(rng.IntN(nodes))
	}
	if rng.IntN(3) == 0 {
		f.Must = bitset.New(nodes)
		clear(weight)
		for range 1 + rng.IntN(6) {
			d := bitset.Of(nodes, rng.IntN(nodes), rng.IntN(nodes))
			f.Near = append(f.Near, Near{d, 1})
			for i := range d.All {
				weight[i]++
			}
		}
		f.Need = int64(rng.IntN(len(f.Near) + 1))
		f.Loads[0].Need = f.Need
		if rng.IntN(3) == 0 {
			f.Hit = []bitset.Set{f.Near[0].Nodes}
		}
	}
	return f
}

// randomMemory draws the families that memory has: single nodes, sets of nodes without blocks, and whole groups.
func randomMemory(rng *rand.Rand, nodes int) *Want {
	kinds := 1 + rng.IntN(2)
	free := make([][]int64, kinds)
	for k := range free {
		for range nodes {
			free[k] = append(free[k], rng.Int64N(12))
		}
	}
	single := &Family{Within: bitset.New(nodes), Must: bitset.New(nodes), Alone: true}
	together := &Family{Within: bitset.New(nodes), Must: bitset.New(nodes)}
	groups := []*Family{{Within: bitset.New(nodes)}, {Within: bitset.New(nodes)}}
	among := []*Family{together, together, together, single, groups[0], groups[1]}
	for n := range nodes {
		among[rng.IntN(len(among))].Within.Add(n)
	}
	for _, g := range groups {
		g.Must = g.Within
	}
	need := make([]int64, kinds)
	for k := range need {
		need[k] = rng.Int64N(20)
	}
	w := &Want{Copies: kinds, Width: 1 + rng.IntN(nodes)}
	for _, f := range append(groups, single, together) {
		for k := range need {
			f.Loads = append(f.Loads, Load{free[k], need[k]})
		}
		if !f.Within.IsEmpty() && !f.IsEmpty() {
			w.Families = append(w.Families, f)
		}
	}
	if w.Families == nil {
		return nil
	}
	return w
}
