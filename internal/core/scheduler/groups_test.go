package scheduler

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/census"
)

// TestServicesAreFound compares the services found for a pod with those that select it, while services are added,
// changed and deleted; nothing may remain at the end.
func TestServicesAreFound(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	one := func() string { return fmt.Sprint(rng.IntN(3)) }
	requirement := func(key string) Requirement {
		r := Requirement{Key: key, Op: In, Values: []string{one()}}
		switch rng.IntN(6) {
		case 0:
			r.Values = []string{"0", "1"}
		case 1:
			r.Op, r.Values = Exists, nil
		case 2:
			r.Op = NotIn
		}
		return r
	}
	g, plain := newGroups(), map[string]LabelSelector{}
	for i := range 5000 {
		name := fmt.Sprint("s", rng.IntN(20))
		if rng.IntN(3) == 0 {
			g.remove(Group{Kind: KindService, Namespace: "d", Name: name})
			delete(plain, name)
		} else {
			x := LabelSelector{Nothing: rng.IntN(8) == 0}
			for _, key := range []string{"a", "b", "c"}[:rng.IntN(4)] {
				x.Requirements = append(x.Requirements, requirement(key))
			}
			g.set(Group{Kind: KindService, Namespace: "d", Name: name, Selector: x})
			plain[name] = x
		}
		who := &census.Identity{Namespace: "d", Labels: []Label{{Key: "a", Value: one()}, {Key: "b", Value: one()}}}
		var want LabelSelector
		for i := range 20 {
			if x := plain[fmt.Sprint("s", i)]; len(x.Requirements) > 0 && x.Selects(who.Labels) {
				want.Requirements = append(want.Requirements, x.Requirements...)
			}
		}
		got, _ := g.selectorFor(who, Owner{})
		byText := func(a, b Requirement) int { return slices.Compare([]byte(fmt.Sprint(a)), []byte(fmt.Sprint(b))) }
		slices.SortFunc(got.Requirements, byText)
		slices.SortFunc(want.Requirements, byText)
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("round %d: pods with labels %v are selected by %v, want %v", i, who.Labels, got, want)
		}
	}
	for name := range plain {
		g.remove(Group{Kind: KindService, Namespace: "d", Name: name})
	}
	if len(g.services) > 0 {
		t.Errorf("services are kept after all were deleted: %v", g.services["d"])
	}
}
