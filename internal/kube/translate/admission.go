package translate

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/admission"
)

// SystemNeeds translates what a pod asks of the system that it runs on.
func SystemNeeds(pod *corev1.Pod) admission.Needs {
	s := &pod.Spec
	out := admission.Needs{HostNetwork: s.HostNetwork, HostIPC: s.HostIPC}
	if s.OS != nil {
		out.OS = string(s.OS.Name)
	}
	if label, ok := pod.Labels[corev1.LabelOSStable]; ok {
		out.OSLabel = &label
	}
	if c := s.SecurityContext; c != nil {
		out.StrictGroups = c.SupplementalGroupsPolicy != nil && *c.SupplementalGroupsPolicy == corev1.SupplementalGroupsPolicyStrict
		out.AppArmor = confines(c.AppArmorProfile)
		for _, sysctl := range c.Sysctls {
			out.Sysctls = append(out.Sysctls, sysctl.Name)
		}
	}
	for _, list := range [][]corev1.Container{s.InitContainers, s.Containers} {
		for i := range list {
			out.AppArmor = out.AppArmor || list[i].SecurityContext != nil && confines(list[i].SecurityContext.AppArmorProfile)
		}
	}
	for i := range s.EphemeralContainers {
		c := s.EphemeralContainers[i].SecurityContext
		out.AppArmor = out.AppArmor || c != nil && confines(c.AppArmorProfile)
	}
	return out
}

func confines(p *corev1.AppArmorProfile) bool {
	return p != nil && p.Type != corev1.AppArmorProfileTypeUnconfined
}

// Started reports whether the status of a pod says that a container of it was started on its node.
func Started(pod *corev1.Pod) bool {
	started := func(c corev1.ContainerStatus) bool { return c.ContainerID != "" }
	return pod.Status.Phase == corev1.PodRunning ||
		slices.ContainsFunc(pod.Status.InitContainerStatuses, started) ||
		slices.ContainsFunc(pod.Status.ContainerStatuses, started)
}
