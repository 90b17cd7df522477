package scheduler

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/encode"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/selector"
)

// beyondRules are the fields of Pod that no rule reads, with their use.
var beyondRules = map[string]string{
	"Node":           "where it is",
	"Nominated":      "the node where room is being made for it",
	"Gates":          "only the queue reads it: whether the pod may be placed yet",
	"Deleting":       "it decides how the pod counts, not where it may go",
	"Preempted":      "how it counts",
	"Started":        "who is evicted first",
	"Berth":          "where it is expected",
	"AsksExtenders":  "extenders decide, not rules",
	"AsksPreemption": "extenders decide, not rules",
}

// besideRules are fields of a class that rules do not read: the profile selects the rules, and preemption and
// nomination compare priorities.
var besideRules = podFields{"Profile", "Priority", "NeverPreempts"}

// apart are values in which pods of one class may differ, with the reason.
var apart = map[string]string{
	"NUMA.UID":                "the pod's own UID, set when an offer is computed",
	"NUMA.Berth[0].Container": "a pod that is to be placed has no berth yet",
	"NUMA.Berth[0].CPUs":      "a pod that is to be placed has no berth yet",
	"NUMA.Berth[0].Nodes":     "a pod that is to be placed has no berth yet",
	"NUMA.Berth[0].Nodes[0]":  "a pod that is to be placed has no berth yet",
	"NUMA.Berth":              "a pod that is to be placed has no berth yet",
}

// TestKeysHaveWhatRulesRead checks that pods that differ in anything that a rule reads have different classes,
// identities or owners. So a new field of Pod must be declared by the rule that reads it and be part of a key, or be
// listed here.
func TestKeysHaveWhatRulesRead(t *testing.T) {
	read := map[string]bool{}
	for _, fields := range declaredReads() {
		for _, f := range fields {
			read[f] = true
		}
	}
	pod := reflect.New(reflect.TypeFor[Pod]()).Elem()
	fill(pod)
	for i := range pod.NumField() {
		field := pod.Type().Field(i)
		why, beyond := beyondRules[field.Name]
		switch {
		case read[field.Name] && beyond:
			t.Errorf("Pod.%s is read by a rule, but listed as not read: %s", field.Name, why)
		case !read[field.Name] && !beyond:
			t.Errorf("Pod.%s: no rule declares that it reads it: name it in reads of one, or in beyondRules", field.Name)
		}
		delete(read, field.Name)
		before := toRules(pod.Addr().Interface().(*Pod))
		vary(pod.Field(i), field.Name, func(leaf string) {
			if _, known := apart[leaf]; known {
				return
			}
			if same := toRules(pod.Addr().Interface().(*Pod)) == before; same != beyond {
				t.Errorf("pods that differ in %s have equal keys: %v", leaf, same)
			}
		})
	}
	for name := range read {
		t.Errorf("a rule declares that it reads Pod.%s, and there is no such field", name)
	}
}

// declaredReads returns what each rule declares that it reads.
func declaredReads() (all []podFields) {
	for i := range filters {
		all = append(all, filters[i].reads)
	}
	for _, s := range allScorers(nil) {
		all = append(all, s.about().reads)
	}
	return append(all, besideRules)
}

// TestRulesAreComplete checks that each rule has all its parts.
func TestRulesAreComplete(t *testing.T) {
	for i := range filters {
		f := &filters[i]
		if f.rule == 0 || f.plugin == "" || f.ends == 0 || len(f.reads) == 0 {
			t.Errorf("filter %d lacks a part: %+v", i, f.ruling)
		}
		if (f.ends&byCounters != 0) != (f.surround != nil) {
			t.Errorf("filter %d: a filter must be a surroundFilter if it ends byCounters, and only then: %+v", i, f.ruling)
		}
		if f.rule&nodeRules != 0 && f.ends&(byRoom|byCounters) != 0 {
			t.Errorf("filter %d is one of nodeRules, but evictions may end its rejections: %+v", i, f.ruling)
		}
	}
	for i, s := range allScorers(nil) {
		if about := s.about(); about.plugin == "" || about.weight == 0 || len(about.reads) == 0 {
			t.Errorf("scorer %d lacks a part: %+v", i, about)
		}
	}
}

// toRules returns everything that rules can see of a pod.
func toRules(pod *Pod) string {
	b := appendDemands(nil, pod)
	b = selector.AppendLabels(encode.String(b, pod.Namespace), pod.Labels)
	return string(encode.String(encode.String(b, pod.Owner.Kind), pod.Owner.Name))
}

// fill sets v and everything in it to values that are not zero, with one element per list.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				fill(v.Field(i))
			}
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case reflect.String:
		v.SetString("some")
	case reflect.Bool:
		v.SetBool(true)
	default:
		if v.CanInt() {
			v.SetInt(1)
		} else if v.CanUint() {
			v.SetUint(1)
		} else {
			panic(fmt.Sprintf("fill: %s: add this type to the test", v.Type()))
		}
	}
}

// vary changes v, and then everything in it, one at a time, and calls see with the name of what differs.
func vary(v reflect.Value, name string, see func(name string)) {
	was := reflect.New(v.Type()).Elem()
	was.Set(v)
	put := func(other reflect.Value) {
		v.Set(other)
		see(name)
		v.Set(was)
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				vary(v.Field(i), name+"."+v.Type().Field(i).Name, see)
			}
		}
	case reflect.Pointer:
		put(reflect.Zero(v.Type()))
		vary(v.Elem(), name, see)
	case reflect.Slice:
		put(reflect.Zero(v.Type()))
		put(reflect.AppendSlice(reflect.AppendSlice(reflect.MakeSlice(v.Type(), 0, 2), was), was))
		vary(v.Index(0), name+"[0]", see)
	case reflect.String:
		put(reflect.ValueOf("another").Convert(v.Type()))
	case reflect.Bool:
		put(reflect.ValueOf(!v.Bool()).Convert(v.Type()))
	default:
		put(reflect.ValueOf(2).Convert(v.Type()))
	}
}

// TestReadsCanFail checks that what the test above compares differs for different pods, and is equal for equal ones.
func TestReadsCanFail(t *testing.T) {
	a, b := Pod{ID: "a", Name: "a"}, Pod{ID: "b", Name: "b"}
	if toRules(&a) != toRules(&b) {
		t.Error("two equal pods have different keys")
	}
	if b.Ports = []HostPort{{Port: 1}}; toRules(&a) == toRules(&b) {
		t.Error("a pod with a port has the same key as one without")
	}
}
