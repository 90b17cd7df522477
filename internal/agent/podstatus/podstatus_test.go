package podstatus

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/core/qos"
	"github.com/plimsoll-dev/plimsoll/internal/core/resize"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/test/amounts"
)

// TestPastReadsBackStatus: Past understands what Status writes.
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
		{"crash loop", podlife.ContainerStatus{ID: "c1", RestartCount: 1,
			Waiting: &podlife.Waiting{Reason: "CrashLoopBackOff"}, Last: end("c1")},
			podlife.Past{ID: "c1", RestartCount: 1, Ended: end("c1")}},
		{"lost, next run to come", podlife.ContainerStatus{RestartCount: 2,
			Waiting: &podlife.Waiting{Reason: "ContainerCreating"}, Last: end("c1")},
			podlife.Past{RestartCount: 2, Last: end("c1")}},
	} {
		pod := testPod()
		c.in.Name, c.in.Kind = "zeta", podlife.Main
		status := testNode.Status(pod, Facts{Decided: podlife.Status{Phase: podlife.Active,
			Containers: []podlife.ContainerStatus{c.in}}})
		if got := Past(pod, status)["zeta"]; !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: got %+v, want %+v", c.name, got, c.want)
		}
		pod.Status = status
		if got := Past(pod, corev1.PodStatus{})["zeta"]; !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s, from the API: got %+v, want %+v", c.name, got, c.want)
		}
	}
}

// TestRun: the image and the user of a container are those that the runtime reports, and stay when the runtime has lost
// the container. A container without a run has the image of its specification.
func TestRun(t *testing.T) {
	pod := testPod()
	since := unit.Wall(1)
	decide := func(id string) podlife.Status {
		st := podlife.ContainerStatus{Name: "zeta", Kind: podlife.Main, ID: id, Running: &since}
		if id == "" {
			st.Running, st.Waiting = nil, &podlife.Waiting{Reason: "ContainerCreating"}
		}
		return podlife.Status{Phase: podlife.Active, Containers: []podlife.ContainerStatus{st}}
	}
	user := &corev1.ContainerUser{Linux: &corev1.LinuxContainerUser{UID: 1, GID: 2, SupplementalGroups: []int64{3}}}
	runs := map[string]Run{"c1": {Image: "registry.example/z:1", User: user}, "c2": {}}
	status := corev1.PodStatus{}
	for _, c := range []struct {
		id    string
		runs  map[string]Run
		image string
		user  *corev1.ContainerUser
	}{
		{"", runs, "z:1", nil},
		{"c1", runs, "registry.example/z:1", user},
		{"c1", nil, "registry.example/z:1", user}, // the runtime has lost it: by containerStatuses of the status before
		{"c2", runs, "z:1", nil},
		{"", runs, "z:1", nil},
	} {
		status = testNode.Status(pod, Facts{Last: status, Decided: decide(c.id), Runs: c.runs})
		got := status.ContainerStatuses[0]
		if got.Image != c.image || !reflect.DeepEqual(got.User, c.user) {
			t.Errorf("run %q: image %s, user %+v", c.id, got.Image, got.User)
		}
	}
}

func TestStatus(t *testing.T) {
	pod := testPod()
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
	first := testNode.Status(pod, Facts{Last: pod.Status, Decided: s})
	if first.PodIP != "10.0.0.1" || len(first.PodIPs) != 2 || first.HostIP != "192.0.2.1" || len(first.HostIPs) != 2 {
		t.Errorf("addresses: %+v", first)
	}
	if first.StartTime == nil || first.QOSClass != corev1.PodQOSBurstable || first.ObservedGeneration != 3 {
		t.Errorf("start time, QoS class, generation: %+v", first)
	}
	if c := first.ContainerStatuses; len(c) != 2 || c[0].Name != "alpha" || c[1].ContainerID != "containerd://c2" ||
		c[1].State.Running.StartedAt.Unix() != 1000 {
		t.Errorf("containers: %+v", c)
	}
	if c := first.InitContainerStatuses; len(c) != 2 || c[0].Name != "init" || c[0].State.Terminated == nil ||
		c[1].Name != "side" {
		t.Errorf("inits: %+v", c)
	}
	s.IPs = nil
	ended := testNode.Status(pod, Facts{Last: first, Decided: s})
	if !reflect.DeepEqual(ended.PodIPs, first.PodIPs) || !ended.StartTime.Equal(first.StartTime) {
		t.Error("a pod lost its addresses or its start time with its sandbox")
	}
	pod.Status.Reason, pod.Status.Message = "Evicted", "because"
	evicted := testNode.Status(pod, Facts{
		Last: ended, Observed: podlife.Observation{Terminal: podlife.Failed}, Decided: podlife.Status{Phase: podlife.Failed},
	})
	if evicted.Reason != "Evicted" || evicted.Message != "because" {
		t.Error("a pod that had ended lost its reason")
	}
}

func TestConditions(t *testing.T) {
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
	for _, c := range conditions(pod, time.Now(), last, []podlife.Condition{
		{Type: "Ready", True: true},
		{Type: "ContainersReady", True: true},
		{Type: "PodScheduled", True: true},
		{Type: "Initialized", Reason: "R", Message: "M"},
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
	if c := got[corev1.PodInitialized]; c.Status != corev1.ConditionFalse || c.Reason != "R" || c.Message != "M" ||
		c.ObservedGeneration != 3 {
		t.Errorf("Initialized: %+v", c)
	}
}

// Each end is returned once, whether the status has it as the state or as the last state.
func TestEnds(t *testing.T) {
	ended := func(id string, code int32) corev1.ContainerState {
		return corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{ContainerID: id, ExitCode: code, Reason: "Error"},
		}
	}
	status := func(state, last corev1.ContainerState) corev1.PodStatus {
		return corev1.PodStatus{
			ContainerStatuses: []corev1.ContainerStatus{{Name: "zeta", State: state, LastTerminationState: last}},
		}
	}
	none := corev1.ContainerState{}
	waits := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}
	story := []corev1.PodStatus{
		status(none, none), status(ended("c1", 139), none), status(none, ended("c1", 139)), status(waits, ended("c2", 139)),
		status(ended("c3", 1), ended("c2", 139)),
	}
	var got []End
	for i := 1; i < len(story); i++ {
		got = append(got, Ends(story[i-1], story[i])...)
	}
	got = append(got, Ends(corev1.PodStatus{}, corev1.PodStatus{InitContainerStatuses: story[1].ContainerStatuses})...)
	for i := range got {
		if got[i].Of.Name != "zeta" || got[i].State.ExitCode != got[i].Code {
			t.Errorf("the end of another container: %+v", got[i])
		}
		got[i].Of, got[i].State = nil, nil
	}
	want := []End{
		{Kind: "container", Code: 139, Reason: "Error", Run: 1}, {Kind: "container", Code: 139, Reason: "Error", Run: 1},
		{Kind: "container", Code: 1, Reason: "Error", Run: 1}, {Kind: "init_container", Code: 139, Reason: "Error", Run: 1},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// TestEvents: the beginning of a wait has one Event, in upstream's words, and so has the end of a pod's active
// deadline.
func TestEvents(t *testing.T) {
	waits := func(reason string, restarts int32) corev1.PodStatus {
		return corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{
			Name: "zeta", Image: "z:1", RestartCount: restarts,
			State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}},
		}}}
	}
	deadline := corev1.PodStatus{Reason: "DeadlineExceeded", Message: "time is up"}
	for _, c := range []struct {
		before, after corev1.PodStatus
		want          string
	}{
		{corev1.PodStatus{}, waits("CrashLoopBackOff", 1),
			"Warning BackOff Back-off restarting failed container zeta in pod web_ns(uid-1)"},
		{waits("CrashLoopBackOff", 1), waits("CrashLoopBackOff", 1), ""},
		{waits("CrashLoopBackOff", 1), waits("CrashLoopBackOff", 2),
			"Warning BackOff Back-off restarting failed container zeta in pod web_ns(uid-1)"},
		{waits("ErrImagePull", 0), waits("ImagePullBackOff", 0),
			`Normal BackOff Back-off pulling image "z:1"; Warning Failed Error: ImagePullBackOff`},
		{waits("CrashLoopBackOff", 1), waits("ContainerCreating", 1), ""},
		{waits("CrashLoopBackOff", 1), corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "zeta"}}}, ""},
		{corev1.PodStatus{}, deadline, "Normal DeadlineExceeded time is up"},
		{deadline, deadline, ""},
	} {
		var recorded []string
		for _, e := range Events(testPod(), c.before, c.after) {
			recorded = append(recorded, e.Kind+" "+e.Reason+" "+e.Text)
		}
		if got := strings.Join(recorded, "; "); got != c.want {
			t.Errorf("%+v after %+v: %q, want %q", c.after, c.before, got, c.want)
		}
	}
}

// A status shows the actual resources of a cgroup as long as they differ from the allocated ones.
func TestStatusShowsWhatIsThere(t *testing.T) {
	of := func(cpu unit.MilliCPU, memory unit.Bytes) resize.Size {
		return resize.SizeOf(qos.Values{CPUShares: unit.Of(qos.SharesOf(cpu)), CPUPeriod: qos.CFSPeriodDefault,
			CPUQuota: unit.LimitTo(qos.CFSPeriodDefault / 5), Memory: unit.LimitTo(memory)})
	}
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c",
		Resources: amounts.Of("cpu=300m memory=1Gi example.com/x=1", "cpu=200m memory=2Gi example.com/x=1")}}}}
	out := corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "c", ContainerID: "containerd://1",
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}}
	addResources(pod, &out, podlife.Observation{
		Spec:       podlife.Spec{Containers: []podlife.ContainerSpec{{Name: "c", Size: of(300, 2*unit.GiB)}}},
		Containers: []podlife.Container{{ID: "1", Name: "c", State: podlife.Running, Size: of(100, unit.GiB)}},
	})
	s := out.ContainerStatuses[0]
	want := amounts.Of("cpu=100m memory=1Gi example.com/x=1", "cpu=200m memory=1Gi example.com/x=1")
	if !equality.Semantic.DeepEqual(*s.Resources, want) {
		t.Errorf("resources %+v, want %+v", s.Resources, want)
	}
	if !equality.Semantic.DeepEqual(s.AllocatedResources, amounts.List("cpu=300m memory=1Gi example.com/x=1")) {
		t.Errorf("allocated %v", s.AllocatedResources)
	}
}

// testNode is a node without devices.
var testNode = Node{
	HostIPs:  []string{"192.0.2.1", "2001:db8::1"},
	Runtime:  "containerd",
	QOSClass: func(*corev1.Pod) corev1.PodQOSClass { return corev1.PodQOSBurstable },
	Devices:  func(string, string) []corev1.ResourceStatus { return nil },
}

func testPod() *corev1.Pod {
	always := corev1.ContainerRestartPolicyAlways
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "uid-1", Generation: 3, ResourceVersion: "10"},
		Spec: corev1.PodSpec{
			InitContainers: []corev1.Container{
				{Name: "init", Image: "i:1"},
				{Name: "side", Image: "s:1", RestartPolicy: &always},
			},
			Containers: []corev1.Container{
				{Name: "zeta", Image: "z:1"},
				{Name: "alpha", Image: "a:1", RestartPolicy: &always},
			},
		},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	}
}
