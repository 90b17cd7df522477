//go:build e2e

package scheduler

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
)

// makeNode creates a Node without a machine, and removes the taint that admission adds to new Nodes.
func makeNode(t *testing.T, api typedcorev1.NodeInterface, name, cpu string, labels map[string]string) {
	t.Helper()
	has := corev1.ResourceList{
		corev1.ResourceCPU:    resource.MustParse(cpu),
		corev1.ResourceMemory: resource.MustParse("64Gi"),
		corev1.ResourcePods:   resource.MustParse("110"),
	}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Status:     corev1.NodeStatus{Capacity: has, Allocatable: has},
	}
	if _, err := api.Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	untainted := []byte(`{"spec":{"taints":null}}`)
	if _, err := api.Patch(t.Context(), name, types.MergePatchType, untainted, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// onlyCPU is a pod that requests CPU only. No agent will run it.
func onlyCPU(name, cpu string) *corev1.Pod {
	asks := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{Containers: []corev1.Container{
		{Name: "c", Image: "none", Resources: corev1.ResourceRequirements{Requests: asks}},
	}}}
}
