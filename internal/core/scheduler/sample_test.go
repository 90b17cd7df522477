package scheduler

import (
	"fmt"
	"testing"
)

// TestSample checks where searches end and continue, and a node that only a full search finds.
func TestSample(t *testing.T) {
	for _, c := range []struct{ nodes, percent, want int }{
		{99, 0, 99}, {100, 0, 100}, {100, 5, 100}, {1000, 0, 420}, {5000, 0, 500}, {6000, 0, 300}, {50000, 0, 2500},
		{1000, 70, 700}, {1000, 100, 1000}, {200, 1, 100},
	} {
		p := DefaultProfile()
		p.Sample = Sample{On: true, Percent: c.percent}
		cl := newCluster(0, p)
		cl.seenCount = c.nodes
		if got := cl.sampleOf(&demand{class: &class{needs: needs{profile: cl.profiles[""]}}}); got != c.want {
			t.Errorf("%d nodes, %d%%: the search ends after %d, want %d", c.nodes, c.percent, got, c.want)
		}
	}
	profile := DefaultProfile()
	profile.Sample = Sample{On: true, Percent: 50}
	p := New(Options{Profiles: []Profile{profile}})
	for i := range 300 {
		name := fmt.Sprintf("n%d", i)
		n := Node{Name: name, PodsMax: 110, Allocatable: []Amount{{CPU, 1000}}}
		if i == 299 {
			n.Allocatable[0].Value = 9000
		}
		p.NodeSeen(1, n)
	}
	place := func(id string, cpu int64) Decision {
		p.PodSeen(1, Pod{ID: PodID(id), Name: id, Requests: []Amount{{CPU, cpu}}})
		d, _ := p.Next(1)
		return d
	}
	a, b := place("a", 100), place("b", 100)
	if a.Feasible != 150 || b.Feasible != 150 || p.cluster.rows[a.Node] >= 150 || p.cluster.rows[b.Node] < 150 {
		t.Errorf("first %s of %d feasible nodes, then %s of %d", a.Node, a.Feasible, b.Node, b.Feasible)
	}
	if d := place("big", 8000); d.Node != "n299" || d.Feasible != 1 {
		t.Errorf("big: %+v", d)
	}
	if d := place("huge", 10000); d.Failure == nil || d.Failure.Reasons["Insufficient cpu"] != 300 {
		t.Errorf("huge: %v", d.Failure)
	}
}
