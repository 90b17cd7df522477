package scheduler

import (
	"reflect"
	"testing"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/rows"
	"github.com/plimsoll-dev/plimsoll/internal/core/wellknown"
)

// TestEveryColumnGrows checks that every table with a value per row is in the list of tables that grow.
func TestEveryColumnGrows(t *testing.T) {
	c := newCluster(0)
	grows := map[uintptr]bool{}
	for _, x := range c.growing {
		grows[reflect.ValueOf(x).Pointer()] = true
	}
	found := 0
	var look func(v reflect.Value)
	look = func(v reflect.Value) {
		for i := range v.NumField() {
			field := v.Field(i)
			if field.Type().Implements(reflect.TypeFor[rows.Table]()) {
				if found++; !grows[field.Pointer()] {
					t.Errorf("%s.%s is not in cluster.growing", v.Type().Name(), v.Type().Field(i).Name)
				}
			} else if field.Addr().Type().Implements(reflect.TypeFor[rows.Table]()) {
				if found++; !grows[field.UnsafeAddr()] {
					t.Errorf("column %s.%s is not in cluster.growing", v.Type().Name(), v.Type().Field(i).Name)
				}
			} else if v.Type().Field(i).Anonymous {
				look(reflect.Indirect(field))
			}
		}
	}
	look(reflect.ValueOf(c).Elem())
	if found != len(c.growing) {
		t.Errorf("%d columns were found, %d grow", found, len(c.growing))
	}
}

// TestEveryFactOfANodeCounts checks that every field of Node is read, and that its effect ends when the node no longer
// has it.
func TestEveryFactOfANodeCounts(t *testing.T) {
	full := reflect.ValueOf(Node{
		Name:          "n",
		Unschedulable: true,
		Labels:        []Label{{Key: "zone", Value: "a"}},
		Taints:        []Taint{{Key: "k", Effect: NoSchedule}, {Key: "k", Effect: PreferNoSchedule}},
		Allocatable:   []Amount{{Resource: CPU, Value: 1}},
		PodsMax:       1,
		Images:        []Image{{Names: []string{"i"}, Size: 1}},
		Features:      []string{"f"},
		AgentLacks:    []string{wellknown.LacksCSI},
		OtherAgent:    true,
	})
	c := newCluster(0)
	tells := func(n Node) bool {
		was, moved := c.changes.End(), c.moves.End()
		c.setNode(n)
		if (c.changes.End() > was) != (c.moves.End() > moved) {
			t.Errorf("%+v: the change is in only one of the two logs", n)
		}
		return c.changes.End() > was
	}
	tells(Node{Name: "n"})
	for i := range full.NumField() {
		name := full.Type().Field(i).Name
		if full.Field(i).IsZero() {
			t.Errorf("%s: set it in a node of this test", name)
		}
		if name == "Name" || name == "OtherAgent" { // TestReportOfAnEarlierAgent: it changes the node's report
			continue
		}
		n := reflect.New(full.Type()).Elem()
		n.FieldByName("Name").SetString("n")
		n.Field(i).Set(full.Field(i))
		with := n.Interface().(Node)
		if !tells(with) {
			t.Errorf("Node.%s is read nowhere", name)
		}
		if tells(with) {
			t.Errorf("Node.%s: seen again with the same value, it counts as a change", name)
		}
		if !tells(Node{Name: "n"}) {
			t.Errorf("Node.%s has an effect after the node no longer has it", name)
		}
	}
}
