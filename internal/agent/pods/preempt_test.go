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

// seat is an Admission with room for one pod, which ends for a critical one.
type seat struct {
	fullRoom
	refuses bool // nobody ends
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

// TestPreempt: a critical pod has another one end within its own grace period, once, waits for that, and is admitted
// then. It is rejected where nobody ends for it, and where the other has not ended in time.
func TestPreempt(t *testing.T) {
	start := func(refuses bool) (*Runner, *podentry.Entry, *podentry.Entry) {
		r, _ := busyNode(t, 1000, map[string]int64{"old": 900})
		r.Admission, r.Assignments, r.Metrics = &seat{refuses: refuses}, freeAssignments{}, metrics.New("n")
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
	// One Event about the end, one that says that the pod waits.
	if events := r.Recorder.(*record.FakeRecorder).Events; len(events) != 2 {
		t.Errorf("%d events, want two", len(events))
	}
	r.drop(r.pods["old"])
	if admit(r, next); next.Snapshot().Phase != podentry.PhaseAdmitted {
		t.Errorf("there is room, and yet: %+v", next.Snapshot())
	}

	r, old, next = start(true)
	if admit(r, next); next.Snapshot().Stop == nil || next.Snapshot().Stop.Reason != "OutOfcpu" || old.Snapshot().Stop != nil {
		t.Errorf("nobody ends: %+v, the other: %+v", next.Snapshot().Stop, old.Snapshot().Stop)
	}

	r, old, next = start(false)
	now, _ = r.now()
	old.Evict(now.Add(-time.Hour), 0, podlife.StopOrder{Phase: podlife.Failed}) // and hangs since
	if admit(r, next); next.Snapshot().Stop == nil || next.Snapshot().Stop.Reason != "OutOfcpu" {
		t.Errorf("it waits for one that hangs: %+v", next.Snapshot())
	}
}
