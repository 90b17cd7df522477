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

// What users are told of what fails.

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
		return // that is how volumes of drivers come and go
	}
	w.countFailure(pod, a, reason)
	w.log().Warn("action failed", "action", a.Kind.String(), "container", a.Container, "reason", reason, "err", err)
	if pod != nil && known != nil && known.event != "" {
		target := translate.ContainerReference(pod, a.Container)
		w.r.Recorder.Event(target, corev1.EventTypeWarning, known.event, known.eventText())
	}
}

// unreadAgain is how often users have the same Event of a pod that the runtime does not say the truth about (chosen).
const unreadAgain = time.Minute

// notRead records that what the runtime has of the pod could not be read, in upstream's words. A runtime that is not
// there is the node's trouble, which is NotReady then.
func (w *worker) notRead(err error) {
	w.log().Warn("what the runtime has of the pod is not known, trying again", "err", err)
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

// failure is an action's error with the words users know.
type failure struct {
	reason string // of the container that waits: ErrImagePull, CreateContainerError, ...
	event  string // reason of the Event: Failed, FailedMount, FailedCreatePodSandBox; empty: there is none
	prefix string // of the Event's text
	err    error
}

// sandboxFailed is the failure to make a sandbox.
func sandboxFailed(doing string, err error) error {
	return &failure{reason: "CreatePodSandboxError", event: "FailedCreatePodSandBox", prefix: doing, err: err}
}

// containerFailed is the failure to make or start a container.
func containerFailed(reason string, err error) error {
	return &failure{reason: reason, event: "Failed", prefix: "Error: ", err: err}
}

// Error is the runtime's own words; that they came over gRPC is said only where upstream says it, too: of pulls.
func (f *failure) Error() string {
	if said, ok := status.FromError(f.err); ok && f.reason != podlife.ReasonErrImagePull {
		return said.Message()
	}
	return f.err.Error()
}

func (f *failure) Unwrap() error { return f.err }

func (f *failure) eventText() string { return f.prefix + f.Error() }
