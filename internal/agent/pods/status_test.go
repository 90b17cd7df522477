package pods

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/tools/record"

	"github.com/plimsoll-dev/plimsoll/internal/agent/metrics"
	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// TestPastReadsBackStatus: what statusOf writes, pastOf understands.
func TestPastReadsBackStatus(t *testing.T) {
	start, finish := unit.WallOf(time.Unix(1000, 0)), unit.WallOf(time.Unix(2000, 0))
	end := func(id string) *podlife.Terminated {
		return &podlife.Terminated{ID: id, ExitCode: 3, Reason: "Error", Message: "m", StartedAt: start, FinishedAt: finish}
	}
	for _, c := range []struct {
		name string
		in   podlife.ContainerStatus
		want podlife.Past
	}{
		{"never ran", podlife.ContainerStatus{Waiting: &podlife.Waiting{Reason: "ContainerCreating"}}, podlife.Past{}},
		{"runs", podlife.ContainerStatus{ID: "c1", ImageID: "sha256:1", RestartCount: 1, Running: &start, Last: end("c0")},
			podlife.Past{ID: "c1", ImageID: "sha256:1", RestartCount: 1, Running: true, Last: end("c0")}},
		{"ended", podlife.ContainerStatus{ID: "c1", RestartCount: 1, Ended: end("c1"), Last: end("c0")},
			podlife.Past{ID: "c1", RestartCount: 1, Ended: end("c1"), Over: true, Last: end("c0")}},
		{"crash loop", podlife.ContainerStatus{ID: "c1", RestartCount: 1, Waiting: &podlife.Waiting{Reason: "CrashLoopBackOff"}, Last: end("c1")},
			podlife.Past{ID: "c1", RestartCount: 1, Ended: end("c1")}},
		{"lost, next run to come", podlife.ContainerStatus{RestartCount: 2, Waiting: &podlife.Waiting{Reason: "ContainerCreating"}, Last: end("c1")},
			podlife.Past{RestartCount: 2, Last: end("c1")}},
	} {
		r, pod := testRunner(), testPod()
		c.in.Name, c.in.Kind = "zeta", podlife.Main
		status := r.statusOf(pod, corev1.PodStatus{}, podlife.Observation{}, podlife.Status{Phase: podlife.Active, Containers: []podlife.ContainerStatus{c.in}})
		if got := pastOf(pod, status)["zeta"]; !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: got %+v, want %+v", c.name, got, c.want)
		}
		pod.Status = status
		if got := pastOf(pod, corev1.PodStatus{})["zeta"]; !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s, from the API: got %+v, want %+v", c.name, got, c.want)
		}
	}
}

func TestStatusOf(t *testing.T) {
	r, pod := testRunner(), testPod()
	since := unit.WallOf(time.Unix(1000, 5))
	s := podlife.Status{
		Phase: podlife.Active, IPs: []string{"10.0.0.1", "fd00::1"},
		Containers: []podlife.ContainerStatus{
			{Name: "init", Kind: podlife.Init, ID: "c0", Ended: &podlife.Terminated{ID: "c0", Reason: "Completed"}, Ready: true},
			{Name: "side", Kind: podlife.Sidecar, ID: "c1", Running: &since, Ready: true, Started: true},
			{Name: "zeta", Kind: podlife.Main, ID: "c2", Running: &since, Ready: true, Started: true},
			{Name: "alpha", Kind: podlife.Main, Waiting: &podlife.Waiting{Reason: "ErrImagePull", Message: "m"}},
		},
	}
	first := r.statusOf(pod, pod.Status, podlife.Observation{}, s)
	if first.PodIP != "10.0.0.1" || len(first.PodIPs) != 2 || first.HostIP != "192.0.2.1" || len(first.HostIPs) != 2 {
		t.Errorf("addresses: %+v", first)
	}
	if first.StartTime == nil || first.QOSClass != corev1.PodQOSBurstable || first.ObservedGeneration != 3 {
		t.Errorf("start time, QoS class, generation: %+v", first)
	}
	if c := first.ContainerStatuses; len(c) != 2 || c[0].Name != "alpha" || c[1].ContainerID != "containerd://c2" || c[1].State.Running.StartedAt.Unix() != 1000 {
		t.Errorf("containers: %+v", c)
	}
	if c := first.InitContainerStatuses; len(c) != 2 || c[0].Name != "init" || c[0].State.Terminated == nil || c[1].Name != "side" {
		t.Errorf("inits: %+v", c)
	}
	s.IPs = nil
	ended := r.statusOf(pod, first, podlife.Observation{}, s)
	if !reflect.DeepEqual(ended.PodIPs, first.PodIPs) || !ended.StartTime.Equal(first.StartTime) {
		t.Error("a pod lost its addresses or its start time with its sandbox")
	}
	pod.Status.Reason, pod.Status.Message = "Evicted", "because"
	evicted := r.statusOf(pod, ended, podlife.Observation{Terminal: podlife.Failed}, podlife.Status{Phase: podlife.Failed})
	if evicted.Reason != "Evicted" || evicted.Message != "because" {
		t.Error("a pod that had ended lost its reason")
	}
}

func TestConditionsOf(t *testing.T) {
	then := metav1.NewTime(time.Unix(1000, 0))
	pod := testPod()
	pod.Status.Conditions = []corev1.PodCondition{
		{Type: "example.com/lb", Status: corev1.ConditionTrue, Message: "theirs", LastTransitionTime: then},
		{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, Message: "the scheduler's", LastTransitionTime: then},
		{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: then},
	}
	last := []corev1.PodCondition{
		{Type: corev1.PodReady, Status: corev1.ConditionFalse, LastTransitionTime: then},
		{Type: corev1.ContainersReady, Status: corev1.ConditionTrue, LastTransitionTime: then},
	}
	got := map[corev1.PodConditionType]corev1.PodCondition{}
	for _, c := range conditionsOf(pod, last, []podlife.Condition{
		{Type: "Ready", True: true}, {Type: "ContainersReady", True: true}, {Type: "PodScheduled", True: true}, {Type: "Initialized", Reason: "R", Message: "M"},
	}) {
		if _, twice := got[c.Type]; twice {
			t.Errorf("condition %s twice", c.Type)
		}
		got[c.Type] = c
	}
	if c := got[corev1.PodScheduled]; len(got) != 4 || c.Message != "the scheduler's" || c.ObservedGeneration != 3 {
		t.Errorf("want four conditions, the scheduler's with generation 3: %+v", got)
	}
	if c := got[corev1.ContainersReady]; !c.LastTransitionTime.Equal(&then) {
		t.Error("the transition time of an unchanged condition moved")
	}
	if c := got[corev1.PodReady]; c.LastTransitionTime.Equal(&then) {
		t.Error("the transition time of a changed condition stayed")
	}
	if c := got[corev1.PodInitialized]; c.Status != corev1.ConditionFalse || c.Reason != "R" || c.Message != "M" || c.ObservedGeneration != 3 {
		t.Errorf("Initialized: %+v", c)
	}
}

// TestPatchMakesServerAgree applies our patches as the API server does: afterwards it has what we report, and what others
// wrote is still there.
func TestPatchMakesServerAgree(t *testing.T) {
	r, random := testRunner(), rand.New(rand.NewPCG(1, 2))
	for round := range 2000 {
		pod := testPod()
		server := r.statusOf(pod, pod.Status, podlife.Observation{}, randomStatus(random))
		server.Conditions = append(server.Conditions, corev1.PodCondition{Type: "example.com/lb", Status: corev1.ConditionTrue, Reason: "theirs"})
		server.NominatedNodeName = "other"
		server.AllocatedResources, server.Resources = randomAmounts(random), &corev1.ResourceRequirements{Requests: randomAmounts(random), Limits: randomAmounts(random)}
		pod.Status = server
		ours := r.statusOf(pod, server, podlife.Observation{}, randomStatus(random))
		ours.AllocatedResources, ours.Resources = randomAmounts(random), &corev1.ResourceRequirements{Requests: randomAmounts(random), Limits: randomAmounts(random)}
		if random.IntN(3) == 0 {
			pod.Status.Resources = nil
		}
		if random.IntN(3) == 0 {
			ours.Resources = nil
		}
		body, err := patchBody(pod, pod.Status, ours)
		if err != nil {
			t.Fatal(err)
		}
		pod.Status.Conditions[len(server.Conditions)-1].Status = corev1.ConditionFalse // somebody else writes meanwhile
		before, err := json.Marshal(pod)
		if err != nil {
			t.Fatal(err)
		}
		after, err := strategicpatch.StrategicMergePatch(before, body, corev1.Pod{})
		if err != nil {
			t.Fatal(err)
		}
		var have corev1.Pod
		if err := json.Unmarshal(after, &have); err != nil {
			t.Fatal(err)
		}
		if !sameStatus(have.Status, ours) {
			t.Fatalf("round %d: after the patch\n%s\nthe server has\n%s", round, body, after)
		}
		if have.UID != pod.UID || strings.Contains(string(body), "example.com") || conditionNamed(have.Status, "example.com/lb").Status != corev1.ConditionFalse || have.Status.NominatedNodeName != "other" {
			t.Fatalf("round %d: the patch took what others own: %s", round, after)
		}
	}
}

func randomAmounts(r *rand.Rand) corev1.ResourceList {
	return amounts([]string{"", "cpu=1", "memory=1Gi", "cpu=2 memory=1Gi"}[r.IntN(4)])
}

func randomStatus(r *rand.Rand) podlife.Status {
	pick := func(words ...string) string { return words[r.IntN(len(words))] }
	since := unit.WallOf(time.Unix(int64(r.IntN(2000)), 0))
	s := podlife.Status{Phase: []podlife.Phase{podlife.Pending, podlife.Active, podlife.Failed}[r.IntN(3)], Reason: pick("", "Evicted"), Message: pick("", "m")}
	for range r.IntN(3) {
		s.IPs = append(s.IPs, pick("10.0.0.1", "10.0.0.2", "fd00::1"))
	}
	if len(s.IPs) == 2 && s.IPs[0] == s.IPs[1] {
		s.IPs = s.IPs[:1]
	}
	for _, name := range []string{"Ready", "ContainersReady", "Initialized", "PodScheduled"} {
		s.Conditions = append(s.Conditions, podlife.Condition{Type: name, True: r.IntN(2) == 0, Reason: pick("", "a", "b"), Message: pick("", "x")})
	}
	for _, name := range []string{podlife.ResizePending, podlife.ResizeInProgress} {
		if r.IntN(2) == 0 {
			s.Conditions = append(s.Conditions, podlife.Condition{Type: name, True: true, Reason: pick("", "a"), Generation: int64(1 + r.IntN(2))})
		}
	}
	for _, name := range []string{"zeta", "alpha"} {
		st := podlife.ContainerStatus{Name: name, Kind: podlife.Main, ID: pick("c1", "c2"), RestartCount: uint32(r.IntN(3)), Ready: r.IntN(2) == 0}
		switch r.IntN(3) {
		case 0:
			st.Running = &since
		case 1:
			st.Ended = &podlife.Terminated{ID: "c1", Reason: "Error", ExitCode: int32(r.IntN(3)), FinishedAt: since}
		default:
			st.Waiting = &podlife.Waiting{Reason: pick("A", "B"), Message: pick("", "m")}
			st.Last = &podlife.Terminated{ID: "c0", Reason: "Completed"}
		}
		s.Containers = append(s.Containers, st)
	}
	return s
}

func TestSameStatus(t *testing.T) {
	a := corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: "A"}, {Type: "B"}}}
	b := *a.DeepCopy()
	b.Conditions[0], b.Conditions[1] = b.Conditions[1], b.Conditions[0]
	a.NominatedNodeName, a.Conditions[0].LastProbeTime = "n", metav1.Now()
	if !sameStatus(a, b) {
		t.Error("order of conditions, probe times and fields of others count as differences")
	}
	a.Conditions = append(a.Conditions, corev1.PodCondition{Type: "example.com/lb"})
	if !sameStatus(a, b) {
		t.Error("a condition of somebody else counts as a difference")
	}
	b.Conditions[0].Message = "m"
	if sameStatus(a, b) {
		t.Error("a message does not count as a difference")
	}
	c := *a.DeepCopy()
	c.Phase = corev1.PodFailed
	if sameStatus(a, c) {
		t.Error("a phase does not count as a difference")
	}
}

// Ends are counted once each, whether they are told as the state or as the state before.
func TestCountEnds(t *testing.T) {
	ended := func(id string, code int32) corev1.ContainerState {
		return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ContainerID: id, ExitCode: code, Reason: "Error"}}
	}
	status := func(state, last corev1.ContainerState) corev1.PodStatus {
		return corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "zeta", State: state, LastTerminationState: last}}}
	}
	r := testRunner()
	r.Metrics = metrics.New("n")
	none, waits := corev1.ContainerState{}, corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}
	story := []corev1.PodStatus{
		status(none, none), status(ended("c1", 139), none), status(none, ended("c1", 139)), status(waits, ended("c2", 139)),
		status(ended("c3", 1), ended("c2", 139)),
	}
	for i := 1; i < len(story); i++ {
		r.countEnds(story[i-1], story[i])
	}
	r.countEnds(corev1.PodStatus{}, corev1.PodStatus{InitContainerStatuses: story[1].ContainerStatuses})
	families, err := r.Metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range families {
		if f.GetName() == "kubelet_terminated_containers_total" {
			for _, m := range f.Metric {
				got = append(got, fmt.Sprint(m.Label[0].GetValue(), " ", m.Label[1].GetValue(), " ", m.Label[2].GetValue(), " ", m.Counter.GetValue()))
			}
		}
	}
	if want := []string{"container 1 Error 1", "container 139 Error 2", "init_container 139 Error 1"}; !slices.Equal(got, want) {
		t.Errorf("counted %q, want %q", got, want)
	}
}

// Of our conditions only those that the server has otherwise are written; and what neither side has is not named, so that the server
// does not have it from then on.
func TestPatchSaysOnlyWhatDiffers(t *testing.T) {
	pod := testPod()
	same := corev1.PodCondition{Type: corev1.PodInitialized, Status: corev1.ConditionTrue}
	known := corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{same, {Type: corev1.PodReady, Status: corev1.ConditionFalse}}}
	ours := corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{same, {Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
	body, err := patchBody(pod, known, ours)
	if err != nil {
		t.Fatal(err)
	}
	var sent struct {
		Status map[string]json.RawMessage
	}
	if err := json.Unmarshal(body, &sent); err != nil {
		t.Fatal(err)
	}
	if text := string(sent.Status["conditions"]); strings.Contains(text, "Initialized") || !strings.Contains(text, "Ready") {
		t.Errorf("conditions written: %s, want Ready alone", text)
	}
	for _, field := range []string{"resources", "allocatedResources"} {
		if raw, named := sent.Status[field]; named {
			t.Errorf("%s is written as %s, though neither side has it", field, raw)
		}
	}
}

// TestAnnounce: a wait that begins is said once, in upstream's words, and so is the end of the time a pod has.
func TestAnnounce(t *testing.T) {
	events := record.NewFakeRecorder(10)
	r := testRunner()
	r.Recorder = events
	waits := func(reason string, restarts int32) corev1.PodStatus {
		return corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{
			Name: "zeta", Image: "z:1", RestartCount: restarts, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}},
		}}}
	}
	deadline := corev1.PodStatus{Reason: "DeadlineExceeded", Message: "time is up"}
	for _, c := range []struct {
		before, after corev1.PodStatus
		want          string
	}{
		{corev1.PodStatus{}, waits("CrashLoopBackOff", 1), "Warning BackOff Back-off restarting failed container zeta in pod web_ns(uid-1)"},
		{waits("CrashLoopBackOff", 1), waits("CrashLoopBackOff", 1), ""},
		{waits("CrashLoopBackOff", 1), waits("CrashLoopBackOff", 2), "Warning BackOff Back-off restarting failed container zeta in pod web_ns(uid-1)"},
		{waits("ErrImagePull", 0), waits("ImagePullBackOff", 0), `Normal BackOff Back-off pulling image "z:1"; Warning Failed Error: ImagePullBackOff`},
		{waits("CrashLoopBackOff", 1), waits("ContainerCreating", 1), ""},
		{waits("CrashLoopBackOff", 1), corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "zeta"}}}, ""},
		{corev1.PodStatus{}, deadline, "Normal DeadlineExceeded time is up"},
		{deadline, deadline, ""},
	} {
		r.announce(testPod(), c.before, c.after)
		var told []string
		for len(events.Events) > 0 {
			told = append(told, <-events.Events)
		}
		if got := strings.Join(told, "; "); got != c.want {
			t.Errorf("%+v after %+v: %q, want %q", c.after, c.before, got, c.want)
		}
	}
}
