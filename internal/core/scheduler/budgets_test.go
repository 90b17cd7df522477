package scheduler

import (
	"slices"
	"testing"
)

// TestWhomBudgetsProtect checks which pods a budget has: those of its selector, once each, whether the budget or the
// pods came first; never pods without labels. A deleted budget protects no pods, and nothing of it remains.
func TestWhomBudgetsProtect(t *testing.T) {
	pods := []struct {
		name, namespace string
		labels          []Label
	}{
		{"web", "d", []Label{{Key: "app", Value: "web"}}},
		{"web1", "d", []Label{{Key: "app", Value: "web"}, {Key: "tier", Value: "1"}}},
		{"db", "d", []Label{{Key: "app", Value: "db"}}},
		{"bare", "d", nil},
		{"theirs", "e", []Label{{Key: "app", Value: "web"}, {Key: "tier", Value: "1"}}},
	}
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
		{nil, nil}, // as upstream has it
	} {
		for _, budgetFirst := range []bool{true, false} {
			p := New(Options{})
			c := p.cluster
			see := func(allowed int32) {
				p.BudgetSeen(1, Budget{Namespace: "d", Name: "b", Allowed: allowed, Selector: LabelSelector{Requirements: q.selector}})
			}
			over := func() (names []string) {
				for _, x := range pods {
					if c.overBudget([]*placedPod{c.pods[PodID(x.name)]})[0] {
						names = append(names, x.name)
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
				p.PodSeen(1, Pod{ID: PodID(x.name), Namespace: x.namespace, Name: x.name, Node: "n", Labels: x.labels})
			}
			if !budgetFirst {
				see(0)
			}
			if got := over(); !slices.Equal(got, q.want) {
				t.Errorf("%v, first %v: protects %v, want %v", q.selector, budgetFirst, got, q.want)
			}
			if see(1); over() != nil {
				t.Errorf("%v, first %v: it allows one, and not of %v", q.selector, budgetFirst, over())
			}
			p.BudgetSeen(1, Budget{Namespace: "d", Name: "b", Selector: appIs("none")})
			if over() != nil {
				t.Errorf("%v, first %v: it selects others now, and protects %v", q.selector, budgetFirst, over())
			}
			if see(0); !slices.Equal(over(), q.want) {
				t.Errorf("%v, first %v: it selects them again, and protects %v", q.selector, budgetFirst, over())
			}
			p.BudgetGone(1, "d", "b")
			left := c.budgets.in["d"]
			if over() != nil || len(left.byName) != 1 || len(left.byLabel) != 1 || len(left.others) != 0 {
				t.Errorf("%v, first %v: it is gone, and protects %v; left are %+v", q.selector, budgetFirst, over(), left)
			}
			if p.BudgetGone(1, "d", "stays"); len(c.budgets.in) > 0 {
				t.Errorf("all are gone, and left are %v", c.budgets.in)
			}
		}
	}
}

// TestWhatTheStatusCounts checks that a victim counts against its budget once: until the status counts it, and then not
// in addition.
func TestWhatTheStatusCounts(t *testing.T) {
	x := newDuel(t, 800, nil)
	c := x.placer.cluster
	left := func(when string, want int32) {
		t.Helper()
		if got := c.budgets.at("d", "app").left(); got != want {
			t.Errorf("%s: %d are left, want %d", when, got, want)
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
	left("the first needs it no more", 1)
	x.budget("app", 2)
	left("the status has not seen it", 1)
	x.budget("app", 1, "app-a")
	left("the status has seen it", 1)
	c.charge("other", "app-a")
	left("it is chosen again", 1)
	x.budget("app", 1)
	x.placer.PodSeen(1, Pod{ID: "app-b", Namespace: "d", Name: "app-b", Node: "b", Labels: []Label{{Key: "app", Value: "app"}}, Deleting: true})
	c.charge("other", "app-b")
	left("one is chosen that is going already", 1)
	c.charge("other", "app-a")
	left("the first is chosen again", 0)
	x.placer.PodSeen(1, Pod{ID: "app-a", Namespace: "d", Name: "app-a", Node: "a", Labels: []Label{{Key: "app", Value: "web"}}})
	left("it is in the budget no more", 1)
	c.charge("other", "nobody")
}

// TestBudgetsBelowZero checks that a budget that allows more again matters to all its pods, even if it was overdrawn.
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
