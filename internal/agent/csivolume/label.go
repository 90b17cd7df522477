package csivolume

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
)

// labelOf returns the SELinux label with which a volume is mounted for a pod. Empty: it is mounted without one, and the
// container runtime changes the labels of its files, one by one.
//
// By default the kubelet 1.36 mounts with a label the volumes that only one pod may have (ReadWriteOncePod), if the
// driver's CSIDriver says seLinuxMount. Here the containers must also have a level: without one, the runtime chooses
// one for each pod, and the agent does not know which.
func (k *Manager) labelOf(
	object *storagev1.CSIDriver, pod *corev1.Pod, outer string, s *Source,
) (string, error) {
	supported := object.Spec.SELinuxMount != nil && *object.Spec.SELinuxMount
	if k.Label == nil || !supported || s.Block || s.Inline || !s.isExclusive() {
		return "", nil
	}
	context := pod.Spec.SecurityContext
	if context != nil && context.SELinuxChangePolicy != nil &&
		*context.SELinuxChangePolicy == corev1.SELinuxChangePolicyRecursive {
		return "", nil
	}
	var labels []string
	for _, options := range optionsOf(pod, outer) {
		if options.Level == "" {
			return "", nil
		}
		label, err := k.Label(options)
		if err != nil {
			return "", fmt.Errorf("SELinux options %v of a container: %w", options, err)
		}
		labels = append(labels, label)
	}
	slices.Sort(labels)
	switch labels = slices.Compact(labels); len(labels) {
	case 0:
		return "", nil
	case 1:
		return labels[0], nil
	}
	return "", fmt.Errorf("multiple SELinux labels found: %s", strings.Join(labels, ","))
}

// optionsOf returns the SELinux options of the containers that mount a volume, without containers that have none.
func optionsOf(pod *corev1.Pod, volume string) (all []*corev1.SELinuxOptions) {
	containers := slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers)
	for _, e := range pod.Spec.EphemeralContainers {
		containers = append(containers, corev1.Container(e.EphemeralContainerCommon))
	}
	for i := range containers {
		c := &containers[i]
		if !slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == volume }) {
			continue
		}
		var options *corev1.SELinuxOptions
		if pod.Spec.SecurityContext != nil {
			options = pod.Spec.SecurityContext.SELinuxOptions
		}
		if c.SecurityContext != nil && c.SecurityContext.SELinuxOptions != nil {
			options = c.SecurityContext.SELinuxOptions
		}
		if options != nil {
			all = append(all, options)
		}
	}
	return all
}

// labelOption returns the mount option that gives all files of a file system a label. A label may have commas.
func labelOption(label string) string { return fmt.Sprintf("context=%q", label) }
