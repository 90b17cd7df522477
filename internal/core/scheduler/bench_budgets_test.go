package scheduler

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// budgetKinds is how many different labels the pods have that the budgets of BenchmarkBudgets select.
const budgetKinds = 5000

// wideBudget is the i-th budget that selects every pod: all with one selector, or each with a different one.
func wideBudget(i, allowed int, alike bool) Budget {
	key := "none"
	if !alike {
		key += strconv.Itoa(i)
	}
	return Budget{
		Namespace: "d", Name: "wide-" + strconv.Itoa(i), Allowed: int32(allowed),
		Selector: LabelSelector{Requirements: []Requirement{{Key: key, Op: DoesNotExist}}},
	}
}

// BenchmarkBudgets measures what budgets cost that all select every pod, on 5,000 full nodes whose pods have 5,000
// different labels: the time of a preemptor (its victims are deleted, it is placed and deleted, and a budget's status
// changes before each step), of a pod with new labels that comes and goes, of a status update, and of adding and
// deleting all budgets; and the heap.
func BenchmarkBudgets(b *testing.B) {
	for _, alike := range []bool{true, false} {
		for _, n := range []int{0, 100, 1000, 5000} {
			for _, allowed := range []int{0, 1} {
				b.Run(fmt.Sprintf("alike=%v/allow=%d/%d", alike, allowed, n), func(b *testing.B) {
					benchBudgets(b, n, allowed, alike)
				})
			}
		}
	}
}

func benchBudgets(b *testing.B, n, allowed int, alike bool) {
	m := &crowd{old: func(i int, x *Pod) {
		x.Labels = []Label{{Key: "app", Value: "old-" + strconv.Itoa(i%budgetKinds)}}
	}}
	p := New(Options{})
	for i := range 5000 {
		p.NodeSeen(1, benchNode(i))
		for k := range 2 {
			p.PodSeen(1, m.crowdPod(i*2+k, "node-"+strconv.Itoa(i)))
		}
	}
	now, i := unit.Instant(time.Hour), 0
	metrics := map[string]float64{} // b.Loop drops metrics that were reported before it
	measure := func(what string, times int, do func()) {
		before := cpuTime(b)
		for range times {
			do()
		}
		metrics[what] = float64(cpuTime(b)-before) / float64(times) / 1000
	}
	status := func() {
		if n > 0 {
			p.BudgetSeen(now, wideBudget(i%n, allowed+i/n%2, alike))
		}
		i++
	}
	one := func() {
		now = now.Add(time.Second)
		status()
		preemptBeside(b, p, m, now, i)
	}
	one()
	heap := heapNow()
	measure("us-all-seen", 1, func() {
		for k := range n {
			p.BudgetSeen(now, wideBudget(k, allowed, alike))
		}
	})
	one()
	metrics["MiB"] = float64(heapNow()-heap) / (1 << 20)
	measure("us/kind", 100, func() {
		x := m.crowdPod(i, "node-0")
		x.ID, x.Labels[0].Value = "new", "new"
		p.PodSeen(now, x)
		p.PodGone(now, x.ID)
		i++
	})
	for b.Loop() {
		one()
	}
	measure("us/preemptor", 100, one)
	measure("us/status", 100, status)
	measure("us-all-gone", 1, func() {
		for k := range n {
			p.BudgetGone(now, "d", "wide-"+strconv.Itoa(k))
		}
	})
	for what, n := range metrics {
		b.ReportMetric(n, what)
	}
}

// preemptBeside adds a preemptor, evicts its victims, places and deletes it, and adds the victims again.
func preemptBeside(b *testing.B, p *Placer, m *crowd, now unit.Instant, i int) {
	x := benchPod("p" + strconv.Itoa(i))
	x.Priority, x.Requests = 10, []Amount{{CPU, 25000}, {Memory, 100 << 20}}
	p.PodSeen(now, x)
	d, _ := p.Next(now)
	if d.Preemption == nil {
		b.Fatalf("pod %d preempts no pod: %v", i, d.Failure)
	}
	victims := d.Preemption.Victims
	for _, v := range victims {
		p.PodGone(now, v.ID)
	}
	if d, _ = p.Next(now); d.Node == "" {
		b.Fatalf("pod %d is not placed although its victims are gone: %v", i, d.Failure)
	}
	p.Bound(now, d.Pod, BindDone)
	x.Node = d.Node
	p.PodSeen(now, x)
	p.PodGone(now, x.ID)
	for k := range victims {
		old := m.crowdPod(i+k, d.Node)
		old.ID = PodID(fmt.Sprint("new-", i, "-", k))
		p.PodSeen(now, old)
	}
}
