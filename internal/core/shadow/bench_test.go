package shadow

import (
	"fmt"
	"testing"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// BenchmarkPod measures what one pod costs that comes, is placed by both, and goes.
func BenchmarkPod(b *testing.B) {
	for _, nodes := range []int{100, 5000} {
		b.Run(fmt.Sprint("nodes=", nodes), func(b *testing.B) {
			s := NewPlacements(Options{Scheduler: scheduler.Options{Seed: 1}})
			for i := range nodes {
				s.NodeSeen(1, scheduler.Node{
					Name:        fmt.Sprint("n", i),
					PodsMax:     110,
					Allocatable: []scheduler.Amount{{Resource: scheduler.CPU, Value: 4000}},
				})
			}
			s.Begin()
			for i := range b.N {
				now := unit.Instant(i + 2)
				pod := scheduler.Pod{
					ID:        scheduler.PodID(fmt.Sprint("p", i)),
					Namespace: "team",
					Name:      fmt.Sprint("p", i),
					Requests:  []scheduler.Amount{{Resource: scheduler.CPU, Value: 100}},
				}
				s.PodSeen(now, pod, false, "")
				s.Advance(now)
				pod.Node = s.waiting[pod.ID].node
				if got := s.PodSeen(now, pod, false, ""); len(got) != 1 || got[0].Kind != SameNode {
					b.Fatalf("%+v", got)
				}
				s.PodGone(now, pod.ID)
			}
		})
	}
}
