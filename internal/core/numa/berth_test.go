package numa

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa/hints"
)

// TestBerths: the scheduler makes an offer on its own, older State. The agent, which has more free resources because
// pods have ended, makes the same offer in the berth. Devices of one resource are interchangeable, so they may differ.
// The policy best-effort is left out: it takes memory from more nodes than its hint has, and a berth does not say which
// nodes were the hint's.
func TestBerths(t *testing.T) {
	const seed, histories, steps = 11, 150, 80
	kept, elsewhere := 0, 0
	for i := range histories {
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		w := newWorld(t, rng)
		for range steps {
			w.step()
			p := w.randomPod("late")
			believed, rejection := w.s.Offer(p, nil)
			if rejection != nil || w.l.config.Topology.Policy == hints.PolicyBestEffort {
				continue
			}
			real := w.s.Fork()
			for _, a := range w.s.Assignments() {
				if rng.IntN(3) == 0 {
					real.Release(a.Pod)
				}
			}
			want := placesOf(believed.Assignment)
			if plain, rejection := real.Offer(p, nil); rejection != nil || placesOf(plain.Assignment) != want {
				elsewhere++
			}
			p.Berth = believed.Assignment.Berth()
			offer, rejection := real.Offer(p, nil)
			if rejection != nil {
				t.Fatalf("seed %d history %d: %+v was offered %+v and then refused: %s", seed, i, p, believed.Assignment,
					rejection.Message())
			}
			if got := placesOf(offer.Assignment); got != want {
				t.Fatalf("seed %d history %d: %+v policy %v\nwas offered %+v\nand then %+v", seed, i, p, w.l.config.Topology,
					believed.Assignment, offer.Assignment)
			}
			kept++
		}
	}
	t.Logf("%d offers kept their berths, of which %d would have been elsewhere without", kept, elsewhere)
	if kept < 1000 || elsewhere < 100 {
		t.Error("too few to say anything")
	}
}

// placesOf returns where all CPUs and memory of a are.
func placesOf(a Assignment) (out string) {
	for _, h := range a.Containers {
		out += fmt.Sprintf("%s %v %v; ", h.Container, h.CPUs, h.Memory)
	}
	return out
}

// TestBerthIsNoRight: a berth that is not free, or that the policy does not allow, has no effect.
func TestBerthIsNoRight(t *testing.T) {
	for i := range 200 {
		w := newWorld(t, rand.New(rand.NewPCG(12, uint64(i))))
		for range 20 {
			w.step()
		}
		p := w.randomPod("late")
		plain, rejection := w.s.Offer(p, nil)
		for c := range p.inOrder() {
			b := ContainerBerth{Container: c.Name, Nodes: []machine.NUMAID{machine.NUMAID(w.rng.IntN(9))}}
			for range w.rng.IntN(12) {
				b.CPUs = b.CPUs.Union(idset.Of(w.rng.IntN(70)))
			}
			p.Berth = append(p.Berth, b)
		}
		offer, passedCPUs := w.s.Offer(p, nil)
		if rejection != nil {
			if passedCPUs == nil {
				t.Fatalf("case %d: refused anywhere (%s), and offered %+v in %+v", i, rejection.Message(), offer.Assignment,
					p.Berth)
			}
			continue
		}
		if passedCPUs != nil {
			t.Fatalf("case %d: offered %+v anywhere, and refused in %+v: %s", i, plain.Assignment, p.Berth, passedCPUs.Message())
		}
		if err := w.s.Commit(offer); err != nil {
			t.Fatal(err)
		}
		w.pods["late"] = p
		w.check()
	}
}
