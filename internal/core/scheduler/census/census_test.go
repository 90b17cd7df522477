package census

import (
	"slices"
	"testing"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/rows"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/selector"
)

// town has nodes with labels. All of them are present.
type town struct {
	in     *selector.Interner
	labels [][]selector.LabelID
}

func (x *town) End() rows.Row           { return rows.Row(len(x.labels)) }
func (x *town) Present(r rows.Row) bool { return x.labels[r] != nil }
func (x *town) Label(r rows.Row, key int32) (int32, bool) {
	return selector.NumberOf(x.labels[r], key)
}

// HasKey returns true: any key may be used.
func (x *town) HasKey(int32) bool { return true }

func (x *town) with(zone string) []selector.LabelID {
	return x.in.Labels([]selector.Label{{Key: "zone", Value: zone}})
}

// everywhere admits all nodes.
type everywhere struct{}

func (everywhere) Admits(rows.Row) bool      { return true }
func (everywhere) EachString(func(...int32)) {}

// TestCensus adds, moves and deletes pods and nodes: counters count them where they are, are shared by users with equal
// keys, report changes, and nothing remains at the end.
func TestCensus(t *testing.T) {
	x := &town{in: selector.NewInterner()}
	x.labels = [][]selector.LabelID{x.with("a"), x.with("a"), x.with("b")}
	reported := 0
	c := New(x, x.in, func(rows.Row) {}, func(*Counter, rows.Row, int32) { reported++ })
	empty := c.Sizes()
	zone := x.in.ID("zone")
	web := func() *PodSet {
		return c.PodSetOf(PodSelector{
			Namespaces: []string{"x"},
			ByLabels:   selector.Selector{Nothing: true},
			Pods: selector.Selector{
				Requirements: []selector.Requirement{{Key: "app", Op: selector.In, Values: []string{"web"}}},
			},
		})
	}
	who, fresh := c.Identify("x", []selector.Label{{Key: "app", Value: "web"}})
	if !fresh {
		t.Error("the identity existed before")
	}
	first := &Pod{Row: 0, Who: who}
	c.Add(first)
	set := web()
	if web() != set || !who.In(set) {
		t.Error("equal pod sets are two, or do not have the pods that they select")
	}
	c.DropPodSet(set)
	scope := c.ScopeAt(nil, everywhere{}, []int32{zone})
	k := c.CounterAt(CounterKey{Set: set, Topo: c.TopologyOf(zone), Scope: scope, What: CountLivePods})
	c.DropScope(scope)
	second, ending := &Pod{Row: 2, Who: who}, &Pod{Row: 2, Who: who, Deleting: true}
	c.Add(second)
	c.Add(ending)
	check := func(when string, a, b, fewest int32) {
		t.Helper()
		if k.On(0) != a || k.On(2) != b || k.Fewest() != fewest || k.Total != int64(a+b) {
			t.Errorf("%s: %d in a, %d in b, fewest %d, total %d", when, k.On(0), k.On(2), k.Fewest(), k.Total)
		}
	}
	check("one in each zone", 1, 1, 1)
	c.Remove(second)
	check("one left", 1, 0, 0)
	c.MoveRow(0, slices.Values([]*Pod{first}), func() { x.labels[0] = x.with("b") })
	if reported == 0 || k.On(0) != 1 || k.On(1) != 0 || k.Total != 1 {
		t.Errorf("its node has moved: %d in b, %d in a, reported %d times", k.On(0), k.On(1), reported)
	}
	if c.SetNamespace("x", []selector.Label{{Key: "team", Value: "red"}}) {
		t.Error("a pod set that does not select namespaces by labels has changed")
	}
	c.Remove(first)
	c.Remove(ending)
	c.DropCounter(k)
	c.DropPodSet(set)
	if !c.DropIdentity(who) {
		t.Error("the identity still has references")
	}
	for range topologiesIdle + 1 { // topologies without references are kept for a while
		c.DropTopology(c.RefTopology(c.TopologyOf(zone)))
	}
	delete(c.topologies, zone)
	if left := c.Sizes(); left != empty {
		t.Errorf("sizes at the end: %s, at the beginning: %s", left, empty)
	}
}
