package kube

import (
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/placement"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

func TestPlacementRequests(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	box := func(cpu, memory string) corev1.Container {
		list := corev1.ResourceList{}
		if cpu != "" {
			list[corev1.ResourceCPU] = resource.MustParse(cpu)
		}
		if memory != "" {
			list[corev1.ResourceMemory] = resource.MustParse(memory)
		}
		return corev1.Container{Resources: corev1.ResourceRequirements{Requests: list}}
	}
	sidecar := box("100m", "10Mi")
	sidecar.RestartPolicy = &always
	for _, c := range []struct {
		name        string
		spec        corev1.PodSpec
		cpu, memory int64
		scoreCPU    unit.MilliCPU
		scoreMemory unit.Bytes
	}{
		{"nothing asked: counted in scores only", corev1.PodSpec{Containers: []corev1.Container{box("", "")}}, 0, 0, 100, 200 * unit.MiB},
		{"containers add up", corev1.PodSpec{Containers: []corev1.Container{box("100m", "1Mi"), box("200m", "2Mi")}}, 300, 3 << 20, 300, 3 * unit.MiB},
		{"the largest init container counts alone", corev1.PodSpec{
			InitContainers: []corev1.Container{box("2", "1Mi"), box("1", "8Mi")}, Containers: []corev1.Container{box("500m", "4Mi")},
		}, 2000, 8 << 20, 2000, 8 * unit.MiB},
		{"a sidecar runs beside both", corev1.PodSpec{
			InitContainers: []corev1.Container{sidecar, box("1", "1Mi")}, Containers: []corev1.Container{box("500m", "4Mi")},
		}, 1100, 14 << 20, 1100, 14 * unit.MiB},
		{"overhead on top", corev1.PodSpec{
			Containers: []corev1.Container{box("1", "1Mi")}, Overhead: box("10m", "1Mi").Resources.Requests,
		}, 1010, 2 << 20, 1010, 2 * unit.MiB},
		{"pod-level resources in place of the sum, except in scores", corev1.PodSpec{
			Containers: []corev1.Container{box("1", "1Mi")}, Resources: &corev1.ResourceRequirements{Requests: box("3", "").Resources.Requests},
		}, 3000, 1 << 20, 1000, 1 * unit.MiB},
		{"an absurd amount is bounded", corev1.PodSpec{Containers: []corev1.Container{box("9E", "9E")}}, amountMax, amountMax, amountMax, amountMax},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := PlacementPod(&corev1.Pod{Spec: c.spec})
			var cpu, memory int64
			for _, a := range p.Requests {
				switch a.Resource {
				case placement.CPU:
					cpu = a.Value
				case placement.Memory:
					memory = a.Value
				}
			}
			if cpu != c.cpu || memory != c.memory || p.Asked.CPU != c.scoreCPU || p.Asked.Memory != c.scoreMemory {
				t.Errorf("got cpu %d memory %d score %d %d, want %+v", cpu, memory, p.Asked.CPU, p.Asked.Memory, c)
			}
		})
	}
}

func TestPlacementTerms(t *testing.T) {
	for _, c := range []struct {
		name   string
		r      corev1.NodeSelectorRequirement
		field  bool
		broken bool
	}{
		{"in", corev1.NodeSelectorRequirement{Key: "k", Operator: "In", Values: []string{"a"}}, false, false},
		{"in without values", corev1.NodeSelectorRequirement{Key: "k", Operator: "In"}, false, true},
		{"exists with values", corev1.NodeSelectorRequirement{Key: "k", Operator: "Exists", Values: []string{"a"}}, false, true},
		{"greater than text", corev1.NodeSelectorRequirement{Key: "k", Operator: "Gt", Values: []string{"x"}}, false, true},
		{"greater than two numbers", corev1.NodeSelectorRequirement{Key: "k", Operator: "Gt", Values: []string{"1", "2"}}, false, true},
		{"unknown operator", corev1.NodeSelectorRequirement{Key: "k", Operator: "Near", Values: []string{"1"}}, false, true},
		{"no label value", corev1.NodeSelectorRequirement{Key: "k", Operator: "In", Values: []string{"not a value!"}}, false, true},
		{"name", corev1.NodeSelectorRequirement{Key: "metadata.name", Operator: "In", Values: []string{"n1"}}, true, false},
		{"two names in one requirement", corev1.NodeSelectorRequirement{Key: "metadata.name", Operator: "In", Values: []string{"n1", "n2"}}, true, true},
		{"other field", corev1.NodeSelectorRequirement{Key: "metadata.uid", Operator: "In", Values: []string{"n1"}}, true, true},
	} {
		term := &corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{c.r}}
		if c.field {
			term = &corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{c.r}}
		}
		if got := placementTerm(term).Broken; got != c.broken {
			t.Errorf("%s: broken %v, want %v", c.name, got, c.broken)
		}
	}
}

// TestPlacementIsStable makes sure that equal pods translate to equal values whatever the order of maps.
func TestPlacementIsStable(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}, Spec: corev1.PodSpec{
		NodeSelector: map[string]string{"a": "1", "b": "2", "c": "3"},
		Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
			"cpu": resource.MustParse("1"), "memory": resource.MustParse("1"), "example.com/a": resource.MustParse("1"), "hugepages-2Mi": resource.MustParse("2Mi"),
		}}}},
	}}
	first := PlacementPod(pod)
	for range 50 {
		if again := PlacementPod(pod); !reflect.DeepEqual(first, again) {
			t.Fatalf("translated to %+v, then to %+v", first, again)
		}
	}
}

func TestPlacementNode(t *testing.T) {
	n := PlacementNode(&corev1.Node{Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
		"cpu": resource.MustParse("-4"), "pods": resource.MustParse("110"), "memory": resource.MustParse("9E"),
	}}})
	want := []placement.Amount{{Resource: "cpu", Value: 0}, {Resource: "memory", Value: amountMax}}
	if n.PodsMax != 110 || !reflect.DeepEqual(n.Allocatable, want) {
		t.Errorf("got pods %d, allocatable %v", n.PodsMax, n.Allocatable)
	}
}
