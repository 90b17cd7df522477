package main

import (
	"math"
	"strings"
	"testing"
)

// TestJudge: what was not measured must never look like a pass.
func TestJudge(t *testing.T) {
	unknown := math.NaN()
	for _, c := range []struct {
		name         string
		bar          bar
		ours, theirs float64
		verdict      string
		missed       bool
	}{
		{"no bar", bar{}, 1, 2, "", false},
		{"at the bar", bar{ratioMax: 0.25}, 1, 4, "pass: at most 0.25 of upstream's", false},
		{"above the bar", bar{ratioMax: 0.25}, 1.01, 4, "MISSED: at most 0.25 of upstream's", true},
		{"upstream not measured", bar{ratioMax: 1}, 1, unknown, "not measured (at most 1.00 of upstream's)", true},
		{"ours not measured", bar{max: 20}, unknown, 4, "not measured (at most 20 s)", true},
		{"absolute", bar{max: 20}, 20.1, 30, "MISSED: at most 20 s", true},
		{"a missed goal is no miss", bar{ratioMax: 1. / 3, goal: 48}, 50, 160, "pass: at most 0.33 of upstream's; goal 48 s not reached", false},
		{"goal reached", bar{ratioMax: 1. / 3, goal: 48}, 48, 160, "pass: at most 0.33 of upstream's; goal 48 s reached", false},
	} {
		w := row{line: line{unit: "s", bar: c.bar}, ours: c.ours, theirs: c.theirs, ratio: c.ours / c.theirs}
		w.judge()
		if w.verdict != c.verdict || w.missed != c.missed {
			t.Errorf("%s: %q, missed %v; want %q, %v", c.name, w.verdict, w.missed, c.verdict, c.missed)
		}
	}
}

func TestReportWarns(t *testing.T) {
	m := func(side string, round int, values map[string]float64) measurement {
		samples := map[string]int{}
		for name := range values {
			samples[name] = 30
		}
		return measurement{side: side, round: round, values: values, samples: samples}
	}
	r := &report{config: config{rounds: 2, batches: []int{30}}, problems: []string{"round 2: plimsoll: broke\nits log"}, measurements: []measurement{
		m(kubelet, 1, map[string]float64{"p99_30": 5, "cores_others_steady": 0.5}),
		m(plimsoll, 1, map[string]float64{"p99_30": 4}),
		m(plimsoll, 2, map[string]float64{"p99_30": 2}),
	}}
	text, ok := r.render()
	if ok {
		t.Error("a report without most numbers passed")
	}
	for _, want := range []string{
		"round 2: plimsoll: broke\n",
		"kubelet, round 1: steady window: others used 0.50 cores",
		"30 pods at once, bind to Running, p99: plimsoll: rounds lie 67% of their median apart",
		"30 pods at once, bind to Running, p99: p99 of 30 samples a round is their maximum",
		"| 0.600 ", // the ratio of the medians 3 and 5
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the report lacks %q:\n%s", want, text)
		}
	}
}

func TestNumber(t *testing.T) {
	for v, want := range map[float64]string{0: "0", math.NaN(): "-", 0.004512: "0.00451", 1.234: "1.23", 15.66: "15.7", 144.4: "144", 12345: "12345"} {
		if got := number(v); got != want {
			t.Errorf("number(%v) = %s, want %s", v, got, want)
		}
	}
}

func TestParseCalls(t *testing.T) {
	got := parseCalls(`# HELP kubelet_runtime_operations_duration_seconds ...
kubelet_runtime_operations_duration_seconds_bucket{operation_type="start_container",le="0.005"} 0
kubelet_runtime_operations_duration_seconds_sum{operation_type="start_container"} 1.5
kubelet_runtime_operations_duration_seconds_count{operation_type="start_container"} 3
`)
	if got["start_container"] != (calls{count: 3, seconds: 1.5}) || len(got) != 1 {
		t.Errorf("got %v", got)
	}
}

func TestParseRequests(t *testing.T) {
	got := parseRequests(`apiserver_request_total{code="200",component="apiserver",dry_run="",group="",resource="pods",scope="resource",subresource="status",verb="PATCH",version="v1"} 7
apiserver_request_total{code="409",component="apiserver",dry_run="",group="",resource="pods",scope="resource",subresource="status",verb="PATCH",version="v1"} 1
apiserver_request_total{code="201",component="apiserver",dry_run="",group="",resource="pods",scope="resource",subresource="",verb="POST",version="v1"} 3
apiserver_request_terminations_total{resource="pods"} 5
`)
	if got["PATCH pods/status"] != 8 || got["POST pods"] != 3 || len(got) != 2 {
		t.Errorf("got %v", got)
	}
}
