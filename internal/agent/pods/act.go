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

// Time limits of calls that work, next to Options.WorkTimeout (runtimeRequestTimeout). A sandbox may wait for its
// network and gets twice that, as upstream has it. stopMargin is added to the grace of a stop. settleMax is far above
// what a start takes (a tenth of a second, seconds on a busy machine), and what a pod whose network hangs may take
// longer to go.
const (
	stopMargin   = 2 * time.Minute
	mountTimeout = 2 * time.Minute
	settleMax    = 10 * time.Second
)

// act does one action.
func (w *worker) act(ctx context.Context, pod *corev1.Pod, a podlife.Action, slot *startSlot) error {
	w.log().Info(a.Kind.String(), "container", a.Container, "why", a.Why)
	switch a.Kind {
	case podlife.CreateSandbox:
		return w.createSandbox(ctx, pod, a, slot)
	case podlife.StartContainer:
		return w.startContainer(ctx, pod, a, slot)
	case podlife.StopContainer:
		return w.stopContainer(ctx, pod, a)
	case podlife.StopSandbox:
		return w.onSandbox(ctx, a, func(ctx context.Context) error {
			_, err := w.r.Runtime.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: a.ID})
			return err
		})
	case podlife.RemoveSandbox:
		return w.onSandbox(ctx, a, func(ctx context.Context) error {
			_, err := w.r.Runtime.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: a.ID})
			return err
		})
	case podlife.RemoveContainer:
		return w.removeContainer(ctx, a)
	case podlife.Resize:
		return w.resize(ctx, pod, a)
	case podlife.Finish:
		return w.finish(ctx, pod)
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
func (w *worker) createSandbox(
	ctx context.Context, pod *corev1.Pod, a podlife.Action, slot *startSlot,
) error {
	slot.release() // of an attempt before this one: volumes may take long
	if err := w.setUp(ctx, pod); err != nil {
		return err
	}
	if err := slot.take(ctx, pod.Namespace); err != nil {
		return err
	}
	parent, err := w.r.Groups.Ensure(pod)
	if err != nil {
		return &failure{
			reason: "FailedCreatePodContainer",
			event:  "FailedCreatePodContainer",
			prefix: "unable to ensure pod container exists: ",
			err:    err,
		}
	}
	if w.size == (resize.Size{}) {
		w.size, _ = w.r.Groups.Sizes(pod)
	}
	config, err := w.r.configs().Sandbox(pod, sandboxOf(pod, a.Attempt, parent))
	if err != nil {
		return sandboxFailed("Failed to generate sandbox config: ", err)
	}
	_, warnings, _ := w.r.DNS.DNSConfig(pod) // an error would have been sandboxConfig's
	for _, warning := range warnings {
		w.r.event(pod, "", corev1.EventTypeWarning, warning.Reason, warning.Message)
	}
	if err := os.MkdirAll(config.LogDirectory, 0o755); err != nil {
		return sandboxFailed("Failed to create log directory: ", err)
	}
	handler, err := w.r.handlers.Of(ctx, pod)
	if err != nil {
		return sandboxFailed("Failed to create pod sandbox: ", err)
	}
	var id string
	err = settled(ctx, 2*w.r.WorkTimeout, func(ctx context.Context) error {
		response, err := w.r.Runtime.RunPodSandbox(
			ctx, &runtimeapi.RunPodSandboxRequest{Config: config, RuntimeHandler: handler},
		)
		id = response.GetPodSandboxId()
		return err
	})
	if err != nil {
		return sandboxFailed("Failed to create pod sandbox: ", err)
	}
	return w.readSandbox(ctx, id)
}

// setUp prepares the pod's directories and volumes; it is safe to repeat.
func (w *worker) setUp(ctx context.Context, pod *corev1.Pod) error {
	ctx, cancel := context.WithTimeout(ctx, mountTimeout)
	defer cancel()
	if err := w.r.Volumes.SetUp(ctx, pod); err != nil {
		var unsupported *volume.UnsupportedError
		if errors.As(err, &unsupported) {
			w.unmountable = err.Error() // the pod is held, which has an Event
			return &failure{reason: "ContainerCreating", err: err}
		}
		return &failure{reason: "ContainerCreating", event: "FailedMount", err: err}
	}
	w.volumes = volumesUp
	return nil
}

func (w *worker) startContainer(
	ctx context.Context, pod *corev1.Pod, a podlife.Action, slot *startSlot,
) error {
	c := translate.ContainerNamed(pod, a.Container)
	if c == nil {
		return fmt.Errorf("start container %q: the pod has no such container", a.Container)
	}
	// Another agent made the sandbox, or the container came later.
	if refused := podfields.Blocks(pod, c.Name); refused != nil {
		return containerFailed("CreateContainerConfigError", errors.New(refused.String()))
	}
	ips := w.view.sandboxes[a.ID].IPs
	if len(ips) == 0 {
		ips = w.r.HostIPs
	}
	if w.volumes == volumesUntouched { // the sandbox was adopted: the keeper of volumes does not know the pod
		slot.release()
		if err := w.setUp(ctx, pod); err != nil {
			return err
		}
	}
	image, err := w.r.Images.Ensure(ctx, pod, c, slot.release) // while it is pulled, others may start
	if err != nil {
		return imageFailure(err)
	}
	if err := slot.take(ctx, pod.Namespace); err != nil {
		return err
	}
	config, err := w.r.configs().Container(ctx, pod, c, containerconfig.Run{
		Attempt:           a.Attempt,
		Image:             image,
		PodIPs:            ips,
		RecursiveReadOnly: w.r.handlers.RecursiveReadOnly(w.handler),
		Running:           runningByName(w.view.containers),
	})
	if err != nil {
		return containerFailed("CreateContainerConfigError", err)
	}
	parent, err := w.r.Groups.Ensure(pod)
	if err != nil {
		return containerFailed("CreateContainerError", err)
	}
	sandbox, err := w.r.configs().Sandbox(pod, sandboxOf(pod, w.view.sandboxes[a.ID].Attempt, parent))
	if err != nil {
		return containerFailed("CreateContainerError", err)
	}
	if err := os.MkdirAll(filepath.Join(sandbox.LogDirectory, c.Name), 0o755); err != nil {
		return containerFailed("CreateContainerError", err)
	}
	if !isInit(pod, c.Name) {
		w.r.Holdings.Finish(string(pod.UID))
	}
	started, err := w.r.Holdings.Start(string(pod.UID), c.Name, config.Linux.Resources)
	if err != nil {
		return containerFailed("CreateContainerError", err)
	}
	id, err := w.createAndStart(ctx, pod, c, a, config, sandbox)
	started()
	if err != nil {
		return err
	}
	if group := w.r.Groups.Container(pod, id); group != "" {
		err := w.r.Holdings.Check(string(pod.UID), c.Name, group)
		if err != nil && !errors.Is(err, os.ErrNotExist) { // it may have ended already
			w.log().Error("container is not where it was put", "err", err)
		}
	}
	w.r.event(pod, c.Name, corev1.EventTypeNormal, "Started", "Container started")
	w.r.Metrics.StartedContainers.WithLabelValues("container").Inc()
	w.r.logs().Link(pod.Namespace, pod.Name, c.Name, id, filepath.Join(sandbox.LogDirectory, config.LogPath))
	if err := w.readContainer(ctx, id, a.ID); err != nil {
		return err
	}
	w.postStart(pod, c, a, id)
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
func (w *worker) createAndStart(
	ctx context.Context, pod *corev1.Pod, c *corev1.Container, a podlife.Action,
	config *runtimeapi.ContainerConfig, sandbox *runtimeapi.PodSandboxConfig,
) (id string, err error) {
	err = limited(ctx, w.r.WorkTimeout, func(ctx context.Context) error {
		response, err := w.r.Runtime.CreateContainer(
			ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: a.ID, Config: config, SandboxConfig: sandbox},
		)
		id = response.GetContainerId()
		return err
	})
	if err != nil {
		return "", containerFailed("CreateContainerError", err)
	}
	w.r.event(pod, c.Name, corev1.EventTypeNormal, "Created", "Container created")
	_, sizes := w.r.Groups.Sizes(pod)
	w.view.containers[id] = podlife.Container{ID: id, Name: c.Name, SandboxID: a.ID, Attempt: a.Attempt, Size: sizes(c)}
	w.r.oom.Know(w.e.uid, w.view.containers[id], 0) // it may run out of memory before we know its process
	err = settled(ctx, w.r.WorkTimeout, func(ctx context.Context) error {
		_, err := w.r.Runtime.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: id})
		return err
	})
	if err != nil {
		return "", containerFailed("RunContainerError", err)
	}
	return id, nil
}

// stopContainer asks a container to end, and has it killed when its grace is over. A hook and the grace are waits,
// which cost the runtime nothing: no slot is held for them.
func (w *worker) stopContainer(ctx context.Context, pod *corev1.Pod, a podlife.Action) error {
	killAt := time.Now().Add(a.Grace)
	ctx, hookCtx, done := w.e.awaitExit(ctx, a.ID)
	defer done()
	least := time.Duration(0)
	if pod != nil {
		text := cmp.Or(a.Event, "Stopping container "+a.Container)
		w.r.event(pod, a.Container, corev1.EventTypeNormal, "Killing", text)
		if w.preStop(hookCtx, pod, a) {
			least = min(preStopLeaves, a.Grace)
		}
	}
	err := briefly(ctx, w.r.stops, signalTime, func() error {
		grace := max(time.Until(killAt), least)
		// The runtime sends SIGTERM, waits, and sends SIGKILL; it counts in whole seconds, and zero means at once.
		seconds := int64((grace + time.Second - 1) / time.Second)
		return limited(ctx, grace+stopMargin, func(ctx context.Context) error {
			request := &runtimeapi.StopContainerRequest{ContainerId: a.ID, Timeout: seconds}
			_, err := w.r.Runtime.StopContainer(ctx, request)
			return err
		})
	})
	if err != nil && !gone(err) {
		return fmt.Errorf("stop container %s: %w", a.ID, err)
	}
	return nil
}

// preStopLeaves is what upstream leaves at least for SIGTERM after a preStop hook.
const preStopLeaves = 2 * time.Second

// preStop runs the hook inside the grace, and reports whether there is one.
func (w *worker) preStop(ctx context.Context, pod *corev1.Pod, a podlife.Action) bool {
	c := translate.ContainerNamed(pod, a.Container)
	if c == nil || c.Lifecycle == nil || c.Lifecycle.PreStop == nil || a.Grace == 0 {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, a.Grace)
	defer cancel()
	if err := w.r.Hooks.PreStop(ctx, pod, c, a.ID, w.address(pod)); err != nil {
		w.r.event(pod, a.Container, corev1.EventTypeWarning, "FailedPreStopHook", "PreStopHook failed: "+err.Error())
	}
	return true
}

func (w *worker) removeContainer(ctx context.Context, a podlife.Action) error {
	err := briefly(ctx, w.r.removals, removalTime, func() error {
		return limited(ctx, w.r.WorkTimeout, func(ctx context.Context) error {
			_, err := w.r.Runtime.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: a.ID})
			return err
		})
	})
	if err != nil && !gone(err) {
		return fmt.Errorf("remove container %s: %w", a.ID, err)
	}
	w.drop(a.ID)
	w.r.removeLog(w.e.object(), a)
	return nil
}

// onSandbox stops or removes a sandbox and re-reads what is left of it.
func (w *worker) onSandbox(ctx context.Context, a podlife.Action, call func(context.Context) error) error {
	w.unwatch(a.ID)
	err := briefly(ctx, w.r.removals, removalTime, func() error { return limited(ctx, 2*w.r.WorkTimeout, call) })
	if err != nil && !gone(err) {
		return fmt.Errorf("%s %s: %w", a.Kind, a.ID, err)
	}
	if a.Kind == podlife.RemoveSandbox {
		w.drop(a.ID)
		for id, c := range w.view.containers {
			if c.SandboxID == a.ID {
				w.drop(id)
			}
		}
		return nil
	}
	return w.readSandbox(ctx, a.ID)
}

// finish takes down what the pod had outside the runtime, deletes its object, and drops it here. Each step may be
// repeated after a crash.
func (w *worker) finish(ctx context.Context, pod *corev1.Pod) error {
	w.r.Probes.Untrack(w.e.uid)
	if err := w.r.Volumes.TearDown(ctx, w.e.uid); err != nil {
		return fmt.Errorf("take down volumes: %w", err)
	}
	if err := w.r.Groups.Remove(ctx, w.e.uid); err != nil {
		return fmt.Errorf("remove cgroup: %w", err)
	}
	w.r.Holdings.Release(string(w.e.uid))
	w.r.Devices.Release(string(w.e.uid))
	w.r.logs().RemovePod(string(w.e.uid))
	if pod != nil && w.e.deletable() {
		if err := w.r.report.Delete(ctx, w.e.report, pod); err != nil {
			return fmt.Errorf("delete the pod's object: %w", err)
		}
	}
	w.r.drop(w.e)
	return nil
}

// drop ends what the agent knows of a pod: nothing of it is left here.
func (r *Runner) drop(e *entry) {
	r.turns.leave(e)
	e.drop()
	r.mu.Lock()
	if r.pods[e.uid] == e {
		delete(r.pods, e.uid)
	}
	r.sweepLater()
	r.mu.Unlock()
	r.static.Resync() // a new version of a static pod may have waited for it
	r.ResyncHeld()    // its room may be what others wait for
}

func (r *Runner) event(pod *corev1.Pod, container, kind, reason, text string) {
	r.Recorder.Event(translate.ContainerReference(pod, container), kind, reason, text)
}
