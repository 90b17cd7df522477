package scheduler

import (
	"fmt"
	"slices"
	"testing"
)

// TestTotals: Totals are the totals of Scores. One feasible node has none, and without any there is the Failure of
// Judge.
func TestTotals(t *testing.T) {
	p := New(Options{Seed: 1})
	for i := range 20 {
		p.NodeSeen(1, Node{
			Name:        fmt.Sprint("n", i),
			PodsMax:     10,
			Labels:      []Label{{Key: "n", Value: fmt.Sprint(i)}, {Key: "of", Value: fmt.Sprint(i % 3)}},
			Allocatable: []Amount{{CPU, int64(1000 + 100*i)}},
		})
	}
	for i := range 10 {
		p.PodSeen(1, Pod{ID: PodID(fmt.Sprint(i)), Node: fmt.Sprint("n", i), Requests: []Amount{{CPU, int64(90 * i)}}})
	}
	pod := Pod{ID: "x", Requests: []Amount{{CPU, 700}}}
	for _, labels := range [][]Label{nil, {{Key: "of", Value: "1"}}} {
		pod.NodeSelector = labels
		want, got := map[string]int64{}, map[string]int64{}
		for _, s := range p.Scores(pod) {
			want[s.Node] = s.Total
		}
		totals, failure := p.Totals(pod)
		for _, s := range totals {
			got[s.Node] = s.Total
		}
		if failure != nil || len(want) < 2 || len(totals) != len(want) || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%v: got %v, %v, want %v", labels, got, failure, want)
		}
	}
	pod.NodeSelector = []Label{{Key: "n", Value: "15"}}
	if got, failure := p.Totals(pod); failure != nil || !slices.Equal(got, []NodeTotal{{Node: "n15"}}) {
		t.Errorf("one: %v, %v", got, failure)
	}
	pod.Requests = []Amount{{CPU, 9000}}
	got, failure := p.Totals(pod)
	if _, _, want := p.Judge(pod, 0); failure == nil || len(got) > 0 || failure.String() != want.String() {
		t.Errorf("none: %v, %v, want %v", got, failure, want)
	}
}
