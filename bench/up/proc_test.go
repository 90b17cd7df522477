package main

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestParse(t *testing.T) {
	if got, err := parseParent("12 (a ) b) S 7 12 12 0 -1\n"); err != nil || got != 7 {
		t.Errorf("parent %d, %v", got, err)
	}
	if _, err := parseParent("12 (a)"); err == nil {
		t.Error("a short line is accepted")
	}
	text := "55d0-7ffc ---p 00000000 00:00 0    [rollup]\nRss:               20480 kB\nPss:               10172 kB\n"
	for key, want := range map[string]float64{"Rss": 20480, "Pss": 10172} {
		if got, err := parseRollup("smaps_rollup", text, key); err != nil || got != want {
			t.Errorf("%s is %v, %v", key, got, err)
		}
	}
	if _, err := parseRollup("smaps_rollup", text, "Swap"); err == nil {
		t.Error("a missing line is accepted")
	}
}

// TestSums: the whole is the sum of the roles, and our lifecycle controller counts as one of the controllers too.
func TestSums(t *testing.T) {
	before := map[string]usage{
		roleAgent:       {1, 1, 40, 20},
		roleControllers: {1, 10, 100, 90},
		roleLifecycle:   {1, 2, 30, 15},
		roleRest:        {7, 50, 500, 300},
	}
	after := map[string]usage{
		roleAgent:       {1, 2, 41, 21},
		roleControllers: {1, 12, 101, 91},
		roleLifecycle:   {1, 3, 31, 16},
		roleRest:        {7, 56, 501, 301},
	}
	got := sums(before, after, 100)
	want := map[string]float64{
		processes: 10, resident: 674, private: 429, restCPU: 0.10,
		of(roleAgent, resident): 41, of(roleAgent, private): 21, of(roleAgent, restCPU): 0.01,
		of(roleControllers, resident): 132, of(roleControllers, private): 107, of(roleControllers, restCPU): 0.03,
		of(roleLifecycle, resident): 31, of(roleLifecycle, private): 16, of(roleLifecycle, restCPU): 0.01,
		of(roleRest, resident): 501, of(roleRest, private): 301, of(roleRest, restCPU): 0.06,
	}
	for name, value := range want {
		if math.Abs(got[name]-value) > 1e-9 {
			t.Errorf("%s is %v, want %v", name, got[name], value)
		}
	}
	if len(got) != len(want) {
		t.Errorf("values %v", got)
	}
}

// TestLines: every value that is measured of one node has a line in the report about upstream's programs, and no value
// has two.
func TestLines(t *testing.T) {
	lines := map[string]int{}
	for _, l := range upstreamLines() {
		lines[l.Name]++
	}
	all := map[string]usage{}
	for _, role := range []string{"agent", "scheduler", "kube-controller-manager", "lifecycle", "etcd"} {
		all[roleOf(role)] = usage{}
	}
	values := sums(all, all, 1)
	for _, name := range slices.Concat(coldNames[:], warmNames[:], []string{downTime}) {
		values[name] = 0
	}
	for name := range values {
		if lines[name] != 1 {
			t.Errorf("%s has %d lines", name, lines[name])
		}
		delete(lines, name)
	}
	if len(lines) > 0 {
		t.Errorf("lines without a value: %v", lines)
	}
	if got := len(nodeLines()); got != len(bars{}.common()) {
		t.Errorf("%d lines about several nodes", got)
	}
}

func TestFlags(t *testing.T) {
	for _, args := range [][]string{{"--rounds", "0"}, {"--nodes", "1"}, {"--rest", "0s"}, {"--settle", "-1s"}} {
		if _, err := parseFlags(args); err == nil {
			t.Errorf("%v is accepted", args)
		}
	}
	if _, err := parseFlags(nil); err != nil {
		t.Error(err)
	}
	c, err := parseFlags([]string{"--plimsoll", "/opt/p/plimsoll", "--kubelet", "/opt/k/kubelet"})
	if err != nil || c.kubelet != "/opt/k/kubelet" || c.scheduler != "/opt/p/upstream-scheduler" ||
		c.controlplane != "/opt/p/plimsoll-controlplane" {
		t.Errorf("%+v, %v", c, err)
	}
	if err := c.check(); err == nil || strings.Count(err.Error(), "bench-build") != 4 {
		t.Errorf("missing programs: %v", err)
	}
}

// TestReportsReady: what an earlier run has reported does not count.
func TestReportsReady(t *testing.T) {
	since := time.Date(2026, 11, 26, 20, 0, 0, 5e8, time.UTC)
	for _, c := range []struct {
		status corev1.ConditionStatus
		at     time.Time
		want   bool
	}{
		{corev1.ConditionTrue, since.Truncate(time.Second), true},
		{corev1.ConditionTrue, since.Add(time.Second), true},
		{corev1.ConditionTrue, since.Add(-time.Second), false},
		{corev1.ConditionFalse, since.Add(time.Second), false},
		{corev1.ConditionUnknown, since.Add(time.Second), false},
	} {
		node := &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.NewTime(since)},
			{Type: corev1.NodeReady, Status: c.status, LastHeartbeatTime: metav1.NewTime(c.at)},
		}}}
		if got := reportsReady(node, since); got != c.want {
			t.Errorf("%s at %v: %v", c.status, c.at, got)
		}
	}
}
