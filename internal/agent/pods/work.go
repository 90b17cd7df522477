package pods

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/podstatus"
	"github.com/plimsoll-dev/plimsoll/internal/agent/probe"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// work is the worker of one pod: observe, decide, act, until there is nothing to do.
func (r *Runner) work(ctx context.Context, e *entry) {
	slot := &startSlot{line: r.starts}
	defer slot.release()
	for ctx.Err() == nil {
		wake, acted := r.pass(ctx, e, slot)
		e.mu.Lock()
		if e.forgotten {
			e.busy = false
			e.mu.Unlock()
			return
		}
		if acted || e.again {
			e.again = false
			e.mu.Unlock()
			continue
		}
		e.busy = false
		r.sleepUntil(e, wake)
		e.mu.Unlock()
		return
	}
	e.mu.Lock()
	e.busy = false
	e.mu.Unlock()
}

// sleepUntil arms the entry's timer. Caller holds e.mu.
func (r *Runner) sleepUntil(e *entry, wake unit.Instant) {
	if e.timer != nil {
		e.timer.Stop()
		e.timer = nil
	}
	if wake.IsZero() {
		return
	}
	now, _ := r.now()
	e.timer = time.AfterFunc(max(wake.Sub(now), time.Millisecond), func() { r.kick(e) })
}

// pass is one round of a worker. It returns when to look again and whether it did something.
func (r *Runner) pass(ctx context.Context, e *entry, slot *startSlot) (wake unit.Instant, acted bool) {
	if err := r.refresh(ctx, e); err != nil {
		if ctx.Err() == nil {
			r.log(e).Warn("runtime does not answer, trying again", "err", err)
		}
		now, _ := r.now()
		return now.Add(time.Second), false
	}
	if r.mayStart(e) {
		r.admit(ctx, e)
	}
	r.settle()
	defer r.settle() // this pass may have made room
	pod, o, ok := r.observe(e)
	if !ok {
		return 0, false
	}
	if e.takeRetry() {
		e.life.Retry()
	}
	now, wall := r.now()
	d := e.life.Step(now, wall, o)
	r.letGo(e, d.Status.Phase) // before anybody hears that the pod has ended, and sends another for what it had
	r.publish(e, pod, o, d)
	if len(d.Actions) == 0 {
		slot.release() // what follows may take long, and starts nothing
		r.adopt(ctx, e, pod, o)
		r.release(ctx, e, pod, d.Status.Phase)
		r.clearEvicted(ctx, e, pod)
		return d.Wake, false
	}
	r.perform(ctx, e, pod, o.Stop, d.Actions, slot)
	r.noteView(e)
	return 0, true
}

// adopt takes up the volumes of a pod that was started by an agent before this one: their content is refreshed again.
func (r *Runner) adopt(ctx context.Context, e *entry, pod *corev1.Pod, o podlife.Observation) {
	if e.prepared || pod == nil || o.Stop != nil || o.Terminal != "" || len(o.Containers) == 0 {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if !e.arm(o.Stop, cancel) {
		return
	}
	defer e.disarm()
	if err := r.setUp(ctx, e, pod); err != nil {
		// Its containers run with what they have; the keeper goes on trying.
		r.log(e).Warn("volumes of a running pod not taken up", "err", err)
		e.prepared = true
	}
}

// letGo gives back the CPUs, memory and devices of a pod that ended for good.
func (r *Runner) letGo(e *entry, phase podlife.Phase) {
	if phase != podlife.Succeeded && phase != podlife.Failed {
		return
	}
	for _, c := range e.view.containers {
		if c.State != podlife.Exited {
			return
		}
	}
	r.Holdings.Release(string(e.uid))
	r.Devices.Release(string(e.uid))
}

// release gives back what a pod that ended for good no longer needs, while its object and logs stay.
func (r *Runner) release(ctx context.Context, e *entry, pod *corev1.Pod, phase podlife.Phase) {
	if e.released || pod == nil || phase != podlife.Succeeded && phase != podlife.Failed {
		return
	}
	err := r.Volumes.Release(ctx, e.uid)
	if err == nil {
		err = r.Groups.Remove(ctx, e.uid)
	}
	if err != nil {
		r.log(e).Warn("what the ended pod held was not released yet", "err", err)
		return
	}
	e.released = true
}

// noteView makes what the worker knows of the runtime visible to the rest of the agent.
func (r *Runner) noteView(e *entry) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.summary = e.view.summary()
	e.sandboxID = ""
	newest := int64(-1)
	for id, s := range e.view.sandboxes {
		if int64(s.Attempt) > newest && s.State == podlife.SandboxReady {
			e.sandboxID, newest = id, int64(s.Attempt)
		}
	}
}

// track tells the probes which containers run, so that what they then say of them is not of runs before.
func (r *Runner) track(e *entry) {
	e.mu.Lock()
	pod, stopping, containers := e.pod, e.stop != nil, e.containersIn()
	e.mu.Unlock()
	if pod == nil {
		return
	}
	running := map[string]probe.Container{}
	for _, c := range containers {
		// Upstream probes none before its postStart hook has succeeded.
		if c.State == podlife.Running && c.Hook == podlife.HookOver {
			running[c.Name] = probe.Container{ID: c.ID, StartedAt: c.StartedAt.Time()}
		}
	}
	r.Probes.Track(pod, r.addressOf(e, pod), running, stopping)
}

// addressOf is where the pod's containers are reached.
func (r *Runner) addressOf(e *entry, pod *corev1.Pod) string {
	for _, s := range e.view.sandboxes {
		if s.State == podlife.SandboxReady && len(s.IPs) > 0 {
			return s.IPs[0]
		}
	}
	if pod.Spec.HostNetwork && len(r.HostIPs) > 0 {
		return r.HostIPs[0]
	}
	return ""
}

// observe assembles what the step may look at. ok is false when the pod must be left alone for now: nobody asks for it
// as far as we heard, and we have not heard the whole of the API and of the directory of manifests yet.
func (r *Runner) observe(e *entry) (pod *corev1.Pod, o podlife.Observation, ok bool) {
	synced := r.Synced()
	r.followHooks(e, e.object())
	r.track(e)
	r.adoptSizes(e)
	e.mu.Lock()
	defer e.mu.Unlock()
	pod = e.pod
	if pod == nil && !e.gone && !synced {
		return nil, o, false
	}
	if pod == nil && e.stop == nil {
		now, _ := r.now()
		e.orderStop(now, e.fallback.grace, podlife.StopOrder{Remove: true})
	}
	o = podlife.Observation{
		Stop:       e.stop,
		Sandboxes:  slices.Collect(maps.Values(e.view.sandboxes)),
		Containers: e.containersIn(),
	}
	if pod == nil {
		return nil, o, true
	}
	o.Spec = r.specOf(pod)
	o.Hold = e.hold
	o.Size = e.size
	o.Resizing = podlife.Resizing{Generation: e.resizing, Pending: e.pending}
	o.StartTime = wallOf(cmp.Or(e.status.StartTime, pod.Status.StartTime))
	o.Terminal = translate.PodlifeTerminal(pod)
	o.Past = podstatus.Past(pod, e.status)
	o.Gates = translate.PodlifeGates(pod)
	if pod.Spec.HostNetwork {
		o.HostIPs = r.HostIPs
	}
	o.Probes = r.Probes.Results(e.uid)
	return pod, o, true
}

// admit asks for the node's last word, once, unless the pod is ending or already runs here.
func (r *Runner) admit(ctx context.Context, e *entry) {
	defer r.turns.leave(e)
	e.mu.Lock()
	if e.stop != nil && e.granted == nil && !e.static && e.pod != nil && len(e.view.sandboxes) > 0 {
		e.resume(e.desired) // it ends, and holds until then what an agent before this one granted it
	}
	pod, asked := e.pod, e.admitted || e.stop != nil
	e.mu.Unlock()
	if asked || pod == nil || translate.PodlifeTerminal(pod) != "" {
		return
	}
	if len(e.view.sandboxes) == 0 {
		r.turns.await(e)
	}
	if rejected := r.letIn(ctx, e, pod); rejected != nil {
		if w := r.mayWait(e, *rejected); time.Now().Before(w.until) {
			r.holdUp(e, pod, w)
		} else {
			r.refuse(e, pod, *rejected)
		}
		return
	}
	for _, c := range e.view.containers {
		if containerNamed(pod, c.Name) != nil && !isInit(pod, c.Name) {
			r.Holdings.Finish(string(e.uid)) // an agent before us started it
		}
	}
	e.mu.Lock()
	e.admitted = true
	if !e.static {
		e.resume(pod)
	}
	e.mu.Unlock()
}

// letIn lets a pod of which nothing is here in, or one that has lost what it had. Admissions go one at a time, as pods
// came: each sees the pods that the ones before let in. What device plugins say and do about a pod is waited for by
// this pod alone: it holds nothing while one thinks, and is admitted beside the pods that are here by then.
func (r *Runner) letIn(ctx context.Context, e *entry, pod *corev1.Pod) *Rejection {
	asked := e.recovered(pod).in(pod)
	for range consultationsMax {
		rejected, anew := r.admitBeside(e, asked)
		switch {
		case !anew:
			return nil
		case rejected == nil:
			return r.waitFor(ctx, e, asked, r.Admission.Give)
		case !rejected.Asks:
			return rejected
		}
		if rejected := r.waitFor(ctx, e, asked, r.Admission.Consult); rejected != nil || e.stopping() {
			return rejected
		}
	}
	return &Rejection{
		Reason:  numa.UnexpectedAdmission,
		Message: fmt.Sprintf("device plugins were asked %d times without an end", consultationsMax), Later: true,
	}
}

// consultationsMax bounds how often plugins are asked before a pod is let in: once for each resource of each container,
// while what is free changes (chosen: more than any pod has of both).
const consultationsMax = 1000

// admitBeside lets a pod in beside those that are here. anew is false for one that was let in by an agent before this.
func (r *Runner) admitBeside(e *entry, asked *corev1.Pod) (rejected *Rejection, anew bool) {
	r.admission.Lock()
	defer r.admission.Unlock()
	if len(e.view.sandboxes) > 0 && !r.Holdings.Anew(string(e.uid)) {
		return nil, false
	}
	rejected = r.Admission.Admit(asked, r.holders(e))
	switch {
	case rejected == nil:
		e.counts(inside)
	case rejected.Asks:
		e.counts(consulting)
	default:
		e.counts(outside)
	}
	return rejected, true
}

// waitFor has device plugins do something about a pod, as long as it is not to stop. A pod that is rejected holds
// nothing.
func (r *Runner) waitFor(
	ctx context.Context, e *entry, asked *corev1.Pod, do func(context.Context, *corev1.Pod) *Rejection,
) *Rejection {
	r.turns.leave(e)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if !e.arm(nil, cancel) { // a stop order must not wait for a plugin
		e.counts(outside)
		return nil
	}
	rejected := do(ctx, asked)
	e.disarm()
	if rejected == nil {
		return nil
	}
	e.counts(outside)
	if e.stopping() {
		return nil // whatever the plugin said, it is over
	}
	return rejected
}

// stopping reports whether the pod is to end.
func (e *entry) stopping() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.stop != nil
}

// counts says how far the pod has come before it is admitted.
func (e *entry) counts(as letting) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.let = as
}

// holders returns the pods that hold resources here, except e's.
func (r *Runner) holders(e *entry) []*corev1.Pod {
	var pods []*corev1.Pod
	for _, o := range r.entries() {
		if o == e {
			continue
		}
		if pod := o.holds(); pod != nil {
			pods = append(pods, pod)
		}
	}
	return pods
}

// Holders returns the pods that hold resources here.
func (r *Runner) Holders() []*corev1.Pod { return r.holders(nil) }

func (r *Runner) entries() []*entry {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Values(r.pods))
}

// perform does the actions in order, except that neighbouring stops go together: each may take a whole grace period.
// known is the stop order under which they were decided on.
func (r *Runner) perform(
	ctx context.Context, e *entry, pod *corev1.Pod, known *podlife.StopOrder, actions []podlife.Action, slot *startSlot,
) {
	for i := 0; i < len(actions); {
		n := 1
		if actions[i].Kind == podlife.StopContainer {
			for i+n < len(actions) && actions[i+n].Kind == podlife.StopContainer {
				n++
			}
		}
		if !r.performGroup(ctx, e, pod, known, actions[i:i+n], slot) {
			return
		}
		i += n
	}
}

// performGroup does actions at once and reports whether all succeeded.
func (r *Runner) performGroup(
	ctx context.Context, e *entry, pod *corev1.Pod, known *podlife.StopOrder, group []podlife.Action, slot *startSlot,
) bool {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	kind := group[0].Kind
	starts := kind == podlife.CreateSandbox || kind == podlife.StartContainer
	waits := starts || kind == podlife.StopContainer || kind == podlife.Resize
	if waits && !e.arm(known, cancel) { // a stop order must not wait for these
		return false
	}
	if !starts {
		slot.release() // others may start while this pod does something else
	}
	failures := make([]error, len(group))
	var running sync.WaitGroup
	for i, a := range group {
		running.Go(func() { failures[i] = r.act(ctx, e, pod, a, slot) })
	}
	running.Wait()
	e.disarm()
	ok := true
	for i, err := range failures {
		if group[i].Kind == podlife.StopContainer {
			e.soil(group[i].ID)
		}
		if err == nil {
			continue
		}
		ok = false
		if ctx.Err() != nil {
			e.soil("") // interrupted: nobody's failure, but who knows what the runtime did
			continue
		}
		r.failed(e, pod, group[i], err)
	}
	return ok
}

// failed records an action's failure where users look for it.
func (r *Runner) failed(e *entry, pod *corev1.Pod, a podlife.Action, err error) {
	reason := "RuntimeError"
	var known *failure
	if errors.As(err, &known) {
		reason = known.reason
	}
	now, _ := r.now()
	e.life.Failed(now, a, reason, err.Error())
	e.soil("")
	r.log(e).Warn("action failed", "action", a.Kind.String(), "container", a.Container, "reason", reason, "err", err)
	if pod != nil && known != nil && known.event != "" {
		r.Recorder.Event(translate.ContainerReference(pod, a.Container), corev1.EventTypeWarning, known.event, known.eventText())
	}
}

// failure is an action's error with the words users know.
type failure struct {
	reason string // waiting reason: ErrImagePull, CreateContainerError, ...
	event  string // event reason: Failed, FailedMount, FailedCreatePodSandBox
	prefix string // of the event's text
	err    error
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
