package oracle

import (
	"flag"
	"math/bits"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager/bitmask"

	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa/hints"
)

var (
	merges  = flag.Int("numa.merges", 1_000_000, "how many merges of hints to compare")
	choices = flag.Int("numa.choices", 100_000, "how many choices of CPUs to compare")
	admits  = flag.Int("numa.admits", 25_000, "how many pods to admit on both sides")

	devicePods = flag.Int("numa.devices", 6_000, "how many pods with devices to admit on both sides")
)

// TestMerge compares the merge of hints with upstream's: random supplies on 1 to 8 NUMA nodes, expanded as upstream's
// hint providers do, mask by mask.
func TestMerge(t *testing.T) {
	seed := uint64(20261120)
	t.Logf("seed %d, %d merges", seed, *merges)
	inParallel(*merges, func(part, n int) {
		rng := rand.New(rand.NewPCG(seed, uint64(part)))
		masks := map[int][]bitmask.BitMask{}
		for range n {
			c := randomMerge(rng, masks)
			places, preferred, admitted := hints.Best(c.topology.Policy, c.distances(), c.nodes, c.supplies)
			hint, admit := c.policy().Merge(logr.Discard(), c.hints)
			var want []int
			if hint.NUMANodeAffinity != nil {
				want = hint.NUMANodeAffinity.GetBits()
			}
			if !slices.Equal(places, want) || preferred != hint.Preferred || admitted != admit {
				t.Errorf("%v closest %v, %d nodes, supplies %+v:\nours     %v preferred %v admitted %v\n"+
					"upstream %v preferred %v admitted %v",
					c.topology.Policy, c.topology.PreferClosest, c.nodes, c.supplies, places, preferred, admitted, want,
					hint.Preferred, admit)
			}
			if t.Failed() {
				return
			}
		}
	})
}

// inParallel runs n units of work on all CPUs, in numbered parts.
func inParallel(n int, work func(part, n int)) {
	parts := runtime.GOMAXPROCS(0)
	var wg sync.WaitGroup
	for part := range parts {
		wg.Go(func() { work(part, n/parts) })
	}
	wg.Wait()
}

// distances returns the distances that matter: none unless the closest nodes are preferred.
func (c *mergeCase) distances() [][]int {
	if !c.topology.PreferClosest {
		return nil
	}
	return c.distance
}

type mergeCase struct {
	topology numa.TopologyConfig
	nodes    int
	distance [][]int
	supplies []hints.Supply
	hints    []map[string][]topologymanager.TopologyHint
}

// permutationsMax limits the product of the lengths of upstream's lists, because it evaluates each combination.
const permutationsMax = 400

func randomMerge(rng *rand.Rand, masks map[int][]bitmask.BitMask) mergeCase {
	for {
		c := mergeCase{
			nodes: 1 + min(rng.IntN(8), rng.IntN(8)),
			topology: numa.TopologyConfig{
				Policy:        []numa.Policy{numa.PolicyBestEffort, numa.PolicyRestricted, numa.PolicySingleNUMANode}[rng.IntN(3)],
				PreferClosest: rng.IntN(3) == 0,
			},
		}
		if masks[c.nodes] == nil {
			for m := range 1 << c.nodes {
				mask := bitmask.NewEmptyBitMask()
				for i := range c.nodes {
					if m>>i&1 == 1 {
						_ = mask.Add(i)
					}
				}
				masks[c.nodes] = append(masks[c.nodes], mask)
			}
		}
		c.distance = randomDistances(rng, c.nodes)
		permutations := 1
		for range rng.IntN(5) {
			s := randomSupply(rng, c.nodes)
			listed := hintsOf(s, c.nodes, masks[c.nodes])
			permutations *= max(1, len(listed))
			c.supplies = append(c.supplies, s)
			c.hints = append(c.hints, map[string][]topologymanager.TopologyHint{"r": listed})
		}
		if permutations <= permutationsMax {
			return c
		}
	}
}

func randomDistances(rng *rand.Rand, nodes int) [][]int {
	d := make([][]int, nodes)
	for i := range d {
		d[i] = make([]int, nodes)
		for j := range i {
			d[i][j] = 11 + rng.IntN(4)*5
			if rng.IntN(8) == 0 {
				d[j][i] = 11 + rng.IntN(4)*5 // firmware tables need not be symmetric
			} else {
				d[j][i] = d[i][j]
			}
		}
		d[i][i] = 10
	}
	return d
}

func randomSupply(rng *rand.Rand, nodes int) hints.Supply {
	s := hints.Supply{Total: make([]int64, nodes), Free: make([]int64, nodes)}
	most := 1 + rng.IntN(8)
	for i := range nodes {
		s.Total[i] = int64(most)
		if rng.IntN(3) == 0 {
			s.Total[i] = int64(rng.IntN(most + 1))
		}
		s.Free[i] = s.Total[i]
		if rng.IntN(2) == 0 {
			s.Free[i] = rng.Int64N(s.Total[i] + 1)
		}
	}
	s.Need = int64(rng.IntN(most*(1+rng.IntN(nodes)) + 1))
	if rng.IntN(4) == 0 {
		for i := range nodes {
			if rng.IntN(3) > 0 {
				s.Nodes = append(s.Nodes, i)
			}
		}
		if s.Nodes == nil {
			s.Nodes = []int{rng.IntN(nodes)}
		}
	}
	if rng.IntN(6) == 0 {
		must := rng.IntN(nodes)
		if s.Nodes == nil || slices.Contains(s.Nodes, must) {
			s.Must = []int{must}
		}
	}
	return s
}

// hintsOf expands a supply as upstream's providers do: every mask that has enough, preferred if no smaller mask could
// ever have enough.
func hintsOf(s hints.Supply, nodes int, masks []bitmask.BitMask) []topologymanager.TopologyHint {
	within, must := uint(1)<<nodes-1, uint(0)
	if s.Nodes != nil {
		within = 0
		for _, i := range s.Nodes {
			within |= 1 << i
		}
	}
	for _, i := range s.Must {
		must |= 1 << i
	}
	width := bits.OnesCount(within)
	hints := []topologymanager.TopologyHint{}
	for m := uint(1); m < 1<<nodes; m++ {
		if m&^within != 0 {
			continue
		}
		var total, free int64
		for i := range nodes {
			if m>>i&1 == 1 {
				total += s.Total[i]
				free += s.Free[i]
			}
		}
		if total >= s.Need {
			width = min(width, bits.OnesCount(m))
		}
		if free >= s.Need && m&must == must {
			hints = append(hints, topologymanager.TopologyHint{NUMANodeAffinity: masks[m]})
		}
	}
	for i := range hints {
		hints[i].Preferred = hints[i].NUMANodeAffinity.Count() == width
	}
	return hints
}

func (c mergeCase) policy() topologymanager.Policy {
	info := &topologymanager.NUMAInfo{NUMADistances: topologymanager.NUMADistances{}}
	for i := range c.nodes {
		info.Nodes = append(info.Nodes, i)
		for _, d := range c.distance[i] {
			info.NUMADistances[i] = append(info.NUMADistances[i], uint64(d))
		}
	}
	options := topologymanager.PolicyOptions{PreferClosestNUMA: c.topology.PreferClosest}
	switch c.topology.Policy {
	case numa.PolicyRestricted:
		return topologymanager.NewRestrictedPolicy(info, options)
	case numa.PolicySingleNUMANode:
		return topologymanager.NewSingleNumaNodePolicy(info, options)
	}
	return topologymanager.NewBestEffortPolicy(info, options)
}
