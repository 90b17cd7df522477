package pods

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/containerconfig"
	"github.com/plimsoll-dev/plimsoll/internal/agent/imagepull"
	"github.com/plimsoll-dev/plimsoll/internal/agent/podcert"
	"github.com/plimsoll-dev/plimsoll/internal/agent/podentry"
	"github.com/plimsoll-dev/plimsoll/internal/agent/turns"
	"github.com/plimsoll-dev/plimsoll/internal/agent/userns"
	"github.com/plimsoll-dev/plimsoll/internal/agent/volume"
	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/core/resize"
	"github.com/plimsoll-dev/plimsoll/internal/kube/podfields"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// Time limits of calls that work, next to Options.WorkTimeout (runtimeRequestTimeout). A sandbox may wait for its
// network and gets twice that, as upstream has it. stopMargin is added to the grace of a stop.
const (
	stopMargin   = 2 * time.Minute
	mountTimeout = 2 * time.Minute
)

// act does one action.
func (w *worker) act(ctx context.Context, pod *corev1.Pod, a podlife.Action, slot *turns.Slot) error {
	w.log().Info(a.Kind.String(), "container", a.Container, "why", a.Why)
	if a.Kind != podlife.StartContainer && a.ID != "" {
		if err := w.r.taken(a.ID, w.e); err != nil {
			return fmt.Errorf("%s: %w", a.Kind, err)
		}
	}
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
	case podlife.BeginPreStop:
		w.beginPreStop(pod, a)
		return nil
	case podlife.Resize:
		return w.resize(ctx, pod, a)
	case podlife.Finish:
		return w.finish(ctx, pod)
	}
	return fmt.Errorf("perform %v: unknown action", a.Kind)
}

// overtimeMax is for how long a call to the runtime goes on after nobody needs its result any more. Chosen: far above
// what a start takes (0.1 s; seconds on a busy machine). A pod whose network hangs may take this much longer to end.
const overtimeMax = 10 * time.Second

// withOvertime makes a call that has the runtime make something, and cancels it after limit. When ctx ends, because
// the pod is to stop, the call goes on for up to overtimeMax: if containerd is cancelled at the wrong moment, it leaves
// behind what it then refuses to remove (cri.Client.RemoveContainer).
func withOvertime(ctx context.Context, limit time.Duration, call func(context.Context) error) error {
	own, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		select {
		case <-time.After(overtimeMax):
			cancel()
		case <-own.Done():
		}
	})()
	return call(own)
}

// createSandbox prepares what the pod's containers share, then the sandbox.
func (w *worker) createSandbox(
	ctx context.Context, pod *corev1.Pod, a podlife.Action, slot *turns.Slot,
) error {
	slot.Release() // of an attempt before this one: volumes may take long
	if err := w.setUp(ctx, pod); err != nil {
		return err
	}
	if err := slot.Take(ctx, pod.Namespace); err != nil {
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
	_, warnings, _ := w.r.DNS.DNSConfig(pod) // Sandbox above would have returned the error
	for _, warning := range warnings {
		w.r.event(pod, "", corev1.EventTypeWarning, warning.Reason, warning.Message)
	}
	if err := os.MkdirAll(config.LogDirectory, 0o755); err != nil {
		return sandboxFailed("Failed to create log directory: ", err)
	}
	handler, err := w.handlerFor(ctx, pod)
	if err != nil {
		return sandboxFailed("Failed to create pod sandbox: ", err)
	}
	if userns.Wants(pod) {
		w.r.Metrics.UserNamespacedPods.Inc()
	}
	var id string
	begun := time.Now()
	err = withOvertime(ctx, 2*w.r.WorkTimeout, func(ctx context.Context) error {
		response, err := w.r.Runtime.RunPodSandbox(
			ctx, &runtimeapi.RunPodSandboxRequest{Config: config, RuntimeHandler: handler},
		)
		id = response.GetPodSandboxId()
		return err
	})
	if err == nil {
		err = w.made(id)
	}
	w.r.Metrics.RunSandbox.WithLabelValues(handler).Observe(time.Since(begun).Seconds())
	if err != nil {
		w.r.Metrics.RunSandboxErrors.WithLabelValues(handler).Inc()
		return sandboxFailed("Failed to create pod sandbox: ", err)
	}
	if err := w.view.ReadSandbox(ctx, id); err != nil {
		return sandboxFailed("Failed to create pod sandbox: ", err)
	}
	return nil
}

// made returns an error where the runtime made something and says that it is what was there before, or nothing.
func (w *worker) made(id string) error {
	if id == "" {
		return errors.New("the runtime says that it succeeded, and names no ID of what it made")
	}
	_, sandbox := w.view.Sandboxes[id]
	if _, container := w.view.Containers[id]; container || sandbox {
		return fmt.Errorf("the runtime says that it succeeded, and names the ID %s, which the pod had before", id)
	}
	return w.r.taken(id, w.e)
}

// handlerFor looks up the runtime handler that the pod asks for, which must be able to do what else the pod asks for.
func (w *worker) handlerFor(ctx context.Context, pod *corev1.Pod) (string, error) {
	handler, err := w.r.handlers.For(ctx, pod)
	if err == nil && userns.Wants(pod) && !w.r.handlers.UserNamespaces(handler) {
		const lacks = "can't set `spec.hostUsers: false`, RuntimeClass handler %q does not support user namespaces"
		err = fmt.Errorf(lacks, handler)
	}
	return handler, err
}

// setUp prepares the pod's directories and volumes; it is safe to repeat.
func (w *worker) setUp(ctx context.Context, pod *corev1.Pod) error {
	ctx, cancel := context.WithTimeout(ctx, mountTimeout)
	defer cancel()
	if err := w.r.Volumes.SetUp(ctx, pod); err != nil {
		if volume.OnlyWaits(err) {
			// Who has them mounted records Events, and orders a retry.
			return &failure{reason: podlife.ReasonContainerCreating, err: err}
		}
		var refused *podcert.RefusedError
		if errors.As(err, &refused) {
			w.refused = refused.Reason()
		}
		var unsupported *volume.UnsupportedError
		if errors.As(err, &unsupported) || refused != nil {
			w.unmountable = err.Error() // the pod is held, which has an Event
			return &failure{reason: podlife.ReasonContainerCreating, err: err}
		}
		return &failure{reason: podlife.ReasonContainerCreating, event: "FailedMount", err: volume.WithoutWaits(err)}
	}
	w.volumes = volumesUp
	return nil
}

// completeVolumes sets up what is not up of the volumes of a pod whose sandbox an agent before this one made. What
// stood against it when the pod was taken up may be over: a Node whose labels were not known yet, a driver.
func (w *worker) completeVolumes(ctx context.Context, pod *corev1.Pod, slot *turns.Slot) error {
	if w.volumes != volumesUntouched && w.volumes != volumesPartlyUp {
		return nil
	}
	slot.Release()
	return w.setUp(ctx, pod)
}

func (w *worker) startContainer(
	ctx context.Context, pod *corev1.Pod, a podlife.Action, slot *turns.Slot,
) error {
	c := translate.ContainerNamed(pod, a.Container)
	if c == nil {
		return fmt.Errorf("start container %q: the pod has no such container", a.Container)
	}
	// Another agent made the sandbox, or the container came later.
	if hold := podfields.Blocks(pod, c.Name, w.r.abilities()); hold != nil {
		return containerFailed("CreateContainerConfigError", errors.New(hold.String()))
	}
	ips, err := w.addresses(ctx, pod, a.ID)
	if err != nil {
		return containerFailed("CreateContainerError", err)
	}
	if err := w.completeVolumes(ctx, pod, slot); err != nil {
		return err
	}
	images, err := w.imagesOfVolumes(ctx, pod, c, slot)
	if err != nil {
		return imageFailure(err)
	}
	pulled := w.measured.pull()
	image, err := w.r.Images.Ensure(ctx, pod, c, func() {
		slot.Release() // while it is pulled, others may start
		pulled.began()
	})
	pulled.ended()
	if err != nil {
		return imageFailure(err)
	}
	if err := slot.Take(ctx, pod.Namespace); err != nil {
		return err
	}
	config, err := w.r.configs().Container(ctx, pod, c, containerconfig.Run{
		Attempt:           a.Attempt,
		Image:             image,
		PodIPs:            ips,
		RecursiveReadOnly: w.r.handlers.RecursiveReadOnly(w.view.Handler),
		Running:           runningByName(w.view.Containers),
		Images:            images,
		ImageDirectories:  w.r.handlers.Known().ImageDirectories,
	})
	if err != nil {
		return containerFailed("CreateContainerConfigError", err)
	}
	parent, err := w.r.Groups.Ensure(pod)
	if err != nil {
		return containerFailed("CreateContainerError", err)
	}
	sandbox, err := w.r.configs().Sandbox(pod, sandboxOf(pod, w.view.Sandboxes[a.ID].Attempt, parent))
	if err != nil {
		return containerFailed("CreateContainerError", err)
	}
	if err := os.MkdirAll(filepath.Join(sandbox.LogDirectory, c.Name), 0o755); err != nil {
		return containerFailed("CreateContainerError", err)
	}
	if !isInit(pod, c.Name) {
		w.r.Assignments.Finish(string(pod.UID))
	}
	started, err := w.r.Assignments.Start(string(pod.UID), c.Name, config.Linux.Resources)
	if err != nil {
		return containerFailed("CreateContainerError", err)
	}
	id, err := w.createAndStart(ctx, pod, c, a, config, sandbox, images)
	started()
	if err != nil {
		return err
	}
	if group := w.r.Groups.Container(pod, id); group != "" {
		err := w.r.Assignments.Check(string(pod.UID), c.Name, group)
		if err != nil && !errors.Is(err, os.ErrNotExist) { // it may have ended already
			w.log().Error("a started container's cgroup differs from its assignment", "err", err)
		}
	}
	unread := w.view.ReadContainer(ctx, id, a.ID)
	if now, there := w.view.Containers[id]; there && unread == nil && now.State == podlife.Created {
		const text = "the runtime says that it has started container %s, and that it never was"
		return containerFailed(podlife.ReasonRunContainerError, fmt.Errorf(text, id))
	}
	w.r.event(pod, c.Name, corev1.EventTypeNormal, "Started", "Container started")
	w.r.Metrics.StartedContainers.WithLabelValues(containerType(pod, c.Name)).Inc()
	w.r.logs().Link(pod.Namespace, pod.Name, c.Name, id, filepath.Join(sandbox.LogDirectory, config.LogPath))
	if unread != nil {
		return unread
	}
	w.postStart(pod, c, a, id)
	return nil
}

// addresses are those of the pod, which its containers are told.
func (w *worker) addresses(ctx context.Context, pod *corev1.Pod, sandbox string) ([]string, error) {
	if pod.Spec.HostNetwork {
		return w.r.HostIPs, nil
	}
	if len(w.view.Sandboxes[sandbox].IPs) == 0 {
		if err := w.view.ReadSandbox(ctx, sandbox); err != nil {
			return nil, err
		}
	}
	ips := w.view.Sandboxes[sandbox].IPs
	if len(ips) == 0 {
		const text = "the runtime calls sandbox %s ready, and names no IP of it: its containers wait for one"
		return nil, fmt.Errorf(text, sandbox)
	}
	return ips, nil
}

// imagesOfVolumes makes the images of the image volumes present that a container mounts, and returns them by volume.
func (w *worker) imagesOfVolumes(
	ctx context.Context, pod *corev1.Pod, c *corev1.Container, slot *turns.Slot,
) (map[string]*runtimeapi.ImageSpec, error) {
	images := map[string]*runtimeapi.ImageSpec{}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		mounts := func(m corev1.VolumeMount) bool { return m.Name == v.Name }
		if v.Image == nil || !slices.ContainsFunc(c.VolumeMounts, mounts) {
			continue
		}
		image, err := w.r.Images.EnsureVolume(ctx, pod, v.Image, slot.Release)
		if err != nil {
			return nil, err
		}
		images[v.Name] = &runtimeapi.ImageSpec{Image: image.ID, UserSpecifiedImage: v.Image.Reference}
	}
	return images, nil
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
	config *runtimeapi.ContainerConfig, sandbox *runtimeapi.PodSandboxConfig, images map[string]*runtimeapi.ImageSpec,
) (id string, err error) {
	err = limited(ctx, w.r.WorkTimeout, func(ctx context.Context) error {
		response, err := w.r.Runtime.CreateContainer(
			ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: a.ID, Config: config, SandboxConfig: sandbox},
		)
		id = response.GetContainerId()
		return err
	})
	if err == nil {
		err = w.made(id)
	}
	w.countImageVolumes(c, images, err)
	if err != nil {
		return "", containerFailed("CreateContainerError", err)
	}
	w.r.event(pod, c.Name, corev1.EventTypeNormal, "Created", "Container created")
	_, sizes := w.r.Groups.Sizes(pod)
	w.view.Containers[id] = podlife.Container{ID: id, Name: c.Name, SandboxID: a.ID, Attempt: a.Attempt, Size: sizes(c)}
	w.r.oom.Know(w.e.UID(), w.view.Containers[id], 0) // it may run out of memory before we know its process
	err = withOvertime(ctx, w.r.WorkTimeout, func(ctx context.Context) error {
		_, err := w.r.Runtime.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: id})
		return err
	})
	if err != nil {
		return "", containerFailed(podlife.ReasonRunContainerError, err)
	}
	return id, nil
}

// stopContainer asks a container to end, and has it killed when its grace is over. A hook and the grace are waits,
// which cost the runtime nothing: no slot is held for them.
func (w *worker) stopContainer(ctx context.Context, pod *corev1.Pod, a podlife.Action) error {
	killAt := time.Now().Add(a.Grace)
	ctx, hookCtx, done := w.e.AwaitExit(ctx, a.ID, overtimeMax)
	defer done()
	least := time.Duration(0)
	if pod != nil {
		text := cmp.Or(a.Event, "Stopping container "+a.Container)
		w.r.event(pod, a.Container, corev1.EventTypeNormal, "Killing", text)
		if w.preStop(hookCtx, pod, a) {
			least = min(preStopLeaves, a.Grace)
		}
	}
	err := w.r.stops.Briefly(ctx, signalTime, func() error {
		grace := max(time.Until(killAt), least)
		// The runtime sends SIGTERM, waits, and sends SIGKILL; it counts in whole seconds, and zero means at once.
		seconds := int64((grace + time.Second - 1) / time.Second)
		return limited(ctx, grace+stopMargin, func(ctx context.Context) error {
			request := &runtimeapi.StopContainerRequest{ContainerId: a.ID, Timeout: seconds}
			_, err := w.r.Runtime.StopContainer(ctx, request)
			return err
		})
	})
	if err != nil && !gone(err) && !errors.Is(context.Cause(ctx), podentry.ErrProcessGone) {
		return fmt.Errorf("stop container %s: %w", a.ID, err)
	}
	return nil
}

func (w *worker) removeContainer(ctx context.Context, a podlife.Action) error {
	err := w.r.removals.Briefly(ctx, removalTime, func() error {
		return limited(ctx, w.r.WorkTimeout, func(ctx context.Context) error {
			_, err := w.r.Runtime.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: a.ID})
			return err
		})
	})
	if err != nil && !gone(err) {
		return fmt.Errorf("remove container %s: %w", a.ID, err)
	}
	w.view.Drop(a.ID)
	w.r.removeLog(w.e.Object(), a)
	return nil
}

// onSandbox stops or removes a sandbox and re-reads what is left of it.
func (w *worker) onSandbox(ctx context.Context, a podlife.Action, call func(context.Context) error) error {
	w.view.Unwatch(a.ID)
	err := w.r.removals.Briefly(ctx, removalTime, func() error { return limited(ctx, 2*w.r.WorkTimeout, call) })
	if err != nil && !gone(err) {
		return fmt.Errorf("%s %s: %w", a.Kind, a.ID, err)
	}
	if a.Kind == podlife.RemoveSandbox {
		w.view.Drop(a.ID)
		for id, c := range w.view.Containers {
			if c.SandboxID == a.ID {
				w.view.Drop(id)
			}
		}
		return nil
	}
	return w.view.ReadSandbox(ctx, a.ID)
}

// finish takes down what the pod had outside the runtime, deletes its object, and drops it here. Each step may be
// repeated after a crash.
func (w *worker) finish(ctx context.Context, pod *corev1.Pod) error {
	w.r.Probes.Untrack(w.e.UID())
	if err := w.r.Volumes.TearDown(ctx, w.e.UID()); err != nil {
		return fmt.Errorf("take down volumes: %w", err)
	}
	if err := w.r.Groups.Remove(ctx, w.e.UID()); err != nil {
		return fmt.Errorf("remove cgroup: %w", err)
	}
	w.r.Users.Release(w.e.UID())
	w.r.Assignments.Release(string(w.e.UID()))
	w.r.Devices.Release(string(w.e.UID()))
	w.r.logs().RemovePod(string(w.e.UID()))
	if pod != nil && w.e.Deletable() {
		if err := w.r.report.Delete(ctx, w.e.Report(), pod); err != nil {
			return fmt.Errorf("delete the pod's object: %w", err)
		}
	}
	w.r.drop(w.e)
	return nil
}

// drop ends what the agent knows of a pod: nothing of it is left here.
func (r *Runner) drop(e *podentry.Entry) {
	r.turns.Leave(e)
	e.Drop()
	r.mu.Lock()
	if r.pods[e.UID()] == e {
		delete(r.pods, e.UID())
	}
	r.sweepLater()
	r.mu.Unlock()
	r.version.Add(1)
	r.static.Resync() // a new version of a static pod may have waited for it
	r.ResyncHeld()    // its room may be what others wait for
}

// How long a call keeps its place at most (chosen): a signal takes the runtime 10 to 30 ms, a removal a tenth of a
// second, both longer on a busy machine. What takes longer waits for something else: a process for the end of its
// grace, a removal for a process that does not die. Raised, calls that hang delay others longer; lowered, more of them
// reach a slow runtime at once: signals, at most stopsAtOnce in each signalTime.
const (
	signalTime  = 250 * time.Millisecond
	removalTime = 10 * time.Second
)
