package csinode

import (
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
)

// TestMerge: entries of drivers that this agent has not met stay, in their place.
func TestMerge(t *testing.T) {
	there := []Entry{
		{Name: "old", NodeID: "n0", Count: 3},
		{Name: "same", NodeID: "n1", TopologyKeys: []string{"zone"}, Count: 5},
		{Name: "left", NodeID: "n2"},
		{Name: "moved", NodeID: "n3"},
	}
	drivers := map[string]Info{
		"same":  {NodeID: "n1", Topology: map[string]string{"zone": "z"}, VolumesMax: 5},
		"moved": {NodeID: "n4", VolumesMax: math.MaxInt64},
		"new":   {NodeID: "n5", VolumesMax: -1},
	}
	want := []Entry{there[0], there[1], {Name: "moved", NodeID: "n4", Count: math.MaxInt32}, {Name: "new", NodeID: "n5"}}
	got, changed := Merge(there, drivers, []string{"left"})
	if !changed || !reflect.DeepEqual(got, want) {
		t.Errorf("changed %t:\n got %+v\nwant %+v", changed, got, want)
	}
	if again, changed := Merge(got, drivers, []string{"left"}); changed || !reflect.DeepEqual(again, want) {
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
