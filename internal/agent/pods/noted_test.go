package pods

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/agent/allocation"
	"github.com/plimsoll-dev/plimsoll/internal/agent/podentry"
	"github.com/plimsoll-dev/plimsoll/test/amounts"
)

// noting returns a runner that can build the configuration of a sandbox.
func noting() *Runner {
	r := testRunner()
	r.Groups, r.Assignments = fakeGroups{}, fakeAssignments{}
	return r
}

// TestAllocationIsNotedWithTheSandbox: a pod's allocated resources survive an agent that died before it reported them.
// A resize that the node did not allocate does not count as allocated.
func TestAllocationIsNotedWithTheSandbox(t *testing.T) {
	allocated := sizedPod("a", 300, 1)
	level := amounts.Of("memory=1Gi", "memory=2Gi")
	allocated.Spec.Resources = &level
	allocated.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"example.com/x": amounts.List("cpu=1")["cpu"]}
	r := noting()
	config, err := r.configs().Sandbox(allocated, sandboxOf(allocated, 0, "/pods/a"))
	if err != nil {
		t.Fatal(err)
	}
	asks := allocated.DeepCopy()
	asks.Generation = 2
	asks.Spec.Containers[0].Resources.Requests = amounts.List("cpu=36")
	asks.Spec.Resources.Limits = amounts.List("memory=4Gi")
	e := r.newEntry("a")
	note := config.Annotations["plimsoll.dev/allocation"]
	e.Set(asks, 1)
	e.Admit(asks, note)
	pod := e.Object()
	if !allocation.Same(pod.Spec.Containers[0].Resources, amounts.Of("cpu=300m", "")) {
		t.Errorf("the container has %+v, want what was allocated", pod.Spec.Containers[0].Resources)
	}
	if _, there := pod.Spec.Containers[0].Resources.Limits["example.com/x"]; !there {
		t.Error("a device is lost that no resize can change")
	}
	if !allocation.Same(*pod.Spec.Resources, level) {
		t.Errorf("the pod has %+v, want what was allocated", pod.Spec.Resources)
	}
	if _, waits := e.Asks(); !waits {
		t.Error("what the pod asks for is not judged")
	}
	asks = asks.DeepCopy() // now the API's status has the allocation
	asks.Status.ContainerStatuses = []corev1.ContainerStatus{reported("c", "cpu=400m", "cpu=400m", "")}
	e = r.newEntry("a")
	e.Set(asks, 2)
	e.Admit(asks, note)
	if got := e.Object().Spec.Containers[0].Resources.Requests.Cpu().MilliValue(); got != 400 {
		t.Errorf("it has %dm, want the 400m of the status", got)
	}
}

// A pod without resources has no note, and its own annotation is not taken for one.
func TestNoteIsOurs(t *testing.T) {
	pod := testPod()
	pod.Spec.InitContainers, pod.Spec.Containers = nil, []corev1.Container{{Name: "c"}}
	pod.Annotations = map[string]string{"plimsoll.dev/allocation": `{"containers":{"c":{"requests":{"cpu":"9"}}}}`}
	config, err := noting().configs().Sandbox(pod, sandboxOf(pod, 0, ""))
	if err != nil {
		t.Fatal(err)
	}
	if text, has := config.Annotations["plimsoll.dev/allocation"]; has {
		t.Errorf("the sandbox has the note %s", text)
	}
}

// TestVersion: Version changes when a pod comes and when it goes.
func TestVersion(t *testing.T) {
	r := testRunner()
	before := r.Version()
	e := r.newEntry("u")
	r.pods = map[types.UID]*podentry.Entry{"u": e}
	r.drop(e)
	if r.Version() == before {
		t.Error("a pod went and the version is the same")
	}
}
