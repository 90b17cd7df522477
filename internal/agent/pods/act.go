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
	"github.com/plimsoll-dev/plimsoll/internal/agent/criconfig"
	"github.com/plimsoll-dev/plimsoll/internal/agent/imagepull"
	"github.com/plimsoll-dev/plimsoll/internal/agent/podcert"
	"github.com/plimsoll-dev/plimsoll/internal/agent/podentry"
	"github.com/plimsoll-dev/plimsoll/internal/agent/turns"
	"github.com/plimsoll-dev/plimsoll/internal/agent/userns"
	"github.com/plimsoll-dev/plimsoll/internal/agent/volume"
	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/core/resize"
	"github.com/plimsoll-dev/plimsoll/internal/journal"
	"github.com/plimsoll-dev/plimsoll/internal/kube/podfields"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// Bounds on actions, in addition to Options.WorkTimeout (runtimeRequestTimeout). Creating a sandbox may take twice
// WorkTimeout, as in the kubelet, since it may wait for the network.
const (
	// stopMargin is added to the termination grace period to bound the runtime's StopContainer (chosen).
	stopMargin = 2 * time.Minute
	// mountTimeout bounds one attempt to set up a pod's volumes. Chosen: with the kubelet's default of kubeAPIQPS, 1,500
	// pods with ten claims each read them in it, of which this pod may be the last.
	mountTimeout = 10 * time.Minute
	// adoptTimeout is mountTimeout for a pod that runs already: its containers are not looked after meanwhile (chosen).
	adoptTimeout = 2 * time.Minute
)

// act carries out one action.
func (w *worker) act(ctx context.Context, pod *corev1.Pod, a podlife.Action, slot *turns.Slot) error {
	if w.isNews(a) {
		w.log().Info(a.Kind.String(), "container", a.Container, "why", a.Why)
	}
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

// isNews reports whether an action is to be logged. Finish is repeated each second while drivers unmount the pod's
// volumes, which may take hours with one that hangs: it is logged once. No other action runs beside it.
func (w *worker) isNews(a podlife.Action) bool {
	if a.Kind != podlife.Finish {
		return true
	}
	before := w.finishes
	w.finishes = true
	return !before
}

// overtimeMax is how long a call to the runtime may continue after its result is no longer needed. Chosen: far longer
// than a start takes (0.1 s; seconds on a busy machine). A pod whose network hangs may take this much longer to end.
const overtimeMax = 10 * time.Second

// withOvertime makes a call with which the runtime creates something, and cancels it after limit. When ctx ends because
// the pod must stop, the call continues for up to overtimeMax: if containerd is cancelled at the wrong moment, it
// leaves something behind that it then refuses to remove (see cri.Client.RemoveContainer).
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

// createSandbox sets up the pod's volumes, its cgroup and its log directory, and then creates the sandbox.
func (w *worker) createSandbox(
	ctx context.Context, pod *corev1.Pod, a podlife.Action, slot *turns.Slot,
) error {
	slot.Release() // a failed attempt may still have it, and setting up volumes may take long
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
		err = w.checkNew(id)
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

// checkNew returns an error if the runtime says that it created something, and the ID that it returned is empty or one
// that the pod already had.
func (w *worker) checkNew(id string) error {
	if id == "" {
		return errors.New("the runtime says that it succeeded, and names no ID of what it made")
	}
	_, sandbox := w.view.Sandboxes[id]
	if _, container := w.view.Containers[id]; container || sandbox {
		return fmt.Errorf("the runtime says that it succeeded, and names the ID %s, which the pod had before", id)
	}
	return w.r.taken(id, w.e)
}

// handlerFor looks up the runtime handler of the pod's RuntimeClass. It returns an error if the handler does not
// support something that the pod requires.
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
			// agent/csivolume records Events about these volumes and has the pod retried.
			return &failure{reason: podlife.ReasonContainerCreating, err: err}
		}
		var refused *podcert.RefusedError
		if errors.As(err, &refused) {
			w.refused = refused.Reason()
		}
		var unsupported *volume.UnsupportedError
		if errors.As(err, &unsupported) || refused != nil {
			w.unmountable = err.Error() // the pod is held, and the hold has an Event
			return &failure{reason: podlife.ReasonContainerCreating, err: err}
		}
		return &failure{reason: podlife.ReasonContainerCreating, event: "FailedMount", err: volume.WithoutWaits(err)}
	}
	w.volumes = volumesUp
	return nil
}

// completeVolumes sets up the volumes that adopt could not set up, in a pod whose sandbox an earlier agent created. The
// reason may be gone by now: the Node's labels were not known yet, or a CSI driver was not registered.
func (w *worker) completeVolumes(ctx context.Context, pod *corev1.Pod, slot *turns.Slot) error {
	if w.volumes != volumesUntouched && w.volumes != volumesPartlyUp {
		return nil
	}
	slot.Release()
	ctx, cancel := context.WithTimeout(ctx, adoptTimeout)
	defer cancel()
	return w.setUp(ctx, pod)
}

func (w *worker) startContainer(
	ctx context.Context, pod *corev1.Pod, a podlife.Action, slot *turns.Slot,
) error {
	c := translate.ContainerNamed(pod, a.Container)
	if c == nil {
		return fmt.Errorf("start container %q: the pod has no such container", a.Container)
	}
	// The pod was not held for this: another agent created the sandbox, or the container was added later.
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
	image, images, err := w.ensureImages(ctx, pod, c, slot)
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
	return w.afterStart(ctx, pod, c, a, id, filepath.Join(sandbox.LogDirectory, config.LogPath))
}

// afterStart reads a container that the runtime has started, records the start, and begins the postStart hook.
func (w *worker) afterStart(
	ctx context.Context, pod *corev1.Pod, c *corev1.Container, a podlife.Action, id, log string,
) error {
	w.checkAssignment(pod, c, id)
	unread := w.view.ReadContainer(ctx, id, a.ID)
	if now, there := w.view.Containers[id]; there && unread == nil && now.State == podlife.Created {
		const text = "the runtime says that it has started container %s, and that it never was"
		return containerFailed(podlife.ReasonRunContainerError, fmt.Errorf(text, id))
	}
	w.r.event(pod, c.Name, corev1.EventTypeNormal, "Started", "Container started")
	w.r.note(pod, journal.Started, &journal.Start{Container: c.Name, Run: int(a.Attempt) + 1, ID: id})
	w.r.Metrics.StartedContainers.WithLabelValues(containerType(pod, c.Name)).Inc()
	w.r.logs().Link(pod.Namespace, pod.Name, c.Name, id, log)
	if unread != nil {
		return unread
	}
	w.postStart(pod, c, a, id)
	return nil
}

// ensureImages makes the container's image present, and the images of its image volumes, by volume. While it waits for
// a pull, it gives the slot to other pods.
func (w *worker) ensureImages(ctx context.Context, pod *corev1.Pod, c *corev1.Container, slot *turns.Slot) (
	image criconfig.Image, ofVolumes map[string]*runtimeapi.ImageSpec, err error,
) {
	ofVolumes, err = w.imagesOfVolumes(ctx, pod, c, slot)
	if err != nil {
		return criconfig.Image{}, nil, err
	}
	pulled := w.measured.pull()
	image, err = w.r.Images.Ensure(ctx, pod, c, func() {
		slot.Release()
		pulled.began()
	})
	pulled.ended()
	return image, ofVolumes, err
}

// checkAssignment logs if a started container's cgroup differs from what is assigned to the container.
func (w *worker) checkAssignment(pod *corev1.Pod, c *corev1.Container, id string) {
	group := w.r.Groups.Container(pod, id)
	if group == "" {
		return
	}
	err := w.r.Assignments.Check(string(pod.UID), c.Name, group)
	if err != nil && !errors.Is(err, os.ErrNotExist) { // the container may have ended already
		w.log().Error("a started container's cgroup differs from its assignment", "err", err)
	}
}

// addresses returns the pod's addresses, for its containers' environment and hosts file.
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

// imagesOfVolumes makes the images of a container's image volumes present, and returns them by volume.
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

// imageFailure returns the failure of an action whose image is not present.
func imageFailure(err error) error {
	var known *imagepull.Error
	if !errors.As(err, &known) {
		return err
	}
	return &failure{reason: known.Reason, event: known.Event, prefix: known.Prefix, err: known.Err}
}

// createAndStart has the runtime create and start a container. In between, it adds the container to the view.
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
		err = w.checkNew(id)
	}
	w.countImageVolumes(c, images, err)
	if err != nil {
		return "", containerFailed("CreateContainerError", err)
	}
	w.r.event(pod, c.Name, corev1.EventTypeNormal, "Created", "Container created")
	_, sizes := w.r.Groups.Sizes(pod)
	w.view.Containers[id] = podlife.Container{ID: id, Name: c.Name, SandboxID: a.ID, Attempt: a.Attempt, Size: sizes(c)}
	w.r.oom.Know(w.e.UID(), w.view.Containers[id], 0) // it may run out of memory before its PID is known
	err = withOvertime(ctx, w.r.WorkTimeout, func(ctx context.Context) error {
		_, err := w.r.Runtime.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: id})
		return err
	})
	if err != nil {
		return "", containerFailed(podlife.ReasonRunContainerError, err)
	}
	return id, nil
}

// stopContainer asks a container to end, and has it killed when its grace period is over. It holds no slot while it
// waits for a hook or for the grace period, since these cost the runtime nothing.
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

// onSandbox makes a call that stops or removes a sandbox, and reads the sandbox again.
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

// finish removes what the pod had outside the runtime, deletes its object, and drops the pod. Each step may be repeated
// after a crash.
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

// drop removes the entry of a pod of which nothing is left on this node.
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
	r.static.Resync() // a new version of a static pod may have waited for this
	r.ResyncHeld()    // other pods may have waited for its resources
}

// These are how long a stop and a removal hold a slot at most (chosen). A signal takes the runtime 10 to 30 ms, and a
// removal 0.1 s, both longer on a busy machine. A call that takes longer waits for something else: a stop for the end
// of the grace period, a removal for a process that does not die. With longer times, calls that hang delay others more.
// With shorter ones, a slow runtime gets more calls at once; of stops, at most stopsAtOnce per signalTime.
const (
	signalTime  = 250 * time.Millisecond
	removalTime = 10 * time.Second
)
