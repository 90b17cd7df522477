package pods

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"github.com/plimsoll-dev/plimsoll/internal/agent/allocation"
	"github.com/plimsoll-dev/plimsoll/internal/agent/podentry"
	"github.com/plimsoll-dev/plimsoll/internal/agent/volume"
	"github.com/plimsoll-dev/plimsoll/internal/core/admission"
	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/test/amounts"
)

// room is a node with that many millicores. It allocates what fits, in the order of the requests.
type room struct {
	milli int64
	asked int
}

func (n *room) Wait(*corev1.Pod, time.Time) (string, time.Time) { return "", time.Time{} }
func (n *room) Admit(*corev1.Pod, []*corev1.Pod) *Rejection     { return nil }
func (n *room) Consult(context.Context, *corev1.Pod) *Rejection { return nil }
func (n *room) Preempt(*corev1.Pod, []*corev1.Pod, []podentry.Present) (admission.Preemption, bool) {
	return admission.Preemption{}, false
}
func (n *room) Allocate(context.Context, *corev1.Pod) *Rejection { return nil }

func (n *room) Resize(requests []allocation.Request, held []*corev1.Pod) []allocation.Verdict {
	n.asked++
	used := map[types.UID]int64{}
	sum := int64(0)
	for _, p := range held {
		used[p.UID] = p.Spec.Containers[0].Resources.Requests.Cpu().MilliValue()
		sum += used[p.UID]
	}
	var verdicts []allocation.Verdict
	for _, request := range requests {
		want := request.Desired.Spec.Containers[0].Resources.Requests.Cpu().MilliValue()
		if more := want - used[request.Desired.UID]; sum+more <= n.milli {
			sum += more
			verdicts = append(verdicts, allocation.Verdict{Allocated: true})
			continue
		}
		verdicts = append(verdicts, allocation.Verdict{Reason: "Deferred", Message: fmt.Sprintf("%d of %d used", sum,
			n.milli)})
	}
	return verdicts
}

// busyNode has running pods of one container each, with the requests given by name.
func busyNode(t *testing.T, milli int64, requests map[string]int64) (*Runner, *room) {
	t.Helper()
	node := &room{milli: milli}
	r := testRunner()
	r.Admission = node
	r.synced = true
	r.pods = map[types.UID]*podentry.Entry{}
	r.Recorder = record.NewFakeRecorder(100)
	r.Volumes = &volume.Manager{}
	for name, request := range requests {
		r.run(t, name, request)
	}
	return r, node
}

func sizedPod(name string, milli, generation int64) *corev1.Pod {
	pod := testPod()
	pod.Name = name
	pod.UID = types.UID(name)
	pod.Generation = generation
	pod.ResourceVersion = fmt.Sprint(generation)
	pod.Spec.InitContainers = nil
	pod.Spec.Containers = []corev1.Container{{Name: "c", Resources: amounts.Of(fmt.Sprintf("cpu=%dm", milli), "")}}
	return pod
}

func (r *Runner) run(t *testing.T, name string, milli int64) *podentry.Entry {
	e := r.newEntry(types.UID(name))
	e.Set(sizedPod(name, milli, 1), 1)
	e.Admit(e.Object(), "")
	r.pods[e.UID()] = e
	return e
}

func (r *Runner) ask(name string, milli, generation int64) {
	r.pods[types.UID(name)].Set(sizedPod(name, milli, generation), 1)
}

func (r *Runner) has(name string) string {
	s := r.pods[types.UID(name)].Snapshot()
	text := s.Pod.Spec.Containers[0].Resources.Requests.Cpu().String()
	if pending := s.Resizing.Pending; pending != nil {
		text += fmt.Sprintf(" %s@%d: %s", pending.Reason, pending.Generation, pending.Message)
	}
	if s.Resizing.Generation != 0 {
		text += fmt.Sprintf(" resizing@%d", s.Resizing.Generation)
	}
	return text
}

func events(r *Runner) (reasons []string) {
	for {
		text := said(r.Recorder.(*record.FakeRecorder))
		if text == "" {
			return reasons
		}
		reasons = append(reasons, strings.Fields(text)[1])
	}
}

func TestJudgeResizes(t *testing.T) {
	r, node := busyNode(t, 1000, map[string]int64{"a": 300, "b": 500})
	expect := func(what string, a, b string, recorded ...string) {
		t.Helper()
		r.judgeResizes()
		if r.has("a") != a || r.has("b") != b {
			t.Errorf("%s: a has %s, want %s; b has %s, want %s", what, r.has("a"), a, r.has("b"), b)
		}
		if got := events(r); !slices.Equal(got, recorded) {
			t.Errorf("%s: Events %v, want %v", what, got, recorded)
		}
	}
	expect("nobody asks", "300m", "500m")
	if node.asked != 0 {
		t.Error("the node is asked for nothing")
	}
	r.ask("a", 400, 2)
	expect("it fits", "400m resizing@2", "500m", "ResizeStarted")
	r.ask("a", 700, 3)
	expect("it does not", "400m Deferred@3: 900 of 1000 used resizing@2", "500m", "ResizeDeferred")
	expect("nothing new is reported twice", "400m Deferred@3: 900 of 1000 used resizing@2", "500m")
	r.ask("a", 800, 4)
	expect("a new wish is reported", "400m Deferred@4: 900 of 1000 used resizing@2", "500m", "ResizeDeferred")
	r.ask("a", 400, 5)
	expect("a wish that is taken back", "400m resizing@2", "500m")
	r.ask("a", 800, 6)
	r.judgeResizes()
	r.ask("b", 200, 2)
	expect("one gives, the other takes", "800m resizing@6", "200m resizing@2", "ResizeDeferred", "ResizeStarted",
		"ResizeStarted")
}

func TestResizeCounts(t *testing.T) {
	r, _ := busyNode(t, 1000, map[string]int64{"a": 300, "b": 500})
	r.ask("a", 400, 2)
	r.ask("b", 5000, 2)
	r.judgeResizes()
	registry := prometheus.NewRegistry()
	registry.MustRegister(resizeCounts{r})
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := ""
	for _, f := range families {
		for _, m := range f.Metric {
			got += fmt.Sprint(f.GetName(), " ", m.GetGauge().GetValue(), " ")
		}
	}
	if got != "kubelet_pod_in_progress_resizes 1 kubelet_pod_pending_resizes 1 " {
		t.Error(got)
	}
}

// A new agent judges no resize before it knows every pod.
func TestJudgeResizesWaitsForAllPods(t *testing.T) {
	r, node := busyNode(t, 1000, map[string]int64{"a": 300})
	r.ask("a", 400, 2)
	r.synced = false
	r.judgeResizes()
	r.synced = true
	late := r.newEntry("late")
	late.Set(sizedPod("late", 700, 1), 1)
	r.pods["late"] = late
	r.judgeResizes()
	if node.asked != 0 {
		t.Error("judged before every pod is known")
	}
	late.Admit(late.Object(), "")
	r.judgeResizes()
	if got := r.has("a"); !strings.HasPrefix(got, "300m Deferred@2") {
		t.Errorf("a has %s", got)
	}
}

// A pod that ends, or that the agent does not resize, has no request.
func TestWhoAsks(t *testing.T) {
	r, _ := busyNode(t, 1000, map[string]int64{"a": 300})
	e := r.pods["a"]
	r.ask("a", 400, 2)
	if _, asks := e.Asks(); !asks {
		t.Error("it asks")
	}
	e.Evict(noon, 0, podlife.StopOrder{})
	if _, asks := e.Asks(); asks {
		t.Error("a pod that ends asks")
	}
	static := r.newEntry("s")
	static.Claim(true)
	static.Set(sizedPod("s", 300, 1), 1)
	static.Admit(static.Object(), "")
	static.Set(sizedPod("s", 400, 2), 1)
	if _, asks := static.Asks(); asks || static.Object().Generation != 2 {
		t.Error("a static pod asks")
	}
}

// A new agent continues a pending resize, and one that is being carried out.
func TestResume(t *testing.T) {
	pod := sizedPod("a", 700, 4)
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{reported("c", "cpu=300m", "cpu=100m", "")}
	pod.Status.Conditions = []corev1.PodCondition{
		{Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: "Deferred", Message: "m",
			ObservedGeneration: 4},
		{Type: corev1.PodResizeInProgress, Status: corev1.ConditionTrue, ObservedGeneration: 3},
	}
	r := testRunner()
	e := r.newEntry("a")
	e.Set(pod, 1)
	e.Admit(pod, "")
	r.pods = map[types.UID]*podentry.Entry{"a": e}
	if got := r.has("a"); got != "300m Deferred@4: m resizing@3" {
		t.Error(got)
	}
}
