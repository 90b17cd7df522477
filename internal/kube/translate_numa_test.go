package kube

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
)

func TestBerth(t *testing.T) {
	berth := numa.Berth{{Container: "main", CPUs: idset.Of(2, 3, 6), Nodes: []machine.NUMAID{0, 4}}, {Container: "side", Nodes: []machine.NUMAID{4}}}
	text := BerthAnnotation(berth)
	if text != `[{"name":"main","cpus":"2-3,6","nodes":[0,4]},{"name":"side","nodes":[4]}]` {
		t.Errorf("a berth is written as %s", text)
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{AnnotationBerth: text}},
		Status:     corev1.PodStatus{QOSClass: corev1.PodQOSGuaranteed},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"example.com/gpu": {}}}}}},
	}
	if read := NUMAPod(pod).Berth; fmt.Sprint(read) != fmt.Sprint(berth) {
		t.Errorf("read as %v", read)
	}
	if p := PlacementPod(pod); p.Berth != nil || p.NUMA.Berth != nil {
		t.Errorf("a pod that waits has a berth already: %+v", p)
	}
	pod.Spec.NodeName = "n"
	if p := PlacementPod(pod); p.Berth == nil || p.NUMA.Berth != nil {
		t.Errorf("a bound pod's berth is %v, its class's %v", p.Berth, p.NUMA.Berth)
	}
	for _, text := range []string{"", "x", `{}`, `[]`, `[{"cpus":"3-2"}]`, `[{"cpus":"-1"}]`, `[{"nodes":["a"]}]`} {
		if read := readBerth(text); read != nil {
			t.Errorf("%q is read as %v", text, read)
		}
	}
}

// FuzzBerth: whatever an annotation says, reading it ends, and what is read says the same when it is written again.
func FuzzBerth(f *testing.F) {
	f.Add(`[{"name":"main","cpus":"2-3,6","nodes":[0,4]},{"name":"side"}]`)
	f.Add(`[{"cpus":"0-4294967295"}]`)
	f.Fuzz(func(t *testing.T, text string) {
		read := readBerth(text)
		if read == nil {
			return
		}
		again := readBerth(BerthAnnotation(read))
		if fmt.Sprint(again) != fmt.Sprint(read) {
			t.Errorf("%q is read as %v and then as %v", text, read, again)
		}
	})
}
