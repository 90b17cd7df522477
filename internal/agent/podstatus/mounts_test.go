package podstatus

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestMounts(t *testing.T) {
	mode := func(m corev1.RecursiveReadOnlyMode) *corev1.RecursiveReadOnlyMode { return &m }
	pod := &corev1.Pod{Spec: corev1.PodSpec{
		Containers: []corev1.Container{{Name: "c", VolumeMounts: []corev1.VolumeMount{
			{Name: "a", MountPath: "/a"}, {Name: "b", MountPath: "/b", ReadOnly: true},
			{Name: "d", MountPath: "/d", ReadOnly: true, RecursiveReadOnly: mode(corev1.RecursiveReadOnlyIfPossible)},
		}}},
		EphemeralContainers: []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "e",
			VolumeMounts: []corev1.VolumeMount{{Name: "a", MountPath: "/x"}}}}},
	}}
	for can, deep := range map[bool]corev1.RecursiveReadOnlyMode{true: corev1.RecursiveReadOnlyEnabled,
		false: corev1.RecursiveReadOnlyDisabled} {
		out := corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "c"}},
			EphemeralContainerStatuses: []corev1.ContainerStatus{{Name: "e"}}}
		addMounts(pod, &out, can)
		got := out.ContainerStatuses[0].VolumeMounts
		if len(got) != 3 || got[0].RecursiveReadOnly != nil ||
			*got[1].RecursiveReadOnly != corev1.RecursiveReadOnlyDisabled || *got[2].RecursiveReadOnly != deep {
			t.Errorf("the handler can: %v: %+v", can, got)
		}
		if e := out.EphemeralContainerStatuses[0].VolumeMounts; len(e) != 1 || e[0].MountPath != "/x" || e[0].ReadOnly {
			t.Errorf("ephemeral: %+v", e)
		}
	}
}
