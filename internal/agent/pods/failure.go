package pods

import (
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/volume"
	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// This file records failures for users: Events, and the reasons of waiting containers.

// failed records an action's failure where users look for it.
func (w *worker) failed(pod *corev1.Pod, a podlife.Action, err error) {
	reason := "RuntimeError"
	var known *failure
	if errors.As(err, &known) {
		reason = known.reason
	}
	now, _ := w.r.now()
	w.life.Failed(now, a, reason, err.Error())
	w.e.MarkDirty("")
	if volume.OnlyWaits(err) {
		return // not a failure: volumes of CSI drivers are mounted and unmounted in the background
	}
	w.countFailure(pod, a, reason)
	w.noteFailure(pod, a, reason, err)
	w.log().Warn("action failed", "action", a.Kind.String(), "container", a.Container, "reason", reason, "err", err)
	if pod != nil && known != nil && known.event != "" {
		target := translate.ContainerReference(pod, a.Container)
		w.r.Recorder.Event(target, corev1.EventTypeWarning, known.event, known.eventText())
	}
}

// unreadAgain is the least time between two equal Events about a pod whose state in the runtime cannot be read
// (chosen).
const unreadAgain = time.Minute

// notRead records, in the kubelet's words, that the pod's state in the runtime could not be read. If the runtime does
// not answer at all, there is no Event for each pod, since the node is NotReady then.
func (w *worker) notRead(err error) {
	w.log().Warn("the pod's state in the runtime could not be read; trying again", "err", err)
	pod, text := w.e.Object(), err.Error()
	if pod == nil || status.Code(err) == codes.Unavailable {
		return
	}
	if text == w.unread && time.Since(w.unreadSaid) < unreadAgain {
		return
	}
	w.unread = text
	w.unreadSaid = time.Now()
	w.r.event(pod, "", corev1.EventTypeWarning, "FailedSync", "error determining status: "+text)
}

// failure is an action's error with the reason and the Event that Kubernetes users know.
type failure struct {
	reason string // of the container that waits: ErrImagePull, CreateContainerError, ...
	event  string // reason of the Event: Failed, FailedMount, FailedCreatePodSandBox; empty: no Event
	prefix string // of the Event's text
	err    error
}

// sandboxFailed returns the failure to create a sandbox.
func sandboxFailed(doing string, err error) error {
	return &failure{reason: "CreatePodSandboxError", event: "FailedCreatePodSandBox", prefix: doing, err: err}
}

// containerFailed returns the failure to create or start a container.
func containerFailed(reason string, err error) error {
	return &failure{reason: reason, event: "Failed", prefix: "Error: ", err: err}
}

// Error returns the runtime's message. As in the kubelet, only failures of pulls include the text that gRPC adds.
func (f *failure) Error() string {
	if said, ok := status.FromError(f.err); ok && f.reason != podlife.ReasonErrImagePull {
		return said.Message()
	}
	return f.err.Error()
}

func (f *failure) Unwrap() error { return f.err }

func (f *failure) eventText() string { return f.prefix + f.Error() }
