package pods

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// specOf translates what a pod should be.
func specOf(pod *corev1.Pod) podlife.Spec {
	s := podlife.Spec{Name: nameForMessages(pod), Grace: specGrace(pod)}
	if d := pod.Spec.ActiveDeadlineSeconds; d != nil {
		s.ActiveDeadline = time.Duration(*d) * time.Second
	}
	policy := policyOf(pod.Spec.RestartPolicy)
	add := func(c *corev1.Container, kind podlife.Kind, policy podlife.RestartPolicy) {
		if c.RestartPolicy != nil {
			policy = policyOf(corev1.RestartPolicy(*c.RestartPolicy))
		}
		if kind == podlife.Init && translate.IsSidecar(c) {
			kind = podlife.Sidecar
		}
		s.Containers = append(s.Containers, podlife.ContainerSpec{
			Name: c.Name, Kind: kind, Policy: policy, Hash: hashOf(c), Image: c.Image, Fixed: fixedOf(pod, c),
			PostStart: c.Lifecycle != nil && c.Lifecycle.PostStart != nil,
		})
	}
	for i := range pod.Spec.InitContainers {
		add(&pod.Spec.InitContainers[i], podlife.Init, policy)
	}
	for i := range pod.Spec.Containers {
		add(&pod.Spec.Containers[i], podlife.Main, policy)
	}
	for i := range pod.Spec.EphemeralContainers {
		add(ephemeral(pod, i), podlife.Ephemeral, podlife.Never)
	}
	for _, g := range pod.Spec.ReadinessGates {
		s.Gates = append(s.Gates, string(g.ConditionType))
	}
	return s
}

// sized fills in what the pod's cgroups should be set to.
func (r *Runner) sized(s podlife.Spec, pod *corev1.Pod) podlife.Spec {
	size, of := r.Groups.Sizes(pod)
	s.Size = size
	for i := range s.Containers {
		s.Containers[i].Size = of(containerNamed(pod, s.Containers[i].Name))
	}
	return s
}

// ephemeral is the i-th ephemeral container in the form of any other.
func ephemeral(pod *corev1.Pod, i int) *corev1.Container {
	return (*corev1.Container)(&pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)
}

// statusLists are the statuses of all containers.
func statusLists(s *corev1.PodStatus) [3][]corev1.ContainerStatus {
	return [...][]corev1.ContainerStatus{s.InitContainerStatuses, s.ContainerStatuses, s.EphemeralContainerStatuses}
}

// nameForMessages is a pod as upstream's messages name it.
func nameForMessages(pod *corev1.Pod) string {
	return fmt.Sprintf("%s_%s(%s)", pod.Name, pod.Namespace, pod.UID)
}

func policyOf(p corev1.RestartPolicy) podlife.RestartPolicy {
	switch p {
	case corev1.RestartPolicyNever:
		return podlife.Never
	case corev1.RestartPolicyOnFailure:
		return podlife.OnFailure
	}
	return podlife.Always
}

// pastOf collects what is known of containers from the last status computed here, else from the API's.
func pastOf(pod *corev1.Pod, own corev1.PodStatus) map[string]podlife.Past {
	status := own
	if len(own.ContainerStatuses) == 0 && len(own.InitContainerStatuses) == 0 { // no pod has only ephemeral containers
		status = pod.Status
	}
	past := map[string]podlife.Past{}
	for _, list := range statusLists(&status) {
		for i := range list {
			past[list[i].Name] = pastContainer(&list[i])
		}
	}
	return past
}

func pastContainer(s *corev1.ContainerStatus) podlife.Past {
	p := podlife.Past{
		ID: idOf(s.ContainerID), ImageID: s.ImageID, RestartCount: uint32(max(s.RestartCount, 0)), Running: s.State.Running != nil,
		Ended: endOf(s.State.Terminated), Over: s.State.Terminated != nil, Last: endOf(s.LastTerminationState.Terminated),
	}
	if s.State.Waiting != nil && p.ID != "" && p.Last != nil && p.Last.ID == p.ID {
		p.Ended, p.Last = p.Last, nil // waiting to restart: the last end is that of the run that the status names
	}
	return p
}

func endOf(t *corev1.ContainerStateTerminated) *podlife.Terminated {
	if t == nil {
		return nil
	}
	return &podlife.Terminated{
		ID: idOf(t.ContainerID), ExitCode: t.ExitCode, Reason: t.Reason, Message: t.Message,
		StartedAt: unit.WallOf(t.StartedAt.Time), FinishedAt: unit.WallOf(t.FinishedAt.Time),
	}
}

// gatesOf returns the status of every condition that may be a readiness gate.
func gatesOf(pod *corev1.Pod) map[string]string {
	if len(pod.Spec.ReadinessGates) == 0 {
		return nil
	}
	gates := map[string]string{}
	for _, c := range pod.Status.Conditions {
		gates[string(c.Type)] = string(c.Status)
	}
	return gates
}
