package scheduler

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/queue"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// crowded is a Placer with three nodes, each full with one pod, with priorities in the order of their names, and a pod
// of high priority about whose preemption extenders are asked.
func crowded() (p *Placer, now unit.Instant) {
	p, now = New(Options{Seed: 1}), unit.Instant(time.Hour)
	for i, name := range []string{"a", "b", "c"} {
		p.NodeSeen(now, parseNode([]string{name, "cpu=1000", "pods=10"}))
		p.PodSeen(now, parsePod([]string{"on-" + name, "cpu=1000", fmt.Sprint("prio=", i+1), "on=" + name}))
	}
	high := parsePod([]string{"high", "cpu=1000", "prio=10"})
	high.AsksPreemption = true
	p.PodSeen(now, high)
	return p, now
}

func mustNext(t *testing.T, p *Placer, now unit.Instant) Decision {
	t.Helper()
	d, ok := p.Next(now)
	if !ok {
		t.Fatal("no pod is ready")
	}
	return d
}

func victimsOf(made []Preemption) string {
	var lines []string
	for i := range made {
		lines = append(lines, strings.TrimSpace(evicted(&made[i])))
	}
	return strings.Join(lines, " ")
}

// TestExtendersChooseVictims checks that extenders get the possible preemptions, the cheapest first, and that their
// answer decides.
func TestExtendersChooseVictims(t *testing.T) {
	p, now := crowded()
	d := mustNext(t, p, now)
	const all = "Evicts on-a from a, against budgets 0. Evicts on-b from b, against budgets 0. " +
		"Evicts on-c from c, against budgets 0."
	if got := victimsOf(d.ExtenderCandidates); got != all || d.Preemption != nil || d.Failure == nil {
		t.Fatalf("offered %s, decided %+v, because of %v", got, d.Preemption, d.Failure)
	}
	if d, ok := p.Next(now); ok {
		t.Fatalf("decided while extenders are asked: %+v", d)
	}
	left := []Preemption{{Node: "c", Victims: []Victim{{ID: "on-c"}}}, {Node: "b", Victims: []Victim{{ID: "on-b"}}}}
	if err := p.NameVictims("high", left); err != nil || left[0].Victims[0].Name != "on-c" {
		t.Errorf("named %+v, %v", left, err)
	}
	p.PreemptionAnswered(now, "high", left)
	d = mustNext(t, p, now)
	if d.Preemption == nil || d.Preemption.Node != "b" || d.Nominated != "b" || d.Attempt != 1 ||
		len(d.ExtenderCandidates) != 0 {
		t.Fatalf("decided %+v, nominated on %q, attempt %d", d.Preemption, d.Nominated, d.Attempt)
	}
	if d, ok := p.Next(now); ok {
		t.Fatalf("decided while its victim is being deleted: %+v", d)
	}
	p.PodGone(now.Add(time.Second), "on-b")
	if d := mustNext(t, p, now.Add(time.Second)); d.Node != "b" {
		t.Errorf("placed on %q, want b: %v", d.Node, d.Failure)
	}
}

// TestExtendersLeaveNoPreemption: no pod is evicted, the failure says so, and extenders are asked again after the
// back-off.
func TestExtendersLeaveNoPreemption(t *testing.T) {
	p, now := crowded()
	mustNext(t, p, now)
	p.PreemptionAnswered(now, "high", nil)
	d := mustNext(t, p, now)
	if d.Preemption != nil || d.Failure == nil ||
		!strings.HasSuffix(d.Failure.String(), "1 Insufficient cpu. preemption: no candidate node for preemption") &&
			!strings.HasSuffix(d.Failure.String(), "3 Insufficient cpu. preemption: no candidate node for preemption") {
		t.Fatalf("decided %+v, %v", d.Preemption, d.Failure)
	}
	if d, ok := p.Next(now); ok {
		t.Fatalf("tried again at once: %+v", d)
	}
	if wake := p.Wake(); wake != now.Add(queue.BackoffFirst) {
		t.Errorf("tried again in %v, want %v", wake.Sub(now), queue.BackoffFirst)
	}
	if d := mustNext(t, p, now.Add(queue.BackoffFirst)); len(d.ExtenderCandidates) != 3 {
		t.Errorf("offered %v", d.ExtenderCandidates)
	}
	p.ExtendersFailed(now.Add(queue.BackoffFirst), "high")
	if wake := p.Wake(); wake != now.Add(3*queue.BackoffFirst) {
		t.Errorf("tried again in %v, want %v", wake.Sub(now), 3*queue.BackoffFirst)
	}
}

// TestVictimsThatExtendersMayNotName: pods that are not on the node, or whose priority is not lower, are not evicted,
// whatever extenders answer. If the victims are gone, no others are evicted.
func TestVictimsThatExtendersMayNotName(t *testing.T) {
	p, now := crowded()
	p.PodSeen(now, parsePod([]string{"peer", "cpu=0", "prio=10", "on=a"}))
	mustNext(t, p, now)
	for want, left := range map[string]Preemption{
		`pod "on-b" is not on node "a"`:                          {Node: "a", Victims: []Victim{{ID: "on-b"}}},
		`pod "on-a" is not on node "nowhere"`:                    {Node: "nowhere", Victims: []Victim{{ID: "on-a"}}},
		"has priority 10, which is not below the preemptor's 10": {Node: "a", Victims: []Victim{{ID: "on-a"}, {ID: "peer"}}},
	} {
		if err := p.NameVictims("high", []Preemption{left}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if err := p.NameVictims("gone", nil); err == nil {
		t.Error("victims for a pod that does not wait are accepted")
	}
	p.PodSeen(now, parsePod([]string{"filler", "cpu=1000", "prio=20", "on=b"}))
	p.PodGone(now, "on-b")
	p.PreemptionAnswered(now, "high",
		[]Preemption{{Node: "b", Victims: []Victim{{ID: "on-b"}}}, {Node: "a", Victims: []Victim{{ID: "peer"}}}})
	if d := mustNext(t, p, now); d.Preemption != nil {
		t.Errorf("evicts %s", victimsOf([]Preemption{*d.Preemption}))
	}
}

// TestCandidatesAreBounded: of many nodes, extenders get the cheapest hundred.
func TestCandidatesAreBounded(t *testing.T) {
	p, now := New(Options{Seed: 1}), unit.Instant(time.Hour)
	for i := range 3 * candidatesMax {
		node := fmt.Sprint("n", i)
		p.NodeSeen(now, parseNode([]string{node, "cpu=1000", "pods=10"}))
		for j := range 2 {
			p.PodSeen(now,
				parsePod([]string{fmt.Sprint("on-", i, "-", j), "cpu=500", fmt.Sprint("prio=", 3*candidatesMax-i), "on=" + node}))
		}
	}
	high := parsePod([]string{"high", "cpu=1000", "prio=1000"})
	high.AsksPreemption = true
	p.PodSeen(now, high)
	d := mustNext(t, p, now)
	if len(d.ExtenderCandidates) != candidatesMax || d.ExtenderCandidates[0].Node != fmt.Sprint("n", 3*candidatesMax-1) ||
		d.ExtenderCandidates[candidatesMax-1].Node != fmt.Sprint("n", 2*candidatesMax) {
		t.Errorf("offered %d, from %s to %s", len(d.ExtenderCandidates), d.ExtenderCandidates[0].Node,
			d.ExtenderCandidates[len(d.ExtenderCandidates)-1].Node)
	}
}
