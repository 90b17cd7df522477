package pods

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/plimsoll-dev/plimsoll/internal/agent/metrics"
	"github.com/plimsoll-dev/plimsoll/internal/agent/podentry"
	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
)

// slowRoom is an Admission that makes pods wait.
type slowRoom struct {
	room
	why   string
	until time.Time
}

func (w *slowRoom) Wait(*corev1.Pod, time.Time) (string, time.Time) { return w.why, w.until }

// TestHold: pods wait, go on, and are rejected when they have waited for too long. A pod does not wait if something of
// it ran.
func TestHold(t *testing.T) {
	r, w := testRunner(), &slowRoom{why: "no gpu", until: time.Now().Add(time.Hour)}
	r.Admission, r.Metrics = w, metrics.New("n")
	events := r.Recorder.(*record.FakeRecorder).Events
	e := r.newEntry("uid-1")
	e.Set(testPod(), noon)
	for range 2 {
		if workerOf(r, e).mayStart() || e.Snapshot().Hold == nil || e.Snapshot().Hold.Reason != "WaitingForDevices" {
			t.Fatalf("a pod whose devices are not there: %+v", e.Snapshot().Hold)
		}
	}
	if text := <-events; len(events) > 0 {
		t.Errorf("told twice: %q", text)
	}
	now, _ := r.now()
	if wait := e.Snapshot().Hold.Until.Sub(now); wait > holdRetry {
		t.Errorf("looks again after %v", wait)
	}
	w.why = ""
	if !workerOf(r, e).mayStart() || e.Snapshot().Hold != nil {
		t.Errorf("its devices came, yet it waits: %+v", e.Snapshot().Hold)
	}
	w.why, w.until = "no gpu", time.Time{}
	if workerOf(r, e).mayStart() || e.Snapshot().Stop == nil || e.Snapshot().Stop.Phase != podlife.Failed ||
		e.Snapshot().Stop.Reason != "UnexpectedAdmissionError" ||
		e.Snapshot().Stop.Message != "Pod was rejected: Allocate failed due to no gpu, which is unexpected" {
		t.Errorf("it waited for too long: %+v", e.Snapshot().Stop)
	}

	runs := r.newEntry("uid-2")
	runs.Set(testPod(), noon)
	workerOf(r, runs).view.Sandboxes["s"] = podlife.Sandbox{ID: "s", State: podlife.SandboxReady}
	if !workerOf(r, runs).mayStart() {
		t.Error("a pod that runs waits")
	}
	delete(workerOf(r, runs).view.Sandboxes, "s")
	if !workerOf(r, runs).mayStart() {
		t.Error("a pod that ran under this agent waits")
	}
}

// fullRoom is an Admission with room for one pod.
type fullRoom struct{ room }

func (*fullRoom) Admit(_ *corev1.Pod, others []*corev1.Pod) *Rejection {
	if len(others) > 0 {
		return &Rejection{Reason: "OutOfcpu", Message: "no cpu", Room: true}
	}
	return nil
}

// TestRoomOfTheDeparting: a pod that needs the room of a pod that was deleted by force waits until that one has ended,
// but no longer than its end may take. For a pod whose object exists no pod waits: the scheduler counted it.
func TestRoomOfTheDeparting(t *testing.T) {
	for _, c := range []struct {
		name  string
		leave func(r *Runner, old *podentry.Entry)
		want  string // reason of the hold; "": refused
	}{
		{"its object is there", func(*Runner, *podentry.Entry) {}, ""},
		{"being deleted", func(_ *Runner, old *podentry.Entry) {
			old.Evict(0, time.Minute, podlife.StopOrder{Remove: true})
		}, ""},
		{"deleted by force", func(r *Runner, old *podentry.Entry) {
			now, _ := r.now()
			old.Vanish(now)
		}, "WaitingForTermination"},
		{"and should have ended long ago", func(r *Runner, old *podentry.Entry) {
			now, _ := r.now()
			old.Vanish(now.Add(-time.Hour))
		}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, _ := busyNode(t, 1000, map[string]int64{"old": 900})
			r.Admission = &fullRoom{}
			r.Assignments = freeAssignments{}
			r.Metrics = metrics.New("n")
			next := r.newEntry("next")
			next.Set(sizedPod("next", 900, 1), 1)
			r.pods[next.UID()] = next
			c.leave(r, r.pods["old"])
			for range 2 {
				r.turns.Join(next)
				workerOf(r, next).admit(t.Context())
			}
			if c.want == "" {
				if next.Snapshot().Hold != nil || next.Snapshot().Stop == nil || next.Snapshot().Stop.Reason != "OutOfcpu" {
					t.Fatalf("it is not refused: hold %+v, stop %+v", next.Snapshot().Hold, next.Snapshot().Stop)
				}
				return
			}
			if next.Snapshot().Stop != nil || next.Snapshot().Hold == nil || next.Snapshot().Hold.Reason != c.want ||
				next.Snapshot().Phase == podentry.PhaseAdmitted {
				t.Fatalf("it does not wait: hold %+v, stop %+v", next.Snapshot().Hold, next.Snapshot().Stop)
			}
			if events := r.Recorder.(*record.FakeRecorder).Events; len(events) != 1 {
				t.Errorf("%d events, want one", len(events))
			}
			r.drop(r.pods["old"])
			r.turns.Join(next)
			if workerOf(r, next).admit(t.Context()); next.Snapshot().Phase != podentry.PhaseAdmitted {
				t.Errorf("the other one has ended, and yet: hold %+v, stop %+v", next.Snapshot().Hold, next.Snapshot().Stop)
			}
		})
	}
}

// slow is an Admission whose device plugins hang while they allocate for one pod.
type slow struct {
	room
	hangs   *corev1.Pod
	reached chan struct{}
	others  []*corev1.Pod // as the last admission saw them
}

func (s *slow) Admit(_ *corev1.Pod, others []*corev1.Pod) *Rejection {
	s.others = others
	return nil
}

func (s *slow) Allocate(ctx context.Context, pod *corev1.Pod) *Rejection {
	if pod.Name != s.hangs.Name {
		return nil
	}
	close(s.reached)
	<-ctx.Done()
	return &Rejection{Reason: "UnexpectedAdmissionError"}
}

// undecided is an Admission that needs the preference of a device plugin for one pod, and the plugin hangs.
type undecided struct {
	slow
	asked int
}

func (u *undecided) Admit(pod *corev1.Pod, others []*corev1.Pod) *Rejection {
	if pod.Name == u.hangs.Name {
		return &Rejection{Asks: true}
	}
	return u.slow.Admit(pod, others)
}

func (u *undecided) Consult(ctx context.Context, _ *corev1.Pod) *Rejection {
	u.asked++
	close(u.reached)
	<-ctx.Done()
	return &Rejection{Reason: "UnexpectedAdmissionError"}
}

// TestHungOpinion: while a plugin is asked for its preference for a pod, that pod has no resources, and neither new
// pods nor resizes wait for it.
func TestHungOpinion(t *testing.T) {
	r, _ := busyNode(t, 1000, map[string]int64{"a": 300})
	hung, next := r.newEntry("hung"), r.newEntry("next")
	u := &undecided{slow: slow{room: room{milli: 1000}, hangs: sizedPod("hung", 500, 1), reached: make(chan struct{})}}
	r.Admission, r.Assignments = u, freeAssignments{}
	ended := othersGoOn(t, r, hung, next, u.reached)
	if len(u.others) != 1 {
		t.Errorf("the next pod saw %d pods, want the one that has something", len(u.others))
	}
	hung.Vanish(1)
	<-ended
	if u.asked != 1 || hung.Snapshot().Stop == nil || hung.Snapshot().Stop.Phase == podlife.Failed {
		t.Errorf("it ends by the plugin's word, asked %d times: %+v", u.asked, hung.Snapshot().Stop)
	}
}

// othersGoOn begins to admit the hung pod, whose plugin does not answer. Meanwhile the next pod is admitted, and pod a
// is resized. ended is closed when the admission of the hung pod has ended.
func othersGoOn(
	t *testing.T, r *Runner, hung, next *podentry.Entry, reached <-chan struct{},
) (ended <-chan struct{}) {
	t.Helper()
	for _, e := range []*podentry.Entry{hung, next} {
		e.Set(sizedPod(string(e.UID()), 100, 1), 1)
		r.pods[e.UID()] = e
		r.turns.Join(e)
	}
	done := make(chan struct{})
	go func() {
		workerOf(r, hung).admit(t.Context())
		close(done)
	}()
	<-reached
	workerOf(r, next).admit(t.Context())
	if next.Snapshot().Phase != podentry.PhaseAdmitted || hung.Snapshot().Phase == podentry.PhaseAdmitted {
		t.Errorf("the next pod is %v, the hung one %v", next.Snapshot().Phase, hung.Snapshot().Phase)
	}
	r.ask("a", 400, 2)
	r.judgeResizes()
	if got := r.has("a"); got != "400m resizing@2" {
		t.Errorf("a has %s", got)
	}
	return done
}

// freeAssignments are the Assignments of a node on which nothing is assigned.
type freeAssignments struct{ Assignments }

func (freeAssignments) MustReadmit(string) bool { return false }

// TestHungPlugin: a pod whose plugin hangs has the resources with which it was admitted, and neither new pods nor
// resizes wait for it. The pod's own end does not wait either.
func TestHungPlugin(t *testing.T) {
	r, _ := busyNode(t, 1000, map[string]int64{"a": 300})
	hung, next := r.newEntry("hung"), r.newEntry("next")
	w := &slow{room: room{milli: 1000}, hangs: sizedPod("hung", 500, 1), reached: make(chan struct{})}
	r.Admission, r.Assignments = w, freeAssignments{}
	ended := othersGoOn(t, r, hung, next, w.reached)
	if len(w.others) != 2 {
		t.Errorf("the next pod saw %d pods, want the two that are here", len(w.others))
	}
	hung.Vanish(1)
	<-ended
	if hung.Counted() == nil || hung.Snapshot().Stop == nil || hung.Snapshot().Stop.Phase == podlife.Failed {
		t.Errorf("it ends by the plugin's word: %+v", hung.Snapshot().Stop)
	}
}

// TestHeldPodHoldsUpNobody: a pod that waits for its devices has no resources, and others are resized meanwhile.
func TestHeldPodHoldsUpNobody(t *testing.T) {
	r, _ := busyNode(t, 1000, map[string]int64{"a": 300})
	w := &slowRoom{room: room{milli: 1000}, why: "no gpu", until: time.Now().Add(time.Hour)}
	r.Admission, r.Metrics = w, metrics.New("n")
	held := r.newEntry("held")
	held.Set(sizedPod("held", 100, 1), 1)
	r.pods[held.UID()] = held
	if workerOf(r, held).mayStart() {
		t.Fatal("it does not wait")
	}
	r.ask("a", 400, 2)
	r.judgeResizes()
	if got := r.has("a"); got != "400m resizing@2" {
		t.Errorf("a has %s", got)
	}
}
