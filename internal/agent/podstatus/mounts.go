package podstatus

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/volume"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// addMounts fills in how each volume is mounted in each container.
func addMounts(pod *corev1.Pod, out *corev1.PodStatus, recursive bool) {
	for _, list := range translate.StatusLists(out) {
		for i := range list {
			c := translate.ContainerNamed(pod, list[i].Name)
			if c == nil {
				continue
			}
			for j := range c.VolumeMounts {
				list[i].VolumeMounts = append(list[i].VolumeMounts, mountStatus(&c.VolumeMounts[j], recursive))
			}
		}
	}
}

func mountStatus(vm *corev1.VolumeMount, recursive bool) corev1.VolumeMountStatus {
	s := corev1.VolumeMountStatus{Name: vm.Name, MountPath: vm.MountPath, ReadOnly: vm.ReadOnly}
	if vm.ReadOnly {
		mode := corev1.RecursiveReadOnlyDisabled
		// After an error the container does not start, and needs no mount status.
		if deep, err := volume.RecursiveReadOnly(vm, recursive); err == nil && deep {
			mode = corev1.RecursiveReadOnlyEnabled
		}
		s.RecursiveReadOnly = &mode
	}
	return s
}
