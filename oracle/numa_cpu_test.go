package oracle

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/utils/cpuset"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// TestChooseCPUs compares the choice of CPUs with upstream's static policy: random machines, options and free CPUs.
func TestChooseCPUs(t *testing.T) {
	seed := uint64(20261120)
	t.Logf("seed %d, %d choices", seed, *choices)
	var chosen, refused atomic.Int64
	var unlike unlike
	inParallel(*choices, func(part, n int) {
		rng := rand.New(rand.NewPCG(seed, uint64(1000+part)))
		for done := 0; done < n && !t.Failed(); {
			m := randomMachine(rng, rng.IntN(4) == 0)
			if m.CPUs.Len() < 2 {
				continue
			}
			config := numa.Config{CPU: randomCPUConfig(rng, m)}
			config.CPU.AlignBySocket = false // it needs a hint
			layout, err := numa.New(m, config)
			k, kerr := newKubelet(m, config)
			if err != nil || kerr != nil {
				t.Errorf("machine %+v, config %+v: ours %v, upstream %v", m, config, err, kerr)
				return
			}
			for range 50 {
				done++
				if chooseOnce(t, rng, m, config, layout, k, &unlike) {
					chosen.Add(1)
				} else {
					refused.Add(1)
				}
			}
		}
	})
	t.Logf("%d sets chosen, of them not upstream's: %v; %d requests refused", chosen.Load(), &unlike, refused.Load())
}

func chooseOnce(t *testing.T, rng *rand.Rand, m machine.Machine, config numa.Config, layout *numa.Layout, k *kubelet,
	unlike *unlike) bool {
	state := layout.NewState()
	allocatable := k.cpu.GetAllocatableCPUs(k.cpuState)
	var others []int
	busy := rng.IntN(4)
	perCore := rng.IntN(2) == 0
	for _, core := range m.Cores {
		whole := rng.IntN(4) < busy
		for cpu := range core.All() {
			if (perCore && whole || !perCore && rng.IntN(4) < busy) && allocatable.Contains(cpu) {
				others = append(others, cpu)
			}
		}
	}
	if others != nil {
		if problems := state.Adopt(numa.Assignment{Pod: "others", Containers: []numa.Assigned{{Container: "c",
			CPUs: idset.Of(others...)}}}); problems != nil {
			t.Errorf("reserved CPUs differ: upstream's are all but %v: %v", allocatable, problems)
			return false
		}
	}
	shared := cpuset.New(toInts(m.CPUs)...)
	if config.CPU.StrictReservation {
		shared = allocatable
	}
	k.cpuState.SetDefaultCPUSet(shared.Difference(cpuset.New(others...)))
	most := allocatable.Size()
	if rng.IntN(8) > 0 {
		most -= len(others)
	}
	n := 1 + rng.IntN(max(1, most))
	if config.CPU.FullPCPUsOnly && rng.IntN(4) > 0 {
		threads := m.CPUs.Len() / len(m.Cores)
		n = max(threads, n/threads*threads)
	}
	p := numa.Pod{UID: "p", Guaranteed: true, Containers: []numa.Container{{Name: "c", CPU: unit.MilliCPU(n) * unit.CPU,
		Memory: []numa.MemoryRequest{{Bytes: unit.GiB}}}}}
	pod := bothPods("p", p)
	err := k.cpu.Allocate(logr.Discard(), k.cpuState, pod, &pod.Spec.Containers[0])
	offer, rejection := state.Offer(p, nil)
	want := k.describe(pod, "c")
	theirs, _ := k.cpuState.GetCPUSet("p", "c")
	_ = k.cpu.RemoveContainer(logr.Discard(), k.cpuState, "p", "c")
	k.cpuState.ClearState()
	got := ""
	if rejection == nil {
		got = describe(offer.Assignment.Containers[0])
	}
	if got != want && err == nil && rejection == nil {
		free := shared.Difference(cpuset.New(others...)).Intersection(allocatable)
		ours := cpuset.New(toInts(offer.Assignment.Containers[0].CPUs)...)
		if unlike.allows(m, config.CPU, free, ours, theirs, n) {
			return true
		}
	}
	if got != want || (err == nil) != (rejection == nil) {
		t.Errorf("%d CPUs of %+v\noptions %+v, taken %v\nours     %q %v\nupstream %q %v", n, show(m), config.CPU,
			cpuset.New(others...), got, rejection, want, err)
	}
	return rejection == nil
}

func toInts(s idset.Set) []int {
	var out []int
	for id := range s.All() {
		out = append(out, id)
	}
	return out
}

func show(m machine.Machine) string {
	text := ""
	for _, n := range m.NUMANodes {
		text += fmt.Sprintf("node %d: %v; ", n.ID, n.CPUs)
	}
	return text + fmt.Sprintf("sockets %v, caches %v, cores %v", m.Sockets, m.L3, m.Cores)
}

// unlike counts results that upstream's rule does not determine. README.md explains each kind.
type unlike struct{ distributed, uneven, fewer, overbooked atomic.Int64 }

func (u *unlike) String() string {
	return fmt.Sprintf("%d distributed over 4 nodes or more and not worse, %d on uneven machines (%d fewer cores broken,"+
		" net), %d where upstream gave away what was another's",
		u.distributed.Load(), u.uneven.Load(), u.fewer.Load(), u.overbooked.Load())
}

// allows reports whether our result may differ from upstream's.
func (u *unlike) allows(m machine.Machine, c numa.CPUConfig, free, ours, theirs cpuset.CPUSet, n int) bool {
	if ours.Size() != n || !ours.IsSubsetOf(free) {
		return false
	}
	switch a, b := qualityOf(m, free, ours), qualityOf(m, free, theirs); {
	case !theirs.IsSubsetOf(free) || theirs.Size() != n:
		u.overbooked.Add(1)
	case c.DistributeNUMA && max(a.nodes, b.nodes) >= 4 && (a.nodes < b.nodes || a.nodes == b.nodes && a.left <= b.left):
		u.distributed.Add(1)
	case !isEven(m):
		u.uneven.Add(1)
		u.fewer.Add(int64(b.broken - a.broken))
	default:
		return false
	}
	return true
}

// quality describes a set of CPUs: the number of NUMA nodes, what remains on them (sum of squares: less is more even),
// and of how many cores it has only a part.
type quality struct{ nodes, left, broken int }

func qualityOf(m machine.Machine, free, taken cpuset.CPUSet) quality {
	var q quality
	for _, n := range m.NUMANodes {
		own := cpuset.New(toInts(n.CPUs)...)
		if own.Intersection(taken).Size() > 0 {
			q.nodes++
		}
		left := own.Intersection(free).Difference(taken).Size()
		q.left += left * left
	}
	for _, c := range m.Cores {
		own := cpuset.New(toInts(c)...)
		if in := own.Intersection(taken).Size(); in > 0 && in < own.Size() {
			q.broken++
		}
	}
	return q
}
