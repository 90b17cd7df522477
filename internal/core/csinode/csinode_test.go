package csinode

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// TestMerge: entries of drivers that this agent has not met stay, in their place. Those whose node ID or topology keys
// change are left out first, and then added.
func TestMerge(t *testing.T) {
	there := []Entry{
		{Name: "old", NodeID: "n0", Count: 3},
		{Name: "same", NodeID: "n1", TopologyKeys: []string{"zone"}, Count: 5},
		{Name: "left", NodeID: "n2"},
		{Name: "moved", NodeID: "n3"},
		{Name: "rekeyed", NodeID: "n6", TopologyKeys: []string{"zone"}},
		{Name: "larger", NodeID: "n7", Count: 1},
	}
	drivers := map[string]Info{
		"same":    {NodeID: "n1", Topology: map[string]string{"zone": "z"}, VolumesMax: 5},
		"moved":   {NodeID: "n4", VolumesMax: math.MaxInt64},
		"new":     {NodeID: "n5", VolumesMax: -1},
		"rekeyed": {NodeID: "n6", Topology: map[string]string{"row": "r"}},
		"larger":  {NodeID: "n7", VolumesMax: 2},
	}
	kept := []Entry{there[0], there[1], {Name: "larger", NodeID: "n7", Count: 2}, {Name: "new", NodeID: "n5"}}
	for i, want := range [][]Entry{
		kept,
		append(slices.Clone(kept), Entry{Name: "moved", NodeID: "n4", Count: math.MaxInt32},
			Entry{Name: "rekeyed", NodeID: "n6", TopologyKeys: []string{"row"}}),
	} {
		got, changed := Merge(there, drivers, []string{"left"})
		if !changed || !reflect.DeepEqual(got, want) {
			t.Errorf("write %d: changed %t:\n got %+v\nwant %+v", i+1, changed, got, want)
		}
		there = got
	}
	if again, changed := Merge(there, drivers, []string{"left"}); changed {
		t.Errorf("changed again: %+v", again)
	}
}

func TestMergeIDs(t *testing.T) {
	drivers := map[string]Info{"a": {NodeID: "n1"}}
	got, changed := MergeIDs(map[string]string{"old": "n0", "left": "n2"}, drivers, []string{"left"})
	if want := map[string]string{"old": "n0", "a": "n1"}; !changed || !reflect.DeepEqual(got, want) {
		t.Errorf("changed %t: %v, want %v", changed, got, want)
	}
	if _, changed := MergeIDs(got, drivers, nil); changed {
		t.Error("changed again")
	}
	if _, changed := MergeIDs(nil, nil, []string{"left"}); changed {
		t.Error("nothing is a change")
	}
}

// TestTopology: a label that has another value is a collision, and is never overwritten.
func TestTopology(t *testing.T) {
	labels := map[string]string{"zone": "z1", "rack": "r1"}
	info := Info{NodeID: "n", Topology: map[string]string{"zone": "z2", "host": "h"}}
	want := `detected topology value collision: driver reported "zone":"z2" but existing label is "zone":"z1"`
	if got := Collision(labels, info); !strings.HasPrefix(got, want) {
		t.Errorf("collision %q", got)
	}
	if got := MergeLabels(labels, map[string]Info{"a": info}); !reflect.DeepEqual(got, map[string]string{"host": "h"}) {
		t.Errorf("labels %v", got)
	}
	info.Topology["zone"] = "z1"
	if got := Collision(labels, info); got != "" {
		t.Errorf("collision %q", got)
	}
}

func TestCheck(t *testing.T) {
	topology := func(key, value string) Info { return Info{NodeID: "n", Topology: map[string]string{key: value}} }
	for _, test := range []struct {
		info Info
		want string // a part of it; empty: nothing is wrong
	}{
		{Info{NodeID: "n"}, ""},
		{topology("topology.example.com/zone", "z-1"), ""},
		{topology(strings.Repeat("long.", 20)+"example.com/zone", ""), ""},
		{topology("zone", "z_1.a"), ""},
		{Info{}, "node_id is empty"},
		{Info{NodeID: strings.Repeat("n", 257)}, "node_id has 257 bytes: want at most 256"},
		{topology("", "z"), `key ""`},
		{topology("/zone", "z"), `key "/zone"`},
		{topology("a/b/c", "z"), `key "a/b/c"`},
		{topology("zone ", "z"), `key "zone "`},
		{topology("zone", "z 1"), `zone: "z 1": want a label's value`},
		{topology("zone", "-z"), `zone: "-z": want a label's value`},
		{topology("zone", strings.Repeat("z", 64)), "want a label's value"},
	} {
		if got := Check(test.info); test.want == "" && got != "" || !strings.Contains(got, test.want) {
			t.Errorf("%s: %q, want %q", fmt.Sprintf("%.100v", test.info), got, test.want)
		}
	}
}
