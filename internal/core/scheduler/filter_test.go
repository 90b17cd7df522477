package scheduler

import (
	"testing"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/selector"
)

func TestNodeAffinity(t *testing.T) {
	node := Node{
		Name:    "n",
		PodsMax: 1,
		Labels:  []Label{{Key: "zone", Value: "a"}, {Key: "gen", Value: "7"}, {Key: "odd", Value: "x"}},
	}
	term := func(rs ...Requirement) *[]NodeTerm { return &[]NodeTerm{{Labels: rs}} }
	names := func(op Operator, n string) *[]NodeTerm {
		return &[]NodeTerm{{Names: []Requirement{{Key: "metadata.name", Op: op, Values: []string{n}}}}}
	}
	for _, c := range []struct {
		name  string
		terms *[]NodeTerm
		want  bool
	}{
		{"no demand", nil, true},
		{"no terms match nothing", &[]NodeTerm{}, false},
		{"an empty term matches nothing", &[]NodeTerm{{}}, false},
		{"a broken term matches nothing", &[]NodeTerm{{Broken: true}}, false},
		{"terms are alternatives", &[]NodeTerm{{}, {Labels: []Requirement{{Key: "zone", Op: Exists}}}}, true},
		{
			"all requirements must be met", term(Requirement{Key: "zone", Op: Exists}, Requirement{Key: "none", Op: Exists}),
			false,
		},
		{"In", term(Requirement{Key: "zone", Op: In, Values: []string{"b", "a"}}), true},
		{"In, other value", term(Requirement{Key: "zone", Op: In, Values: []string{"b"}}), false},
		{"In, label absent", term(Requirement{Key: "none", Op: In, Values: []string{"a"}}), false},
		{"NotIn", term(Requirement{Key: "zone", Op: NotIn, Values: []string{"b"}}), true},
		{"NotIn, its value", term(Requirement{Key: "zone", Op: NotIn, Values: []string{"a"}}), false},
		{"NotIn, label absent", term(Requirement{Key: "none", Op: NotIn, Values: []string{"a"}}), true},
		{"Exists", term(Requirement{Key: "none", Op: Exists}), false},
		{"DoesNotExist", term(Requirement{Key: "none", Op: DoesNotExist}), true},
		{"DoesNotExist, label present", term(Requirement{Key: "zone", Op: DoesNotExist}), false},
		{"Gt", term(Requirement{Key: "gen", Op: Gt, Bound: 6}), true},
		{"Gt, equal", term(Requirement{Key: "gen", Op: Gt, Bound: 7}), false},
		{"Lt", term(Requirement{Key: "gen", Op: Lt, Bound: 8}), true},
		{"Lt, equal", term(Requirement{Key: "gen", Op: Lt, Bound: 7}), false},
		{"Lt, not a number", term(Requirement{Key: "odd", Op: Lt, Bound: 8}), false},
		{"Gt, label absent", term(Requirement{Key: "none", Op: Gt, Bound: -1}), false},
		{"name", names(In, "n"), true},
		{"other name", names(In, "m"), false},
		{"not the other name", names(NotIn, "m"), true},
		{"not the name", names(NotIn, "n"), false},
		{
			"contradiction",
			&[]NodeTerm{{Names: []Requirement{{Op: In, Values: []string{"n"}}, {Op: In, Values: []string{"m"}}}}}, false,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := New(Options{})
			p.NodeSeen(1, node)
			v := p.Verdicts(Pod{ID: "p", NodeAffinity: c.terms})
			if got := v[0].Plugin == ""; got != c.want {
				t.Errorf("feasible %v, want %v (%v)", got, c.want, v[0])
			}
		})
	}
}

func TestTolerations(t *testing.T) {
	taint := Taint{Key: "k", Value: "v", Effect: NoSchedule}
	for _, c := range []struct {
		name string
		t    Toleration
		want bool
	}{
		{"equal", Toleration{Key: "k", Value: "v"}, true},
		{"other value", Toleration{Key: "k", Value: "w"}, false},
		{"exists", Toleration{Key: "k", Exists: true}, true},
		{"everything", Toleration{Exists: true}, true},
		{"its effect", Toleration{Key: "k", Exists: true, Effect: NoSchedule}, true},
		{"other effect", Toleration{Key: "k", Exists: true, Effect: NoExecute}, false},
		{"other key", Toleration{Key: "l", Exists: true}, false},
		{"unknown operator", Toleration{Key: "k", Never: true, Value: "v"}, false},
	} {
		if got := selector.Tolerate([]Toleration{c.t}, taint); got != c.want {
			t.Errorf("%s: tolerated %v, want %v", c.name, got, c.want)
		}
	}
}

func TestPorts(t *testing.T) {
	for _, c := range []struct {
		have, want HostPort
		free       bool
	}{
		{HostPort{AnyIP, "TCP", 80}, HostPort{AnyIP, "TCP", 80}, false},
		{HostPort{AnyIP, "TCP", 80}, HostPort{"10.0.0.1", "TCP", 80}, false},
		{HostPort{"10.0.0.1", "TCP", 80}, HostPort{AnyIP, "TCP", 80}, false},
		{HostPort{"10.0.0.1", "TCP", 80}, HostPort{"10.0.0.2", "TCP", 80}, true},
		{HostPort{AnyIP, "TCP", 80}, HostPort{AnyIP, "UDP", 80}, true},
		{HostPort{AnyIP, "TCP", 80}, HostPort{AnyIP, "TCP", 81}, true},
	} {
		p := New(Options{})
		p.NodeSeen(1, Node{Name: "n", PodsMax: 9})
		p.PodSeen(1, Pod{ID: "a", Node: "n", Ports: []HostPort{c.have}})
		if got := p.Verdicts(Pod{ID: "b", Ports: []HostPort{c.want}})[0].Plugin == ""; got != c.free {
			t.Errorf("%v beside %v: free %v, want %v", c.want, c.have, got, c.free)
		}
	}
}

// TestNormalize checks the two normalizations against upstream's integer arithmetic.
func TestNormalize(t *testing.T) {
	a, b, zero := []int64{3, 1, 0}, []int64{3, 1, 0}, []int64{0, 0}
	normalizeByMax(a)
	normalizeReversed(b)
	normalizeReversed(zero)
	if a[0] != 100 || a[1] != 33 || a[2] != 0 || b[0] != 0 || b[1] != 67 || b[2] != 100 || zero[0] != 100 {
		t.Errorf("by max %v, reversed %v, of zeroes %v", a, b, zero)
	}
}
