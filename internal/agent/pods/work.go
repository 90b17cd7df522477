package pods

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/podstatus"
	"github.com/plimsoll-dev/plimsoll/internal/agent/probe"
	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/core/resize"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
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
	view view          // what the runtime has of it
	seen time.Time     // when it was first looked at; zero: not yet. Waits for devices begin then
	up   bool          // a sandbox of it was ready since this agent is here: it waits for devices no more

	volumes volumeState
	// unmountable is what of the pod's volumes this agent cannot mount, as found when they were set up. Empty: nothing.
	unmountable string

	handler string      // the runtime's, of the sandbox read last; empty: the default, or no sandbox was read
	note    string      // what was allocated when the newest sandbox was made (noteOf); empty: nothing, or not read
	size    resize.Size // of the pod's own cgroup; unknown until it was made or read
}

// volumeState is what became of a pod's volumes, and in the end of its cgroup, since this agent is here.
type volumeState int

const (
	volumesUntouched volumeState = iota // an agent before this one may have set them up
	volumesUp                           // they were set up, or taken up as far as that was possible
	volumesReleased                     // the pod has ended for good: volumes and cgroup were taken down
)

// run is the goroutine of a worker: observe, decide, act, until there is nothing to do.
func (w *worker) run(ctx context.Context) {
	slot := &startSlot{line: w.r.starts}
	defer slot.release()
	for ctx.Err() == nil {
		wake, acted := w.sync(ctx, slot)
		if goOn := w.e.rest(w, acted, w.r.until(wake), func() { w.r.resync(w.e) }); !goOn {
			return
		}
	}
	w.e.handBack(w)
}

// until is how long a worker may rest that is to wake at an instant; zero for none.
func (r *Runner) until(wake unit.Instant) time.Duration {
	if wake.IsZero() {
		return 0
	}
	now, _ := r.now()
	return max(wake.Sub(now), time.Millisecond)
}

// sync is one round of a worker. It returns when to look again and whether it did something.
func (w *worker) sync(ctx context.Context, slot *startSlot) (wake unit.Instant, acted bool) {
	if err := w.refresh(ctx); err != nil {
		if ctx.Err() == nil {
			w.log().Warn("runtime does not answer, trying again", "err", err)
		}
		now, _ := w.r.now()
		return now.Add(time.Second), false
	}
	if w.mayStart() {
		w.admit(ctx)
	}
	w.r.judgeResizes()
	defer w.r.judgeResizes() // this sync may have made room
	pod, o, ok := w.observe()
	if !ok {
		return 0, false
	}
	if w.e.takeRetry() {
		w.life.Retry()
	}
	now, wall := w.r.now()
	d := w.life.Step(now, wall, o)
	w.releaseResources(d.Status.Phase) // before its end is reported: a pod may be sent then for what it had
	w.publish(pod, o, d)
	if len(d.Actions) == 0 {
		slot.release() // what follows may take long, and starts nothing
		w.adopt(ctx, pod, o)
		w.releaseVolumes(ctx, pod, d.Status.Phase)
		w.clearEvicted(ctx, pod)
		return d.Wake, false
	}
	w.perform(ctx, pod, o.Stop, d.Actions, slot)
	w.e.sawRuntime(w.view.summary(), w.view.readySandbox())
	return 0, true
}

func (w *worker) log() *slog.Logger { return w.r.log(w.e) }

// adopt takes up the volumes of a pod that was started by an agent before this one: their content is refreshed again.
func (w *worker) adopt(ctx context.Context, pod *corev1.Pod, o podlife.Observation) {
	if w.volumes != volumesUntouched || pod == nil || o.Stop != nil || o.Terminal != "" || len(o.Containers) == 0 {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if !w.e.arm(o.Stop, cancel) {
		return
	}
	defer w.e.disarm()
	if err := w.setUp(ctx, pod); err != nil {
		// Its containers run with what they have; the keeper goes on trying.
		w.log().Warn("volumes of a running pod not taken up", "err", err)
		w.volumes = volumesUp
	}
}

// releaseResources gives back the CPUs, memory and devices of a pod that ended for good.
func (w *worker) releaseResources(phase podlife.Phase) {
	if phase != podlife.Succeeded && phase != podlife.Failed {
		return
	}
	for _, c := range w.view.containers {
		if c.State != podlife.Exited {
			return
		}
	}
	w.r.Holdings.Release(string(w.e.uid))
	w.r.Devices.Release(string(w.e.uid))
}

// releaseVolumes takes down what a pod that ended for good no longer needs, while its object and logs stay.
func (w *worker) releaseVolumes(ctx context.Context, pod *corev1.Pod, phase podlife.Phase) {
	if w.volumes == volumesReleased || pod == nil || phase != podlife.Succeeded && phase != podlife.Failed {
		return
	}
	err := w.r.Volumes.Release(ctx, w.e.uid)
	if err == nil {
		err = w.r.Groups.Remove(ctx, w.e.uid)
	}
	if err != nil {
		w.log().Warn("volumes and cgroup of the ended pod not released yet", "err", err)
		return
	}
	w.volumes = volumesReleased
}

// trackProbes gives the probes the containers that run, so that no later result of theirs is of runs before.
func (w *worker) trackProbes(s snapshot) {
	if s.pod == nil {
		return
	}
	running := map[string]probe.Container{}
	for _, c := range w.containers(s) {
		// Upstream probes none before its postStart hook has succeeded.
		if c.State == podlife.Running && c.Hook == podlife.HookOver {
			running[c.Name] = probe.Container{ID: c.ID, StartedAt: c.StartedAt.Time()}
		}
	}
	w.r.Probes.Track(s.pod, w.address(s.pod), running, s.stop != nil)
}

// address is where the pod's containers are reached.
func (w *worker) address(pod *corev1.Pod) string {
	for _, s := range w.view.sandboxes {
		if s.State == podlife.SandboxReady && len(s.IPs) > 0 {
			return s.IPs[0]
		}
	}
	if pod.Spec.HostNetwork && len(w.r.HostIPs) > 0 {
		return w.r.HostIPs[0]
	}
	return ""
}

// observe assembles what the step may look at. ok is false when the pod must be left alone for now: no source has it as
// far as is known, and the API and the directory of manifests have not shown all of their pods yet.
func (w *worker) observe() (pod *corev1.Pod, o podlife.Observation, ok bool) {
	synced := w.r.Synced()
	w.followHooks()
	w.trackProbes(w.e.snapshot())
	w.adoptSizes()
	now, _ := w.r.now()
	if !w.e.endUnclaimed(now, synced) {
		return nil, o, false
	}
	s := w.e.snapshot()
	o = podlife.Observation{
		Stop:       s.stop,
		Sandboxes:  slices.Collect(maps.Values(w.view.sandboxes)),
		Containers: w.containers(s),
	}
	if s.pod == nil {
		return nil, o, true
	}
	pod = s.pod
	o.Spec = w.r.specOf(pod)
	o.Hold = s.hold
	o.Size = w.size
	o.Resizing = s.resizing
	o.StartTime = wallOf(cmp.Or(s.status.StartTime, pod.Status.StartTime))
	o.Terminal = translate.PodlifeTerminal(pod)
	o.Past = podstatus.Past(pod, s.status)
	o.Gates = translate.PodlifeGates(pod)
	if pod.Spec.HostNetwork {
		o.HostIPs = w.r.HostIPs
	}
	o.Probes = w.r.Probes.Results(w.e.uid)
	return pod, o, true
}

// containers are those of the view, with what is known of their hooks.
func (w *worker) containers(s snapshot) []podlife.Container {
	var all []podlife.Container
	for id, c := range w.view.containers {
		if state, hooked := s.hooks[id]; hooked {
			c.Hook = state
		}
		all = append(all, c)
	}
	return all
}

// perform does the actions in order, except that neighbouring stops go together: each may take a whole grace period.
// known is the stop order under which they were decided on.
func (w *worker) perform(
	ctx context.Context, pod *corev1.Pod, known *podlife.StopOrder, actions []podlife.Action, slot *startSlot,
) {
	for i := 0; i < len(actions); {
		n := 1
		if actions[i].Kind == podlife.StopContainer {
			for i+n < len(actions) && actions[i+n].Kind == podlife.StopContainer {
				n++
			}
		}
		if !w.performGroup(ctx, pod, known, actions[i:i+n], slot) {
			return
		}
		i += n
	}
}

// performGroup does actions at once and reports whether all succeeded. More than one are stops, which only read the
// worker.
func (w *worker) performGroup(
	ctx context.Context, pod *corev1.Pod, known *podlife.StopOrder, group []podlife.Action, slot *startSlot,
) bool {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	kind := group[0].Kind
	starts := kind == podlife.CreateSandbox || kind == podlife.StartContainer
	waits := starts || kind == podlife.StopContainer || kind == podlife.Resize
	if waits && !w.e.arm(known, cancel) { // a stop order must not wait for these
		return false
	}
	if !starts {
		slot.release() // others may start while this pod does something else
	}
	failures := make([]error, len(group))
	var running sync.WaitGroup
	for i, a := range group {
		running.Go(func() { failures[i] = w.act(ctx, pod, a, slot) })
	}
	running.Wait()
	w.e.disarm()
	ok := true
	for i, err := range failures {
		if group[i].Kind == podlife.StopContainer {
			w.e.markDirty(group[i].ID)
		}
		if err == nil {
			continue
		}
		ok = false
		if ctx.Err() != nil {
			w.e.markDirty("") // interrupted: that is no failure, but what the runtime did is not known
			continue
		}
		w.failed(pod, group[i], err)
	}
	return ok
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
	w.log().Warn("action failed", "action", a.Kind.String(), "container", a.Container, "reason", reason, "err", err)
	if pod != nil && known != nil && known.event != "" {
		target := translate.ContainerReference(pod, a.Container)
		w.r.Recorder.Event(target, corev1.EventTypeWarning, known.event, known.eventText())
	}
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
