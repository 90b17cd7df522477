package pods

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/podentry"
	"github.com/plimsoll-dev/plimsoll/internal/agent/podstatus"
	"github.com/plimsoll-dev/plimsoll/internal/agent/podview"
	"github.com/plimsoll-dev/plimsoll/internal/agent/probe"
	"github.com/plimsoll-dev/plimsoll/internal/agent/tracing"
	"github.com/plimsoll-dev/plimsoll/internal/agent/turns"
	"github.com/plimsoll-dev/plimsoll/internal/agent/volume"
	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// Run is the goroutine of a worker: it makes syncs until there is nothing to do.
func (w *worker) Run(ctx context.Context) {
	slot := w.r.starts.Slot()
	defer slot.Release()
	for ctx.Err() == nil {
		began := time.Now()
		traced, end := w.trace(ctx)
		wake, acted := w.sync(traced, slot)
		end()
		w.countSync(began)
		if goOn := w.e.Rest(w, acted, w.r.until(wake), func() { w.r.resync(w.e) }); !goOn {
			return
		}
	}
	w.e.HandBack(w)
}

// trace begins the span of a sync.
func (w *worker) trace(ctx context.Context) (_ context.Context, end func()) {
	if w.r.Trace == nil {
		return ctx, func() {}
	}
	namespace, name, _ := strings.Cut(w.e.Name(), "/")
	return w.r.Trace.SyncPod(ctx, tracing.Pod{
		Namespace: namespace,
		Name:      name,
		UID:       string(w.e.UID()),
		Stops:     w.e.Snapshot().Stop != nil,
	})
}

// sync is one round of a worker: observe, decide, act. It returns when the next sync is due and whether it acted.
func (w *worker) sync(ctx context.Context, slot *turns.Slot) (wake unit.Instant, acted bool) {
	if err := w.refresh(ctx); err != nil {
		if ctx.Err() == nil {
			w.notRead(err)
			w.endDenied(ctx, err)
		}
		now, _ := w.r.now()
		return now.Add(runtimeRetry), false
	}
	w.unread = ""
	if w.mayStart() {
		w.admit(ctx)
	}
	w.r.judgeResizes()
	defer w.r.judgeResizes() // this sync may have made room
	pod, o, ok := w.observe()
	if !ok {
		return 0, false
	}
	if w.e.TakeRetry() {
		w.life.Retry()
	}
	now, wall := w.r.now()
	d := w.life.Step(now, wall, o)
	// This comes before the end is reported: a scheduler may then place a pod that needs these resources.
	w.releaseResources(d.Status.Phase)
	w.publish(pod, o, d)
	if len(d.Actions) == 0 {
		slot.Release() // the steps below may take long, and they start nothing
		w.adopt(ctx, pod, o)
		w.releaseVolumes(ctx, pod, d.Status.Phase)
		w.clearEvicted(ctx, pod)
		return d.Wake, false
	}
	w.perform(ctx, pod, o.Stop, d.Actions, slot)
	w.e.SawRuntime(w.view.Summary(), w.view.ReadySandbox())
	return 0, true
}

// endDenied kills the processes of a pod through its cgroup. It is for a pod that should have ended a while ago and of
// which the runtime denies that any process runs: the runtime cannot stop a process that it does not know.
func (w *worker) endDenied(ctx context.Context, err error) {
	var denied *podview.Contradicted
	now, _ := w.r.now()
	if stop := w.e.Snapshot().Stop; stop == nil || now < stop.Deadline.Add(overtimeMax) || !errors.As(err, &denied) {
		return
	}
	if err := w.r.Groups.Remove(ctx, w.e.UID()); err != nil {
		w.log().Warn("the pod's processes that the runtime denies are not ended yet", "err", err)
	}
}

// adopt sets up the volumes of a pod that an earlier agent started, so that their content is refreshed again.
func (w *worker) adopt(ctx context.Context, pod *corev1.Pod, o podlife.Observation) {
	if w.volumes != volumesUntouched || pod == nil || o.Stop != nil || o.Terminal != "" || len(o.Containers) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, adoptTimeout)
	defer cancel()
	if !w.e.Arm(o.Stop, cancel) {
		return
	}
	defer w.e.Disarm()
	if err := w.setUp(ctx, pod); err != nil {
		if volume.OnlyWaits(err) {
			return // it is tried again when they are there
		}
		// Its containers run with the volumes that they have. Before the next one starts, completeVolumes tries again.
		w.log().Warn("volumes of a running pod could not be set up again", "err", err)
		w.volumes = volumesPartlyUp
	}
}

// releaseResources releases the CPUs, memory and devices that are assigned to a pod that has ended for good.
func (w *worker) releaseResources(phase podlife.Phase) {
	if phase != podlife.Succeeded && phase != podlife.Failed {
		return
	}
	for _, c := range w.view.Containers {
		if c.State != podlife.Exited {
			return
		}
	}
	w.r.Assignments.Release(string(w.e.UID()))
	w.r.Devices.Release(string(w.e.UID()))
}

// releaseVolumes removes what a pod that has ended for good no longer needs. Its object and its logs stay.
func (w *worker) releaseVolumes(ctx context.Context, pod *corev1.Pod, phase podlife.Phase) {
	if w.volumes == volumesReleased || pod == nil || phase != podlife.Succeeded && phase != podlife.Failed {
		return
	}
	err := w.r.Volumes.Release(ctx, w.e.UID())
	if err == nil {
		err = w.r.Groups.Remove(ctx, w.e.UID())
	}
	if volume.OnlyWaits(err) {
		return // it is tried again when they are gone
	}
	if err != nil {
		w.log().Warn("volumes and cgroup of the ended pod not released yet", "err", err)
		return
	}
	w.r.Users.Release(w.e.UID()) // its cgroup is gone, and so are its processes
	w.volumes = volumesReleased
	w.e.Released()
}

// trackProbes passes the running containers to the prober, so that results about earlier runs are discarded.
func (w *worker) trackProbes(s podentry.Snapshot) {
	if s.Pod == nil {
		return
	}
	running := map[string]probe.Container{}
	for _, c := range w.containers(s) {
		// As in the kubelet, a container is not probed before its postStart hook has succeeded.
		if c.State == podlife.Running && c.Hook == podlife.HookOver {
			running[c.Name] = probe.Container{ID: c.ID, StartedAt: c.StartedAt.Time()}
		}
	}
	w.r.Probes.Track(s.Pod, w.address(s.Pod), running, s.Stop != nil)
}

// observe assembles the observation for podlife's step. ok is false if the pod must be left alone for now: no source
// has delivered it, and not all sources have delivered all of their pods yet.
func (w *worker) observe() (pod *corev1.Pod, o podlife.Observation, ok bool) {
	synced := w.r.Synced()
	w.followHooks()
	w.trackProbes(w.e.Snapshot())
	w.adoptSizes()
	now, _ := w.r.now()
	if !w.e.EndUnclaimed(now, synced) {
		return nil, o, false
	}
	s := w.e.Snapshot()
	o = podlife.Observation{
		Stop:       s.Stop,
		Sandboxes:  slices.Collect(maps.Values(w.view.Sandboxes)),
		Containers: w.containers(s),
	}
	if s.Pod == nil {
		return nil, o, true
	}
	pod = s.Pod
	o.Spec = w.r.specOf(pod)
	o.Hold = s.Hold
	o.Size = w.size
	o.Resizing = s.Resizing
	o.StartTime = wallOf(cmp.Or(s.Status.StartTime, pod.Status.StartTime))
	o.Terminal = translate.PodlifeTerminal(pod)
	o.Past = podstatus.Past(pod, s.Status)
	o.Gates = translate.PodlifeGates(pod)
	o.Initialized = s.Initialized()
	if pod.Spec.HostNetwork {
		o.HostIPs = w.r.HostIPs
	}
	o.Probes = w.r.Probes.Results(w.e.UID())
	return pod, o, true
}

func wallOf(t *metav1.Time) unit.Wall {
	if t == nil {
		return 0
	}
	return unit.WallOf(t.Time)
}

// containers returns the containers of the view, with the states of their hooks.
func (w *worker) containers(s podentry.Snapshot) []podlife.Container {
	var all []podlife.Container
	for id, c := range w.view.Containers {
		if state, hooked := s.Hooks[id]; hooked {
			c.Hook = state
		}
		c.PreStop = s.PreStops[id]
		all = append(all, c)
	}
	return all
}

// refresh reads again what is marked dirty in the view. If the runtime does not answer, it returns an error, and the
// view is as before and still dirty.
func (w *worker) refresh(ctx context.Context) error {
	err := w.view.Reread(ctx, w.e.TakeDirty())
	if err != nil {
		w.e.MarkDirty("")
	}
	w.e.SawRuntime(w.view.Summary(), w.view.ReadySandbox())
	return err
}

// perform carries out the actions in order. Consecutive stops are carried out at the same time, since each may take a
// whole grace period. known is the stop order under which the actions were decided.
func (w *worker) perform(
	ctx context.Context, pod *corev1.Pod, known *podlife.StopOrder, actions []podlife.Action, slot *turns.Slot,
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

// performGroup carries out actions at the same time and reports whether all succeeded. If there is more than one, all
// are stops, which only read the worker.
func (w *worker) performGroup(
	ctx context.Context, pod *corev1.Pod, known *podlife.StopOrder, group []podlife.Action, slot *turns.Slot,
) bool {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	kind := group[0].Kind
	w.noteStops(pod, group)
	starts := kind == podlife.CreateSandbox || kind == podlife.StartContainer
	waits := starts || kind == podlife.StopContainer || kind == podlife.Resize
	if waits && !w.e.Arm(known, cancel) { // a stop order must not wait for these actions
		return false
	}
	if !starts {
		slot.Release() // others may start while this pod does something else
	}
	failures := make([]error, len(group))
	var running sync.WaitGroup
	for i, a := range group {
		running.Go(func() { failures[i] = w.act(ctx, pod, a, slot) })
	}
	running.Wait()
	w.e.Disarm()
	ok := true
	for i, err := range failures {
		if group[i].Kind == podlife.StopContainer {
			w.e.MarkDirty(group[i].ID)
		}
		if err == nil {
			continue
		}
		ok = false
		if ctx.Err() != nil {
			w.e.MarkDirty("") // interrupted: not a failure, but it is not known what the runtime did
			continue
		}
		w.failed(pod, group[i], err)
	}
	return ok
}
