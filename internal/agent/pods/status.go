package pods

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// publish turns a decision's status into the API's form, keeps it and has it reported if it changed.
func (r *Runner) publish(e *entry, pod *corev1.Pod, o podlife.Observation, d podlife.Decision) {
	if pod == nil {
		return
	}
	readOnly := r.canReadOnly(e.handler)
	e.mu.Lock()
	last := e.status
	if last.Phase == "" {
		last = pod.Status
	}
	status := r.statusOf(pod, last, o, d.Status)
	reportMounts(pod, &status, readOnly)
	completed := e.resized(o, d.Status)
	unchanged := e.status.Phase != "" && equality.Semantic.DeepEqual(e.status, status)
	e.status = status
	first := status.Phase == corev1.PodRunning && !e.reported && pod.Status.Phase == corev1.PodPending
	e.reported = e.reported || status.Phase == corev1.PodRunning
	e.mu.Unlock()
	if first {
		r.Metrics.PodStart.Observe(time.Since(boundAt(pod)).Seconds())
		r.Metrics.PodStartTotal.Observe(time.Since(pod.CreationTimestamp.Time).Seconds())
		r.Metrics.StartedPods.Inc()
	}
	if completed != 0 {
		r.log(e).Info("resize completed", "generation", completed)
		r.event(pod, "", corev1.EventTypeNormal, "ResizeCompleted", resizeText("Pod resize completed", pod, completed, ""))
	}
	if !unchanged {
		r.announce(pod, last, status)
		r.countEnds(last, status)
		r.report.enqueue(e)
	} else {
		r.report.recheck(e)
	}
}

// countEnds counts the ends of containers that a status tells and the one before it does not.
func (r *Runner) countEnds(before, after corev1.PodStatus) {
	known := map[string]bool{"": true} // by container id
	for _, list := range translate.StatusLists(&before) {
		for i := range list {
			for _, state := range []corev1.ContainerState{list[i].State, list[i].LastTerminationState} {
				if state.Terminated != nil {
					known[state.Terminated.ContainerID] = true
				}
			}
		}
	}
	for k, list := range translate.StatusLists(&after) {
		for i := range list {
			end := cmp.Or(list[i].State.Terminated, list[i].LastTerminationState.Terminated)
			if end != nil && !known[end.ContainerID] {
				kind := [...]string{"init_container", "container", "ephemeral_container"}[k]
				r.Metrics.TerminatedContainers.WithLabelValues(kind, strconv.Itoa(int(end.ExitCode)), end.Reason).Inc()
			}
		}
	}
}

// imageTrouble are the waits for an image whose beginning upstream tells in an event of its own.
var imageTrouble = map[string]bool{"ErrImagePull": true, "ImagePullBackOff": true, "ErrImageNeverPull": true, "InvalidImageName": true, "ImageInspectError": true}

// announce tells users of what a status shows that no action did: that a wait for the next try has begun, and that time
// is up. Reasons and texts are upstream's; upstream repeats them with every look at the pod, we say them once.
func (r *Runner) announce(pod *corev1.Pod, before, after corev1.PodStatus) {
	if after.Reason == "DeadlineExceeded" && before.Reason != after.Reason {
		r.event(pod, "", corev1.EventTypeNormal, after.Reason, after.Message)
	}
	if c := conditionNamed(after, corev1.PodResizeInProgress); c != nil && c.Reason == corev1.PodReasonError {
		if was := conditionNamed(before, corev1.PodResizeInProgress); was == nil || was.Reason != c.Reason || was.Message != c.Message {
			r.event(pod, "", corev1.EventTypeWarning, "ResizeError", resizeText("Pod resize error", pod, c.ObservedGeneration, c.Message))
		}
	}
	waits := func(s corev1.PodStatus) map[string]string {
		reasons := map[string]string{}
		for _, c := range slices.Concat(s.InitContainerStatuses, s.ContainerStatuses, s.EphemeralContainerStatuses) {
			if c.State.Waiting != nil {
				reasons[c.Name] = fmt.Sprint(c.State.Waiting.Reason, c.RestartCount)
			}
		}
		return reasons
	}
	had, has := waits(before), waits(after)
	for _, c := range slices.Concat(after.InitContainerStatuses, after.ContainerStatuses, after.EphemeralContainerStatuses) {
		if has[c.Name] == "" || has[c.Name] == had[c.Name] {
			continue
		}
		switch c.State.Waiting.Reason {
		case "CrashLoopBackOff":
			text := fmt.Sprintf("Back-off restarting failed container %s in pod %s", c.Name, translate.NameForMessages(pod))
			r.event(pod, c.Name, corev1.EventTypeWarning, "BackOff", text)
		case "ImagePullBackOff":
			r.event(pod, c.Name, corev1.EventTypeNormal, "BackOff", fmt.Sprintf("Back-off pulling image %q", c.Image))
		}
		if imageTrouble[c.State.Waiting.Reason] {
			r.event(pod, c.Name, corev1.EventTypeWarning, "Failed", "Error: "+c.State.Waiting.Reason)
		}
	}
}

func conditionNamed(s corev1.PodStatus, t corev1.PodConditionType) *corev1.PodCondition {
	for i := range s.Conditions {
		if s.Conditions[i].Type == t {
			return &s.Conditions[i]
		}
	}
	return nil
}

// boundAt is when the pod came to this node: its PodScheduled condition, else its creation.
func boundAt(pod *corev1.Pod) time.Time {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue {
			return c.LastTransitionTime.Time
		}
	}
	return pod.CreationTimestamp.Time
}

// statusOf translates a status; last is the one before it, from which times that did not change are kept.
func (r *Runner) statusOf(pod *corev1.Pod, last corev1.PodStatus, o podlife.Observation, s podlife.Status) corev1.PodStatus {
	out := corev1.PodStatus{
		Phase: corev1.PodPhase(s.Phase), Reason: s.Reason, Message: s.Message,
		QOSClass: pod.Status.QOSClass, StartTime: cmp.Or(last.StartTime, pod.Status.StartTime),
		NominatedNodeName: "", ObservedGeneration: pod.Generation,
	}
	if out.QOSClass == "" {
		out.QOSClass = r.QOSClass(pod)
	}
	if s.Reason == "" && (s.Phase == podlife.Failed || s.Phase == podlife.Succeeded) && o.Terminal != "" {
		out.Reason, out.Message = pod.Status.Reason, pod.Status.Message
	}
	if out.StartTime == nil {
		now := metav1.Now().Rfc3339Copy()
		out.StartTime = &now
	}
	if len(r.HostIPs) > 0 {
		out.HostIP = r.HostIPs[0]
		for _, ip := range r.HostIPs {
			out.HostIPs = append(out.HostIPs, corev1.HostIP{IP: ip})
		}
	}
	ips := s.IPs
	if len(ips) == 0 && len(last.PodIPs) > 0 { // a pod that ended keeps the addresses it had, as upstream reports it
		for _, ip := range last.PodIPs {
			ips = append(ips, ip.IP)
		}
	}
	for _, ip := range ips {
		out.PodIPs = append(out.PodIPs, corev1.PodIP{IP: ip})
	}
	if len(ips) > 0 {
		out.PodIP = ips[0]
	}
	for _, c := range s.Containers {
		list := &out.InitContainerStatuses
		switch c.Kind {
		case podlife.Main:
			list = &out.ContainerStatuses
		case podlife.Ephemeral:
			list = &out.EphemeralContainerStatuses
		}
		status := r.containerStatusOf(pod, c)
		if c.Kind == podlife.Main {
			status.AllocatedResourcesStatus = r.Devices.Status(string(pod.UID), c.Name)
		}
		*list = append(*list, status)
	}
	sortByName(out.ContainerStatuses)
	reportResources(pod, &out, o)
	out.Conditions = conditionsOf(pod, last.Conditions, s.Conditions)
	return out
}

func sortByName(list []corev1.ContainerStatus) {
	slices.SortFunc(list, func(a, b corev1.ContainerStatus) int { return strings.Compare(a.Name, b.Name) })
}

// comesAndGoes are the conditions of ours that are there only while they are true.
var comesAndGoes = map[corev1.PodConditionType]bool{corev1.PodResizePending: true, corev1.PodResizeInProgress: true}

// conditionsOf are the conditions that this node reports, with the transition times of those that did not change.
func conditionsOf(pod *corev1.Pod, last []corev1.PodCondition, ours []podlife.Condition) []corev1.PodCondition {
	var out []corev1.PodCondition
	find := func(list []corev1.PodCondition, t corev1.PodConditionType) *corev1.PodCondition {
		i := slices.IndexFunc(list, func(c corev1.PodCondition) bool { return c.Type == t })
		if i < 0 {
			return nil
		}
		return &list[i]
	}
	for _, c := range ours {
		n := corev1.PodCondition{
			Type: corev1.PodConditionType(c.Type), Status: corev1.ConditionFalse, Reason: c.Reason, Message: c.Message,
			LastTransitionTime: metav1.Now().Rfc3339Copy(), ObservedGeneration: pod.Generation,
		}
		if c.True {
			n.Status = corev1.ConditionTrue
		}
		if c.Generation != 0 {
			n.ObservedGeneration = c.Generation
		}
		if old := find(last, n.Type); old != nil && old.Status == n.Status && (!comesAndGoes[n.Type] || old.Reason == n.Reason) {
			n.LastTransitionTime = old.LastTransitionTime
		}
		if n.Type == corev1.PodScheduled {
			if theirs := find(pod.Status.Conditions, n.Type); theirs != nil && theirs.Status == corev1.ConditionTrue {
				n = *theirs // the scheduler's
				n.ObservedGeneration = pod.Generation
			}
		}
		out = append(out, n)
	}
	return out
}

// withOthers adds to the conditions of ours those that others own.
func withOthers(ours, all []corev1.PodCondition) []corev1.PodCondition {
	out := slices.Clone(ours)
	for _, c := range all {
		if !comesAndGoes[c.Type] && !slices.ContainsFunc(ours, func(o corev1.PodCondition) bool { return o.Type == c.Type }) {
			out = append(out, c)
		}
	}
	return out
}

func (r *Runner) containerStatusOf(pod *corev1.Pod, s podlife.ContainerStatus) corev1.ContainerStatus {
	started := s.Started
	out := corev1.ContainerStatus{
		Name: s.Name, Ready: s.Ready, RestartCount: int32(s.RestartCount), ImageID: s.ImageID,
		ContainerID: r.urlOf(s.ID), Started: &started,
	}
	if c := containerNamed(pod, s.Name); c != nil {
		out.Image = c.Image
	}
	switch {
	case s.Running != nil:
		out.State.Running = &corev1.ContainerStateRunning{StartedAt: timeOf(*s.Running)}
	case s.Ended != nil:
		out.State.Terminated = r.terminatedOf(s.Ended)
	case s.Waiting != nil:
		out.State.Waiting = &corev1.ContainerStateWaiting{Reason: s.Waiting.Reason, Message: s.Waiting.Message}
	}
	if s.Last != nil {
		out.LastTerminationState.Terminated = r.terminatedOf(s.Last)
	}
	return out
}

func (r *Runner) terminatedOf(t *podlife.Terminated) *corev1.ContainerStateTerminated {
	return &corev1.ContainerStateTerminated{
		ExitCode: t.ExitCode, Reason: t.Reason, Message: t.Message, ContainerID: r.urlOf(t.ID),
		StartedAt: timeOf(t.StartedAt), FinishedAt: timeOf(t.FinishedAt),
	}
}

// timeOf has the API's resolution: whole seconds.
func timeOf(w unit.Wall) metav1.Time {
	if w == 0 {
		return metav1.Time{}
	}
	return metav1.NewTime(w.Time().Local()).Rfc3339Copy()
}

// urlOf prints an id as the API does, containerd://id; translate.ContainerID takes it back.
func (r *Runner) urlOf(id string) string {
	if id == "" {
		return ""
	}
	return r.RuntimeName + "://" + id
}
