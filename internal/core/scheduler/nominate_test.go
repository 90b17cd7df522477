package scheduler

import (
	"fmt"
	"testing"
)

// TestNominatedMayGoElsewhere checks that affinity to a pod that is only nominated on a node does not count, because
// the pod may still go elsewhere; when it is on the node, it counts.
func TestNominatedMayGoElsewhere(t *testing.T) {
	p := New(Options{})
	joined := Pod{
		ID:        "joined",
		Namespace: "d",
		Name:      "joined",
		Labels:    []Label{{Key: "app", Value: "x"}},
		Gates:     []string{"g"},
		Nominated: "n",
	}
	p.PodSeen(1, joined)
	p.NodeSeen(1, Node{
		Name:        "n",
		PodsMax:     10,
		Labels:      []Label{{Key: hostKey, Value: "n"}},
		Allocatable: []Amount{{CPU, 1000}},
	})
	p.PodSeen(1, Pod{ID: "joins", Namespace: "d", Name: "joins", Affinity: []PodTerm{appTerm("x", hostKey)}})
	if d, ok := p.Next(1); !ok || d.Failure == nil {
		t.Errorf("the other pod is only nominated there: %+v", d)
	}
	joined.Gates, joined.Node = nil, "n"
	p.PodSeen(2, joined)
	if d, ok := p.Next(2); !ok || d.Node != "n" {
		t.Errorf("the other pod is on the node now: %+v, %v", d, ok)
	}
}

// TestNoPreemptionByGroup checks that, if no pod has a lower priority, tables give the same reasons as the evaluation
// row by row.
func TestNoPreemptionByGroup(t *testing.T) {
	p := New(Options{})
	c := p.cluster
	for i := range 2 * tablesMin {
		name := fmt.Sprint("n", i)
		p.NodeSeen(1, Node{
			Name: name, PodsMax: 10, Labels: []Label{{Key: hostKey, Value: name}, {Key: "zone", Value: fmt.Sprint(i % 3)}},
			Unschedulable: i%5 == 0, Allocatable: []Amount{{CPU, int64(500 + 500*(i%2))}},
		})
	}
	foe := Pod{ID: "foe", Namespace: "d", Name: "foe", Node: "n1", Labels: []Label{{Key: "app", Value: "foe"}}}
	p.PodSeen(1, foe)
	x := Pod{ID: "x", Namespace: "d", Name: "x", Requests: []Amount{{CPU, 800}}}
	x.AntiAffinity = []PodTerm{appTerm("foe", "zone")}
	p.PodSeen(1, x)
	e := p.queue.find("x")
	d := c.demandOf(e.class, e.who, e.pod.Owner)
	c.buildTables(d)
	p.NodeSeen(1, Node{
		Name:        "n3",
		PodsMax:     10,
		Allocatable: []Amount{{CPU, 100}},
		Labels:      []Label{{Key: "zone", Value: "0"}},
	})
	got, want := c.whyNoPreemption(d, "x"), c.whyNoPreemptionByRow(d, "x")
	if got != want || c.anyBelow(d.priority) || d.tables == nil {
		t.Errorf("by tables: %s\nby row:    %s", got, want)
	}
}
