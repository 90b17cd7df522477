package podstatus

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// Event is an Event to record about the pod.
type Event struct {
	Container string // which of the pod's containers it is about; empty: the pod
	Kind      string // corev1.EventTypeNormal or EventTypeWarning
	Reason    string
	Text      string
}

// imageTrouble are the reasons of waits for an image for which the kubelet records an Event when they begin.
var imageTrouble = map[string]bool{
	podlife.ReasonErrImagePull:      true,
	podlife.ReasonImagePullBackOff:  true,
	podlife.ReasonErrImageNeverPull: true,
	podlife.ReasonInvalidImageName:  true,
	podlife.ReasonImageInspectError: true,
}

// Events returns the Events about changes of the status that no action causes: a container began to wait for its next
// try, or the pod exceeded its active deadline. The kubelet repeats them in every sync; here each is recorded once.
func Events(pod *corev1.Pod, before, after corev1.PodStatus) (events []Event) {
	add := func(container, kind, reason, text string) {
		events = append(events, Event{Container: container, Kind: kind, Reason: reason, Text: text})
	}
	if after.Reason == podlife.ReasonDeadlineExceeded && before.Reason != after.Reason {
		add("", corev1.EventTypeNormal, after.Reason, after.Message)
	}
	if c := Condition(after, corev1.PodResizeInProgress); c != nil && c.Reason == corev1.PodReasonError {
		was := Condition(before, corev1.PodResizeInProgress)
		if was == nil || was.Reason != c.Reason || was.Message != c.Message {
			text := ResizeText("Pod resize error", pod, c.ObservedGeneration, c.Message)
			add("", corev1.EventTypeWarning, "ResizeError", text)
		}
	}
	had, has := waits(before), waits(after)
	for _, c := range containers(after) {
		if has[c.Name] == "" || has[c.Name] == had[c.Name] {
			continue
		}
		switch c.State.Waiting.Reason {
		case podlife.ReasonCrashLoopBackOff:
			text := fmt.Sprintf("Back-off restarting failed container %s in pod %s", c.Name, translate.NameForMessages(pod))
			add(c.Name, corev1.EventTypeWarning, "BackOff", text)
		case podlife.ReasonImagePullBackOff:
			image := c.Image
			if spec := translate.ContainerNamed(pod, c.Name); spec != nil {
				image = spec.Image // the status may name the image of the previous run
			}
			add(c.Name, corev1.EventTypeNormal, "BackOff", fmt.Sprintf("Back-off pulling image %q", image))
		}
		if imageTrouble[c.State.Waiting.Reason] {
			add(c.Name, corev1.EventTypeWarning, "Failed", "Error: "+c.State.Waiting.Reason)
		}
	}
	return events
}

// waits returns what each waiting container waits for, and in which run, by its name.
func waits(s corev1.PodStatus) map[string]string {
	reasons := map[string]string{}
	for _, c := range containers(s) {
		if c.State.Waiting != nil {
			reasons[c.Name] = fmt.Sprint(c.State.Waiting.Reason, c.RestartCount)
		}
	}
	return reasons
}

func containers(s corev1.PodStatus) []corev1.ContainerStatus {
	return slices.Concat(s.InitContainerStatuses, s.ContainerStatuses, s.EphemeralContainerStatuses)
}

// Kinds of containers, as upstream's metrics spell them.
const (
	InitContainer      = "init_container"
	Container          = "container"
	EphemeralContainer = "ephemeral_container"
)

// End is the end of one run of a container.
type End struct {
	Kind   string // InitContainer, Container or EphemeralContainer
	Code   int32  // exit code
	Reason string
	// Of is the status of the container, State what it says about the end, and Run which run ended; 1 is the first.
	Of    *corev1.ContainerStatus
	State *corev1.ContainerStateTerminated
	Run   int
}

// Ends returns the ends of containers that a status shows and the previous status does not.
func Ends(before, after corev1.PodStatus) (ends []End) {
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
	kinds := [...]string{InitContainer, Container, EphemeralContainer} // as StatusLists has the lists
	for k, list := range translate.StatusLists(&after) {
		for i := range list {
			end := cmp.Or(list[i].State.Terminated, list[i].LastTerminationState.Terminated)
			if end != nil && !known[end.ContainerID] {
				run := int(list[i].RestartCount)
				if list[i].State.Running == nil { // the next run has not begun
					run++
				}
				ends = append(ends, End{
					Kind:   kinds[k],
					Code:   end.ExitCode,
					Reason: end.Reason,
					Of:     &list[i],
					State:  end,
					Run:    run,
				})
			}
		}
	}
	return ends
}
