package main

import (
	"math"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/plimsoll-dev/plimsoll/bench/record"
)

// TestChurnedPods: the mix is what the report says, names are unique, and each configmap that is mounted exists.
func TestChurnedPods(t *testing.T) {
	const pods = 1000
	names := map[string]bool{}
	did := map[string]int{}
	for i := range pods {
		pod, settings, f := churned(i)
		names[pod.Name] = true
		did[f.name]++
		for _, v := range pod.Spec.Volumes {
			if v.ConfigMap != nil && (settings == nil || settings.Name != v.ConfigMap.Name) {
				t.Errorf("%s mounts configmap %s, which nobody makes", pod.Name, v.ConfigMap.Name)
			}
		}
		count := func(what string, is bool) {
			if is {
				did[what]++
			}
		}
		count("with volumes", settings != nil && len(pod.Spec.Volumes) == 3)
		count("with init", len(pod.Spec.InitContainers) == 1)
		count("with readiness", pod.Spec.Containers[0].ReadinessProbe != nil)
		count("with liveness", pod.Spec.Containers[0].LivenessProbe != nil)
		count("once", pod.Spec.RestartPolicy == corev1.RestartPolicyNever)
	}
	if len(names) != pods {
		t.Errorf("%d pods have %d names", pods, len(names))
	}
	for what, tenths := range map[string]int{"stays": 5, "ends": 2, "fails": 1, "crashes": 1, "probed": 1,
		"with volumes": 3, "with init": 1, "with readiness": 1, "with liveness": 1, "once": 3} {
		if did[what] != tenths*pods/10 {
			t.Errorf("%s: %d of %d pods, want %d in ten (churnConditions says so)", what, did[what], pods, tenths)
		}
	}
}

// TestPutChurn: growth counts from the first tenth on, not from the start, and the worst reading is not hidden by the
// last. A reading that is missing makes no growth of nothing.
func TestPutChurn(t *testing.T) {
	m := record.NewMeasurement(plimsoll, 1)
	for tenth, mib := range []float64{10, 40, 41, 44, 43, 42, 41, 40, 41, 40, 42} {
		m.Put(sized("rss", tenth), mib, 1)
		putChurn(m, tenth)
		if _, ok := m.Values["churn_rss"]; ok != (tenth == churnTenths) {
			t.Errorf("after tenth %d there is a result: %v", tenth, ok)
		}
	}
	if got := m.Values["churn_rss"]; math.Abs(got-5) > 1e-9 {
		t.Errorf("40 to 42 MiB: growth %v %%, want 5", got)
	}
	if got := m.Values["worst_rss"]; math.Abs(got-10) > 1e-9 {
		t.Errorf("40 to 44 MiB: worst %v %%, want 10", got)
	}
	if _, ok := m.Values["churn_heap"]; ok {
		t.Error("growth of what was not read")
	}
}

// TestChurnReport: a run that ended early misses its bar, and so does growth of more than 5 %.
func TestChurnReport(t *testing.T) {
	c := parsed(t, "--churn", "1000", "--rounds", "1", "--only", "plimsoll")
	for _, f := range []struct {
		growth float64
		ok     bool
	}{{math.NaN(), false}, {5.1, false}, {5, true}, {-3, true}} {
		m := record.NewMeasurement(plimsoll, 1)
		if !math.IsNaN(f.growth) {
			m.Put("churn_rss", f.growth, 1)
		}
		r := newReport(t.Context(), c, nil)
		r.Measurements = append(r.Measurements, m)
		text, ok := r.Render()
		if ok != f.ok {
			t.Errorf("growth %v: passed %v\n%s", f.growth, ok, text)
		}
		for _, want := range []string{"Growth from 100 pods to 1000", "after 300 pods", "pods 901 to 1000",
			"1000 pods, 50 at a"} {
			if !strings.Contains(text, want) {
				t.Errorf("the report lacks %q:\n%s", want, text)
			}
		}
	}
}

// TestChurnFlags: there is no bare client to compare with, and no pod may wait for a place on the node.
func TestChurnFlags(t *testing.T) {
	if c := parsed(t, "--churn", "1000"); len(c.sides) != 2 {
		t.Errorf("sides %v", c.sides)
	}
	for _, args := range [][]string{{"--churn", "9"}, {"--churn", "-1"}, {"--churn-at-once", "0"},
		{"--churn-at-once", "201"}, {"--churn", "100", "--only", "bare"}} {
		if _, err := parseFlags(args); err == nil {
			t.Errorf("%q was accepted", args)
		}
	}
}

// TestTrackerWakesAll: all that wait for pods are woken by one change, and see how often a container was started again.
func TestTrackerWakesAll(t *testing.T) {
	tracked := &tracker{lives: map[string]*life{}, changed: make(chan struct{})}
	waiting := make(chan error, 2)
	for _, name := range []string{"a", "b"} {
		go func() { waiting <- tracked.await(t.Context(), "restarted", []string{name}, isRestarted) }()
	}
	for _, name := range []string{"a", "b"} {
		tracked.note(time.Now(), watch.Modified, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Status: corev1.PodStatus{
				Phase:             corev1.PodFailed,
				ContainerStatuses: []corev1.ContainerStatus{{RestartCount: 1}},
			},
		})
	}
	for range 2 {
		if err := <-waiting; err != nil {
			t.Error(err)
		}
	}
	if a := tracked.get("a"); !hasEnded(&a) {
		t.Error("a has failed, and has not ended")
	}
	tracked.note(time.Now(), watch.Deleted, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a"}})
	tracked.forget()
	if len(tracked.lives) != 1 {
		t.Errorf("%d lives are left of one pod", len(tracked.lives))
	}
}

func TestValueAfter(t *testing.T) {
	if v, err := valueAfter("goroutine profile: total 78\n1 @ 0x1\n", "goroutine profile: total "); v != 78 || err != nil {
		t.Errorf("%v, %v", v, err)
	}
	if _, err := valueAfter("nothing", "# HeapAlloc = "); err == nil {
		t.Error("a heap without its size was read")
	}
}
