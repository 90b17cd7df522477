package remedy

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// large is a cluster of 5,000 nodes with 30 pods each, in which the waiting pods fit nowhere. One node in ten has a
// taint, and one in two hundred is cordoned.
func large() *facts {
	f := &facts{}
	for i := range 5000 {
		name := fmt.Sprintf("n%d", i)
		n := scheduler.Node{
			Name:          name,
			PodsMax:       110,
			Unschedulable: i%200 == 7,
			Labels: []scheduler.Label{
				{Key: "kubernetes.io/hostname", Value: name},
				{Key: "zone", Value: fmt.Sprintf("z%d", i%3)},
				{Key: "disk", Value: []string{"hdd", "ssd"}[i%2]},
			},
			Allocatable: []scheduler.Amount{
				{Resource: scheduler.CPU, Value: 16000},
				{Resource: scheduler.Memory, Value: int64(64 * unit.GiB)},
			},
		}
		if i%10 == 3 {
			n.Taints = []scheduler.Taint{{Key: "team", Value: "blue", Effect: scheduler.NoSchedule}}
		}
		f.nodes = append(f.nodes, n)
		for j := range 30 {
			f.pods = append(f.pods, scheduler.Pod{
				ID:        scheduler.PodID(fmt.Sprintf("p%d-%d", i, j)),
				Namespace: "default",
				Name:      fmt.Sprintf("p%d-%d", i, j),
				Node:      name,
				Labels:    []scheduler.Label{{Key: "app", Value: fmt.Sprintf("app%d", j)}},
				Requests: []scheduler.Amount{
					{Resource: scheduler.CPU, Value: 500 + int64(i%7)},
					{Resource: scheduler.Memory, Value: int64(2 * unit.GiB)},
				},
			})
		}
	}
	return f
}

// cpu reports the CPU time of an iteration: the machine may be busy with something else.
func cpu(b *testing.B) (report func()) {
	used := func() time.Duration {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	began := used()
	return func() { b.ReportMetric(float64((used()-began).Microseconds())/1000/float64(b.N), "cpu-ms/op") }
}

// BenchmarkAsk is one question about a pod that fits on none of 5,000 nodes with 150,000 pods.
func BenchmarkAsk(b *testing.B) {
	w := large().world()
	asks := func(milli int64) []scheduler.Amount {
		return []scheduler.Amount{{Resource: scheduler.CPU, Value: milli}}
	}
	for _, c := range []struct {
		name string
		pod  scheduler.Pod
	}{
		{"room", scheduler.Pod{Requests: asks(4000)}},
		{"selector", scheduler.Pod{Requests: asks(100), NodeSelector: []scheduler.Label{{Key: "disk", Value: "nvme"}}}},
		{"selector-and-room", scheduler.Pod{
			Requests:     asks(4000),
			NodeSelector: []scheduler.Label{{Key: "disk", Value: "nvme"}},
		}},
		{"anti-affinity", scheduler.Pod{Requests: asks(100), AntiAffinity: []scheduler.PodTerm{podTerm("zone", "app1")}}},
		{"spread-and-room", scheduler.Pod{Requests: asks(4000), Spread: []scheduler.SpreadConstraint{
			{MaxSkew: 1, TopologyKey: "rack", Hard: true, Selector: oneApp("app1"), MinDomains: 1},
		}}},
		{"selector-and-anti-affinity", scheduler.Pod{
			Requests:     asks(100),
			NodeSelector: []scheduler.Label{{Key: "disk", Value: "nvme"}},
			AntiAffinity: []scheduler.PodTerm{podTerm("zone", "app1")},
		}},
		{"selector-and-spread", scheduler.Pod{
			Requests:     asks(4000),
			NodeSelector: []scheduler.Label{{Key: "disk", Value: "nvme"}},
			Spread: []scheduler.SpreadConstraint{
				{MaxSkew: 1, TopologyKey: "rack", Hard: true, Selector: oneApp("app1"), MinDomains: 1},
			},
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			c.pod.ID, c.pod.Namespace, c.pod.Name = "waiting", "default", "waiting"
			defer cpu(b)()
			for b.Loop() {
				if a := w.Ask(c.pod); a.Failure == nil || len(a.Remedies) == 0 {
					b.Fatal(show(a))
				}
			}
		})
	}
}

// BenchmarkGroups is a question about 1,000 waiting pods of some templates. The worst case is that no two are alike.
func BenchmarkGroups(b *testing.B) {
	w := large().world()
	for _, templates := range []int{10, 50, 1000} {
		b.Run(fmt.Sprintf("templates-%d", templates), func(b *testing.B) {
			var pods []scheduler.Pod
			for i := range 1000 {
				name := fmt.Sprintf("waiting%d", i)
				pods = append(pods, scheduler.Pod{
					ID:        scheduler.PodID(name),
					Namespace: "default",
					Name:      name,
					Requests:  []scheduler.Amount{{Resource: scheduler.CPU, Value: 4000 + int64(i%templates)}},
				})
			}
			defer cpu(b)()
			for b.Loop() {
				if g := w.Groups(pods); len(g) != templates {
					b.Fatalf("%d groups", len(g))
				}
			}
		})
	}
}
