package translate

import (
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// PodlifeSpec translates what a pod should be. What its cgroups should be set to is the agent's to add.
func PodlifeSpec(pod *corev1.Pod) podlife.Spec {
	s := podlife.Spec{Name: NameForMessages(pod), Grace: SpecGrace(pod)}
	if d := pod.Spec.ActiveDeadlineSeconds; d != nil {
		s.ActiveDeadline = time.Duration(*d) * time.Second
	}
	policy := policyOf(pod.Spec.RestartPolicy)
	add := func(c *corev1.Container, kind podlife.Kind, policy podlife.RestartPolicy) {
		if c.RestartPolicy != nil {
			policy = policyOf(corev1.RestartPolicy(*c.RestartPolicy))
		}
		if kind == podlife.Init && IsSidecar(c) {
			kind = podlife.Sidecar
		}
		s.Containers = append(s.Containers, podlife.ContainerSpec{
			Name: c.Name, Kind: kind, Policy: policy, Hash: ContainerHash(c), Image: c.Image, Fixed: FixedResources(pod, c),
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
		add(EphemeralContainer(pod, i), podlife.Ephemeral, podlife.Never)
	}
	for _, g := range pod.Spec.ReadinessGates {
		s.Gates = append(s.Gates, string(g.ConditionType))
	}
	return s
}

// EphemeralContainer is the i-th ephemeral container in the form of any other.
func EphemeralContainer(pod *corev1.Pod, i int) *corev1.Container {
	return (*corev1.Container)(&pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)
}

// NameForMessages is a pod as upstream's messages name it.
func NameForMessages(pod *corev1.Pod) string {
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

// StatusLists are the statuses of all containers.
func StatusLists(s *corev1.PodStatus) [3][]corev1.ContainerStatus {
	return [...][]corev1.ContainerStatus{s.InitContainerStatuses, s.ContainerStatuses, s.EphemeralContainerStatuses}
}

// PodlifePast collects what a status tells of containers, by name.
func PodlifePast(s *corev1.PodStatus) map[string]podlife.Past {
	past := map[string]podlife.Past{}
	for _, list := range StatusLists(s) {
		for i := range list {
			past[list[i].Name] = pastContainer(&list[i])
		}
	}
	return past
}

func pastContainer(s *corev1.ContainerStatus) podlife.Past {
	p := podlife.Past{
		ID:           ContainerID(s.ContainerID),
		ImageID:      s.ImageID,
		RestartCount: uint32(max(s.RestartCount, 0)),
		Running:      s.State.Running != nil,
		Ended:        endOf(s.State.Terminated),
		Over:         s.State.Terminated != nil,
		Last:         endOf(s.LastTerminationState.Terminated),
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
		ID: ContainerID(t.ContainerID), ExitCode: t.ExitCode, Reason: t.Reason, Message: t.Message,
		StartedAt: unit.WallOf(t.StartedAt.Time), FinishedAt: unit.WallOf(t.FinishedAt.Time),
	}
}

// PodlifeGates returns the status of every condition that may be a readiness gate.
func PodlifeGates(pod *corev1.Pod) map[string]string {
	if len(pod.Spec.ReadinessGates) == 0 {
		return nil
	}
	gates := map[string]string{}
	for _, c := range pod.Status.Conditions {
		gates[string(c.Type)] = string(c.Status)
	}
	return gates
}

// SpecGrace is what the specification asks for. Upstream's default is 30 s; negative values mean the least, 1 s.
func SpecGrace(pod *corev1.Pod) time.Duration {
	seconds := int64(corev1.DefaultTerminationGracePeriodSeconds)
	if s := pod.Spec.TerminationGracePeriodSeconds; s != nil {
		seconds = *s
	}
	if seconds < 0 {
		seconds = 1
	}
	return time.Duration(seconds) * time.Second
}

// DeletionGrace is what whoever deleted the pod asked for.
func DeletionGrace(pod *corev1.Pod) time.Duration {
	if s := pod.DeletionGracePeriodSeconds; s != nil {
		return time.Duration(max(*s, 0)) * time.Second
	}
	return SpecGrace(pod)
}

// PodlifeTerminal returns the phase that the API already holds as final; empty: none.
func PodlifeTerminal(pod *corev1.Pod) podlife.Phase {
	switch pod.Status.Phase {
	case corev1.PodSucceeded:
		return podlife.Succeeded
	case corev1.PodFailed:
		return podlife.Failed
	}
	return ""
}

// ContainerHash covers what the API lets change in a container of a running pod and what means a new container: its
// image. (Resources change in place.) FNV is enough: it tells versions of one container apart, not adversaries.
func ContainerHash(c *corev1.Container) string {
	h := fnv.New64a()
	fmt.Fprintf(h, "%q %q", c.Name, c.Image)
	return strconv.FormatUint(h.Sum64(), 16)
}

// FixedResources covers the resources of a container whose resize policy asks for a restart: they are part of what it
// is, as its image is. Empty: there are none.
func FixedResources(pod *corev1.Pod, c *corev1.Container) string {
	var parts []string
	for _, p := range c.ResizePolicy {
		if p.RestartPolicy != corev1.RestartContainer {
			continue
		}
		request, limit := c.Resources.Requests[p.ResourceName], c.Resources.Limits[p.ResourceName]
		if limit.IsZero() && pod.Spec.Resources != nil {
			limit = pod.Spec.Resources.Limits[p.ResourceName]
		}
		parts = append(parts, fmt.Sprintf("%s=%d/%d", p.ResourceName, request.MilliValue(), limit.MilliValue()))
	}
	slices.Sort(parts)
	return strings.Join(parts, " ")
}

// ContainerID is an id as the runtime knows it, of one as the API prints it: containerd://id.
func ContainerID(url string) string {
	if _, id, ok := strings.Cut(url, "://"); ok {
		return id
	}
	return url
}
