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

// idle is a mind that does not run, and what it tells; pods are those that it can look up.
func idle(pods ...*corev1.Pod) (*mind, *record.FakeRecorder) {
	recorder := record.NewFakeRecorder(10)
	o := Options{Metrics: NewMetrics(), Name: DefaultName, BindsInFlight: 2, Profiles: []corescheduler.Profile{{Name: DefaultName}}}
	m := newMind(o, nil, func(string) record.EventRecorder { return recorder })
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

// decided is that pod goes to n.
func decided(pod *corev1.Pod) placed {
	return placed{Decision: corescheduler.Decision{Pod: translate.PlacementPod(pod), Node: "n"}, flight: &flight{}}
}

// TestNobodyIsToldOfWhoIsGone: there is no Event about a pod that nobody knows any more.
func TestNobodyIsToldOfWhoIsGone(t *testing.T) {
	m, recorder := idle()
	p := decided(testPod("p", "1"))
	for _, outcome := range []corescheduler.Outcome{
		corescheduler.BindDone, corescheduler.BindRefused, corescheduler.BindLost, corescheduler.BindWithdrawn,
	} {
		m.settle(1, p, outcome)
		m.reportBind(p.Decision, outcome, context.DeadlineExceeded)
	}
	m.unplaced(p.Pod, corev1.PodReasonUnschedulable, "no room", "")
	if len(recorder.Events) > 0 || len(m.unsure) > 0 || m.failures.waiting() > 0 {
		t.Errorf("told: %s; %v are unsure, %d wait", <-recorder.Events, m.unsure, m.failures.waiting())
	}
}

// TestWatchBeforeTheAnswerIsLost: the watch shows where a pod is before the wait for the answer of its bind ends. It is
// told and counted once, with the node that it is on.
func TestWatchBeforeTheAnswerIsLost(t *testing.T) {
	pod := onNode(testPod("p", "1"), "other")
	m, recorder := idle(pod)
	p := decided(testPod("p", "1"))
	m.settle(1, p, corescheduler.BindLost)
	if len(recorder.Events) != 1 {
		t.Fatalf("%d Events, want one: the watch does not show it again", len(recorder.Events))
	}
	m.isOn(1, p.Pod.ID, "other")
	if len(recorder.Events) != 1 {
		t.Fatalf("%d Events, want one", len(recorder.Events))
	}
	if e := <-recorder.Events; !strings.HasSuffix(e, "Successfully assigned default/p to other") {
		t.Errorf("told: %s", e)
	}
	if n := total(t, m.o.Metrics, "scheduler_pod_scheduling_attempts"); n != 1 {
		t.Errorf("%v pods are counted as bound", n)
	}
}

// TestBindsOfNoAnswer: a pod whose bind had no answer is told once where it is, by the watch or by the next bind,
// whichever is first. One whose bind was refused is not told by us where others have bound it.
func TestBindsOfNoAnswer(t *testing.T) {
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
				m.settle(1, p, outcome)
			}
			m.isOn(1, p.Pod.ID, "other")
			told := ""
			for len(recorder.Events) > 0 {
				told += <-recorder.Events + "\n"
			}
			want := ""
			if q.want != "" {
				want = "Normal Scheduled Successfully assigned default/p " + q.want + "\n"
			}
			if told != want || len(m.unsure) > 0 {
				t.Errorf("told %q, want %q; %d are unsure", told, want, len(m.unsure))
			}
		})
	}
}

// TestNoAnswerAndNoNews: a pod whose bind had no answer, and that the watch shows as one that waits still, as when
// others write its status, is not told that it is placed; once it is shown on a node, it is.
func TestNoAnswerAndNoNews(t *testing.T) {
	pod := testPod("p", "1")
	m, recorder := idle(pod)
	m.settle(1, decided(pod), corescheduler.BindLost)
	m.podHandler().OnUpdate(pod, pod)
	m.hearAll()
	if len(recorder.Events) > 0 || len(m.unsure) != 1 {
		t.Errorf("%d are unsure, and there are %d Events", len(m.unsure), len(recorder.Events))
	}
	m.podHandler().OnUpdate(pod, onNode(pod.DeepCopy(), "other"))
	m.hearAll()
	if len(recorder.Events) != 1 || len(m.unsure) > 0 {
		t.Errorf("%d are unsure, and there are %d Events", len(m.unsure), len(recorder.Events))
	}
}

// TestHeardOnce: a pod that was passed on, and is shown again as it is stored, is no news; nor is what is no pod.
func TestHeardOnce(t *testing.T) {
	m, _ := idle()
	kept := KeepPod(testPod("p", "1"))
	m.podHandler().OnAdd(kept, false)
	m.podHandler().OnUpdate(kept, kept)
	m.podHandler().OnAdd(&corev1.Node{}, false)
	if len(m.facts) != 1 {
		t.Errorf("%d facts, want one", len(m.facts))
	}
}

// TestCut: a text is cut between characters, so that with the sign that there was more it is no longer than it may be.
func TestCut(t *testing.T) {
	for _, q := range []struct {
		text string
		most int
		want string
	}{
		{"0123456789", 10, "0123456789"},
		{"0123456789a", 10, "012345 ..."},
		{"01234\u00fc6789", 10, "01234 ..."},
	} {
		if got := cut(q.text, q.most); got != q.want {
			t.Errorf("%q in %d bytes: %q, want %q", q.text, q.most, got, q.want)
		}
	}
}

// TestAnswersCount: while binds are answered nothing is decided ahead, though each slot that becomes free is taken at
// once by one that was held.
func TestAnswersCount(t *testing.T) {
	pod := testPod("p", "1")
	c := newCluster(t)
	c.onBound = func(*corev1.Pod) {}
	c.set(pod)
	m, _ := idle(pod)
	m.api, m.synced, m.binding = c, true, 10
	m.bind(t.Context(), decided(pod))
	now := m.now().Add(time.Hour)
	if !m.mayPlace(now) {
		t.Error("no answer for an hour, and nothing is decided ahead")
	}
	(<-m.facts)(now)
	if m.mayPlace(now.Add(hungAfter/2)) || !m.mayPlace(now.Add(hungAfter)) {
		t.Error("an answer has come, and it does not count, or for too long")
	}
}

// TestDecidedAheadIsBounded: behind a server that answers nothing, decisions are made for so many pods and no more.
func TestDecidedAheadIsBounded(t *testing.T) {
	m, _ := idle()
	m.synced = true
	for _, q := range []struct {
		binding int
		may     bool
	}{{m.o.BindsInFlight + aheadMax - 1, true}, {m.o.BindsInFlight + aheadMax, false}} {
		if m.binding = q.binding; m.mayPlace(unit.Instant(time.Hour)) != q.may {
			t.Errorf("with %d decided: may one be made: %v", q.binding, !q.may)
		}
	}
}

// TestBindsTellTheAgent where the pod is expected to lie, if it owns anything.
func TestBindsTellTheAgent(t *testing.T) {
	p := decided(testPod("p", "1"))
	if b := bindingOf(p.Decision); b.Annotations != nil || b.UID != "uid-p" || b.Target.Name != "n" {
		t.Errorf("%+v", b)
	}
	p.Berth = numa.Berth{}
	want := translate.BerthAnnotation(p.Berth)
	if got, told := bindingOf(p.Decision).Annotations[translate.AnnotationBerth]; !told || got != want {
		t.Errorf("told %q, want %q", got, want)
	}
}

// TestConditionPatch: what a pod says already is not written again, and a nomination that has come to nothing is taken
// away.
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

// TestConditionsOfWhoIsElsewhere: nothing is written about a pod that is gone or on a node; what was refused because
// the pod is gone or another, is not tried again, all else is; and whoever may not write tries again.
func TestConditionsOfWhoIsElsewhere(t *testing.T) {
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
				t.Errorf("done %v, asked %d times; want %v, %v", done, c.asked, q.done, q.asked)
			}
		})
	}
}

// refusing is a cluster that answers each patch so.
type refusing struct {
	*cluster
	answer error
	asked  int
}

func (r *refusing) patchStatus(context.Context, string, string, []byte) error {
	r.asked++
	return r.answer
}

// TestKeptWhileItWaits: what is to be written about a pod, and who is to go for it, is not dropped when the pod is
// shown again as it waits; it is when it is on a node, or going.
func TestKeptWhileItWaits(t *testing.T) {
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
		m.hearAll()
		if failures, evictions := m.failures.waiting(), m.evictions.waiting(); failures != q.want || evictions != q.want {
			t.Errorf("%s: %d conditions and %d evictions wait, want %d", q.name, failures, evictions, q.want)
		}
	}
}

// TestRunRefuses options that cannot work.
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
		if err := Run(ended, o); err == nil || !strings.Contains(err.Error(), "run scheduler: ") || !strings.Contains(err.Error(), why) {
			t.Errorf("%v, want a word about: %s", err, why)
		}
	}
}
