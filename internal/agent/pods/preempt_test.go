package pods

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/plimsoll-dev/plimsoll/internal/agent/metrics"
	"github.com/plimsoll-dev/plimsoll/internal/agent/podentry"
	"github.com/plimsoll-dev/plimsoll/internal/core/admission"
	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
)

// seat is an Admission with room for one pod. That pod can be ended for a critical one.
type seat struct {
	fullRoom
	refuses bool // no pod can be ended
	asked   int
}

func (s *seat) Admit(pod *corev1.Pod, others []*corev1.Pod) *Rejection {
	rejected := s.fullRoom.Admit(pod, others)
	if rejected != nil {
		rejected.Preempts = true
	}
	return rejected
}

func (s *seat) Preempt(
	_ *corev1.Pod, others []*corev1.Pod, present []podentry.Present,
) (p admission.Preemption, ok bool) {
	s.asked++
	for _, one := range present {
		if one.KillAt.IsZero() {
			p.Victims = append(p.Victims, scheduler.PodID(one.Pod.UID))
		}
	}
	p.Resource = "cpu"
	return p, !s.refuses && len(others) > 0
}

// TestPreempt: for a critical pod another one is ended, once, within its own grace period. The critical pod waits for
// that and is admitted then. It is rejected if no pod can be ended, or if the other one has not ended in time.
func TestPreempt(t *testing.T) {
	start := func(refuses bool) (*Runner, *podentry.Entry, *podentry.Entry) {
		r, _ := busyNode(t, 1000, map[string]int64{"old": 900})
		r.Admission = &seat{refuses: refuses}
		r.Assignments = freeAssignments{}
		r.Metrics = metrics.New("n")
		next := r.newEntry("next")
		next.Set(sizedPod("next", 900, 1), noon)
		r.pods["next"] = next
		return r, r.pods["old"], next
	}
	admit := func(r *Runner, e *podentry.Entry) {
		r.turns.Join(e)
		workerOf(r, e).admit(t.Context())
	}

	r, old, next := start(false)
	admit(r, next)
	admit(r, next)
	stop := old.Snapshot().Stop
	want := podlife.StopOrder{
		Phase: podlife.Failed, Reason: "Preempting", Message: "Preempted in order to admit critical pod",
		Disruption: "Pod was preempted by Kubelet to accommodate a critical pod.",
	}
	if stop == nil {
		t.Fatal("the other one does not end")
	}
	now, _ := r.now()
	if left := stop.Deadline.Sub(now); left <= 0 || left > 30*time.Second {
		t.Errorf("it ends in %v, want within its grace period of 30 s", left)
	}
	if want.Deadline = stop.Deadline; *stop != want {
		t.Errorf("it ends by\n%+v, want\n%+v", *stop, want)
	}
	if hold := next.Snapshot().Hold; hold == nil || hold.Reason != reasonRoom || next.Snapshot().Stop != nil {
		t.Fatalf("the critical one does not wait: %+v, %+v", hold, next.Snapshot().Stop)
	}
	// There is one Event about the end, and one about the waiting pod.
	if events := r.Recorder.(*record.FakeRecorder).Events; len(events) != 2 {
		t.Errorf("%d events, want two", len(events))
	}
	r.drop(r.pods["old"])
	if admit(r, next); next.Snapshot().Phase != podentry.PhaseAdmitted {
		t.Errorf("there is room, and yet: %+v", next.Snapshot())
	}

	r, old, next = start(true)
	if admit(r, next); next.Snapshot().Stop == nil || next.Snapshot().Stop.Reason != "OutOfcpu" ||
		old.Snapshot().Stop != nil {
		t.Errorf("nobody ends: %+v, the other: %+v", next.Snapshot().Stop, old.Snapshot().Stop)
	}

	r, old, next = start(false)
	now, _ = r.now()
	old.Evict(now.Add(-time.Hour), 0, podlife.StopOrder{Phase: podlife.Failed}) // and hangs since
	if admit(r, next); next.Snapshot().Stop == nil || next.Snapshot().Stop.Reason != "OutOfcpu" {
		t.Errorf("it waits for one that hangs: %+v", next.Snapshot())
	}
}
