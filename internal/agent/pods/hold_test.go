package pods

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/plimsoll-dev/plimsoll/internal/agent/metrics"
	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
)

// waiting is an Admission that has pods wait.
type waiting struct {
	room
	why   string
	until time.Time
}

func (w *waiting) Wait(*corev1.Pod, time.Time) (string, time.Time) { return w.why, w.until }

// TestHold has pods wait, go on, wait for too long, and not wait where something of them ran.
func TestHold(t *testing.T) {
	r, w := testRunner(), &waiting{why: "no gpu", until: time.Now().Add(time.Hour)}
	r.Admission, r.Metrics = w, metrics.New("n")
	events := r.Recorder.(*record.FakeRecorder).Events
	e := newEntry("uid-1", 0)
	e.pod = testPod()
	for range 2 {
		if r.mayStart(e) || e.hold == nil || e.hold.Reason != "WaitingForDevices" {
			t.Fatalf("a pod whose devices are not there: %+v", e.hold)
		}
	}
	if text := <-events; len(events) > 0 {
		t.Errorf("told twice: %q", text)
	}
	now, _ := r.now()
	if wait := e.hold.Until.Sub(now); wait > holdRetry {
		t.Errorf("looks again after %v", wait)
	}
	w.why = ""
	if !r.mayStart(e) || e.hold != nil {
		t.Errorf("its devices came, yet it waits: %+v", e.hold)
	}
	w.why, w.until = "no gpu", time.Time{}
	if r.mayStart(e) || e.stop == nil || e.stop.Phase != podlife.Failed || e.stop.Reason != "UnexpectedAdmissionError" || e.stop.Message != "Pod was rejected: Allocate failed due to no gpu, which is unexpected" {
		t.Errorf("it waited for too long: %+v", e.stop)
	}

	runs := newEntry("uid-2", 0)
	runs.pod = testPod()
	runs.view.sandboxes["s"] = podlife.Sandbox{ID: "s", State: podlife.SandboxReady}
	if !r.mayStart(runs) {
		t.Error("a pod that runs waits")
	}
	delete(runs.view.sandboxes, "s")
	if !r.mayStart(runs) {
		t.Error("a pod that ran under this agent waits")
	}
}
