package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/bench/record"
)

func TestFlags(t *testing.T) {
	if _, err := parseFlags(nil); err != nil {
		t.Errorf("the defaults: %v", err)
	}
	_, err := parseFlags([]string{"--rounds", "0", "--zones", "1", "--silent", "0", "--grace", "1s", "--only", "x"})
	for _, want := range []string{"--rounds 0", "--zones 1", "--silent 0", "--grace 1s", "--only x"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error lacks %q: %v", want, err)
		}
	}
}

// TestSee: the changes of one node in a watch, in order; each state is dated when it begins, not when it is repeated.
func TestSee(t *testing.T) {
	n := &nodes{by: map[string]*nodeSeen{}, wake: make(chan struct{}, 1)}
	show := func(ready corev1.ConditionStatus, taints ...corev1.Taint) *nodeSeen {
		node := &corev1.Node{Spec: corev1.NodeSpec{Taints: taints},
			Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}}}
		node.Name = "n"
		n.see(node)
		return n.by["n"]
	}
	unreachable := corev1.Taint{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoSchedule}
	if s := show(corev1.ConditionTrue); !n.well() || !s.unknownAt.IsZero() {
		t.Errorf("a node that is well: %+v", s)
	}
	first := show(corev1.ConditionUnknown).unknownAt
	s := show(corev1.ConditionUnknown, unreachable)
	if s.unknownAt != first || s.taintedAt.Before(first) || n.well() || n.wronged(nil) != 1 ||
		n.wronged([]string{"n"}) != 0 {
		t.Errorf("silent: %+v", s)
	}
	if show(corev1.ConditionTrue, unreachable); n.well() {
		t.Error("well with a taint")
	}
	if show(corev1.ConditionTrue); !n.well() {
		t.Error("not well again")
	}
}

// TestBars: a bar without a measured value is missed, and each bar of the issue exists.
func TestBars(t *testing.T) {
	c, err := parseFlags(nil)
	if err != nil {
		t.Fatal(err)
	}
	r := &record.Report{Ours: ours, Theirs: upstream, Lines: lines(c)}
	text, ok := r.Render()
	if n := strings.Count(text, "not measured"); ok || n != 5 {
		t.Errorf("%d bars, passed %v:\n%s", n, ok, text)
	}
	m := record.NewMeasurement(upstream, 1)
	m.Put("cores_others", 0.5, 1)
	m.Put("wronged", 3, 1)
	m.Put("p99_unknown", math.Inf(1), 1)
	if w := noise([]*record.Measurement{m}); len(w) != 2 {
		t.Errorf("warnings %q", w)
	}
}

// TestFelt: a request of another client belongs to the span in which it was due, and failed requests are counted.
func TestFelt(t *testing.T) {
	path := filepath.Join(t.TempDir(), "asked.txt")
	at := func(s int) time.Time { return time.Unix(1000+int64(s), 0) }
	var text strings.Builder
	for i := range 200 { // two per second: 10 ms at rest, 30 ms from second 50
		took := 10 * time.Millisecond
		if i >= 100 {
			took = 30 * time.Millisecond
		}
		fmt.Fprintf(&text, "%d get %d %t\n", at(0).Add(time.Duration(i)*time.Second/2).UnixNano(), took, i != 150)
	}
	if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	all, err := readAsked(path)
	if err != nil || len(all) != 200 {
		t.Fatalf("read %d: %v", len(all), err)
	}
	m := record.NewMeasurement(ours, 1)
	felt(m, all, []span{{name: spanRest, from: at(0), to: at(50)}, {name: spanMarks, from: at(50), to: at(90)}})
	for name, want := range map[string]float64{"p99_rest": 10, "p99_marks": 30, "times_marks": 3, "failed_marks": 1,
		"failed_rest": 0} {
		if m.Values[name] != want {
			t.Errorf("%s: %v, want %v", name, m.Values[name], want)
		}
	}
	if err := os.WriteFile(path, []byte("12 get\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readAsked(path); err == nil {
		t.Error("a line that is cut was read")
	}
}
