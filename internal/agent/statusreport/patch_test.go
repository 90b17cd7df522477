package statusreport

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"github.com/plimsoll-dev/plimsoll/internal/agent/podstatus"
	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/test/amounts"
)

func statusOf(pod *corev1.Pod, last corev1.PodStatus, decided podlife.Status) corev1.PodStatus {
	node := podstatus.Node{
		HostIPs:  []string{"192.0.2.1", "2001:db8::1"},
		Runtime:  "containerd",
		QOSClass: func(*corev1.Pod) corev1.PodQOSClass { return corev1.PodQOSBurstable },
		Devices:  func(string, string) []corev1.ResourceStatus { return nil },
	}
	return node.Status(pod, podstatus.Facts{Now: time.Now(), Last: last, Decided: decided})
}

// TestPatchMakesServerAgree applies patches as the API server does: afterwards it has what the agent reports, and what
// other clients wrote is still there.
func TestPatchMakesServerAgree(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for round := range 2000 {
		pod := testPod()
		server := statusOf(pod, pod.Status, randomStatus(random))
		server.Conditions = append(server.Conditions, corev1.PodCondition{Type: "example.com/lb",
			Status: corev1.ConditionTrue, Reason: "theirs"})
		server.NominatedNodeName = "other"
		server.AllocatedResources, server.Resources = randomAmounts(random),
			&corev1.ResourceRequirements{Requests: randomAmounts(random), Limits: randomAmounts(random)}
		pod.Status = server
		ours := statusOf(pod, server, randomStatus(random))
		ours.AllocatedResources, ours.Resources = randomAmounts(random),
			&corev1.ResourceRequirements{Requests: randomAmounts(random), Limits: randomAmounts(random)}
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
		pod.Status.Conditions[len(server.Conditions)-1].Status = corev1.ConditionFalse // another client writes meanwhile
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
		if have.UID != pod.UID || strings.Contains(string(body), "example.com") ||
			podstatus.Condition(have.Status, "example.com/lb").Status != corev1.ConditionFalse ||
			have.Status.NominatedNodeName != "other" {
			t.Fatalf("round %d: the patch took what others own: %s", round, after)
		}
	}
}

func randomAmounts(r *rand.Rand) corev1.ResourceList {
	return amounts.List([]string{"", "cpu=1", "memory=1Gi", "cpu=2 memory=1Gi"}[r.IntN(4)])
}

func randomStatus(r *rand.Rand) podlife.Status {
	pick := func(words ...string) string { return words[r.IntN(len(words))] }
	since := unit.WallOf(time.Unix(int64(r.IntN(2000)), 0))
	s := podlife.Status{Phase: []podlife.Phase{podlife.Pending, podlife.Active, podlife.Failed}[r.IntN(3)],
		Reason: pick("", "Evicted"), Message: pick("", "m")}
	for range r.IntN(3) {
		s.IPs = append(s.IPs, pick("10.0.0.1", "10.0.0.2", "fd00::1"))
	}
	if len(s.IPs) == 2 && s.IPs[0] == s.IPs[1] {
		s.IPs = s.IPs[:1]
	}
	for _, name := range []string{"Ready", "ContainersReady", "Initialized", "PodScheduled"} {
		s.Conditions = append(s.Conditions, podlife.Condition{Type: name, True: r.IntN(2) == 0, Reason: pick("", "a", "b"),
			Message: pick("", "x")})
	}
	for _, name := range []string{podlife.ResizePending, podlife.ResizeInProgress} {
		if r.IntN(2) == 0 {
			s.Conditions = append(s.Conditions, podlife.Condition{Type: name, True: true, Reason: pick("", "a"),
				Generation: int64(1 + r.IntN(2))})
		}
	}
	for _, name := range []string{"zeta", "alpha"} {
		st := podlife.ContainerStatus{Name: name, Kind: podlife.Main, ID: pick("c1", "c2"), RestartCount: uint32(r.IntN(3)),
			Ready: r.IntN(2) == 0}
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

// A patch contains only those of the agent's conditions that differ from the server's. It does not contain what neither
// side has, since the server would store that.
func TestPatchSaysOnlyWhatDiffers(t *testing.T) {
	pod := testPod()
	same := corev1.PodCondition{Type: corev1.PodInitialized, Status: corev1.ConditionTrue}
	known := corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{same, {Type: corev1.PodReady,
		Status: corev1.ConditionFalse}}}
	ours := corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{same, {Type: corev1.PodReady,
		Status: corev1.ConditionTrue}}}
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
	if text := string(sent.Status["conditions"]); strings.Contains(text, "Initialized") ||
		!strings.Contains(text, "Ready") {
		t.Errorf("conditions written: %s, want Ready alone", text)
	}
	for _, field := range []string{"resources", "allocatedResources"} {
		if raw, named := sent.Status[field]; named {
			t.Errorf("%s is written as %s, though neither side has it", field, raw)
		}
	}
}

// The patch deletes the agent's conditions that are over, and only those.
func TestPatchDeletesResizeConditions(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}}
	known := corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodResizePending},
		{Type: corev1.PodResizeInProgress}, {Type: "example.com/theirs"}}}
	ours := corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodResizeInProgress,
		Status: corev1.ConditionTrue}}}
	body, err := patchBody(pod, known, ours)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(body), "delete"); n != 1 ||
		!strings.Contains(string(body), `{"$patch":"delete","type":"PodResizePending"}`) {
		t.Errorf("%s", body)
	}
}
