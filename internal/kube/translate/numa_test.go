package translate

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/test/cost"
)

func TestBerth(t *testing.T) {
	berth := numa.Berth{
		{Container: "main", CPUs: idset.Of(2, 3, 6), Nodes: []machine.NUMAID{0, 4}},
		{Container: "side", Nodes: []machine.NUMAID{4}},
	}
	text := BerthAnnotation(berth)
	if text != `[{"name":"main","cpus":"2-3,6","nodes":[0,4]},{"name":"side","nodes":[4]}]` {
		t.Errorf("a berth is written as %s", text)
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{AnnotationBerth: text}},
		Status:     corev1.PodStatus{QOSClass: corev1.PodQOSGuaranteed},
		Spec: corev1.PodSpec{
			InitContainers: []corev1.Container{{Name: "side"}},
			Containers: []corev1.Container{{
				Name:      "main",
				Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"example.com/gpu": {}}},
			}},
		},
	}
	if read := NUMAPod(pod).Berth; fmt.Sprint(read) != fmt.Sprint(berth) {
		t.Errorf("read as %v", read)
	}
	if p := SchedulerPod(pod); p.Berth != nil || p.NUMA.Berth != nil {
		t.Errorf("a pod that waits has a berth already: %+v", p)
	}
	pod.Spec.NodeName = "n"
	if p := SchedulerPod(pod); p.Berth == nil || p.NUMA.Berth != nil {
		t.Errorf("a bound pod's berth is %v, its class's %v", p.Berth, p.NUMA.Berth)
	}
	for _, text := range []string{
		"", "x", `{}`, `[]`, `[{"name":"main","cpus":"3-2"}]`, `[{"name":"main","cpus":"-1"}]`,
		`[{"name":"main","nodes":["a"]}]`,
		`[{"name":"main","nodes":[0,0]}]`, `[{"name":"main","nodes":[-1]}]`, `[{"name":"main","nodes":[1024]}]`,
		`[{"name":"other","cpus":"1"}]`,
	} {
		if read := readBerth(text, berthPod); read != nil {
			t.Errorf("%q is read as %v", text, read)
		}
	}
	if read := readBerth(`[{"name":"main","cpus":"1"},{"name":"main","cpus":"2"}]`, berthPod); len(read) != 1 ||
		!read[0].CPUs.Equal(idset.Of(1)) {
		t.Errorf("a container that is there twice is read as %v", read)
	}
}

// berthPod has the containers that the tests' berths name.
var berthPod = &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main"}, {Name: "side"}}}}

// hostileBerths are annotations that could cost far more CPU or memory than their length suggests. The key says what
// they repeat.
func hostileBerths() map[string]string {
	fill := func(head, part, tail string) string {
		return head + strings.TrimSuffix(strings.Repeat(part, (berthMax-len(head)-len(tail))/len(part)), ",") + tail
	}
	return map[string]string{
		"ranges":     fill(`[{"name":"main","cpus":"`, "0-8191,", `"}]`),
		"large ids":  fill(`[{"name":"main","cpus":"`, "0-65535,", `"}]`),
		"containers": fill(`[`, `{"name":"x","cpus":"8191"},`, `]`),
		"one name":   fill(`[`, `{"name":"main","cpus":"8191"},`, `]`),
		"nodes":      fill(`[{"name":"main","nodes":[`, "0,", `]}]`),
		"depth":      fill(``, `[`, ``),
	}
}

// TestBerthCost: the cost of reading a pod's annotation is in proportion to its length, and the size of the result is
// bounded by the pod's containers.
func TestBerthCost(t *testing.T) {
	for name, text := range hostileBerths() {
		t.Run(name, func(t *testing.T) {
			// JSON of entries that say nothing costs 50 bytes of memory for each byte of text.
			cost.Under(t, cost.Budget{Bytes: 64 << 10, BytesPerByte: 100, CPU: 5 * time.Millisecond, CPUPerByte: 500}, len(text),
				func() {
					readBerth(text, berthPod)
				})
			if kept := readBerth(text, berthPod); len(kept) > 2 {
				t.Errorf("%d entries are kept for a pod of two containers", len(kept))
			}
		})
	}
}

// FuzzBerth: reading any annotation is cheap, and writing the result and reading it again gives the same.
func FuzzBerth(f *testing.F) {
	cost.Attack(f, `[{"name":"main","cpus":"2-3,6","nodes":[0,4]},{"name":"side"}]`)
	cost.Attack(f, `[{"cpus":"0-4294967295"}]`)
	for _, text := range hostileBerths() {
		cost.Attack(f, text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		cost.Under(t, cost.Budget{}, len(text), func() { readBerth(text, berthPod) })
		read := readBerth(text, berthPod)
		if read == nil {
			return
		}
		again := readBerth(BerthAnnotation(read), berthPod)
		if fmt.Sprint(again) != fmt.Sprint(read) {
			t.Errorf("%q is read as %v and then as %v", text, read, again)
		}
	})
}
