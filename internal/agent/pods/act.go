package pods

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/containerconfig"
	"github.com/plimsoll-dev/plimsoll/internal/agent/imagepull"
	"github.com/plimsoll-dev/plimsoll/internal/agent/volume"
	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/core/resize"
	"github.com/plimsoll-dev/plimsoll/internal/kube/podfields"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// Time limits of calls that work, beside Options.WorkTimeout (runtimeRequestTimeout). A sandbox may wait for its
// network and gets twice that, as upstream has it. stopMargin is added to the grace of a stop. settleMax is far above
// what a start takes (a tenth of a second, seconds on a busy machine), and what a pod whose network hangs may take
// longer to go.
const (
	stopMargin   = 2 * time.Minute
	mountTimeout = 2 * time.Minute
	settleMax    = 10 * time.Second
)

// act does one action.
func (r *Runner) act(ctx context.Context, e *entry, pod *corev1.Pod, a podlife.Action, slot *startSlot) error {
	r.log(e).Info(a.Kind.String(), "container", a.Container, "why", a.Why)
	switch a.Kind {
	case podlife.CreateSandbox:
		return r.createSandbox(ctx, e, pod, a, slot)
	case podlife.StartContainer:
		return r.startContainer(ctx, e, pod, a, slot)
	case podlife.StopContainer:
		return r.stopContainer(ctx, e, pod, a)
	case podlife.StopSandbox:
		return r.onSandbox(ctx, e, a, func(ctx context.Context) error {
			_, err := r.Runtime.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: a.ID})
			return err
		})
	case podlife.RemoveSandbox:
		return r.onSandbox(ctx, e, a, func(ctx context.Context) error {
			_, err := r.Runtime.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: a.ID})
			return err
		})
	case podlife.RemoveContainer:
		return r.removeContainer(ctx, e, a)
	case podlife.Resize:
		return r.resize(ctx, e, pod, a)
	case podlife.Finish:
		return r.finish(ctx, e, pod)
	}
	return fmt.Errorf("perform %v: unknown action", a.Kind)
}

// limited makes a call that must end in time.
func limited(ctx context.Context, limit time.Duration, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return call(ctx)
}

// settled makes a call that has the runtime make something. Told to give up at the wrong moment, containerd leaves
// behind what it then refuses to remove (cri.Client.RemoveContainer), so that a call whose time is up, since its pod is
// to stop, has settleMax to come to its end.
func settled(ctx context.Context, limit time.Duration, call func(context.Context) error) error {
	own, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		select {
		case <-time.After(settleMax):
			cancel()
		case <-own.Done():
		}
	})()
	return call(own)
}

func gone(err error) bool { return status.Code(err) == codes.NotFound }

// createSandbox prepares what the pod's containers share, then the sandbox.
func (r *Runner) createSandbox(
	ctx context.Context, e *entry, pod *corev1.Pod, a podlife.Action, slot *startSlot,
) error {
	slot.release() // of an attempt before this one: volumes may take long
	if err := r.setUp(ctx, e, pod); err != nil {
		return err
	}
	if err := slot.take(ctx, pod.Namespace); err != nil {
		return err
	}
	parent, err := r.Groups.Ensure(pod)
	if err != nil {
		return &failure{
			"FailedCreatePodContainer", "FailedCreatePodContainer", "unable to ensure pod container exists: ", err,
		}
	}
	if e.size == (resize.Size{}) {
		e.size, _ = r.Groups.Sizes(pod)
	}
	config, err := r.configs().Sandbox(pod, sandboxOf(pod, a.Attempt, parent))
	if err != nil {
		return &failure{"CreatePodSandboxError", "FailedCreatePodSandBox", "Failed to generate sandbox config: ", err}
	}
	_, warnings, _ := r.DNS.DNSConfig(pod) // an error would have been sandboxConfig's
	for _, w := range warnings {
		r.event(pod, "", corev1.EventTypeWarning, w.Reason, w.Message)
	}
	if err := os.MkdirAll(config.LogDirectory, 0o755); err != nil {
		return &failure{"CreatePodSandboxError", "FailedCreatePodSandBox", "Failed to create log directory: ", err}
	}
	handler, err := r.handlers.Of(ctx, pod)
	if err != nil {
		return &failure{"CreatePodSandboxError", "FailedCreatePodSandBox", "Failed to create pod sandbox: ", err}
	}
	var id string
	err = settled(ctx, 2*r.WorkTimeout, func(ctx context.Context) error {
		response, err := r.Runtime.RunPodSandbox(
			ctx, &runtimeapi.RunPodSandboxRequest{Config: config, RuntimeHandler: handler},
		)
		id = response.GetPodSandboxId()
		return err
	})
	if err != nil {
		return &failure{"CreatePodSandboxError", "FailedCreatePodSandBox", "Failed to create pod sandbox: ", err}
	}
	return r.readSandbox(ctx, e, id)
}

// setUp prepares the pod's directories and volumes; it is safe to repeat.
func (r *Runner) setUp(ctx context.Context, e *entry, pod *corev1.Pod) error {
	ctx, cancel := context.WithTimeout(ctx, mountTimeout)
	defer cancel()
	if err := r.Volumes.SetUp(ctx, pod); err != nil {
		var unsupported *volume.UnsupportedError
		if errors.As(err, &unsupported) {
			e.unmountable = err.Error() // the pod is held, which is told of
			return &failure{"ContainerCreating", "", "", err}
		}
		return &failure{"ContainerCreating", "FailedMount", "", err}
	}
	e.prepared = true
	return nil
}

func (r *Runner) startContainer(
	ctx context.Context, e *entry, pod *corev1.Pod, a podlife.Action, slot *startSlot,
) error {
	c := containerNamed(pod, a.Container)
	if c == nil {
		return fmt.Errorf("start container %q: the pod has no such container", a.Container)
	}
	// Another agent made the sandbox, or the container came later.
	if refused := podfields.Blocks(pod, c.Name); refused != nil {
		return &failure{"CreateContainerConfigError", "Failed", "Error: ", errors.New(refused.String())}
	}
	ips := e.view.sandboxes[a.ID].IPs
	if len(ips) == 0 {
		ips = r.HostIPs
	}
	if !e.prepared { // an adopted sandbox: the agent before us set it up, which is not known to our volumes
		slot.release()
		if err := r.setUp(ctx, e, pod); err != nil {
			return err
		}
	}
	image, err := r.images.Ensure(ctx, pod, c, slot.release) // while it is pulled, others may start
	if err != nil {
		return imageFailure(err)
	}
	if err := slot.take(ctx, pod.Namespace); err != nil {
		return err
	}
	config, err := r.configs().Container(ctx, pod, c, containerconfig.Run{
		Attempt:           a.Attempt,
		Image:             image,
		PodIPs:            ips,
		RecursiveReadOnly: r.handlers.RecursiveReadOnly(e.handler),
		Running:           runningByName(e.view.containers),
	})
	if err != nil {
		return &failure{"CreateContainerConfigError", "Failed", "Error: ", err}
	}
	parent, err := r.Groups.Ensure(pod)
	if err != nil {
		return &failure{"CreateContainerError", "Failed", "Error: ", err}
	}
	sandbox, err := r.configs().Sandbox(pod, sandboxOf(pod, e.view.sandboxes[a.ID].Attempt, parent))
	if err != nil {
		return &failure{"CreateContainerError", "Failed", "Error: ", err}
	}
	if err := os.MkdirAll(filepath.Join(sandbox.LogDirectory, c.Name), 0o755); err != nil {
		return &failure{"CreateContainerError", "Failed", "Error: ", err}
	}
	if !isInit(pod, c.Name) {
		r.Holdings.Finish(string(pod.UID))
	}
	started, err := r.Holdings.Start(string(pod.UID), c.Name, config.Linux.Resources)
	if err != nil {
		return &failure{"CreateContainerError", "Failed", "Error: ", err}
	}
	id, err := r.createAndStart(ctx, e, pod, c, a, config, sandbox)
	started()
	if err != nil {
		return err
	}
	if group := r.Groups.Container(pod, id); group != "" {
		err := r.Holdings.Check(string(pod.UID), c.Name, group)
		if err != nil && !errors.Is(err, os.ErrNotExist) { // it may have ended already
			r.log(e).Error("container is not where it was put", "err", err)
		}
	}
	r.event(pod, c.Name, corev1.EventTypeNormal, "Started", "Container started")
	r.Metrics.StartedContainers.WithLabelValues("container").Inc()
	r.logs().Link(pod.Namespace, pod.Name, c.Name, id, filepath.Join(sandbox.LogDirectory, config.LogPath))
	if err := r.readContainer(ctx, e, id, a.ID); err != nil {
		return err
	}
	r.postStart(e, pod, c, a, id)
	return nil
}

// imageFailure is the error of an image that is not there.
func imageFailure(err error) error {
	var known *imagepull.Error
	if !errors.As(err, &known) {
		return err
	}
	return &failure{reason: known.Reason, event: known.Event, prefix: known.Prefix, err: known.Err}
}

// createAndStart has the runtime do both, and notes the container in between.
func (r *Runner) createAndStart(
	ctx context.Context, e *entry, pod *corev1.Pod, c *corev1.Container, a podlife.Action,
	config *runtimeapi.ContainerConfig, sandbox *runtimeapi.PodSandboxConfig,
) (id string, err error) {
	err = limited(ctx, r.WorkTimeout, func(ctx context.Context) error {
		response, err := r.Runtime.CreateContainer(
			ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: a.ID, Config: config, SandboxConfig: sandbox},
		)
		id = response.GetContainerId()
		return err
	})
	if err != nil {
		return "", &failure{"CreateContainerError", "Failed", "Error: ", err}
	}
	r.event(pod, c.Name, corev1.EventTypeNormal, "Created", "Container created")
	_, sizes := r.Groups.Sizes(pod)
	e.view.containers[id] = podlife.Container{ID: id, Name: c.Name, SandboxID: a.ID, Attempt: a.Attempt, Size: sizes(c)}
	r.oom.Know(e.uid, e.view.containers[id], 0) // it may run out of memory before we know its process
	err = settled(ctx, r.WorkTimeout, func(ctx context.Context) error {
		_, err := r.Runtime.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: id})
		return err
	})
	if err != nil {
		return "", &failure{"RunContainerError", "Failed", "Error: ", err}
	}
	return id, nil
}

// stopContainer asks a container to end, and has it killed when its grace is over. A hook and the grace are waits,
// which cost the runtime nothing: no slot is held for them.
func (r *Runner) stopContainer(ctx context.Context, e *entry, pod *corev1.Pod, a podlife.Action) error {
	killAt := time.Now().Add(a.Grace)
	ctx, hookCtx, done := e.awaitEnd(ctx, a.ID)
	defer done()
	least := time.Duration(0)
	if pod != nil {
		r.event(pod, a.Container, corev1.EventTypeNormal, "Killing", cmp.Or(a.Event, "Stopping container "+a.Container))
		if r.preStop(hookCtx, e, pod, a) {
			least = min(preStopLeaves, a.Grace)
		}
	}
	err := briefly(ctx, r.stops, signalTime, func() error {
		grace := max(time.Until(killAt), least)
		// The runtime sends SIGTERM, waits, and sends SIGKILL; it counts in whole seconds, and zero means at once.
		seconds := int64((grace + time.Second - 1) / time.Second)
		return limited(ctx, grace+stopMargin, func(ctx context.Context) error {
			_, err := r.Runtime.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: a.ID, Timeout: seconds})
			return err
		})
	})
	if err != nil && !gone(err) {
		return fmt.Errorf("stop container %s: %w", a.ID, err)
	}
	return nil
}

// awaitEnd says that a container is to end, which ends its postStart hook. Once its process is gone there is nothing to
// wait for: hook is done, and stop a little later, in which a runtime that is there has answered. Without that, a
// runtime that lost the answer would hold up the pod for the whole grace.
func (e *entry) awaitEnd(ctx context.Context, id string) (stop, hook context.Context, done func()) {
	stop, endStop := context.WithCancel(ctx)
	hook, endHook := context.WithCancel(stop)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.endHook(id)
	e.waits[id] = func() {
		endHook()
		time.AfterFunc(settleMax, endStop)
	}
	return stop, hook, func() {
		e.mu.Lock()
		delete(e.waits, id)
		e.mu.Unlock()
		endHook()
		endStop()
	}
}

// preStopLeaves is what upstream leaves at least for SIGTERM after a preStop hook.
const preStopLeaves = 2 * time.Second

// preStop runs the hook inside the grace, and reports whether there is one.
func (r *Runner) preStop(ctx context.Context, e *entry, pod *corev1.Pod, a podlife.Action) bool {
	c := containerNamed(pod, a.Container)
	if c == nil || c.Lifecycle == nil || c.Lifecycle.PreStop == nil || a.Grace == 0 {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, a.Grace)
	defer cancel()
	if err := r.Hooks.PreStop(ctx, pod, c, a.ID, r.addressOf(e, pod)); err != nil {
		r.event(pod, a.Container, corev1.EventTypeWarning, "FailedPreStopHook", "PreStopHook failed: "+err.Error())
	}
	return true
}

func (r *Runner) removeContainer(ctx context.Context, e *entry, a podlife.Action) error {
	err := briefly(ctx, r.removals, removalTime, func() error {
		return limited(ctx, r.WorkTimeout, func(ctx context.Context) error {
			_, err := r.Runtime.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: a.ID})
			return err
		})
	})
	if err != nil && !gone(err) {
		return fmt.Errorf("remove container %s: %w", a.ID, err)
	}
	r.drop(e, a.ID)
	r.removeLog(e, a)
	return nil
}

// onSandbox stops or removes a sandbox and re-reads what is left of it.
func (r *Runner) onSandbox(ctx context.Context, e *entry, a podlife.Action, call func(context.Context) error) error {
	e.unwatch(a.ID)
	err := briefly(ctx, r.removals, removalTime, func() error { return limited(ctx, 2*r.WorkTimeout, call) })
	if err != nil && !gone(err) {
		return fmt.Errorf("%s %s: %w", a.Kind, a.ID, err)
	}
	if a.Kind == podlife.RemoveSandbox {
		r.drop(e, a.ID)
		for id, c := range e.view.containers {
			if c.SandboxID == a.ID {
				r.drop(e, id)
			}
		}
		return nil
	}
	return r.readSandbox(ctx, e, a.ID)
}

// finish takes down what the pod had outside the runtime, lets the API server forget it, and forgets it here. Each step
// may be repeated after a crash.
func (r *Runner) finish(ctx context.Context, e *entry, pod *corev1.Pod) error {
	r.Probes.Untrack(e.uid)
	if err := r.Volumes.TearDown(ctx, e.uid); err != nil {
		return fmt.Errorf("take down volumes: %w", err)
	}
	if err := r.Groups.Remove(ctx, e.uid); err != nil {
		return fmt.Errorf("remove cgroup: %w", err)
	}
	r.Holdings.Release(string(e.uid))
	r.Devices.Release(string(e.uid))
	r.logs().RemovePod(string(e.uid))
	e.mu.Lock()
	vanished, static := e.gone, e.static
	e.mu.Unlock()
	if pod != nil && !vanished && !static {
		if err := r.report.Delete(ctx, e.report, pod); err != nil {
			return fmt.Errorf("let the API server forget the pod: %w", err)
		}
	}
	r.forget(e)
	return nil
}

// forget drops the entry for good.
func (r *Runner) forget(e *entry) {
	r.turns.leave(e)
	e.mu.Lock()
	e.forgotten = true
	if e.timer != nil {
		e.timer.Stop()
	}
	e.mu.Unlock()
	r.mu.Lock()
	if r.pods[e.uid] == e {
		delete(r.pods, e.uid)
	}
	r.sweepLater()
	r.mu.Unlock()
	r.static.Resync() // a new version of a static pod may have waited for it
	r.Unhold()        // its room may be what others wait for
}

func (r *Runner) event(pod *corev1.Pod, container, kind, reason, text string) {
	r.Recorder.Event(translate.ContainerReference(pod, container), kind, reason, text)
}
