package selector

import (
	"slices"
	"strconv"
	"testing"
)

func TestSelector(t *testing.T) {
	labels := []Label{{Key: "app", Value: "web"}, {Key: "tier", Value: "front"}}
	one := func(key string, op Operator, values ...string) *Selector {
		return &Selector{Requirements: []Requirement{{Key: key, Op: op, Values: values}}}
	}
	for _, c := range []struct {
		what             string
		of               *Selector
		selects, matches bool
	}{
		{"an empty selector", &Selector{}, true, false},
		{"nothing", &Selector{Nothing: true}, false, false},
		{"in", one("app", In, "db", "web"), true, true},
		{"in, another", one("app", In, "db"), false, false},
		{"in, absent", one("zone", In, ""), false, false},
		{"not in", one("app", NotIn, "db"), true, true},
		{"not in, absent", one("zone", NotIn, "a"), true, true},
		{"exists", one("tier", Exists), true, true},
		{"does not exist", one("tier", DoesNotExist), false, false},
		{"greater, which is for nodes", one("tier", Gt), false, false},
	} {
		if got := c.of.Selects(labels); got != c.selects {
			t.Errorf("%s selects: %v", c.what, got)
		}
		if got := c.of.Matches(labels); got != c.matches {
			t.Errorf("%s matches: %v", c.what, got)
		}
		again := *c.of
		if again.Requirements = slices.Clone(again.Requirements); !c.of.Equal(&again) ||
			string(c.of.Append(nil)) != string(again.Append(nil)) {
			t.Errorf("%s is not equal to a copy of it", c.what)
		}
		other := Selector{Requirements: []Requirement{{Key: "k"}}}
		if c.of.Equal(&other) || string(c.of.Append(nil)) == string(other.Append(nil)) {
			t.Errorf("%s is equal to another selector", c.what)
		}
	}
}

func TestTerms(t *testing.T) {
	in := NewInterner()
	plain := []Label{{Key: "zone", Value: "a"}, {Key: "cores", Value: "8"}, {Key: "odd", Value: "x"}}
	labels := in.Labels(plain)
	label := func(key string, op Operator, bound int64, values ...string) NodeTerm {
		return NodeTerm{Labels: []Requirement{{Key: key, Op: op, Values: values, Bound: bound}}}
	}
	for _, c := range []struct {
		what string
		term NodeTerm
		want bool
	}{
		{"no requirement", NodeTerm{}, false},
		{"broken", NodeTerm{Broken: true, Names: []Requirement{{Op: NotIn}}}, false},
		{"in", label("zone", In, 0, "b", "a"), true},
		{"in, absent", label("rack", In, 0, "b"), false},
		{"not in, absent", label("rack", NotIn, 0, "b"), true},
		{"exists", label("zone", Exists, 0), true},
		{"does not exist", label("zone", DoesNotExist, 0), false},
		{"greater", label("cores", Gt, 7), true},
		{"greater than itself", label("cores", Gt, 8), false},
		{"less", label("cores", Lt, 9), true},
		{"less, no number", label("odd", Lt, 9), false},
		{"name", NodeTerm{Names: []Requirement{{Op: In, Values: []string{"n"}}}}, true},
		{"another name", NodeTerm{Names: []Requirement{{Op: NotIn, Values: []string{"n"}}}}, false},
	} {
		term := in.Compile(c.term)
		if got := in.Match(&term, "n", labels); got != c.want {
			t.Errorf("%s: %v", c.what, got)
		}
		if got := in.MatchAny([]Term{in.Compile(NodeTerm{}), term}, "n", labels); got != c.want {
			t.Errorf("%s, as one of two: %v", c.what, got)
		}
		terms := []NodeTerm{{}, c.term}
		if got := Allow([]Label{{Key: "zone", Value: "a"}}, &terms, "n", plain); got != c.want {
			t.Errorf("%s, with a node selector that matches: %v", c.what, got)
		}
		if Allow([]Label{{Key: "zone", Value: "a"}, {Key: "rack", Value: "r"}}, &terms, "n", plain) {
			t.Errorf("%s, with a node selector that does not match, is allowed", c.what)
		}
	}
	if !Allow(nil, nil, "n", plain) || Allow(nil, &[]NodeTerm{}, "n", plain) {
		t.Error("nil terms must allow all nodes, and an empty list none")
	}
}

func TestNames(t *testing.T) {
	named := func(names ...string) Requirement { return Requirement{Op: In, Values: names} }
	for _, c := range []struct {
		what     string
		terms    []NodeTerm
		names    []string
		conflict bool
	}{
		{"no terms", nil, nil, false},
		{"one leaves it open", []NodeTerm{{Names: []Requirement{named("a")}}, {}}, nil, false},
		{
			"either", []NodeTerm{{Names: []Requirement{named("b")}}, {Names: []Requirement{named("a", "b")}}},
			[]string{"a", "b"}, false,
		},
		{"both at once", []NodeTerm{{Names: []Requirement{named("a", "b"), named("b", "c")}}}, []string{"b"}, false},
		{"neither", []NodeTerm{{Names: []Requirement{named("a"), named("b")}}}, nil, true},
	} {
		names, conflict := Names(c.terms)
		if !slices.Equal(names, c.names) || conflict != c.conflict {
			t.Errorf("%s: %v, %v", c.what, names, conflict)
		}
	}
}

func TestAnyOf(t *testing.T) {
	in := NewInterner()
	demand := func(values ...string) Term {
		return in.Compile(NodeTerm{Labels: []Requirement{{Key: "k", Op: In, Values: values}}})
	}
	open := in.Compile(NodeTerm{Labels: []Requirement{{Key: "k", Op: Exists}}})
	if got := AnyOf([]Term{demand("a"), in.Compile(NodeTerm{}), demand("b", "a")}, 2); len(got) != 2 {
		t.Errorf("%v, want a and b", got)
	}
	if AnyOf([]Term{demand("a"), open}, 2) != nil || AnyOf([]Term{demand("a", "b", "c")}, 2) != nil {
		t.Error("labels are returned although a term may match without them, or although they are too many")
	}
}

// TestSweep checks that strings in use keep their numbers, and the others free theirs.
func TestSweep(t *testing.T) {
	in := NewInterner()
	for i := range internedMin + 1 {
		in.ID(strconv.Itoa(i))
	}
	if !in.Due() {
		t.Fatal("no sweep is due")
	}
	in.Sweep(func(id int32) bool { return id == 7 })
	if in.Due() || in.Len() != 1 || in.ID("7") != 7 {
		t.Errorf("%d strings are left, and \"7\" has number %d", in.Len(), in.ID("7"))
	}
	if end := in.End(); in.ID("new") >= int32(end) || in.End() != end {
		t.Error("free numbers are not used again")
	}
}
