package translate

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/admission"
	"github.com/plimsoll-dev/plimsoll/internal/core/allocatable"
	"github.com/plimsoll-dev/plimsoll/internal/core/qos"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// AdmissionNeeds translates what a pod needs of the operating system and the runtime of its node.
func AdmissionNeeds(pod *corev1.Pod) admission.Needs {
	s := &pod.Spec
	out := admission.Needs{HostNetwork: s.HostNetwork, HostIPC: s.HostIPC}
	if s.OS != nil {
		out.OS = string(s.OS.Name)
	}
	if label, ok := pod.Labels[corev1.LabelOSStable]; ok {
		out.OSLabel = &label
	}
	if c := s.SecurityContext; c != nil {
		policy := c.SupplementalGroupsPolicy
		out.StrictGroups = policy != nil && *policy == corev1.SupplementalGroupsPolicyStrict
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

// Started reports whether the status of a pod says that one of its containers was started on its node.
func Started(pod *corev1.Pod) bool {
	started := func(c corev1.ContainerStatus) bool { return c.ContainerID != "" }
	return pod.Status.Phase == corev1.PodRunning ||
		slices.ContainsFunc(pod.Status.InitContainerStatuses, started) ||
		slices.ContainsFunc(pod.Status.ContainerStatuses, started)
}

// AdmissionArrival translates what decides the order in which pods that arrive together are admitted. That a pod was
// already there under an earlier agent is known only to its node, which adds it.
func AdmissionArrival(pod *corev1.Pod) admission.Arrival {
	a := admission.Arrival{Created: unit.WallOf(pod.CreationTimestamp.Time), Name: pod.Namespace + "/" + pod.Name}
	if Started(pod) {
		a.Standing = admission.Ran
	}
	return a
}

// AdmissionApplicant translates a pod that arrives at a node under pressure.
func AdmissionApplicant(pod *corev1.Pod) admission.Applicant {
	p := QoSPod(pod)
	return admission.Applicant{
		Pod:      SchedulerPod(pod),
		Critical: p.Critical,
		Class:    qos.ClassOf(p),
		Started:  Started(pod),
	}
}

// AdmissionOccupant translates a pod that is on the node. ending: it is being terminated.
func AdmissionOccupant(pod *corev1.Pod, ending bool) admission.Occupant {
	p := QoSPod(pod)
	s := SchedulerPod(pod)
	return admission.Occupant{
		ID:       s.ID,
		Requests: s.Requests,
		Priority: s.Priority,
		Critical: p.Critical,
		Class:    qos.ClassOf(p),
		Ending:   ending,
	}
}

// AdmissionNode translates what a node offers to pods: allocatable resources, and from the API's Node (nil: not known
// yet) its labels, its taints, and the resources that others added to it. Resources in elsewhere are left out, because
// the caller counts them elsewhere.
func AdmissionNode(resources allocatable.Resources, node *corev1.Node, elsewhere []string) scheduler.Node {
	var out scheduler.Node
	own, podsMax := SchedulerAllocatable(resources)
	if node != nil {
		seen := SchedulerNode(node)
		out.Name = seen.Name
		out.Labels = seen.Labels
		out.Taints = seen.Taints
		for _, a := range seen.Allocatable {
			if !slices.ContainsFunc(own, func(o scheduler.Amount) bool { return o.Resource == a.Resource }) {
				out.Allocatable = append(out.Allocatable, a)
			}
		}
	}
	out.PodsMax = podsMax
	out.Allocatable = slices.DeleteFunc(append(out.Allocatable, own...), func(a scheduler.Amount) bool {
		return slices.Contains(elsewhere, a.Resource)
	})
	slices.SortFunc(out.Allocatable, byResource)
	return out
}

// AdmissionChange translates what changes when a pod is resized from its allocated resources to the desired
// ones. swaps reports whether a container may swap. The agent adds the policies of the node.
func AdmissionChange(allocated, desired *corev1.Pod, swaps func(*corev1.Pod, *corev1.Container) bool) admission.Change {
	c := admission.Change{Class: qos.ClassOf(QoSPod(desired))}
	had := map[string]*corev1.Container{}
	for _, list := range [][]corev1.Container{allocated.Spec.InitContainers, allocated.Spec.Containers} {
		for i := range list {
			had[list[i].Name] = &list[i]
		}
	}
	for _, list := range [][]corev1.Container{desired.Spec.InitContainers, desired.Spec.Containers} {
		for i := range list {
			is, was := &list[i], had[list[i].Name]
			if was == nil {
				continue
			}
			before, after := was.Resources.Requests, is.Resources.Requests
			c.CPU = c.CPU || before.Cpu().Cmp(*after.Cpu()) != 0
			if before.Memory().Cmp(*after.Memory()) == 0 {
				continue
			}
			c.Memory = true
			restarts := slices.Contains(is.ResizePolicy, memoryRestarts)
			c.Swap = c.Swap || !restarts && (swaps(allocated, was) || swaps(desired, is))
		}
	}
	return c
}

// memoryRestarts is the resize policy of containers that are restarted when their memory changes.
var memoryRestarts = corev1.ContainerResizePolicy{
	ResourceName:  corev1.ResourceMemory,
	RestartPolicy: corev1.RestartContainer,
}
