package translate

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube/kubelethash"
)

// PodlifeSpec translates the desired state of a pod. The agent adds the desired values of its cgroups.
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
			Name: c.Name, Kind: kind, Policy: policy, Rules: exitRules(c), Hash: kubelethash.Container(c), Image: c.Image,
			Fixed:     FixedResources(pod, c),
			PostStart: c.Lifecycle != nil && c.Lifecycle.PostStart != nil,
			PreStop:   c.Lifecycle != nil && c.Lifecycle.PreStop != nil,
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

// EphemeralContainer returns the i-th ephemeral container as a Container.
func EphemeralContainer(pod *corev1.Pod, i int) *corev1.Container {
	return (*corev1.Container)(&pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)
}

// ContainerNamed returns the pod's container of that name, of whatever kind; nil: it has none, or pod is nil.
func ContainerNamed(pod *corev1.Pod, name string) *corev1.Container {
	if pod == nil {
		return nil
	}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		if pod.Spec.EphemeralContainers[i].Name == name {
			return EphemeralContainer(pod, i)
		}
	}
	return nil
}

// ContainerReference returns the reference for an Event about a container of the pod; an empty name stands for the pod.
func ContainerReference(pod *corev1.Pod, container string) *corev1.ObjectReference {
	ref := &corev1.ObjectReference{
		Kind:            "Pod",
		APIVersion:      "v1",
		Namespace:       pod.Namespace,
		Name:            pod.Name,
		UID:             pod.UID,
		ResourceVersion: pod.ResourceVersion,
	}
	if container == "" {
		return ref
	}
	ref.FieldPath = "spec.containers{" + container + "}"
	for i := range pod.Spec.InitContainers {
		if pod.Spec.InitContainers[i].Name == container {
			ref.FieldPath = "spec.initContainers{" + container + "}"
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		if pod.Spec.EphemeralContainers[i].Name == container {
			ref.FieldPath = "spec.ephemeralContainers{" + container + "}"
		}
	}
	return ref
}

// NameForMessages returns a pod's name in the form of upstream's messages.
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

// exitRules returns the restart rules of a container. A rule without exit codes, or with an unknown operator, matches
// nothing, as upstream.
func exitRules(c *corev1.Container) []podlife.ExitRule {
	var out []podlife.ExitRule
	for _, rule := range c.RestartPolicyRules {
		if rule.ExitCodes == nil {
			continue
		}
		all := rule.Action == corev1.ContainerRestartRuleActionRestartAllContainers
		r := podlife.ExitRule{Codes: rule.ExitCodes.Values, All: all}
		switch rule.ExitCodes.Operator {
		case corev1.ContainerRestartRuleOnExitCodesOpIn:
		case corev1.ContainerRestartRuleOnExitCodesOpNotIn:
			r.Except = true
		default:
			continue
		}
		out = append(out, r)
	}
	return out
}

// StatusLists returns the statuses of all containers.
func StatusLists(s *corev1.PodStatus) [3][]corev1.ContainerStatus {
	return [...][]corev1.ContainerStatus{s.InitContainerStatuses, s.ContainerStatuses, s.EphemeralContainerStatuses}
}

// PodlifePast returns what a status says about containers, by name.
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
		p.Ended, p.Last = p.Last, nil // waiting to restart: the last end is that of the run whose id the status has
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

// SpecGrace returns the termination grace period of the specification. Upstream's default is 30 s; a negative value
// means the least, 1 s.
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

// DeletionGrace returns the termination grace period that the deletion of the pod requested.
func DeletionGrace(pod *corev1.Pod) time.Duration {
	if s := pod.DeletionGracePeriodSeconds; s != nil {
		return time.Duration(max(*s, 0)) * time.Second
	}
	return SpecGrace(pod)
}

// PodlifeTerminal returns the phase that is already final in the API; empty: none.
func PodlifeTerminal(pod *corev1.Pod) podlife.Phase {
	switch pod.Status.Phase {
	case corev1.PodSucceeded:
		return podlife.Succeeded
	case corev1.PodFailed:
		return podlife.Failed
	}
	return ""
}

// FixedResources returns, as text, the resources of a container whose resize policy is to restart it. A change of them
// requires a new container, as a change of the image does. Empty: there are none.
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

// ContainerID returns the runtime's id of a container, from the API's form containerd://id.
func ContainerID(url string) string {
	if _, id, ok := strings.Cut(url, "://"); ok {
		return id
	}
	return url
}

// StatusNamed returns the status of the container of that name; nil: the pod has none.
func StatusNamed(pod *corev1.Pod, name string) *corev1.ContainerStatus {
	for _, list := range StatusLists(&pod.Status) {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}
