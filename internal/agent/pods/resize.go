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

// judgeResizes asks for the node's verdicts on all pending resizes together, given the pods that are on the node now.
// It is called at the beginning and at the end of every sync. Room is made in syncs only, when a pod ends or releases
// resources, so a resize that fits waits for no more than a sync, and nothing has to poll.
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
		// A new agent must first have observed every pod: one that it has not observed yet may be running.
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

// rule applies a verdict and reports whether it allocated anything. The caller holds r.admission.
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

// RoomChanged has the pods that wait for room judged again, because the node's allocatable resources have changed.
func (r *Runner) RoomChanged() {
	for _, e := range r.entries() {
		if _, asks := e.Asks(); asks {
			r.resync(e)
		}
	}
}

// resize takes the steps of an action, up to the first that fails. If memory in use forbids one of them, it takes none.
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

// sizeNow reads the actual size of a container's group, or of the pod's if id is empty. It is called after a failed
// write, which may have changed the kernel's values all the same.
func (w *worker) sizeNow(pod *corev1.Pod, id string) resize.Size {
	has, err := w.r.Groups.Has(pod, id)
	if err != nil {
		w.log().Debug("size of a group not read", "id", id, "err", err)
	}
	return has
}

// updateSandbox tells the runtime the resources of the whole pod. Runtimes that start a virtual machine for each pod
// need them; others, and containerd 1.6, do not implement the call.
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

// adoptSizes finds out the actual sizes of the cgroups that an earlier agent created. It reads them from the kernel.
// For values that the kernel does not have (v2 stores no shares), and for containers whose cgroup is not found, it
// takes what was last reported in the status.
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
		if s := translate.StatusNamed(pod, c.Name); s != nil && s.Resources != nil &&
			translate.ContainerID(s.ContainerID) == id {
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

// resizeCounts counts the present resizes when metrics are collected.
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
