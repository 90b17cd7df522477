package lifecycle

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/core/wellknown"
)

// TestHistories drives a Monitor through random histories, next to a plain twin that remembers for each node when its
// last sign was. A node must become silent within a second after the end of its grace period, and not before. While the
// API server cannot be reached, and in the grace period after that, no node may become silent.
func TestHistories(t *testing.T) {
	for seed := range uint64(100) {
		if runHistory(t, seed); t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func runHistory(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 7))
	now := unit.Instant(time.Hour)
	m := New(now, Defaults())
	lastSign := map[string]unit.Instant{}
	beating := map[string]bool{}
	var names []string
	reachableSince := now // since when the API server can be reached
	up := true
	for i := range 20 {
		name := fmt.Sprintf("n%02d", i)
		names = append(names, name)
		m.NodeSeen(now, unit.Wall(now), Node{
			Name:      name,
			UID:       name,
			Status:    map[ConditionType]Status{Ready: True},
			Heartbeat: 1,
		})
		lastSign[name], beating[name] = now, true
	}
	for tick := range 3000 {
		now = now.Add(200 * time.Millisecond)
		for _, name := range names { // in order, so that a seed always gives the same history
			beats := beating[name]
			if rng.IntN(1500) == 0 {
				beating[name] = !beats
			}
			if up && beats && rng.IntN(40) == 0 {
				m.LeaseSeen(now, unit.Wall(now), name, unit.Wall(rng.Int64())) // any renewTime is a sign
				lastSign[name] = now
			}
		}
		if rng.IntN(1000) == 0 {
			up = !up
		}
		if tick%25 == 0 {
			if m.Contact(now, up); !up {
				reachableSince = 0
			} else if reachableSince == 0 {
				reachableSince = now
			}
		}
		for _, a := range m.Advance(now).Actions {
			m.Done(now, a, rng.IntN(3) > 0)
		}
		for name, sign := range lastSign {
			silence := now.Sub(sign)
			silent := m.nodes[name].silent
			switch heard := now.Sub(reachableSince); {
			case silent && silence < Defaults().Grace:
				t.Errorf("tick %d: %s is silent after %v", tick, name, silence)
			case reachableSince != 0 && heard > Defaults().Grace+2*time.Second && silence > Defaults().Grace+time.Second &&
				!silent && heard > silence:
				t.Errorf("tick %d: %s is not silent after %v (the API server answers for %v)", tick, name, silence, heard)
			}
		}
		checkAlarms(t, m)
	}
}

// checkAlarms checks the invariant of the heap: the alarm of a node that is not silent is due no later than its
// deadline.
func checkAlarms(t *testing.T, m *Monitor) {
	for _, n := range m.nodes {
		if n.exists && !n.silent && (n.alarm.IsZero() || n.alarm > n.deadline || !m.alarms.Has(n)) {
			t.Errorf("%s: alarm %d, deadline %d", n.Name, n.alarm, n.deadline)
		}
	}
}

// BenchmarkBeats is the steady state: 10,000 nodes that renew every 10 s. One operation is one renewal.
func BenchmarkBeats(b *testing.B) {
	now := unit.Instant(time.Hour)
	m := New(now, Defaults())
	names := make([]string, 10000)
	for i := range names {
		names[i] = fmt.Sprintf("node-%05d", i)
		m.NodeSeen(now, unit.Wall(now), Node{Name: names[i], Status: map[ConditionType]Status{Ready: True}})
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		now = now.Add(time.Millisecond)
		m.Contact(now, true)
		m.LeaseSeen(now, unit.Wall(now), names[i%len(names)], unit.Wall(now))
		m.Advance(now)
	}
}

// BenchmarkZoneDies is the worst case: 500 of 5,000 nodes with 30 pods each become silent at once. One operation is all
// decisions until nothing more must be written: conditions and taints of 500 nodes, readiness of 15,000 pods.
func BenchmarkZoneDies(b *testing.B) {
	for b.Loop() {
		b.StopTimer()
		now := unit.Instant(time.Hour)
		m := New(now, Defaults())
		tolerations := []Toleration{{Key: wellknown.TaintNotReady, Exists: true, Effect: NoExecute, Bounded: true,
			Seconds: 300}, {Key: wellknown.TaintUnreachable, Exists: true, Effect: NoExecute, Bounded: true, Seconds: 300}}
		for i := range 5000 {
			name := fmt.Sprintf("node-%05d", i)
			m.NodeSeen(now, unit.Wall(now), Node{
				Name:        name,
				Status:      map[ConditionType]Status{Ready: True},
				Zone:        fmt.Sprint(i % 10),
				Allocatable: Load{CPU: 96 * unit.CPU, Memory: unit.TiB, Pods: 110},
			})
			for j := range 30 {
				m.PodSeen(now, Pod{
					ID:          PodID(fmt.Sprintf("%s-%02d", name, j)),
					Node:        name,
					Ready:       true,
					Tolerations: tolerations,
					Requests:    Load{unit.CPU, unit.GiB, 1},
				})
			}
		}
		m.Advance(now)
		for now = now.Add(10 * time.Second); now < unit.Instant(time.Hour+time.Minute); now = now.Add(10 * time.Second) {
			m.Contact(now, true)
			for i := range 5000 {
				if i%10 != 0 {
					m.LeaseSeen(now, unit.Wall(now), fmt.Sprintf("node-%05d", i), unit.Wall(now))
				}
			}
			if now < unit.Instant(time.Hour+50*time.Second) {
				m.Advance(now)
			}
		}
		b.StartTimer()
		actions := 0
		for d := m.Advance(now); len(d.Actions) > 0; d = m.Advance(now) {
			actions += len(d.Actions)
			for _, a := range d.Actions {
				m.done(now, a)
			}
		}
		b.ReportMetric(float64(actions), "writes")
	}
}

// done performs a and reports the outcome, without a world.
func (m *Monitor) done(now unit.Instant, a Action) {
	if a.Pod != nil {
		p := *a.Pod
		p.Ready = false
		m.PodSeen(now, p)
	} else {
		n := m.nodes[a.Node].Node
		n.Status = map[ConditionType]Status{
			Ready:          Unknown,
			MemoryPressure: Unknown,
			DiskPressure:   Unknown,
			PIDPressure:    Unknown,
		}
		n.Taints = append(n.Taints, a.Add...)
		m.NodeSeen(now, unit.Wall(now), n)
	}
	m.Done(now, a, true)
}
