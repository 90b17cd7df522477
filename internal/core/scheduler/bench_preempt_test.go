package scheduler

import (
	"fmt"
	"strconv"
	"testing"
)

// A crowd is a full cluster with preemptors, and what changes between any two of them.
type crowd struct {
	name     string
	old      func(i int, x *Pod) // sets up the i-th pod of the full cluster; nil: nothing to do
	prepare  func(p *Placer)
	pod      func(i int, x *Pod)
	between  func(p *Placer, i int)
	hopeless bool // no eviction helps: a preemptor is tried, and deleted
}

const (
	crowdBudgets = 100 // each selects the same number of pods
	crowdKinds   = 20  // of preemptors with constraints about other pods
	crowdStay    = 100 // how many preemptors there are at a time
)

func crowdBudget(b, allowed int) Budget {
	name := "old-" + strconv.Itoa(b)
	return Budget{Namespace: "d", Name: name, Selector: appIs(name), Allowed: int32(allowed)}
}

func appIs(value string) LabelSelector {
	return LabelSelector{Requirements: []Requirement{{Key: "app", Op: In, Values: []string{value}}}}
}

func appTerm(value, key string) PodTerm {
	return PodTerm{
		Selector:          appIs(value),
		Namespaces:        []string{"d"},
		NamespaceSelector: LabelSelector{Nothing: true},
		TopologyKey:       key,
	}
}

// lookAround gives preemptors anti-affinity to pods with their own label, and affinity to a zone or a spread
// constraint.
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

// changing changes a budget between allowing some disruptions and none.
func changing(p *Placer, i int) { p.BudgetSeen(2, crowdBudget(i*7%crowdBudgets, i/crowdBudgets%4)) }

// allowing changes one of n budgets that select every pod between allowing some disruptions and none.
func allowing(n int) func(p *Placer, i int) {
	return func(p *Placer, i int) { p.BudgetSeen(2, budgetOfAll(i*7%n, (i+i/n)%3)) }
}

func budgetOfAll(b, allowed int) Budget {
	return Budget{
		Namespace: "d", Name: "all-" + strconv.Itoa(b), Allowed: int32(allowed),
		Selector: LabelSelector{Requirements: []Requirement{{Key: "preemptor", Op: DoesNotExist}}},
	}
}

// keepAway gives x one of crowdKinds labels, and anti-affinity to all pods with other labels.
func keepAway(i int, x *Pod, key string) {
	kind := strconv.Itoa(i % crowdKinds)
	x.Labels = []Label{{Key: "app", Value: "preemptor"}, {Key: "kind", Value: kind}, {Key: "preemptor", Value: "yes"}}
	term := appTerm("", key)
	term.Selector = LabelSelector{Requirements: []Requirement{
		{Key: "kind", Op: NotIn, Values: []string{kind}}, {Key: "preemptor", Op: DoesNotExist},
	}}
	x.AntiAffinity = []PodTerm{term}
}

var crowds = []crowd{
	{name: "alike", pod: func(int, *Pod) {}},
	{name: "budgets", pod: func(int, *Pod) {}, between: changing},
	{name: "looking", pod: lookAround},
	{name: "looking-budgets", pod: lookAround, between: changing},
	{name: "own-requests", pod: func(i int, x *Pod) {
		x.Requests = []Amount{{CPU, int64(22000 + 10*(i%1000))}}
	}, between: changing},
	{name: "spent", pod: func(int, *Pod) {}, between: func(p *Placer, i int) {
		if i < crowdBudgets { // after that, no budget allows a disruption, and statuses only repeat
			p.BudgetSeen(2, crowdBudget(i, 0))
		}
		p.BudgetSeen(2, crowdBudget(i%crowdBudgets, 0))
	}},
	{name: "budget-of-all", pod: func(int, *Pod) {}, between: allowing(1)},
	{name: "budgets-of-all", pod: func(int, *Pod) {}, between: allowing(1000), prepare: func(p *Placer) {
		for b := range 1000 {
			p.BudgetSeen(1, budgetOfAll(b, b%3))
		}
	}},
	{name: "budget-of-all-two", pod: func(_ int, x *Pod) { x.Requests[0].Value = 40000 }, between: allowing(1)},
	{name: "forbids-hosts", pod: func(i int, x *Pod) {
		keepAway(i, x, hostKey)
		x.Requests[0].Value = 40000
	}, between: changing},
	{name: "forbids-zones", pod: func(i int, x *Pod) { keepAway(i, x, "zone") }, between: changing, hopeless: true},
	{name: "forbidden", old: func(i int, x *Pod) {
		x.AntiAffinity = []PodTerm{appTerm("preemptor-"+strconv.Itoa(i%crowdKinds), hostKey)}
	}, pod: lookAround, between: changing},
	{name: "forbidden-zones", old: func(i int, x *Pod) {
		x.AntiAffinity = []PodTerm{appTerm("preemptor-"+strconv.Itoa(i%crowdKinds), "zone")}
	}, pod: lookAround, between: changing, hopeless: true},
	{name: "joins-few", old: func(i int, x *Pod) { x.Priority = int32(i % 2 * 20) }, pod: func(i int, x *Pod) {
		lookAround(i, x)
		x.Spread, x.Affinity = nil, []PodTerm{appTerm("old-"+strconv.Itoa((2*i+1)%crowdBudgets), hostKey)}
	}, between: changing},
	{name: "no-room", old: func(i int, x *Pod) { x.Priority = int32(i % 2 * 20) }, pod: func(i int, x *Pod) {
		x.Requests = []Amount{{CPU, int64(40000 + 10*(i%1000))}}
	}, between: changing, hopeless: true},
	{name: "no-room-around", old: func(i int, x *Pod) { x.Priority = int32(i % 2 * 20) }, pod: func(i int, x *Pod) {
		lookAround(i, x)
		x.Requests = []Amount{{CPU, int64(40000 + 10*(i%1000))}}
	}, between: changing, hopeless: true},
}

// BenchmarkPreempt measures a preemptor: added, tried, its victims deleted, placed, seen bound. When enough others have
// come after it, it is deleted and replaced by other pods, so that the cluster stays full.
func BenchmarkPreempt(b *testing.B) {
	for _, m := range crowds {
		for _, nodes := range []int{5000, 50000} {
			b.Run(fmt.Sprintf("%s/%d", m.name, nodes), func(b *testing.B) {
				p := crowdCluster(&m, nodes)
				i, stays := 0, make([]stay, crowdStay)
				one := func() {
					if m.between != nil {
						m.between(p, i)
					}
					preemptOne(b, p, &m, i, stays)
					i++
				}
				measure(b, 2*crowdBudgets, one)
			})
		}
	}
}

// A stay is a placed preemptor, and the number of its victims.
type stay struct {
	pod     Pod
	victims int
}

func preemptOne(b *testing.B, p *Placer, m *crowd, i int, stays []stay) {
	x := benchPod("p" + strconv.Itoa(i))
	x.Priority, x.Requests = 10, []Amount{{CPU, 25000}, {Memory, 100 << 20}}
	m.pod(i, &x)
	p.PodSeen(2, x)
	d, _ := p.Next(2)
	if m.hopeless {
		if d.Preemption != nil || d.Failure == nil {
			b.Fatalf("pod %d: evicts %v", i, d.Preemption)
		}
		p.PodGone(2, x.ID)
		return
	}
	if d.Preemption == nil {
		b.Fatalf("pod %d preempts no pod: %v", i, d.Failure)
	}
	victims := d.Preemption.Victims
	for _, v := range victims {
		p.PodGone(2, v.ID)
	}
	d, ok := p.Next(2)
	if !ok || d.Node == "" {
		b.Fatalf("pod %d is not placed although its victims are gone: %v", i, d.Failure)
	}
	p.Bound(2, d.Pod, BindDone)
	x.Node = d.Node
	p.PodSeen(2, x)
	stays[i%len(stays)] = stay{pod: x, victims: len(victims)}
	if i < len(stays) {
		return
	}
	last := &stays[(i+1)%len(stays)]
	p.PodGone(2, last.pod.ID)
	for k := range last.victims {
		old := m.crowdPod(i+k, last.pod.Node)
		old.ID = PodID(fmt.Sprint("new-", i, "-", k))
		p.PodSeen(2, old)
	}
}

func (m *crowd) crowdPod(i int, node string) Pod {
	x := benchPod("old-" + strconv.Itoa(i))
	x.Labels = []Label{{Key: "app", Value: "old-" + strconv.Itoa(i%crowdBudgets)}}
	x.Node = node
	x.Started = int64(i%1000 + 1)
	x.Requests = []Amount{{CPU, 31500}, {Memory, 100 << 20}}
	if m.old != nil {
		m.old(i, &x)
	}
	return x
}

// crowdCluster has two pods on each node, which leave no room for a preemptor.
func crowdCluster(m *crowd, nodes int) *Placer {
	p := New(Options{})
	for i := range nodes {
		p.NodeSeen(1, benchNode(i))
		for k := range 2 {
			p.PodSeen(1, m.crowdPod(i*2+k, "node-"+strconv.Itoa(i)))
		}
	}
	for k := range crowdBudgets {
		p.BudgetSeen(1, crowdBudget(k, k%3))
	}
	if m.prepare != nil {
		m.prepare(p)
	}
	return p
}
