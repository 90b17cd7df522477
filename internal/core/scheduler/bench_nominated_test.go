package scheduler

import (
	"fmt"
	"strconv"
	"testing"
)

// BenchmarkNominated measures preemptors that are never placed: their victims never end, so they stay nominated, 500 at
// a time. All pods of the full cluster differ only in labels, so all costs are equal. Every preemptor has anti-affinity
// to pods with its own label, and affinity to zones with pods of one label. This is a case of bench/scheduler.
func BenchmarkNominated(b *testing.B) {
	const stay = 500
	for _, nodes := range []int{5000, 50000} {
		b.Run(fmt.Sprint(nodes), func(b *testing.B) {
			p := crowdCluster(&crowd{old: func(_ int, x *Pod) { x.Started, x.Requests = 0, []Amount{{CPU, 31600}} }}, nodes)
			i := 0
			measure(b, 2*crowdBudgets+stay, func() {
				x := benchPod("p" + strconv.Itoa(i))
				kind := "preemptor-" + strconv.Itoa(i%crowdKinds)
				x.Priority, x.Requests, x.Labels = 10, []Amount{{CPU, 4000}}, []Label{{Key: "app", Value: kind}}
				x.AntiAffinity = []PodTerm{appTerm(kind, hostKey)}
				x.Affinity = []PodTerm{appTerm("old-"+strconv.Itoa(i%crowdBudgets), "zone")}
				p.PodSeen(2, x)
				if d, _ := p.Next(2); d.Preemption == nil {
					b.Fatalf("pod %d preempts no pod: %v", i, d.Failure)
				}
				if i >= stay {
					p.PodGone(2, PodID("p"+strconv.Itoa(i-stay)))
				}
				i++
			})
		})
	}
}
