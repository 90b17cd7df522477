package translate

import (
	"math/rand/v2"
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// TestPodResources changes pods at random. Two versions for which SameAs is true have the same translations, and SameAs
// is true for nearly every update of other fields.
func TestPodResources(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 9))
	list := func() corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: *resource.NewMilliQuantity(int64(100*r.IntN(3)), resource.DecimalSI)}
	}
	alike, same := 0, 0
	for range 20000 {
		always := corev1.ContainerRestartPolicyAlways
		a := &corev1.Pod{}
		a.Spec.InitContainers = []corev1.Container{{Name: "i"}}
		a.Spec.Containers = []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Requests: list(),
			Limits: list()}}}
		if r.IntN(4) == 0 {
			a.Spec.Resources = &corev1.ResourceRequirements{Requests: list()}
		}
		b := a.DeepCopy()
		for _, pod := range []*corev1.Pod{a, b} {
			switch r.IntN(12) {
			case 0:
				pod.Spec.Containers[0].Resources.Requests = list()
			case 1:
				pod.Spec.Containers[0].Resources.Limits = list()
			case 2:
				pod.Spec.Overhead = list()
			case 3:
				pod.Spec.InitContainers[0].RestartPolicy = &always
				pod.Spec.InitContainers[0].Resources.Requests = list()
			case 4:
				pod.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: 80}}
			case 5:
				pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
					Name: "c", AllocatedResources: list(), Resources: &corev1.ResourceRequirements{Requests: list()},
				}}
			case 6:
				pod.Status.Resources = &corev1.ResourceRequirements{Requests: list()}
				pod.Status.AllocatedResources = list()
			case 7:
				pod.Status.QOSClass = corev1.PodQOSBurstable
			case 8:
				pod.Annotations = map[string]string{AnnotationSource: "file"}
			case 9:
				pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
					Name: "c", AllocatedResources: pod.Spec.Containers[0].Resources.Requests,
					Resources: &pod.Spec.Containers[0].Resources,
				}}
			case 10:
				pod.Status.Phase = corev1.PodRunning
			}
		}
		key := PodResourcesOf(a)
		x, y := SchedulerPod(a), SchedulerPod(b)
		equal := reflect.DeepEqual(x.Requests, y.Requests) && reflect.DeepEqual(x.Ports, y.Ports) &&
			reflect.DeepEqual(QoSPod(a), QoSPod(b))
		if key.SameAs(b) {
			same++
			if !equal {
				t.Fatalf("not the same:\n%+v\n%+v", a, b)
			}
		}
		if equal {
			alike++
		}
	}
	if same < alike/2 {
		t.Errorf("of %d pairs that are alike, %d are known to be", alike, same)
	}
}
