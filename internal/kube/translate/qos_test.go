package translate

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

func TestQoSPod(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	list := func(cpu, memory string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu),
			corev1.ResourceMemory: resource.MustParse(memory)}
	}
	pod := &corev1.Pod{
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{"hugepages-2Mi": resource.MustParse("4Mi"),
					"example.com/gpu": resource.MustParse("1"), corev1.ResourceCPU: resource.MustParse("0")},
				Limits: list("500m", "128Mi"),
			}, RestartPolicy: &always}},
			InitContainers: []corev1.Container{{Name: "side", RestartPolicy: &always}, {Name: "init"}},
			Overhead:       list("10m", "1Mi"),
		},
	}
	p := QoSPod(pod)
	main := p.Containers[0]
	if cpu, stated := main.Requests.CPU.Get(); !stated || cpu != 0 {
		t.Errorf("a stated zero became %v, stated %v", cpu, stated)
	}
	if _, stated := main.Requests.Memory.Get(); stated {
		t.Error("an absent request was stated")
	}
	if main.Limits.CPU != unit.Of[unit.MilliCPU](500) || main.Limits.Memory != unit.Of(128*unit.MiB) {
		t.Errorf("limits %+v", main.Limits)
	}
	if main.Requests.HugePages[2*unit.MiB] != 4*unit.MiB || len(main.Requests.HugePages) != 1 {
		t.Errorf("huge pages %v", main.Requests.HugePages)
	}
	if main.Sidecar || !p.Init[0].Sidecar || p.Init[1].Sidecar {
		t.Error("only init containers that restart always are sidecars")
	}
	if p.Overhead.Memory != unit.Of(unit.MiB) || p.Level != nil || p.NodeCritical {
		t.Errorf("pod %+v", p)
	}
	pod.Spec.Resources = &corev1.ResourceRequirements{}
	if QoSPod(pod).Level == nil {
		t.Error("empty pod-level resources were lost")
	}
}

func TestNodeCritical(t *testing.T) {
	high, low := int32(2_000_001_000), int32(100)
	for name, c := range map[string]struct {
		priority *int32
		class    string
		source   string
		want     bool
	}{
		"by priority":       {&high, "system-node-critical", "api", true},
		"static":            {nil, "system-node-critical", "file", true},
		"class alone":       {&low, "system-node-critical", "", false},
		"cluster critical":  {&high, "system-cluster-critical", "", false},
		"static, ordinary":  {&low, "", "file", false},
		"nothing of either": {nil, "", "", false},
	} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{Priority: c.priority, PriorityClassName: c.class}}
		if c.source != "" {
			pod.Annotations = map[string]string{"kubernetes.io/config.source": c.source}
		}
		if got := QoSPod(pod).NodeCritical; got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestHugePageNames(t *testing.T) {
	for _, size := range []unit.Bytes{2 * unit.MiB, unit.GiB, 64 * unit.KiB} {
		if got, ok := HugePageSize(HugePageResource(size)); !ok || got != size {
			t.Errorf("%v became %s became %v", size, HugePageResource(size), got)
		}
	}
	for _, name := range []corev1.ResourceName{"memory", "hugepages-", "hugepages-x", "hugepages--2Mi"} {
		if _, ok := HugePageSize(name); ok {
			t.Errorf("%s was taken for huge pages", name)
		}
	}
}
