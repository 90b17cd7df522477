package translate

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/plimsoll-dev/plimsoll/internal/core/eviction"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

func TestEvictionPod(t *testing.T) {
	requests := func(memory string) corev1.ResourceRequirements {
		return corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(memory)},
			Limits:   corev1.ResourceList{corev1.ResourceEphemeralStorage: resource.MustParse("1Gi")},
		}
	}
	grace := int64(7)
	priority := int32(3)
	size := resource.MustParse("64Mi")
	pod := &corev1.Pod{Spec: corev1.PodSpec{
		Priority: &priority, TerminationGracePeriodSeconds: &grace,
		InitContainers: []corev1.Container{{Name: "init", Resources: requests("500Mi")}},
		Containers: []corev1.Container{{Name: "a", Resources: requests("100Mi")},
			{Name: "b", Resources: requests("200Mi")}, {Name: "none"}},
		Volumes: []corev1.Volume{
			{Name: "disk", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: &size}}},
			{Name: "memory",
				VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory,
					SizeLimit: &size}}},
			{Name: "host", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{}}},
			{Name: "secret", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{}}},
		},
	}}
	p := EvictionPod(pod)
	if seven := unit.Of(7 * time.Second); p.MemoryRequest != 500*unit.MiB || p.Priority != 3 || p.Grace != seven ||
		p.Critical || p.Used != nil {
		t.Errorf("%+v", p)
	}
	if p.LevelMemory.IsSet() || p.StorageLimit.Value != 2<<30 {
		t.Errorf("level %v, storage limit %v", p.LevelMemory, p.StorageLimit)
	}
	if len(p.Containers) != 4 || p.Containers[0].StorageLimit.IsSet() || p.Containers[2].MemoryRequest.Text != "200Mi" ||
		p.Containers[3].MemoryRequest.String() != "0" {
		t.Errorf("containers %+v", p.Containers)
	}
	for i, want := range []eviction.Volume{
		{Name: "disk", Local: true, Freed: true, SizeLimit: eviction.Quantity{Value: 64 << 20, Text: "64Mi"}},
		{Name: "memory", Freed: true, SizeLimit: eviction.Quantity{Value: 64 << 20, Text: "64Mi"}},
		{Name: "host", Local: true},
		{Name: "secret"},
	} {
		if p.Volumes[i] != want {
			t.Errorf("volume %+v, want %+v", p.Volumes[i], want)
		}
	}
	pod.Spec.Resources = &corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")},
	}
	system := int32(2_000_000_000)
	pod.Spec.Priority = &system
	if p := EvictionPod(pod); p.MemoryRequest != unit.GiB || p.LevelMemory.Text != "1Gi" || !p.Critical {
		t.Errorf("%+v", p)
	}
}
