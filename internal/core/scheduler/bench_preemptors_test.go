package scheduler

import (
	"fmt"
	"strconv"
	"testing"
)

// BenchmarkVictimGone measures the end of one victim, and the placement that follows, while a number of equal
// preemptors wait for their victims. Upstream's PreemptionBasic has a thousand.
func BenchmarkVictimGone(b *testing.B) {
	for _, waiting := range []int{100, 1000, 10000} {
		b.Run(fmt.Sprint(waiting), func(b *testing.B) {
			spent := cpuTime(b)
			for n := 0; n < b.N; {
				b.StopTimer()
				before := cpuTime(b)
				p, victims := awaitingVictims(b, waiting)
				spent += cpuTime(b) - before
				b.StartTimer()
				for _, v := range victims[:min(len(victims), b.N-n)] {
					p.PodGone(3, v)
					for d, ok := p.Next(3); ok; d, ok = p.Next(3) {
						p.Bound(3, d.Pod, BindDone)
					}
					n++
				}
			}
			b.ReportMetric(float64(cpuTime(b)-spent)/float64(b.N), "cpu-ns/op")
		})
	}
}

// awaitingVictims has as many nodes as preemptors, with two victims on each node.
func awaitingVictims(b *testing.B, preemptors int) (p *Placer, victims []PodID) {
	p = New(Options{})
	for i := range preemptors {
		p.NodeSeen(1, benchNode(i))
		for k := range 2 {
			x := benchPod("old-" + strconv.Itoa(i*2+k))
			x.Node, x.Requests = "node-"+strconv.Itoa(i), []Amount{{CPU, 31500}, {Memory, 100 << 20}}
			p.PodSeen(1, x)
		}
	}
	for i := range preemptors {
		x := benchPod("p" + strconv.Itoa(i))
		x.Priority, x.Requests = 10, []Amount{{CPU, 60000}, {Memory, 100 << 20}}
		p.PodSeen(2, x)
	}
	for d, ok := p.Next(2); ok; d, ok = p.Next(2) {
		if d.Preemption == nil || len(d.Preemption.Victims) != 2 {
			b.Fatalf("%s: %v, want a preemption with two victims", d.Pod.Name, d.Failure)
		}
		for _, v := range d.Preemption.Victims {
			victims = append(victims, v.ID)
		}
	}
	if len(victims) != 2*preemptors {
		b.Fatalf("%d victims for %d preemptors", len(victims), preemptors)
	}
	return p, victims
}
