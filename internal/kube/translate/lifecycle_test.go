package translate

import (
	"reflect"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/lifecycle"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

func TestLifecycleNode(t *testing.T) {
	then := metav1.NewTime(time.Unix(1_700_000_000, 0))
	got := LifecycleNode(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u", CreationTimestamp: then, Labels: map[string]string{
			corev1.LabelTopologyRegion: "r", corev1.LabelTopologyZone: "z", "node.kubernetes.io/exclude-disruption": "",
			corev1.LabelOSStable: "linux", "beta.kubernetes.io/os": "plan9", corev1.LabelArchStable: "arm64",
		}},
		Spec: corev1.NodeSpec{Unschedulable: true, Taints: []corev1.Taint{
			{Key: "a", Value: "v", Effect: corev1.TaintEffectNoExecute, TimeAdded: &then},
			{Key: "b", Effect: corev1.TaintEffectPreferNoSchedule},
		}},
		Status: corev1.NodeStatus{
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: "Nonsense", LastHeartbeatTime: then,
				LastTransitionTime: then}, {Type: corev1.NodeDiskPressure, Status: corev1.ConditionTrue}},
			Allocatable: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1500m"),
				corev1.ResourceMemory: resource.MustParse("-1Gi"), corev1.ResourcePods: resource.MustParse("110")},
		},
	})
	wall := unit.WallOf(then.Time)
	want := lifecycle.Node{
		Name: "n", UID: "u", Created: wall, Cordoned: true, Heartbeat: wall, Changed: wall, Zone: "r:\x00:z", Excluded: true,
		Status: map[lifecycle.ConditionType]lifecycle.Status{lifecycle.Ready: lifecycle.Unknown,
			lifecycle.DiskPressure: lifecycle.True},
		Taints: []lifecycle.Taint{{Key: "a", Value: "v", Effect: lifecycle.NoExecute, Added: wall},
			{Key: "b", Effect: "PreferNoSchedule"}},
		Relabel:     map[string]string{"beta.kubernetes.io/os": "linux", "beta.kubernetes.io/arch": "arm64"},
		Allocatable: lifecycle.Load{CPU: 1500, Pods: 110},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// The fields that TrimLifecyclePod removes do not affect the translation.
func TestLifecyclePodOfATrimmedPod(t *testing.T) {
	then, later := metav1.NewTime(time.Unix(1_700_000_000, 0)), metav1.NewTime(time.Unix(1_700_000_060, 0))
	seconds, always := int64(300), corev1.ContainerRestartPolicyAlways
	requests := func(cpu string) corev1.ResourceRequirements {
		return corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu),
			corev1.ResourceMemory: resource.MustParse("1Mi")}}
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u", CreationTimestamp: then,
			DeletionTimestamp: &later, Labels: map[string]string{"a": "b"}},
		Spec: corev1.PodSpec{
			NodeName: "n", Overhead: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m")},
			InitContainers: []corev1.Container{
				{Name: "i", Resources: requests("100m")},
				{Name: "s", RestartPolicy: &always, Resources: requests("200m")},
			},
			Containers: []corev1.Container{{Name: "c", Image: "x", Env: []corev1.EnvVar{{Name: "a"}},
				Resources: requests("500m")}},
			Tolerations: []corev1.Toleration{
				{Key: "k", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute,
					TolerationSeconds: &seconds}, {Key: "g", Operator: corev1.TolerationOpGt, Value: "3"},
			},
		},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "1.2.3.4", Conditions: []corev1.PodCondition{
			{Type: corev1.PodReady, Status: corev1.ConditionTrue},
			{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: later},
		}},
	}
	want := lifecycle.Pod{
		ID: "u", Namespace: "ns", Name: "p", Node: "n", Bound: unit.WallOf(later.Time), Ready: true, Terminating: true,
		Tolerations: []lifecycle.Toleration{{Key: "k", Exists: true, Effect: lifecycle.NoExecute, Bounded: true,
			Seconds: 300}, {Key: "g", Value: "3", Never: true}},
		Requests: lifecycle.Load{CPU: 710, Memory: 2 * unit.MiB, Pods: 1},
	}
	if got := LifecyclePod(pod); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	TrimLifecyclePod(pod)
	if got := LifecyclePod(pod); !reflect.DeepEqual(got, want) {
		t.Errorf("trimmed: got  %+v\nwant %+v", got, want)
	}
	pod.Status = corev1.PodStatus{Phase: corev1.PodFailed}
	if got := LifecyclePod(pod); !got.Ended || got.Ready || got.Bound != unit.WallOf(then.Time) {
		t.Errorf("ended: %+v", got)
	}
}
