package podentry

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

const noon = unit.Instant(12 * time.Hour)

// idle is a worker that does nothing.
type idle struct{ syncs int }

func (w *idle) Run(context.Context) { w.syncs++ }

func testPod() *corev1.Pod {
	grace := int64(7)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "uid-1", ResourceVersion: "10"},
		Spec:       corev1.PodSpec{TerminationGracePeriodSeconds: &grace},
	}
}

func TestOrdersMerge(t *testing.T) {
	remove := podlife.StopOrder{Remove: true}
	evict := podlife.StopOrder{Phase: podlife.Failed, Reason: "Evicted"}
	type step struct {
		after, grace time.Duration
		order        podlife.StopOrder
	}
	for _, c := range []struct {
		name       string
		steps      []step
		deadline   time.Duration
		remove     bool
		reason     string
		interrupts int
	}{
		{"one order", []step{{0, 30 * time.Second, remove}}, 30 * time.Second, true, "", 1},
		{"a later one shortens", []step{
			{0, 30 * time.Second, remove}, {time.Second, time.Second, remove},
		}, 2 * time.Second, true, "", 2},
		{"none stretches", []step{
			{0, 5 * time.Second, remove}, {time.Second, time.Minute, remove},
		}, 5 * time.Second, true, "", 1},
		{"an eviction that is deleted goes, and keeps its reason", []step{
			{0, 5 * time.Second, evict}, {time.Second, time.Minute, remove},
		}, 5 * time.Second, true, "Evicted", 1},
		{"a deletion that is evicted stays a deletion", []step{
			{0, time.Minute, remove}, {0, time.Second, evict},
		}, time.Second, true, "", 2},
		{"an eviction alone keeps its containers", []step{{0, 0, evict}}, 0, false, "Evicted", 1},
	} {
		interrupts := 0
		e := New("u")
		e.interrupt = func() { interrupts++ }
		now := noon
		for _, s := range c.steps {
			now = now.Add(s.after)
			before := e.stop
			e.Evict(now, s.grace, s.order)
			if before != nil && before == e.stop {
				t.Errorf("%s: an order that a worker may be reading was written to", c.name)
			}
		}
		if e.stop.Deadline != noon.Add(c.deadline) || e.stop.Remove != c.remove || e.stop.Reason != c.reason ||
			interrupts != c.interrupts {
			t.Errorf("%s: got %+v after %s, %d interrupts", c.name, *e.stop, e.stop.Deadline.Sub(noon), interrupts)
		}
	}
}

func TestEntryTakesVersions(t *testing.T) {
	e := New("uid-1")
	pod := testPod()
	if !e.Set(pod, noon) || e.Set(pod, noon) {
		t.Error("the first version is a change, the same version is none")
	}
	doomed := pod.DeepCopy()
	doomed.ResourceVersion = "14"
	doomed.DeletionTimestamp = &metav1.Time{}
	doomed.DeletionGracePeriodSeconds = new(int64)
	if !e.Set(doomed, noon) {
		t.Error("another version is no change")
	}
	if e.stop == nil || !e.stop.Remove || e.stop.Deadline != noon {
		t.Errorf("deletion without grace ordered %+v", e.stop)
	}
}

func TestVanishedPodGoesWithinItsGrace(t *testing.T) {
	e := New("uid-1")
	e.Set(testPod(), noon)
	e.Vanish(noon)
	if e.stop == nil || !e.stop.Remove || e.stop.Deadline != noon.Add(7*time.Second) || e.source != sourceGone {
		t.Errorf("got %+v", e.stop)
	}
}

// One goroutine has the worker at a time. If the entry is woken meanwhile, that goroutine makes another sync.
func TestOneGoroutineHasTheWorker(t *testing.T) {
	e := New("uid-1")
	worker := &idle{}
	e.HandBack(worker)
	if e.Wake() != worker || e.Wake() != nil {
		t.Error("the worker is handed out twice, or not at all")
	}
	if !e.Rest(worker, false, 0, nil) || e.Rest(worker, false, 0, nil) {
		t.Error("one that was woken meanwhile goes on once")
	}
	e.Drop()
	if e.Wake() != nil {
		t.Error("a pod that was dropped has a worker")
	}
}

// A broken invariant is reported, with what is wrong.
func TestImpossibleStates(t *testing.T) {
	reported := ""
	logs := Broken
	defer func() { Broken = logs }()
	Broken = func(_ types.UID, what string) { reported = what }
	nothing := func() {}
	for what, do := range map[string]func(e *Entry){
		"": func(e *Entry) {
			e.Claim(false)
			e.Set(testPod(), noon)
			e.SetPhase(PhasePreparing)
			e.Admit(testPod(), "")
			e.Arm(nil, nothing)
			e.Disarm()
			_, _, over := e.AwaitExit(t.Context(), "c", time.Second)
			over()
		},
		"it is rejected, and becomes admitted": func(e *Entry) {
			e.Reject(noon, podlife.StopOrder{})
			e.SetPhase(PhaseAdmitted)
		},
		"its admission has no end":                         func(e *Entry) { e.SetPhase(PhaseConsulting) },
		"no source has it, and yet it is held":             func(e *Entry) { e.SetHold(&podlife.Hold{}, "") },
		"its worker rests, and a stop order interrupts it": func(e *Entry) { e.Arm(nil, nothing) },
		"its worker rests, and awaits an exit":             func(e *Entry) { e.AwaitExit(t.Context(), "c", time.Second) },
	} {
		reported = ""
		e := New("uid-1")
		do(e)
		if reported == "" {
			e.Rest(nil, false, 0, nil)
		}
		if reported != what {
			t.Errorf("reported %q, want %q", reported, what)
		}
	}
}

// asAllocated computes its result once for each version of the pod and its status.
func TestCountedFollows(t *testing.T) {
	e := New("uid-1")
	e.Claim(false)
	e.Set(testPod(), noon)
	e.SetPhase(PhasePreparing)
	before := e.Counted()
	if before == nil || e.Counted() != before {
		t.Fatal("the same pod is made twice")
	}
	status := corev1.PodStatus{Phase: corev1.PodPending, PodIP: "10.0.0.1"}
	e.SetStatus(e.Object(), status, podlife.Observation{}, podlife.Status{})
	if after := e.Counted(); after == before || after.Status.PodIP != "10.0.0.1" {
		t.Errorf("after another status: %+v", after.Status)
	}
	newer := testPod()
	newer.ResourceVersion = "11"
	e.Set(newer, noon)
	if after := e.Counted(); after.ResourceVersion != "11" {
		t.Errorf("after another version: %s", after.ResourceVersion)
	}
}
