package eviction

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/allocatable"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// randomPods returns pods with small numbers, so that ties and exact fits are common.
func randomPods(random *rand.Rand) []Pod {
	var pods []Pod
	for i := range random.IntN(12) {
		p := Pod{
			ID:            fmt.Sprint("p", i),
			Namespace:     "default",
			Name:          fmt.Sprint("p", i),
			Priority:      int32(random.IntN(3)),
			Critical:      random.IntN(6) == 0,
			MemoryRequest: unit.Bytes(random.IntN(4)) * 10, StorageRequest: unit.Bytes(random.IntN(4)) * 10,
			Containers: []Container{
				{Name: "c", Rootfs: &Disk{int64(random.IntN(30)), int64(random.IntN(9))}, Logs: &Disk{int64(random.IntN(20)), 1}},
			},
			Volumes: []Volume{
				{Name: "v", Used: &Disk{int64(random.IntN(30)), int64(random.IntN(9))}, Local: true, Freed: random.IntN(3) > 0},
			},
		}
		if random.IntN(8) > 0 {
			set := unit.Bytes(random.IntN(60))
			p.Used = &Usage{
				WorkingSet: set,
				Cache:      unit.Bytes(random.IntN(int(set) + 1)),
				Swap:       unit.Bytes(random.IntN(10)),
				PIDs:       int64(random.IntN(20)),
			}
		}
		if random.IntN(6) == 0 {
			p.Grace = unit.Of(time.Duration(random.IntN(60)) * time.Second)
		}
		if random.IntN(8) == 0 {
			p.KillAt = unit.Instant(0).Add(time.Hour + time.Duration(random.IntN(100)-50)*time.Second)
		}
		pods = append(pods, p)
	}
	return pods
}

func randomFacts(random *rand.Rand, c Config) Facts {
	f := Facts{Signals: map[allocatable.Signal]Observation{}, Disks: Disks(random.IntN(3)), Pods: randomPods(random)}
	for _, signal := range allocatable.Signals() {
		if random.IntN(5) > 0 {
			f.Signals[signal] = Observation{Available: int64(random.IntN(200)), Capacity: 200}
		}
	}
	return f
}

func randomConfig(random *rand.Rand) Config {
	c := Config{Transition: 5 * time.Minute, SoftGraceMax: time.Duration(random.IntN(60)) * time.Second, ImagesLow: 80}
	c.Memory = []MemorySignal{SignalWorkingSet, SignalAvailable}[random.IntN(2)]
	for _, signal := range allocatable.Signals() {
		for _, grace := range []time.Duration{0, time.Minute} {
			if random.IntN(3) > 0 {
				continue
			}
			t := Threshold{
				Signal: signal,
				Value:  allocatable.Threshold{Amount: int64(1 + random.IntN(150))},
				Text:   "x",
				Grace:  grace,
			}
			if random.IntN(3) == 0 {
				t.Reclaim = allocatable.Threshold{Amount: int64(random.IntN(60))}
			}
			c.Thresholds = append(c.Thresholds, t)
		}
	}
	return c
}

// afterReclaim simulates a node on which nothing can be removed and soft grace periods are over, and returns its
// decision about pods.
func afterReclaim(c Config, f Facts) (*Decider, unit.Instant, Decision) {
	d := New(c)
	now := unit.Instant(0).Add(time.Hour - 2*time.Minute)
	quick := f
	quick.Quick, quick.Pods = true, nil
	d.Step(now, quick)
	now = unit.Instant(0).Add(time.Hour)
	f.Done = map[Step]unit.Instant{}
	for range 5 {
		out := d.Step(now, f)
		if len(out.Reclaim) == 0 {
			return d, now, out
		}
		// Victims for what needs no reclaim; they are chosen again, because they are not killed.
		if len(out.Victims) > 0 {
			d.kills = map[string]unit.Instant{}
		}
		for _, r := range out.Reclaim {
			f.Done[r.Step] = now
		}
		now++
	}
	return d, now, d.Step(now, f)
}

// firstRanked returns how many pods, in the order of the ranking, free what the first threshold requires.
func firstRanked(out Decision) (count int) {
	for _, m := range out.Met[:min(1, len(out.Met))] {
		var sum int64
		for _, r := range out.Ranking {
			if sum < m.Deficit-m.Coming && !r.Critical && r.Frees > 0 && !r.Ending {
				sum += r.Frees
				count++
			}
		}
	}
	return count
}

// TestNobodyTooMany checks on random nodes: no victim is critical, of unknown usage, or frees nothing that is needed;
// no victim can be spared; every need that can be covered is covered, and others take one victim at a time.
func TestNobodyTooMany(t *testing.T) {
	several, spared := 0, 0
	for seed := range uint64(12_000) {
		random := rand.New(rand.NewPCG(seed, 5))
		c := randomConfig(random)
		f := randomFacts(random, c)
		d, now, out := afterReclaim(c, f)
		pods := map[string]Pod{}
		for _, p := range f.Pods {
			pods[p.ID] = p
		}
		if len(out.Victims) > 1 {
			several++
		}
		frees := func(m Met, id string) int64 { return measure(m.Signal, pods[id], c.Memory, f.Disks).Frees }
		for _, v := range out.Victims {
			if p := pods[v.ID]; p.Critical || p.Used == nil {
				t.Fatalf("seed %d: %s is critical %v, known %v", seed, v.ID, p.Critical, p.Used != nil)
			}
			needed := false
			for _, m := range out.Met {
				wanted, others, with := m.Deficit-m.Coming, int64(0), int64(0)
				s := &step{Decider: d, now: now}
				for _, o := range out.Victims {
					if !s.comesFor(m.Threshold, now.Add(o.Grace)) {
						continue
					}
					with += frees(m, o.ID)
					if o.ID != v.ID {
						others += frees(m, o.ID)
					}
				}
				needed = needed || m.Acts && wanted > 0 && others < min(wanted, with)
			}
			if !needed {
				t.Fatalf("seed %d: %s could be spared: %+v", seed, v.ID, out.Victims)
			}
		}
		for _, m := range out.Met {
			wanted := m.Deficit - m.Coming
			if !m.Acts || wanted <= 0 {
				continue
			}
			var possible int64
			for id, p := range pods {
				if end := p.KillAt; !p.Critical && (end.IsZero() || m.IsHard() && end > now.Add(hardGrace(m.Signal))) {
					possible += frees(m, id)
				}
			}
			if possible >= wanted && m.Taken < wanted {
				t.Fatalf("seed %d: %s wants %d, pods could free %d, victims free %d: %s",
					seed, m.Signal, wanted, possible, m.Taken, m.Held)
			}
		}
		if firstRanked(out) > len(out.Victims) {
			spared++
		}
	}
	if several < 200 || spared < 20 {
		t.Errorf("the random nodes are too easy: %d with several victims, %d where somebody was spared", several, spared)
	}
}

// TestSameHistorySameDecisions plays histories twice, the second time with the pods in another order.
func TestSameHistorySameDecisions(t *testing.T) {
	for seed := range uint64(2000) {
		random := rand.New(rand.NewPCG(seed, 6))
		c := randomConfig(random)
		c.LocalStorage, c.ReclaimMemory = true, random.IntN(2) == 0
		a, b := New(c), New(c)
		now := unit.Instant(0).Add(time.Hour)
		for range 12 {
			f := randomFacts(random, c)
			g := f
			g.Pods = slices.Clone(f.Pods)
			random.Shuffle(len(g.Pods), func(i, j int) { g.Pods[i], g.Pods[j] = g.Pods[j], g.Pods[i] })
			x, y := a.Step(now, f), b.Step(now, g)
			slices.SortFunc(x.Victims, byID)
			slices.SortFunc(y.Victims, byID)
			if fmt.Sprint(x) != fmt.Sprint(y) {
				t.Fatalf("seed %d:\n%+v\n%+v", seed, x, y)
			}
			if x.Wake <= now || x.Wake > now.Add(checkMax) {
				t.Fatalf("seed %d: wakes %v after now", seed, x.Wake.Sub(now))
			}
			now = now.Add(time.Duration(random.Int64N(int64(time.Minute))))
		}
	}
}

func byID(a, b Victim) int {
	if a.ID < b.ID {
		return -1
	}
	return 1
}

// FuzzStep uses arbitrary numbers: no overflow gives a wake-up time in the past, and no critical pod is a victim.
func FuzzStep(f *testing.F) {
	f.Add(int64(10), int64(100), int64(20), int64(5), uint64(1), int64(1000))
	f.Add(int64(-1), int64(0), int64(1<<62), int64(1<<62), uint64(2), int64(1))
	f.Fuzz(func(t *testing.T, available, capacity, line, reclaim int64, seed uint64, after int64) {
		random := rand.New(rand.NewPCG(seed, 7))
		c := randomConfig(random)
		const bound = 1 << 53 // the largest number that the translation accepts
		clamp := func(n int64) int64 { return max(-bound, min(n, bound)) }
		for i := range c.Thresholds {
			c.Thresholds[i].Value.Amount, c.Thresholds[i].Reclaim.Amount = max(1, clamp(line)), max(0, clamp(reclaim))
		}
		d := New(c)
		now := unit.Instant(0).Add(time.Hour)
		for range 3 {
			facts := randomFacts(random, c)
			for signal := range facts.Signals {
				facts.Signals[signal] = Observation{Available: clamp(available), Capacity: max(0, clamp(capacity))}
			}
			out := d.Step(now, facts)
			if out.Wake <= now || out.Wake > now.Add(checkMax) {
				t.Fatalf("wakes %v after now", out.Wake.Sub(now))
			}
			for _, v := range out.Victims {
				i := slices.IndexFunc(facts.Pods, func(p Pod) bool { return p.ID == v.ID })
				if facts.Pods[i].Critical || v.Grace < 0 {
					t.Fatalf("%+v", v)
				}
			}
			available -= reclaim / 3
			now = now.Add(time.Duration(max(1, min(after, int64(time.Hour)))))
		}
	})
}

// A signal with kernel notifications is only polled as a periodic check in case a notification was lost, and never more
// often than a signal without them. A signal without notifications is polled the more often, the nearer it is to its
// threshold.
func TestWhatRingsIsNotPolled(t *testing.T) {
	c := Config{Thresholds: []Threshold{{
		Signal: allocatable.AllocatableMemory,
		Value:  allocatable.Threshold{Amount: int64(100 * unit.MiB)},
		Text:   "100Mi",
	}}}
	f := Facts{
		Quick: true,
		Signals: map[allocatable.Signal]Observation{
			allocatable.AllocatableMemory: {Available: int64(700 * unit.MiB), Capacity: int64(unit.GiB)},
		},
	}
	now := unit.Instant(time.Hour)
	if wake := New(c).Step(now, f).Wake; wake.Sub(now) > 100*time.Millisecond {
		t.Errorf("polled after %v", wake.Sub(now))
	}
	f.Notified = map[allocatable.Signal]bool{allocatable.AllocatableMemory: true}
	if wake := New(c).Step(now, f).Wake; wake.Sub(now) != checkNotified {
		t.Errorf("looked at again after %v, want %v", wake.Sub(now), checkNotified)
	}
	f.Signals[allocatable.AllocatableMemory] = Observation{
		Available: int64(20*unit.GiB + 100*unit.MiB),
		Capacity:  int64(24 * unit.GiB),
	}
	wake := New(c).Step(now, f).Wake
	if want := 2500 * time.Millisecond; wake.Sub(now) != want { // half of 20 GiB at 4 GiB/s
		t.Errorf("far from the threshold checked again after %v, want %v", wake.Sub(now), want)
	}
	if f.Notified = nil; New(c).Step(now, f).Wake != wake {
		t.Error("checked at another time because the kernel sends notifications")
	}
}

// TestEverySignalHasAResource: a signal that is not listed would be ranked and reported as another resource. A resource
// that is not listed would be reported as no condition.
func TestEverySignalHasAResource(t *testing.T) {
	for _, signal := range allocatable.Signals() {
		resource, ok := resources[signal]
		if !ok {
			t.Errorf("%s is not in resources", signal)
		}
		if _, ok := conditions[resource]; ok != (resource != "") {
			t.Errorf("%s of signal %s is not in conditions", resource, signal)
		}
	}
	if len(resources) != len(allocatable.Signals()) {
		t.Errorf("%d signals have resources, and there are %d signals", len(resources), len(allocatable.Signals()))
	}
}

// TestEveryResourceRanksPods: for every signal, of two pods the one that uses more of everything is evicted first.
func TestEveryResourceRanksPods(t *testing.T) {
	pod := func(id string, n int64) Pod {
		return Pod{
			ID:         id,
			Used:       &Usage{WorkingSet: unit.Bytes(n), PIDs: n, Storage: unit.Bytes(n)},
			Containers: []Container{{Name: "c", Rootfs: &Disk{Bytes: n, Inodes: n}}},
		}
	}
	for _, signal := range allocatable.Signals() {
		ranked := Rank(signal, []Pod{pod("a", 1), pod("b", 2)}, SignalWorkingSet, OneDisk)
		if ranked[0].ID != "b" || ranked[0].Usage != 2 || ranked[0].Frees == 0 {
			t.Errorf("%s: %+v: what do pods use of this resource? (measure, rank.go)", signal, ranked)
		}
	}
}
