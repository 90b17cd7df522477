package main

import (
	"strings"
	"testing"

	"github.com/plimsoll-dev/plimsoll/bench/record"
)

// TestNoise: the report warns when other processes used the machine.
func TestNoise(t *testing.T) {
	m := record.NewMeasurement(kubelet, 1)
	m.Put("cores_others_steady_30", 0.5, 1)
	m.Put("resumed", 2, 1)
	warnings := strings.Join(noise([]*record.Measurement{m}, []int{30}), "\n")
	for _, want := range []string{"kubelet, round 1: steady_30 window: others used 0.50 cores",
		"ended our watch 2 times"} {
		if !strings.Contains(warnings, want) {
			t.Errorf("warnings lack %q:\n%s", want, warnings)
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
