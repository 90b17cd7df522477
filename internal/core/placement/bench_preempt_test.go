package placement

import (
	"fmt"
	"strconv"
	"testing"
)

// A crowd is a full cluster with preemptors, and what goes on between any two of them.
type crowd struct {
	name    string
	pod     func(i int, x *Pod)
	between func(p *Placer, i int)
}

const (
	crowdBudgets = 100 // each selects as many of the pods as any other
	crowdKinds   = 20  // of preemptors that look around
	crowdStay    = 100 // preemptors are there at a time
)

func crowdBudget(b, allowed int) Budget {
	name := "old-" + strconv.Itoa(b)
	return Budget{Namespace: "d", Name: name, Selector: appIs(name), Allowed: int32(allowed)}
}

func appIs(value string) LabelSelector {
	return LabelSelector{Requirements: []Requirement{{Key: "app", Op: In, Values: []string{value}}}}
}

func appTerm(value, key string) PodTerm {
	return PodTerm{Selector: appIs(value), Namespaces: []string{"d"}, NamespaceSelector: LabelSelector{Nothing: true}, TopologyKey: key}
}

// lookAround lets preemptors keep away from their like, and join pods of a zone or spread over zones.
func lookAround(i int, x *Pod) {
	kind := "preemptor-" + strconv.Itoa(i%crowdKinds)
	x.Labels = []Label{{Key: "app", Value: kind}}
	x.AntiAffinity = []PodTerm{appTerm(kind, hostKey)}
	if i%2 == 0 {
		x.Affinity = []PodTerm{appTerm("old-"+strconv.Itoa(i%crowdBudgets), "zone")}
		return
	}
	x.Spread = []SpreadConstraint{{MaxSkew: 2, TopologyKey: "zone", Hard: true, Selector: appIs(kind), MinDomains: 1}}
}

// changing lets budgets allow now some disruptions and now none.
func changing(p *Placer, i int) { p.BudgetSeen(2, crowdBudget(i*7%crowdBudgets, i/crowdBudgets%4)) }

var crowds = []crowd{
	{name: "alike", pod: func(int, *Pod) {}},
	{name: "budgets", pod: func(int, *Pod) {}, between: changing},
	{name: "looking", pod: lookAround},
	{name: "looking-budgets", pod: lookAround, between: changing},
	{name: "own-requests", pod: func(i int, x *Pod) { x.Requests = []Amount{{CPU, int64(22000 + 10*(i%1000))}} }, between: changing},
	{name: "spent", pod: func(int, *Pod) {}, between: func(p *Placer, i int) {
		if i < crowdBudgets { // from then on no budget allows anything, and they say so again and again
			p.BudgetSeen(2, crowdBudget(i, 0))
		}
		p.BudgetSeen(2, crowdBudget(i%crowdBudgets, 0))
	}},
}

// BenchmarkPreempt measures a preemptor's way through the mind: seen, tried, its victims gone, placed, seen bound; and
// when so many have come after it, its end and the pod that takes its place, so that the cluster stays full.
func BenchmarkPreempt(b *testing.B) {
	for _, m := range crowds {
		for _, nodes := range []int{5000, 50000} {
			b.Run(fmt.Sprintf("%s/%d", m.name, nodes), func(b *testing.B) {
				p := crowdCluster(nodes)
				i, stays := 0, make([]Pod, crowdStay)
				one := func() {
					if m.between != nil {
						m.between(p, i)
					}
					preemptOne(b, p, &m, i, stays)
					i++
				}
				for range 2 * crowdBudgets {
					one()
				}
				b.ReportAllocs()
				before := cpuTime(b)
				for b.Loop() {
					one()
				}
				b.ReportMetric(float64(cpuTime(b)-before)/float64(b.N), "cpu-ns/op")
			})
		}
	}
}

func preemptOne(b *testing.B, p *Placer, m *crowd, i int, stays []Pod) {
	x := benchPod("p" + strconv.Itoa(i))
	x.Priority, x.Requests = 10, []Amount{{CPU, 25000}, {Memory, 100 << 20}}
	m.pod(i, &x)
	p.PodSeen(2, x)
	d, _ := p.Next(2)
	if d.Preemption == nil {
		b.Fatalf("pod %d: evicts nobody: %v", i, d.Failure)
	}
	for _, v := range d.Preemption.Victims {
		p.PodGone(2, v.ID)
	}
	d, ok := p.Next(2)
	if !ok || d.Node == "" {
		b.Fatalf("pod %d: not placed when its victims are gone: %v", i, d.Failure)
	}
	p.Bound(2, d.Pod, BindDone)
	x.Node = d.Node
	p.PodSeen(2, x)
	stays[i%len(stays)] = x
	if i < len(stays) {
		return
	}
	last := &stays[(i+1)%len(stays)]
	p.PodGone(2, last.ID)
	old := crowdPod(i, last.Node)
	old.ID = PodID("new-" + strconv.Itoa(i))
	p.PodSeen(2, old)
}

func crowdPod(i int, node string) Pod {
	x := benchPod("old-" + strconv.Itoa(i))
	x.Labels, x.Node, x.Started = []Label{{Key: "app", Value: "old-" + strconv.Itoa(i%crowdBudgets)}}, node, int64(i%1000+1)
	x.Requests = []Amount{{CPU, 31500}, {Memory, 100 << 20}}
	return x
}

// crowdCluster has two pods on each node, which leave no room for a preemptor.
func crowdCluster(nodes int) *Placer {
	p := New(Options{})
	for i := range nodes {
		p.NodeSeen(1, benchNode(i))
		for k := range 2 {
			p.PodSeen(1, crowdPod(i*2+k, "node-"+strconv.Itoa(i)))
		}
	}
	for k := range crowdBudgets {
		p.BudgetSeen(1, crowdBudget(k, k%3))
	}
	return p
}
