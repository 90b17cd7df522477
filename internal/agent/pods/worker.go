package pods

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/agent/podview"
	"github.com/plimsoll-dev/plimsoll/internal/agent/statusreport"
	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/core/resize"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// worker is what only the goroutine has that works for a pod. Its entry keeps it while there is nothing to do, and
// hands it to one goroutine at a time (entry.wake, entry.rest), so nothing in it needs a lock. While that goroutine
// waits for the actions that it performs, theirs have it: one that may write, or several that only read. What other
// goroutines may ask or change is in the entry.
type worker struct {
	r *Runner // what all workers share; never changes
	e *entry  // never changes

	life *podlife.Life // what core/podlife remembers of the pod between two steps
	view *podview.View // what the runtime has of it
	seen time.Time     // when it was first looked at; zero: not yet. Waits for devices begin then
	up   bool          // a sandbox of it was ready since this agent is here: it waits for devices no more

	measured measured // of what it did, for metrics

	unread     string    // why the runtime could not be read of which users had an Event last; empty: it was read since
	unreadSaid time.Time // when they had it

	volumes volumeState
	// unmountable is what of the pod's volumes this agent cannot mount, as found when they were set up. Empty: nothing.
	unmountable string
	refused     string // the reason of that, if a signer refused a certificate; empty: reasonField

	size resize.Size // of the pod's own cgroup; unknown until it was made or read
}

// attach makes w a worker of r.
func (w *worker) attach(r *Runner) {
	w.r = r
	w.view.From = podview.Sources{Runtime: r.Runtime, OOM: r.oom, Exits: r.exits, LogDir: r.LogDir}
	w.view.Exited = func(id string) {
		w.e.exited(id)
		r.resync(w.e)
	}
}

// volumeState is what became of a pod's volumes, and in the end of its cgroup, since this agent is here.
type volumeState int

const (
	volumesUntouched volumeState = iota // an agent before this one may have set them up
	volumesUp                           // they were set up, or taken up as far as that was possible
	volumesReleased                     // the pod has ended for good: volumes and cgroup were taken down
)

func newEntry(uid types.UID, backoffMax time.Duration) *entry {
	e := &entry{uid: uid, hooks: map[string]*hookRun{}, preStops: map[string]*preStopRun{}, exits: map[string]func(){}}
	e.report = statusreport.NewPod(uid, e.toReport)
	e.handBack(&worker{e: e, life: podlife.New(backoffMax), view: podview.New(uid, e.name)})
	return e
}

// newEntry is a pod that nothing is known of yet.
func (r *Runner) newEntry(uid types.UID) *entry {
	e := newEntry(uid, r.BackoffMax)
	w := e.wake()
	w.attach(r)
	w.measured.known = time.Now()
	e.handBack(w)
	return e
}

func (w *worker) log() *slog.Logger { return w.r.log(w.e) }

// address is where the pod's containers are reached.
func (w *worker) address(pod *corev1.Pod) string {
	for _, s := range w.view.Sandboxes {
		if s.State == podlife.SandboxReady && len(s.IPs) > 0 {
			return s.IPs[0]
		}
	}
	if pod.Spec.HostNetwork && len(w.r.HostIPs) > 0 {
		return w.r.HostIPs[0]
	}
	return ""
}

// failed records an action's failure where users look for it.
func (w *worker) failed(pod *corev1.Pod, a podlife.Action, err error) {
	reason := "RuntimeError"
	var known *failure
	if errors.As(err, &known) {
		reason = known.reason
	}
	now, _ := w.r.now()
	w.life.Failed(now, a, reason, err.Error())
	w.e.markDirty("")
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
	pod, text := w.e.object(), err.Error()
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
	if said, ok := status.FromError(f.err); ok && f.reason != "ErrImagePull" {
		return said.Message()
	}
	return f.err.Error()
}

func (f *failure) Unwrap() error { return f.err }

func (f *failure) eventText() string { return f.prefix + f.Error() }

// limited makes a call that must end in time.
func limited(ctx context.Context, limit time.Duration, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return call(ctx)
}

func gone(err error) bool { return status.Code(err) == codes.NotFound }
