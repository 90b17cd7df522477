package pods

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// specOf translates what a pod should be.
func specOf(pod *corev1.Pod) podlife.Spec {
	s := podlife.Spec{Policy: policyOf(pod.Spec.RestartPolicy), Grace: specGrace(pod)}
	if d := pod.Spec.ActiveDeadlineSeconds; d != nil {
		s.ActiveDeadline = time.Duration(*d) * time.Second
	}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		spec := podlife.ContainerSpec{Name: c.Name, Kind: podlife.Init, Policy: s.Policy, Hash: hashOf(c)}
		if s.Policy == podlife.Always {
			spec.Policy = podlife.OnFailure // an init that succeeded has done its work
		}
		if c.RestartPolicy != nil {
			spec.Policy = policyOf(corev1.RestartPolicy(*c.RestartPolicy))
			if *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
				spec.Kind = podlife.Sidecar
			}
		}
		s.Containers = append(s.Containers, spec)
	}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		spec := podlife.ContainerSpec{Name: c.Name, Kind: podlife.Main, Policy: s.Policy, Hash: hashOf(c)}
		if c.RestartPolicy != nil {
			spec.Policy = policyOf(corev1.RestartPolicy(*c.RestartPolicy))
		}
		s.Containers = append(s.Containers, spec)
	}
	for _, g := range pod.Spec.ReadinessGates {
		s.Gates = append(s.Gates, string(g.ConditionType))
	}
	return s
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
	if len(own.ContainerStatuses) == 0 && len(own.InitContainerStatuses) == 0 {
		status = pod.Status
	}
	past := map[string]podlife.Past{}
	for _, list := range [][]corev1.ContainerStatus{status.InitContainerStatuses, status.ContainerStatuses} {
		for i := range list {
			past[list[i].Name] = pastContainer(&list[i])
		}
	}
	return past
}

func pastContainer(s *corev1.ContainerStatus) podlife.Past {
	p := podlife.Past{RestartCount: uint32(max(s.RestartCount, 0))}
	p.Ran = s.ContainerID != "" && (s.State.Running != nil || s.State.Terminated != nil || s.LastTerminationState.Terminated != nil)
	ended := s.LastTerminationState.Terminated
	if s.State.Terminated != nil {
		ended = s.State.Terminated
	}
	if ended != nil {
		p.Last = &podlife.Terminated{
			ID: idOf(ended.ContainerID), ExitCode: ended.ExitCode, Reason: ended.Reason, Message: ended.Message,
			StartedAt: unit.WallOf(ended.StartedAt.Time), FinishedAt: unit.WallOf(ended.FinishedAt.Time),
		}
	}
	return p
}

func gatesOf(pod *corev1.Pod) map[string]bool {
	if len(pod.Spec.ReadinessGates) == 0 {
		return nil
	}
	open := map[string]bool{}
	for _, c := range pod.Status.Conditions {
		open[string(c.Type)] = c.Status == corev1.ConditionTrue
	}
	return open
}
