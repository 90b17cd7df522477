package main

import (
	"math"
	"strings"
	"testing"
	"time"

	"k8s.io/klog/v2"
)

// TestCases runs every case on a small cluster, and checks that both sides agree on whether its pods get nodes;
// otherwise they would do different work.
func TestCases(t *testing.T) {
	klog.SetLogger(klog.Logger{})
	const nodes, pods = 60, 25
	for _, s := range append(published(), casesOn(nodes)...) {
		s.nodes = nodes
		s.waiting = min(s.waiting, 8)
		if s.begin != nil {
			s.begin = mixed("", mixOptions{nodes: nodes, kinds: 30, churn: 1}).begin
		}
		t.Run(s.name, func(t *testing.T) {
			ours := run(newOurs(), &s, pods, time.Minute)
			if ours.Pods != pods {
				t.Errorf("%d pods were tried, want %d", ours.Pods, pods)
			}
			nowhere := strings.Contains(s.name, "preemptor") || s.name == "fits nowhere"
			if nowhere && ours.Placed != 0 || !nowhere && ours.Placed < pods/2 {
				t.Errorf("ours placed %d of %d pods", ours.Placed, pods)
			}
			if s.upstreamPods == 0 {
				return
			}
			theirs := run(newUpstream(), &s, pods, time.Minute)
			if theirs.Pods != pods || theirs.Placed != ours.Placed {
				t.Errorf("upstream placed %d of %d pods, ours %d", theirs.Placed, theirs.Pods, ours.Placed)
			}
		})
	}
}

func TestExponent(t *testing.T) {
	at := []float64{10, 100, 1000}
	for name, c := range map[string]struct {
		cost []float64
		want float64
	}{"flat": {[]float64{5, 5, 5}, 0}, "alike": {[]float64{1, 10, 100}, 1}, "square": {[]float64{2, 200, 20000}, 2}} {
		if got := exponent(at, c.cost); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// TestJudge checks that the limit of a scenario is its bar, or twice the base scenario's result if that is more.
func TestJudge(t *testing.T) {
	for _, c := range []struct {
		name         string
		s            scenario
		ours, theirs time.Duration
		base         time.Duration
		met          bool
	}{
		{"no bar", scenario{}, time.Hour, 0, 0, true},
		{"at most", scenario{most: 10}, 10, 0, 0, true},
		{"above", scenario{most: 10}, 11, 0, 0, false},
		{"twice the base", scenario{most: 10}, 12, 0, 6, true},
		{"above twice the base", scenario{most: 10}, 13, 0, 6, false},
		{"times upstream", scenario{times: 50, upstreamPods: 1}, 1, 50, 0, true},
		{"not times upstream", scenario{times: 50, upstreamPods: 1}, 1, 49, 0, false},
		{"one of two bars", scenario{times: 2, upstreamPods: 1, most: 10}, 11, 50, 0, false},
		{"upstream was not measured", scenario{times: 2, upstreamPods: 1}, 1, 0, 0, false},
	} {
		r := result{scenario: c.s, ours: sample{CPU: c.ours}, theirs: sample{CPU: c.theirs}}
		if bar, met := r.judge(c.base); met != c.met {
			t.Errorf("%s: %q met %v, want %v", c.name, bar, met, c.met)
		}
	}
}

func TestBestAndWorst(t *testing.T) {
	one := func(name string, ours, theirs time.Duration) result {
		return result{scenario: scenario{name: name}, ours: sample{CPU: ours}, theirs: sample{CPU: theirs}}
	}
	text := bestAndWorst([]result{one("a", 1, 5), one("b", 2, 1), one("c", 1, 9), one("alone", 1, 0)})
	if !strings.Contains(text, "best: c, 0 nodes: 9.0") || !strings.Contains(text, "worst: b, 0 nodes: 0.5") {
		t.Error(text)
	}
}
