package scheduler

import (
	"fmt"
	"slices"
	"testing"
)

// TestWhichPodsBudgetsProtect checks which pods a budget protects: those that its selector selects, whether the budget
// or the pods came first, but never pods without labels. A deleted budget protects no pods, and nothing of it remains.
func TestWhichPodsBudgetsProtect(t *testing.T) {
	in := func(key string, values ...string) Requirement { return Requirement{Key: key, Op: In, Values: values} }
	for _, q := range []struct {
		selector []Requirement
		want     []string
	}{
		{[]Requirement{in("app", "web")}, []string{"web", "web1"}},
		{[]Requirement{in("app", "web", "web")}, []string{"web", "web1"}},
		{[]Requirement{in("app", "web", "db")}, []string{"web", "web1", "db"}},
		{[]Requirement{in("app", "web"), in("tier", "1")}, []string{"web1"}},
		{[]Requirement{{Key: "app", Op: NotIn, Values: []string{"db"}}}, []string{"web", "web1"}},
		{[]Requirement{{Key: "tier", Op: DoesNotExist}}, []string{"web", "db"}},
		{[]Requirement{{Key: "tier", Op: Exists}}, []string{"web1"}},
		{nil, nil}, // as upstream: an empty selector selects no pods
	} {
		for _, budgetFirst := range []bool{true, false} {
			t.Run(fmt.Sprintf("selector %v, budget first %v", q.selector, budgetFirst), func(t *testing.T) {
				testWhichPodsBudgetProtects(t, LabelSelector{Requirements: q.selector}, budgetFirst, q.want)
			})
		}
	}
}

// testWhichPodsBudgetProtects is TestWhichPodsBudgetsProtect for one selector.
func testWhichPodsBudgetProtects(t *testing.T, selector LabelSelector, budgetFirst bool, want []string) {
	pods := []Pod{
		{ID: "web", Namespace: "d", Labels: []Label{{Key: "app", Value: "web"}}},
		{ID: "web1", Namespace: "d", Labels: []Label{{Key: "app", Value: "web"}, {Key: "tier", Value: "1"}}},
		{ID: "db", Namespace: "d", Labels: []Label{{Key: "app", Value: "db"}}},
		{ID: "bare", Namespace: "d"},
		{ID: "theirs", Namespace: "e", Labels: []Label{{Key: "app", Value: "web"}, {Key: "tier", Value: "1"}}},
	}
	p := New(Options{})
	c := p.cluster
	see := func(allowed int32) {
		p.BudgetSeen(1, Budget{Namespace: "d", Name: "b", Allowed: allowed, Selector: selector})
	}
	over := func() (names []string) {
		for _, x := range pods {
			if c.overBudget([]*placedPod{c.pods[x.ID]})[0] {
				names = append(names, string(x.ID))
			}
		}
		return names
	}
	p.BudgetSeen(1, Budget{Namespace: "d", Name: "stays", Allowed: 9, Selector: appIs("none")})
	p.BudgetSeen(1, Budget{Namespace: "d", Name: "b", Selector: appIs("others")}) // before it is changed
	if budgetFirst {
		see(0)
	}
	for _, x := range pods {
		x.Name, x.Node = string(x.ID), "n"
		p.PodSeen(1, x)
	}
	if !budgetFirst {
		see(0)
	}
	if got := over(); !slices.Equal(got, want) {
		t.Errorf("it protects %v, want %v", got, want)
	}
	if see(1); over() != nil {
		t.Errorf("it allows one disruption, but none of %v", over())
	}
	p.BudgetSeen(1, Budget{Namespace: "d", Name: "b", Selector: appIs("none")})
	if over() != nil {
		t.Errorf("it selects other pods now, but protects %v", over())
	}
	if see(0); !slices.Equal(over(), want) {
		t.Errorf("it selects them again, but protects %v", over())
	}
	p.BudgetGone(1, "d", "b")
	left := c.budgets.in["d"]
	if over() != nil || len(left.byName) != 1 || len(left.byLabel) != 1 || len(left.others) != 0 {
		t.Errorf("it was deleted, but protects %v; kept are %+v", over(), left)
	}
	if p.BudgetGone(1, "d", "stays"); len(c.budgets.in) > 0 {
		t.Errorf("all budgets were deleted, but %v are kept", c.budgets.in)
	}
}

// TestVictimsCountOnce checks that a victim counts against its budget only until the budget's status counts it.
func TestVictimsCountOnce(t *testing.T) {
	x := newDuel(t, 800, nil)
	c := x.placer.cluster
	left := func(when string, want int32) {
		t.Helper()
		if got := c.budgets.at("d", "app").left(); got != want {
			t.Errorf("%s: %d disruptions are left, want %d", when, got, want)
		}
	}
	x.pod("app-a", "a", 1, 1, 900)
	x.pod("app-b", "b", 1, 1, 900)
	x.budget("app", 2)
	c.charge("other", "app-a")
	left("one is chosen", 1)
	c.charge("another", "app-a")
	left("for another, too", 1)
	c.discharge(c.pods["app-a"], "other")
	left("the first preemptor no longer needs its victim", 1)
	x.budget("app", 2)
	left("the status does not count the victim yet", 1)
	x.budget("app", 1, "app-a")
	left("the status has seen it", 1)
	c.charge("other", "app-a")
	left("it is chosen again", 1)
	x.budget("app", 1)
	x.placer.PodSeen(1, Pod{
		ID:        "app-b",
		Namespace: "d",
		Name:      "app-b",
		Node:      "b",
		Labels:    []Label{{Key: "app", Value: "app"}},
		Deleting:  true,
	})
	c.charge("other", "app-b")
	left("a victim is chosen that is being deleted already", 1)
	c.charge("other", "app-a")
	left("the first victim is chosen again", 0)
	x.placer.PodSeen(1, Pod{
		ID:        "app-a",
		Namespace: "d",
		Name:      "app-a",
		Node:      "a",
		Labels:    []Label{{Key: "app", Value: "web"}},
	})
	left("the budget no longer selects the victim", 1)
	c.charge("other", "nobody")
}

// TestBudgetsBelowZero checks that a budget that allows more again matters to all its pods, even if more pods were
// disrupted than it allowed.
func TestBudgetsBelowZero(t *testing.T) {
	for _, kept := range []bool{false, true} {
		x := newDuel(t, 800, nil)
		x.demand.costs.worth = kept
		x.pod("app-a", "a", 1, 1, 900)
		x.pod("free", "b", 5, 1, 900)
		x.pod("app-c", "c", 1, 1, 900)
		x.pod("app-d", "d", 1, 1, 900)
		x.budget("app", 1)
		x.chooses("it allows one", "a: app-a")
		x.placer.cluster.charge("other", "app-c")
		x.placer.cluster.charge("other", "app-d")
		x.chooses("it is overdrawn", "b: free")
		x.budget("app", 3)
		x.chooses("it allows one again", "a: app-a")
	}
}
