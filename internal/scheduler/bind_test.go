package scheduler

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"

	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	corescheduler "github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/kube/schedulerconfig"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// idle returns a scheduling loop that does not run, and its Events. pods are those that it can look up.
func idle(pods ...*corev1.Pod) (*loop, *record.FakeRecorder) {
	recorder := record.NewFakeRecorder(10)
	o := Options{
		Metrics:       NewMetrics(),
		Name:          DefaultName,
		BindsInFlight: 2,
		Profiles:      []corescheduler.Profile{{Name: DefaultName}},
	}
	m := newLoop(o, nil, func(string) record.EventRecorder { return recorder })
	m.lookUp = func(p corescheduler.Pod) *corev1.Pod {
		for _, pod := range pods {
			if string(pod.UID) == string(p.ID) {
				return pod
			}
		}
		return nil
	}
	return m, recorder
}

// decided returns the decision that places pod on n.
func decided(pod *corev1.Pod) placed {
	return placed{Decision: corescheduler.Decision{Pod: translate.SchedulerPod(pod), Node: "n"}, flight: &flight{}}
}

// TestNoEventAboutMissingPods: there is no Event about a pod that is gone.
func TestNoEventAboutMissingPods(t *testing.T) {
	m, recorder := idle()
	p := decided(testPod("p", "1"))
	for _, outcome := range []corescheduler.Outcome{
		corescheduler.BindDone, corescheduler.BindRefused, corescheduler.BindLost, corescheduler.BindWithdrawn,
	} {
		m.bindEnded(1, p, outcome)
		m.reportBind(p.Decision, outcome, context.DeadlineExceeded)
	}
	m.reportFailure(p.Pod, corev1.PodReasonUnschedulable, "no room", "")
	if len(recorder.Events) > 0 || len(m.unknownBinds) > 0 || m.failures.waiting() > 0 {
		t.Errorf("Event %s; unknown binds %v, %d conditions wait", <-recorder.Events, m.unknownBinds, m.failures.waiting())
	}
}

// TestWatchBeforeTheAnswerIsLost: the watch shows a pod's node before the answer to its bind times out. The pod gets
// one Event, with the node on which it is, and is counted once.
func TestWatchBeforeTheAnswerIsLost(t *testing.T) {
	pod := onNode(testPod("p", "1"), "other")
	m, recorder := idle(pod)
	p := decided(testPod("p", "1"))
	m.bindEnded(1, p, corescheduler.BindLost)
	if len(recorder.Events) != 1 {
		t.Fatalf("%d Events, want one: the watch does not show it again", len(recorder.Events))
	}
	m.shownOn(1, p.Pod.ID, "other")
	if len(recorder.Events) != 1 {
		t.Fatalf("%d Events, want one", len(recorder.Events))
	}
	if e := <-recorder.Events; !strings.HasSuffix(e, "Successfully assigned default/p to other") {
		t.Errorf("Event: %s", e)
	}
	if n := total(t, m.o.Metrics, "scheduler_pod_scheduling_attempts"); n != 1 {
		t.Errorf("%v pods are counted as bound", n)
	}
}

// TestBindsWithoutAnswer: a pod whose bind had no answer gets one Event, when the watch or the next bind shows its
// node, whichever is first. A pod whose bind was refused and that others have bound gets none from this scheduler.
func TestBindsWithoutAnswer(t *testing.T) {
	for _, q := range []struct {
		name     string
		outcomes []corescheduler.Outcome
		want     string // the end of the Event; empty: none
	}{
		{"lost, then seen", []corescheduler.Outcome{corescheduler.BindLost}, "to other"},
		{"lost, then bound, then seen", []corescheduler.Outcome{corescheduler.BindLost, corescheduler.BindDone}, "to n"},
		{"lost twice, then seen", []corescheduler.Outcome{corescheduler.BindLost, corescheduler.BindLost}, "to other"},
		{"refused, then seen", []corescheduler.Outcome{corescheduler.BindRefused}, ""},
	} {
		t.Run(q.name, func(t *testing.T) {
			pod := testPod("p", "1")
			m, recorder := idle(pod)
			p := decided(pod)
			for _, outcome := range q.outcomes {
				m.bindEnded(1, p, outcome)
			}
			m.shownOn(1, p.Pod.ID, "other")
			told := ""
			for len(recorder.Events) > 0 {
				told += <-recorder.Events + "\n"
			}
			want := ""
			if q.want != "" {
				want = "Normal Scheduled Successfully assigned default/p " + q.want + "\n"
			}
			if told != want || len(m.unknownBinds) > 0 {
				t.Errorf("Events %q, want %q; %d unknown binds", told, want, len(m.unknownBinds))
			}
		})
	}
}

// TestNoAnswerAndStillPending: a pod whose bind had no answer gets no Event while the watch shows it as pending, for
// example because others write its status. It gets one when the watch shows it on a node.
func TestNoAnswerAndStillPending(t *testing.T) {
	pod := testPod("p", "1")
	m, recorder := idle(pod)
	m.bindEnded(1, decided(pod), corescheduler.BindLost)
	m.podHandler().OnUpdate(pod, pod)
	m.applyFacts()
	if len(recorder.Events) > 0 || len(m.unknownBinds) != 1 {
		t.Errorf("%d unknown binds, and %d Events", len(m.unknownBinds), len(recorder.Events))
	}
	m.podHandler().OnUpdate(pod, onNode(pod.DeepCopy(), "other"))
	m.applyFacts()
	if len(recorder.Events) != 1 || len(m.unknownBinds) > 0 {
		t.Errorf("%d unknown binds, and %d Events", len(m.unknownBinds), len(recorder.Events))
	}
}

// TestPassedOnOnce: a pod that the informer shows again without a change is not passed on, nor is an object that is no
// pod.
func TestPassedOnOnce(t *testing.T) {
	m, _ := idle()
	kept := KeepPod(testPod("p", "1"))
	m.podHandler().OnAdd(kept, false)
	m.podHandler().OnUpdate(kept, kept)
	m.podHandler().OnAdd(&corev1.Node{}, false)
	if len(m.facts) != 1 {
		t.Errorf("%d facts, want one", len(m.facts))
	}
}

// TestTruncate: a text is cut between characters, and is no longer than allowed with the mark.
func TestTruncate(t *testing.T) {
	for _, q := range []struct {
		text string
		most int
		want string
	}{
		{"0123456789", 10, "0123456789"},
		{"0123456789a", 10, "012345 ..."},
		{"01234\u00fc6789", 10, "01234 ..."},
	} {
		if got := truncate(q.text, q.most); got != q.want {
			t.Errorf("%q in %d bytes: %q, want %q", q.text, q.most, got, q.want)
		}
	}
}

// TestAnswersCount: while binds are answered, the loop does not decide ahead, even if each slot that becomes free is
// used at once for a decision that was made ahead.
func TestAnswersCount(t *testing.T) {
	pod := testPod("p", "1")
	c := newCluster(t)
	c.onBound = func(*corev1.Pod) {}
	c.set(pod)
	m, _ := idle(pod)
	m.api, m.synced, m.binding = c, true, 10
	m.bind(t.Context(), decided(pod))
	now := m.clock.Now().Add(time.Hour)
	if !m.mayPlace(now) {
		t.Error("nothing is decided ahead although there was no answer for an hour")
	}
	(<-m.facts)(now)
	if m.mayPlace(now.Add(hungAfter/2)) || !m.mayPlace(now.Add(hungAfter)) {
		t.Error("an answer does not count, or counts for too long")
	}
}

// TestDecidedAheadIsBounded: with a server that answers nothing, at most aheadMax decisions are made ahead.
func TestDecidedAheadIsBounded(t *testing.T) {
	m, _ := idle()
	m.synced = true
	for _, q := range []struct {
		binding int
		may     bool
	}{{m.o.BindsInFlight + aheadMax - 1, true}, {m.o.BindsInFlight + aheadMax, false}} {
		if m.binding = q.binding; m.mayPlace(unit.Instant(time.Hour)) != q.may {
			t.Errorf("with %d decisions: another may be made: %v", q.binding, !q.may)
		}
	}
}

// TestBindsCarryBerths: a bind carries the pod's berth, if anything is assigned to the pod.
func TestBindsCarryBerths(t *testing.T) {
	p := decided(testPod("p", "1"))
	if b := bindingOf(p.Decision); b.Annotations != nil || b.UID != "uid-p" || b.Target.Name != "n" {
		t.Errorf("%+v", b)
	}
	p.Berth = numa.Berth{}
	want := translate.BerthAnnotation(p.Berth)
	if got, told := bindingOf(p.Decision).Annotations[translate.AnnotationBerth]; !told || got != want {
		t.Errorf("annotation %q, want %q", got, want)
	}
}

// TestConditionPatch: a condition that a pod has already is not written again, and a nomination that has ended is
// removed.
func TestConditionPatch(t *testing.T) {
	now := time.Now()
	says := func(status corev1.ConditionStatus, reason, message, nominated string) *corev1.Pod {
		pod := testPod("p", "1")
		pod.Status.NominatedNodeName = nominated
		pod.Status.Conditions = []corev1.PodCondition{
			{Type: corev1.DisruptionTarget, Status: corev1.ConditionFalse, Reason: "why", Message: "what"},
			{Type: corev1.PodScheduled, Status: status, Reason: reason, Message: message},
		}
		return pod
	}
	for _, q := range []struct {
		pod       *corev1.Pod
		nominated string
		needed    bool
		has       string
	}{
		{pod: says(corev1.ConditionFalse, "why", "what", "n"), nominated: "n"},
		{pod: says(corev1.ConditionFalse, "why", "what", "")},
		{pod: testPod("p", "1"), needed: true, has: `"message":"what"`},
		{pod: says(corev1.ConditionTrue, "why", "what", ""), needed: true, has: `"status":"False"`},
		{pod: says(corev1.ConditionFalse, "other", "what", ""), needed: true, has: `"reason":"why"`},
		{pod: says(corev1.ConditionFalse, "why", "other", ""), needed: true, has: `"message":"what"`},
		{pod: says(corev1.ConditionFalse, "why", "what", "n"), needed: true, has: `"nominatedNodeName":null`},
		{pod: says(corev1.ConditionFalse, "why", "what", "n"), nominated: "m", needed: true, has: `"nominatedNodeName":"m"`},
	} {
		patch, needed, err := conditionPatch(failure{q.pod, "why", "what", q.nominated}, now)
		if err != nil || needed != q.needed || !strings.Contains(string(patch), q.has) {
			t.Errorf("%+v: %v, %s, %v; want %v, %s", q.pod.Status, needed, patch, err, q.needed, q.has)
		}
	}
}

// TestWriteFailure: nothing is written about a pod that is gone or on a node. A patch that was refused because the pod
// is gone or has another UID is not tried again. Any other is, also in a process that does not lead.
func TestWriteFailure(t *testing.T) {
	pods := corev1.Resource("pods")
	here := testPod("p", "1")
	for _, q := range []struct {
		name   string
		pods   []*corev1.Pod
		answer error
		led    bool // by another
		done   bool
		asked  bool
	}{
		{name: "gone", done: true},
		{name: "bound", pods: []*corev1.Pod{onNode(testPod("p", "1"), "n")}, done: true},
		{name: "another leads", pods: []*corev1.Pod{here}, led: true},
		{name: "written", pods: []*corev1.Pod{here}, done: true, asked: true},
		{name: "not found", pods: []*corev1.Pod{here}, answer: apierrors.NewNotFound(pods, "p"), done: true, asked: true},
		{name: "another", pods: []*corev1.Pod{here}, answer: apierrors.NewConflict(pods, "p", nil), done: true, asked: true},
		{name: "refused", pods: []*corev1.Pod{here}, answer: apierrors.NewForbidden(pods, "p", nil), asked: true},
	} {
		t.Run(q.name, func(t *testing.T) {
			m, _ := idle(q.pods...)
			c := &refusing{cluster: newCluster(t), answer: q.answer}
			m.api = c
			m.o.Leads = func() bool { return !q.led }
			done := m.writeFailure(t.Context(), failure{pod: here, reason: "why", message: "what"})
			if done != q.done || (c.asked > 0) != q.asked {
				t.Errorf("done %v, %d requests; want %v, %v", done, c.asked, q.done, q.asked)
			}
		})
	}
}

// refusing is a cluster with a given answer to each patch.
type refusing struct {
	*cluster
	answer error
	asked  int
}

func (r *refusing) patchStatus(context.Context, string, string, []byte) error {
	r.asked++
	return r.answer
}

// TestPendingWritesFollowThePod: a pending condition and pending evictions are kept when the pod is shown again as
// pending. They are dropped when it is on a node, or being deleted.
func TestPendingWritesFollowThePod(t *testing.T) {
	m, _ := idle()
	pod := testPod("p", "1")
	going := pod.DeepCopy()
	going.DeletionTimestamp = &metav1.Time{Time: time.Now()}
	for _, q := range []struct {
		name string
		pod  *corev1.Pod
		want int
	}{{"waits", pod, 1}, {"bound", onNode(pod.DeepCopy(), "n"), 0}, {"going", going, 0}} {
		m.failures.put("uid-p", failure{})
		m.evictions.put("uid-p", eviction{})
		m.podHandler().OnUpdate(pod, q.pod)
		m.applyFacts()
		if failures, evictions := m.failures.waiting(), m.evictions.waiting(); failures != q.want || evictions != q.want {
			t.Errorf("%s: %d conditions and %d evictions wait, want %d", q.name, failures, evictions, q.want)
		}
	}
}

// TestRunRefuses checks options that cannot work.
func TestRunRefuses(t *testing.T) {
	client, err := kube.NewClientForConfig(&rest.Config{Host: "http://api.example"})
	if err != nil {
		t.Fatal(err)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	broken := schedulerconfig.Extender{URL: "https://x", Config: rest.Config{
		Host: "https://x", TLSClientConfig: rest.TLSClientConfig{CAData: []byte("no certificate")},
	}}
	for why, o := range map[string]Options{
		"no API client":      {},
		"binds in flight":    {Client: client, BindsInFlight: -1},
		"extender https://x": {Client: client, Extenders: []schedulerconfig.Extender{broken}},
	} {
		if err := Run(ended, o); err == nil || !strings.Contains(err.Error(), "run scheduler: ") ||
			!strings.Contains(err.Error(), why) {
			t.Errorf("%v, want an error about: %s", err, why)
		}
	}
}
