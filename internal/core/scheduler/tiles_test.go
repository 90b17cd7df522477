package scheduler

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// tiledCluster has nodes of several sizes, some odd, with different loads: from idle to over-committed.
func tiledCluster(rng *rand.Rand, nodes int) *Placer {
	p := New(Options{Seed: rng.Uint64()})
	for i := range nodes {
		p.NodeSeen(1, tiledNode(rng, i))
		for k := range rng.IntN(6) {
			x := tiledPod(rng, fmt.Sprintf("old-%d-%d", i, k))
			x.Node = "node-" + strconv.Itoa(i)
			p.PodSeen(1, x)
		}
	}
	return p
}

func tiledNode(rng *rand.Rand, i int) Node {
	n := benchNode(i)
	size := int64(1 + rng.IntN(4))
	n.Allocatable = []Amount{{CPU, 4000 * size}, {Memory, size<<34 - int64(rng.IntN(3))<<12}}
	n.PodsMax = int64(3 + rng.IntN(20))
	switch rng.IntN(40) {
	case 0:
		n.Allocatable = n.Allocatable[1:]
	case 1:
		n.Allocatable[1].Value = exactMax + 1
	case 2, 3, 4:
		n.Allocatable = append(n.Allocatable, Amount{"example.com/gpu", 2})
	}
	return n
}

// tiledPod requests amounts that no pod requested before, or nothing, or common amounts.
func tiledPod(rng *rand.Rand, id string) Pod {
	x := benchPod(id)
	x.Labels = []Label{{Key: "app", Value: strconv.Itoa(rng.IntN(4))}}
	cpu, memory := int64(rng.IntN(3000)), int64(rng.IntN(1<<33))
	switch rng.IntN(6) {
	case 0:
		x.Requests = nil // LeastAllocated counts defaults
		return x
	case 1:
		cpu, memory = 1000, 1<<30
	case 2:
		x.Requests = []Amount{{CPU, cpu}, {Memory, memory}, {"example.com/gpu", 1}}
	}
	if rng.IntN(6) > 0 {
		x.Requests = append([]Amount{{CPU, cpu}, {Memory, memory}}, x.Requests[min(2, len(x.Requests)):]...)
	} else {
		x.Requests, memory = []Amount{{CPU, cpu}}, 200<<20
	}
	x.IncomingLoad = Load{unit.MilliCPU(cpu), unit.Bytes(memory)}
	x.PlacedLoad = x.IncomingLoad
	if rng.IntN(3) == 0 {
		key := []string{"zone", hostKey}[rng.IntN(2)]
		own := LabelSelector{Requirements: []Requirement{{Key: "app", Op: In, Values: []string{x.Labels[0].Value}}}}
		x.Spread = []SpreadConstraint{{MaxSkew: 1, TopologyKey: key, Selector: own, MinDomains: 1}}
	}
	return x
}

// TestTilesAgree adds and deletes pods in clusters with many tiles, and compares the choices with the plain form, and
// the tiles with their rows.
func TestTilesAgree(t *testing.T) {
	strays := 0
	for _, seed := range seedsFrom(t, 0, 8) {
		rng := rand.New(rand.NewPCG(seed, 11))
		nodes := []int{300, 700}[seed%2]
		p := tiledCluster(rng, nodes)
		h := &history{t: played{t, seed}, placer: p}
		c := p.cluster
		for i := range 250 {
			x := tiledPod(rng, "p"+strconv.Itoa(i))
			c.ask(&x, func(d *demand) {
				h.sameChoice(d, x.ID, c.choosePlain(d, x.ID), c.chooseByMasks(d, x.ID))
				h.checkTiles(d)
				strays += h.checkGroups(d, x.ID)
			})
			for k := range 1 + rng.IntN(8) {
				y := tiledPod(rng, fmt.Sprintf("more-%d-%d", i, k))
				y.Node = "node-" + strconv.Itoa(rng.IntN(nodes))
				p.PodSeen(2, y)
				p.PodGone(2, PodID(fmt.Sprintf("old-%d-%d", rng.IntN(nodes), k)))
			}
			switch rng.IntN(8) {
			case 0:
				p.NodeSeen(2, tiledNode(rng, rng.IntN(nodes)))
			case 1:
				p.NodeGone(2, "node-"+strconv.Itoa(rng.IntN(nodes)))
			case 2:
				p.NodeSeen(2, tiledNode(rng, nodes+rng.IntN(20)))
			}
		}
	}
	if strays == 0 {
		t.Error("no row was ever moved out of its group")
	}
}

// checkGroups compares the groups of the feasible rows with a count, and returns how many rows were moved.
func (h *history) checkGroups(d *demand, self PodID) (strays int) {
	h.t.Helper()
	c := h.placer.cluster
	m := c.feasibleRows(d, self)
	g := c.group(d, m)
	defer g.end()
	g.count(&c.state, m)
	want := make([]int32, g.groups)
	m.Each(func(r row) { want[g.of[r]]++ })
	for i, group := range g.present {
		if g.sizes[i] != want[group] || g.of[g.members[i]] != group {
			h.t.Fatalf("group %d has %d rows, want %d; row %d is in group %d", group, g.sizes[i], want[group], g.members[i],
				g.of[g.members[i]])
		}
		want[group] = 0
	}
	for group, n := range want {
		if n != 0 {
			h.t.Fatalf("group %d has %d rows, but is not in present", group, n)
		}
	}
	return len(g.strays)
}

// TestUniformTiles checks that tiles of equal rows are uniform, and others are not.
func TestUniformTiles(t *testing.T) {
	p := New(Options{})
	for i := range 4 * tileRows {
		n := benchNode(i)
		if i%2 == 1 {
			n.PodsMax++ // rows are divided into tiles without regard to it
		}
		p.NodeSeen(1, n)
	}
	uniform := func() (n int) {
		for i := range p.cluster.updateTiles().tiles {
			if p.cluster.tiling.tiles[i].uniform {
				n++
			}
		}
		return n
	}
	if n := uniform(); n != 0 {
		t.Errorf("%d tiles are uniform although their rows differ", n)
	}
	for i := range 4 * tileRows {
		p.NodeSeen(2, benchNode(i))
	}
	if n, all := uniform(), len(p.cluster.tiling.tiles); n != all || all < 4 {
		t.Errorf("%d of %d tiles of equal rows are uniform", n, all)
	}
}

// checkTiles compares the tiles with the rows: each row with a node is in one place, with scores within the bounds.
func (h *history) checkTiles(d *demand) {
	h.t.Helper()
	c := h.placer.cluster
	x := c.updateTiles()
	a, ok := c.resourceQueryOf(d)
	if !ok {
		h.t.Fatal("tiles do not bound the scores of the default profile")
	}
	found := map[row]bool{}
	see := func(r row, tile, at int) {
		if found[r] || !c.seen[r] || int(x.in[r]) != tile || int(x.at[r]) != at {
			h.t.Fatalf("row %d is in tile %d, index %d; recorded: %d, %d", r, tile, at, x.in[r], x.at[r])
		}
		found[r] = true
		if x.summaries[r] != c.summaryOf(r) {
			h.t.Fatalf("row %d has another summary than is recorded", r)
		}
	}
	for i := range x.tiles {
		low, high := a.bound(&x.tiles[i].least, &x.tiles[i].most)
		for _, r := range x.tiles[i].rows {
			if x.tiles[i].uniform && x.summaries[r] != x.summaries[x.tiles[i].rows[0]] {
				h.t.Fatalf("row %d is in a uniform tile, but has another summary than its first row", r)
			}
		}
		for at, r := range x.tiles[i].rows {
			see(r, i, at)
			if score := c.scoreAlone(d, r); score < low || score > high {
				h.t.Fatalf("row %d scores %d, the bounds of its tile are %d and %d", r, score, low, high)
			}
		}
	}
	for at, r := range x.loose {
		see(r, looseRow, at)
	}
	if len(found) != c.seenCount {
		h.t.Fatalf("%d rows in tiles of %d", len(found), c.seenCount)
	}
}

// TestTilesAreSkipped counts, in a busy cluster where all nodes differ, the tiles that must be examined for a pod's
// best row after the first tile. Most of them must be skipped.
func TestTilesAreSkipped(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	p := tiledCluster(rng, 6400)
	c := p.cluster
	const taintless = 300 // the score of a node without taints, as all nodes here
	open, all := 0, 0
	for i := range 50 {
		x := tiledPod(rng, "p"+strconv.Itoa(i))
		x.Spread = nil
		c.ask(&x, func(d *demand) {
			best := c.chooseByMasks(d, x.ID)
			a, _ := c.resourceQueryOf(d)
			for j := range c.tiling.tiles {
				if _, high := a.bound(&c.tiling.tiles[j].least, &c.tiling.tiles[j].most); best.failure == nil &&
					high >= best.score-taintless {
					open++
				}
				all++
			}
		})
	}
	if open*4 > all {
		t.Errorf("%d of %d tiles had to be examined", open, all)
	}
}
