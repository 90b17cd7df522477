package pods

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/allocation"
	"github.com/plimsoll-dev/plimsoll/internal/agent/podentry"
	"github.com/plimsoll-dev/plimsoll/internal/agent/podstatus"
	"github.com/plimsoll-dev/plimsoll/internal/core/admission"
	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/core/resize"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// judgeResizes gives the pods that ask for other resources the node's verdict, all of them together, from what is here
// now. It is called in every sync, before and after: whatever makes room (a pod that ends, one that gives something
// back) happens in a sync, so a pod that fits waits no longer than that, and nothing polls.
func (r *Runner) judgeResizes() {
	for r.judgeResizesOnce() {
	}
}

func (r *Runner) judgeResizesOnce() (allocated bool) {
	if r.first(func(e *podentry.Entry) bool { _, asks := e.Asks(); return asks }) == nil {
		return false
	}
	all := r.entries()
	r.admission.Lock()
	defer r.admission.Unlock()
	synced := r.Synced()
	var asking []*podentry.Entry
	var requests []allocation.Request
	for _, e := range all {
		// A new agent must first know every pod that is here: one that it has not looked at yet may be one that runs.
		if !synced || e.Unjudged() {
			return false
		}
		if request, asks := e.Asks(); asks {
			asking = append(asking, e)
			requests = append(requests, request)
		}
	}
	if len(requests) == 0 {
		return false
	}
	for i, v := range r.Admission.Resize(requests, r.counted(nil)) {
		allocated = r.rule(asking[i], requests[i], v) || allocated
	}
	return allocated
}

// rule applies a verdict and reports whether it allocated anything. Caller holds r.admission.
func (r *Runner) rule(e *podentry.Entry, asked allocation.Request, v allocation.Verdict) (allocated bool) {
	_, wall := r.now()
	before, after, ok := e.Rule(asked, v, wall)
	r.version.Add(1)
	if !ok {
		return false
	}
	generation := asked.Desired.Generation
	switch {
	case v.Allocated:
		r.log(e).Info("resize allocated", "generation", generation)
		r.event(
			asked.Desired, "", corev1.EventTypeNormal, "ResizeStarted",
			podstatus.ResizeText("Pod resize started", asked.Desired, generation, ""),
		)
		r.Volumes.Update(asked.Desired)
	case before == nil || before.Reason != v.Reason || before.Generation != generation:
		if v.Reason == admission.Infeasible {
			r.Metrics.InfeasibleResizes.WithLabelValues(infeasible(v.Message)).Inc()
		}
		r.log(e).Info("resize not allocated", "generation", generation, "reason", v.Reason, "message", v.Message)
		r.event(
			asked.Desired, "", corev1.EventTypeWarning, "Resize"+v.Reason,
			podstatus.ResizeText("Pod resize "+v.Reason, asked.Desired, generation, v.Message),
		)
	case *before == *after:
		return false
	}
	r.resync(e)
	return v.Allocated
}

// RoomChanged has pods that wait for room judged anew, after the node began to offer more or less.
func (r *Runner) RoomChanged() {
	for _, e := range r.entries() {
		if _, asks := e.Asks(); asks {
			r.resync(e)
		}
	}
}

// resize takes the steps of an action: none if memory in use forbids one of them, else up to the first that fails.
func (w *worker) resize(ctx context.Context, pod *corev1.Pod, a podlife.Action) error {
	begun := time.Now()
	err := w.resizeSteps(ctx, pod, a.Steps)
	w.r.Metrics.ResizeDuration.WithLabelValues(strconv.FormatBool(err == nil)).Observe(
		float64(time.Since(begun).Milliseconds()),
	)
	return err
}

func (w *worker) resizeSteps(ctx context.Context, pod *corev1.Pod, steps []resize.Step) error {
	var reasons []string
	for _, step := range steps {
		if !step.Lowers {
			continue
		}
		used, err := w.r.Groups.MemoryInUse(pod, step.ID)
		if err != nil {
			err = fmt.Errorf("unable to read memory usage for pod %q: %w", translate.NameForMessages(pod), err)
			return &failure{reason: "Error", err: err}
		}
		if why := step.WhyNot(used); why != "" {
			reasons = append(reasons, why)
		}
	}
	if len(reasons) > 0 {
		return &failure{reason: "Error", err: errors.New(resize.NotMade(reasons))}
	}
	for _, step := range steps {
		if err := w.resizeStep(ctx, pod, step); err != nil {
			return &failure{reason: "Error", err: err}
		}
	}
	return nil
}

func (w *worker) resizeStep(ctx context.Context, pod *corev1.Pod, step resize.Step) error {
	if step.Name == "" {
		if err := w.updateSandbox(ctx, pod); err != nil {
			return err
		}
		if err := w.r.Groups.Resize(pod, step); err != nil {
			w.size = step.Torn(w.size, w.sizeNow(pod, ""))
			return err
		}
		w.size = step.After(w.size)
		return nil
	}
	c := translate.ContainerNamed(pod, step.Name)
	if c == nil {
		return fmt.Errorf("resize container %q: the pod has no such container", step.Name)
	}
	update := w.r.Groups.Update(pod, c, step, w.view.Containers[step.ID].Size)
	updated := w.r.Assignments.Update(string(pod.UID), c.Name, update)
	err := limited(ctx, w.r.WorkTimeout, func(ctx context.Context) error {
		_, err := w.r.Runtime.UpdateContainerResources(
			ctx, &runtimeapi.UpdateContainerResourcesRequest{ContainerId: step.ID, Linux: update},
		)
		return err
	})
	updated()
	known, ok := w.view.Containers[step.ID]
	switch {
	case !ok:
	case err != nil:
		known.Size = step.Torn(known.Size, w.sizeNow(pod, step.ID))
		w.view.Containers[step.ID] = known
	default:
		known.Size = step.After(known.Size)
		w.view.Containers[step.ID] = known
	}
	return err
}

// sizeNow is what the kernel has for a container's group, or with an empty id of the pod's: after a write that failed,
// which it may know of all the same.
func (w *worker) sizeNow(pod *corev1.Pod, id string) resize.Size {
	has, err := w.r.Groups.Has(pod, id)
	if err != nil {
		w.log().Debug("size of a group not read", "id", id, "err", err)
	}
	return has
}

// updateSandbox gives the runtime the resources of the pod as a whole, which those that run a machine for each pod want
// to know. Others, and containerd 1.6, do not have the call.
func (w *worker) updateSandbox(ctx context.Context, pod *corev1.Pod) error {
	id := w.view.ReadySandbox()
	overhead, resources := w.r.Groups.SandboxResources(pod)
	err := limited(ctx, w.r.WorkTimeout, func(ctx context.Context) error {
		_, err := w.r.Runtime.UpdatePodSandboxResources(ctx, &runtimeapi.UpdatePodSandboxResourcesRequest{
			PodSandboxId: id,
			Overhead:     overhead,
			Resources:    resources,
		})
		return err
	})
	if err != nil && status.Code(err) != codes.Unimplemented {
		return fmt.Errorf("update the resources of the sandbox: %w", err)
	}
	return nil
}

// adoptSizes finds out what the cgroups of a pod have that this process did not make: the kernel knows, and where it is
// not asked (v2 keeps no shares; a runtime may keep containers elsewhere) what was reported last.
func (w *worker) adoptSizes() {
	s := w.e.Snapshot()
	pod, underWay := s.Pod, s.Resizing.Generation != 0
	group := w.size == (resize.Size{}) && len(w.view.Sandboxes) > 0
	containers := slices.ContainsFunc(slices.Collect(maps.Values(w.view.Containers)), unsized)
	if pod == nil || !group && !containers {
		return
	}
	want, of := w.r.Groups.Sizes(pod)
	if group && want != (resize.Size{}) {
		w.size = w.sizeNow(pod, "").Adopted(want, underWay)
	}
	for id, c := range w.view.Containers {
		spec := translate.ContainerNamed(pod, c.Name)
		if !unsized(c) || spec == nil {
			continue
		}
		reported := of(spec)
		if s := translate.StatusNamed(pod, c.Name); s != nil && s.Resources != nil && translate.ContainerID(s.ContainerID) == id {
			as := *spec
			as.Resources = *s.Resources
			reported = of(&as)
		}
		c.Size = w.sizeNow(pod, id).Adopted(reported, underWay)
		w.view.Containers[id] = c
	}
}

func unsized(c podlife.Container) bool {
	return c.State == podlife.Running && c.Size == (resize.Size{})
}

// resizeCounts are measurements of the resizes that are there when asked.
type resizeCounts struct{ r *Runner }

var (
	pendingResizes = prometheus.NewDesc(
		"kubelet_pod_pending_resizes", "Resizes that the node has not allocated, by reason", []string{"reason"}, nil,
	)
	resizesUnderWay = prometheus.NewDesc(
		"kubelet_pod_in_progress_resizes", "Resizes that are allocated and not complete", nil, nil,
	)
)

// Describe implements prometheus.Collector.
func (resizeCounts) Describe(out chan<- *prometheus.Desc) {
	out <- pendingResizes
	out <- resizesUnderWay
}

// Collect implements prometheus.Collector.
func (c resizeCounts) Collect(out chan<- prometheus.Metric) {
	pending := map[string]int{}
	underWay := 0
	for _, e := range c.r.entries() {
		waits, runs := e.Resizes()
		if waits != nil {
			pending[strings.ToLower(waits.Reason)]++
		}
		if runs {
			underWay++
		}
	}
	for reason, n := range pending {
		out <- prometheus.MustNewConstMetric(pendingResizes, prometheus.GaugeValue, float64(n), reason)
	}
	out <- prometheus.MustNewConstMetric(resizesUnderWay, prometheus.GaugeValue, float64(underWay))
}
