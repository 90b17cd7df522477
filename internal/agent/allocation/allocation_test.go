package allocation

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/test/amounts"
)

func statusOf(name, allocated, requests, limits string) corev1.ContainerStatus {
	r := amounts.Of(requests, limits)
	return corev1.ContainerStatus{Name: name, AllocatedResources: amounts.List(allocated), Resources: &r}
}

// What a new agent takes as allocated, given the status in the API.
func TestAllocationIsRecovered(t *testing.T) {
	for _, c := range []struct {
		name     string
		asked    corev1.ResourceRequirements
		status   []corev1.ContainerStatus
		want     corev1.ResourceRequirements
		complete bool
	}{
		{"a new pod", amounts.Of("cpu=1", "cpu=2"), nil, amounts.Of("cpu=1", "cpu=2"), true},
		{"an agent that reported no resources", amounts.Of("cpu=1", ""), []corev1.ContainerStatus{{Name: "c"}},
			amounts.Of("cpu=1", ""), true},
		{"nothing is pending", amounts.Of("cpu=1", "cpu=2"), []corev1.ContainerStatus{statusOf("c", "cpu=1", "cpu=1",
			"cpu=2")}, amounts.Of("cpu=1", "cpu=2"), true},
		{"only a limit changed, which needs no room", amounts.Of("cpu=1", "cpu=3"),
			[]corev1.ContainerStatus{statusOf("c", "cpu=1", "cpu=1", "cpu=2")}, amounts.Of("cpu=1", "cpu=3"), true},
		{"a resize waits", amounts.Of("cpu=5", "cpu=6"), []corev1.ContainerStatus{statusOf("c", "cpu=1", "cpu=1", "cpu=2")},
			amounts.Of("cpu=1", "cpu=2"), false},
		{"a request is new", amounts.Of("cpu=5 memory=1Gi", ""), []corev1.ContainerStatus{statusOf("c", "cpu=5", "cpu=5",
			"")}, amounts.Of("cpu=5", ""), false},
		{"the first request of all", amounts.Of("cpu=5", ""), []corev1.ContainerStatus{statusOf("c", "", "", "")},
			amounts.Of("", ""), false},
		{"allocated and not written, and the next one waits", amounts.Of("cpu=5", "cpu=6"),
			[]corev1.ContainerStatus{statusOf("c", "cpu=3", "cpu=1", "cpu=2")}, amounts.Of("cpu=3", "cpu=3"), false},
	} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Resources: c.asked}}},
			Status: corev1.PodStatus{ContainerStatuses: c.status}}
		got := reported(pod)
		if !Same(got.containers["c"], c.want) {
			t.Errorf("%s: %+v, want %+v", c.name, got.containers["c"], c.want)
		}
		if got.Meets(pod) != c.complete {
			t.Errorf("%s: meets is %v", c.name, !c.complete)
		}
		if in := got.In(pod); !Same(in.Spec.Containers[0].Resources, c.want) ||
			!Same(pod.Spec.Containers[0].Resources, c.asked) {
			t.Errorf("%s: the pod with it has %+v, the pod %+v", c.name, in.Spec.Containers[0].Resources,
				pod.Spec.Containers[0].Resources)
		}
	}
}

func TestAllocationOfPodLevel(t *testing.T) {
	asked, has := amounts.Of("cpu=4", "cpu=4 memory=2Gi"), amounts.Of("cpu=1100m", "cpu=2100m memory=1Gi")
	pod := &corev1.Pod{
		Spec: corev1.PodSpec{
			Resources:  &asked,
			Overhead:   amounts.List("cpu=100m"),
			Containers: []corev1.Container{{Name: "c"}},
		},
		Status: corev1.PodStatus{Resources: &has, AllocatedResources: amounts.List("cpu=1100m"),
			ContainerStatuses: []corev1.ContainerStatus{statusOf("c", "", "", "")}},
	}
	a := reported(pod)
	if want := amounts.Of("cpu=1", "cpu=2 memory=1Gi"); !Same(*a.level, want) || a.Meets(pod) {
		t.Errorf("%+v, want %+v", a.level, want)
	}
}
