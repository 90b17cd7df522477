// Package podstatus computes the status of a Pod object from core/podlife's decision, and the Events and counts that
// follow from a change of the status.
//
// # Model
//
// A status is computed anew in each sync of a pod's worker, from the pod, from what was observed and decided, and from
// the previous status. Only times are taken from the previous status: when the pod started, and when a condition last
// changed. So the status in the API is enough for an agent that was restarted.
//
// Each condition belongs to one writer. The statuses of this package contain the agent's conditions only. Those of
// other writers (readiness gates, the scheduler) are added by WithOthers, for readers that need them.
//
// # Invariants
//
// Every function depends on its arguments alone and changes none of them. Reasons and texts are upstream's, because
// tools read them.
//
// # What it does not do
//
// It decides nothing: phases, reasons and conditions come from core/podlife. It writes nothing: statusreport does.
// translate.PodlifePast translates in the other direction, from a status to what core/podlife reads.
package podstatus

import (
	"cmp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// Node has the inputs of a status that are the same for every pod of a node.
type Node struct {
	HostIPs  []string                                            // addresses of the node, the primary one first
	Runtime  string                                              // prefix of container ids in the API: containerd, cri-o
	QOSClass func(*corev1.Pod) corev1.PodQOSClass                // computes it for a pod whose status has none
	Devices  func(uid, container string) []corev1.ResourceStatus // the health of the devices that a container has
}

// Facts are the inputs of a pod's status other than the pod.
type Facts struct {
	Now      time.Time           // transition time of conditions that change
	Last     corev1.PodStatus    // the previous status
	Observed podlife.Observation // what the decision was made from
	Decided  podlife.Status
	Runs     map[string]Run // more about the runs of containers, by ID
	// RecursiveReadOnly means that the pod's runtime handler supports recursive read-only mounts.
	RecursiveReadOnly bool
}

// Run is what the runtime reports of a run of a container and core/podlife does not need.
type Run struct {
	Image string                // as the runtime names it; empty: not reported
	User  *corev1.ContainerUser // user of its first process; nil: not reported
}

// Status returns the pod's status.
func (n Node) Status(pod *corev1.Pod, f Facts) corev1.PodStatus {
	out := corev1.PodStatus{
		Phase:              corev1.PodPhase(f.Decided.Phase),
		Reason:             f.Decided.Reason,
		Message:            f.Decided.Message,
		QOSClass:           pod.Status.QOSClass,
		StartTime:          cmp.Or(f.Last.StartTime, pod.Status.StartTime),
		ObservedGeneration: pod.Generation,
	}
	if out.QOSClass == "" {
		out.QOSClass = n.QOSClass(pod)
	}
	ended := f.Decided.Phase == podlife.Failed || f.Decided.Phase == podlife.Succeeded
	if f.Decided.Reason == "" && ended && f.Observed.Terminal != "" {
		out.Reason = pod.Status.Reason
		out.Message = pod.Status.Message
	}
	if out.StartTime == nil {
		now := metav1.NewTime(f.Now).Rfc3339Copy()
		out.StartTime = &now
	}
	n.addAddresses(&out, f)
	for _, c := range f.Decided.Containers {
		list := &out.InitContainerStatuses
		switch c.Kind {
		case podlife.Main:
			list = &out.ContainerStatuses
		case podlife.Ephemeral:
			list = &out.EphemeralContainerStatuses
		}
		status := n.container(pod, c)
		setRun(&status, f)
		if c.Kind == podlife.Main {
			status.AllocatedResourcesStatus = n.Devices(string(pod.UID), c.Name)
		}
		*list = append(*list, status)
	}
	sortByName(out.ContainerStatuses)
	addResources(pod, &out, f.Observed)
	out.Conditions = conditions(pod, f.Now, f.Last.Conditions, f.Decided.Conditions)
	addMounts(pod, &out, f.RecursiveReadOnly)
	return out
}

// addAddresses adds the addresses of the node and of the pod. As in the kubelet, a pod that has ended keeps its
// addresses.
func (n Node) addAddresses(out *corev1.PodStatus, f Facts) {
	if len(n.HostIPs) > 0 {
		out.HostIP = n.HostIPs[0]
		for _, ip := range n.HostIPs {
			out.HostIPs = append(out.HostIPs, corev1.HostIP{IP: ip})
		}
	}
	ips := f.Decided.IPs
	if len(ips) == 0 {
		for _, ip := range f.Last.PodIPs {
			ips = append(ips, ip.IP)
		}
	}
	for _, ip := range ips {
		out.PodIPs = append(out.PodIPs, corev1.PodIP{IP: ip})
	}
	if len(ips) > 0 {
		out.PodIP = ips[0]
	}
}

func sortByName(list []corev1.ContainerStatus) {
	slices.SortFunc(list, func(a, b corev1.ContainerStatus) int { return strings.Compare(a.Name, b.Name) })
}

func (n Node) container(pod *corev1.Pod, s podlife.ContainerStatus) corev1.ContainerStatus {
	started := s.Started
	out := corev1.ContainerStatus{
		Name:         s.Name,
		Ready:        s.Ready,
		RestartCount: int32(s.RestartCount),
		ImageID:      s.ImageID,
		ContainerID:  n.url(s.ID),
		Started:      &started,
	}
	if c := translate.ContainerNamed(pod, s.Name); c != nil {
		out.Image = c.Image
	}
	switch {
	case s.Running != nil:
		out.State.Running = &corev1.ContainerStateRunning{StartedAt: timeOf(*s.Running)}
	case s.Ended != nil:
		out.State.Terminated = n.terminated(s.Ended)
	case s.Waiting != nil:
		out.State.Waiting = &corev1.ContainerStateWaiting{Reason: s.Waiting.Reason, Message: s.Waiting.Message}
	}
	if s.Last != nil {
		out.LastTerminationState.Terminated = n.terminated(s.Last)
	}
	return out
}

// setRun sets the image and the user of a run. If the runtime no longer has the container, the status keeps them.
func setRun(s *corev1.ContainerStatus, f Facts) {
	run := f.Runs[translate.ContainerID(s.ContainerID)]
	for _, list := range translate.StatusLists(&f.Last) {
		for i := range list {
			if last := &list[i]; s.ContainerID != "" && last.Name == s.Name && last.ContainerID == s.ContainerID {
				run.Image = cmp.Or(run.Image, last.Image)
				run.User = cmp.Or(run.User, last.User)
			}
		}
	}
	s.Image = cmp.Or(run.Image, s.Image)
	s.User = run.User
}

func (n Node) terminated(t *podlife.Terminated) *corev1.ContainerStateTerminated {
	return &corev1.ContainerStateTerminated{
		ExitCode:    t.ExitCode,
		Reason:      t.Reason,
		Message:     t.Message,
		ContainerID: n.url(t.ID),
		StartedAt:   timeOf(t.StartedAt),
		FinishedAt:  timeOf(t.FinishedAt),
	}
}

// timeOf translates a time for the API, which has whole seconds.
func timeOf(w unit.Wall) metav1.Time {
	if w == 0 {
		return metav1.Time{}
	}
	return metav1.NewTime(w.Time().Local()).Rfc3339Copy()
}

// url returns an ID in the API's form, containerd://ID. translate.ContainerID is its inverse.
func (n Node) url(id string) string {
	if id == "" {
		return ""
	}
	return n.Runtime + "://" + id
}

// Past returns what is known of the pod's earlier containers. It is read from own, the status that this process
// computed last, or if that is empty from the API's status.
func Past(pod *corev1.Pod, own corev1.PodStatus) map[string]podlife.Past {
	if len(own.ContainerStatuses) == 0 && len(own.InitContainerStatuses) == 0 { // no pod has only ephemeral containers
		return translate.PodlifePast(&pod.Status)
	}
	return translate.PodlifePast(&own)
}

// BoundAt returns when the pod was bound to this node: the time of its PodScheduled condition, else of its creation.
func BoundAt(pod *corev1.Pod) time.Time {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue {
			return c.LastTransitionTime.Time
		}
	}
	return pod.CreationTimestamp.Time
}
