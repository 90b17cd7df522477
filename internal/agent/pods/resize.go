package pods

import (
	"context"
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

	"github.com/plimsoll-dev/plimsoll/internal/agent/podstatus"
	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/core/resize"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// ResizeRequest is a pod that asks for other resources than it was granted.
type ResizeRequest struct {
	Desired *corev1.Pod // as its specification is now
	Granted *corev1.Pod // as it was granted last; its status says what it has
	Since   unit.Wall   // when it began to wait; zero: it is new
}

// Verdict is the node's word on a resize.
type Verdict struct {
	Granted         bool
	Reason, Message string // if not granted: Deferred or Infeasible, and why
}

// settle gives the pods that ask for other resources the node's word, all of them together, from what is here now. It
// is called in every pass, before and after: whatever makes room (a pod that ends, one that gives something back)
// happens in a pass, so nobody who fits waits for longer than that, and nobody polls.
func (r *Runner) settle() {
	for r.settleOnce() {
	}
}

func (r *Runner) settleOnce() (granted bool) {
	all := r.entries()
	if !slices.ContainsFunc(all, func(e *entry) bool { _, asks := e.asks(); return asks }) {
		return false
	}
	r.admission.Lock()
	defer r.admission.Unlock()
	synced := r.Synced()
	var asking []*entry
	var requests []ResizeRequest
	for _, e := range all {
		// A new agent must first know everybody who is here: a pod that it has not looked at yet may be one that runs.
		if !synced || e.unheard() {
			return false
		}
		if request, asks := e.asks(); asks {
			asking, requests = append(asking, e), append(requests, request)
		}
	}
	if len(requests) == 0 {
		return false
	}
	for i, v := range r.Admission.Resize(requests, r.holders(nil)) {
		granted = r.rule(asking[i], requests[i], v) || granted
	}
	return granted
}

// unheard reports whether the pod is known and was not let in, refused or told to wait yet; nor is a plugin thinking
// about it.
func (e *entry) unheard() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.pod != nil && !e.static && e.let == outside && !e.admitted && e.hold == nil && e.stop == nil && !e.gone &&
		translate.PodlifeTerminal(e.pod) == ""
}

// asks returns what the pod asks for, if that is not what it was granted.
func (e *entry) asks() (ResizeRequest, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.granted == nil || e.stop != nil || e.gone || translate.PodlifeTerminal(e.pod) != "" || e.granted.meets(e.desired) {
		return ResizeRequest{}, false
	}
	return ResizeRequest{Desired: e.desired, Granted: e.holding(), Since: e.pendingSince}, true
}

// rule applies a verdict and reports whether it granted anything. Caller holds r.admission.
func (r *Runner) rule(e *entry, asked ResizeRequest, v Verdict) (granted bool) {
	_, wall := r.now()
	generation := asked.Desired.Generation
	e.mu.Lock()
	if e.desired != asked.Desired || e.stop != nil {
		e.mu.Unlock()
		return false // it asks for something else by now, and its worker knows
	}
	before := e.pending
	if v.Granted {
		e.granted = allocationOf(asked.Desired)
		e.pod, e.pending, e.pendingSince, e.resizing = asked.Desired, nil, 0, generation
	} else {
		e.pending = &podlife.PendingResize{Reason: v.Reason, Message: v.Message, Generation: generation}
		if before == nil || before.Reason != v.Reason {
			e.pendingSince = wall
		}
	}
	now := e.pending
	e.mu.Unlock()
	switch {
	case v.Granted:
		r.log(e).Info("resize granted", "generation", generation)
		r.event(
			asked.Desired, "", corev1.EventTypeNormal, "ResizeStarted",
			podstatus.ResizeText("Pod resize started", asked.Desired, generation, ""),
		)
		r.Volumes.Update(asked.Desired)
	case before == nil || before.Reason != v.Reason || before.Generation != generation:
		r.log(e).Info("resize not granted", "generation", generation, "reason", v.Reason, "message", v.Message)
		r.event(
			asked.Desired, "", corev1.EventTypeWarning, "Resize"+v.Reason,
			podstatus.ResizeText("Pod resize "+v.Reason, asked.Desired, generation, v.Message),
		)
	case *before == *now:
		return false
	}
	r.kick(e)
	return v.Granted
}

// RoomChanged has pods that wait for room judged anew, after the node began to offer more or less.
func (r *Runner) RoomChanged() {
	for _, e := range r.entries() {
		if _, asks := e.asks(); asks {
			r.kick(e)
		}
	}
}

// resize takes the steps of an action: none if memory in use forbids one of them, else up to the first that fails.
func (r *Runner) resize(ctx context.Context, e *entry, pod *corev1.Pod, a podlife.Action) error {
	begun := time.Now()
	err := r.resizeSteps(ctx, e, pod, a.Steps)
	r.Metrics.ResizeDuration.WithLabelValues(strconv.FormatBool(err == nil)).Observe(
		float64(time.Since(begun).Milliseconds()),
	)
	return err
}

func (r *Runner) resizeSteps(ctx context.Context, e *entry, pod *corev1.Pod, steps []resize.Step) error {
	var refusals []string
	for _, step := range steps {
		if !step.Lowers {
			continue
		}
		used, err := r.Groups.MemoryInUse(pod, step.ID)
		if err != nil {
			return &failure{"Error", "", "", fmt.Errorf("unable to read memory usage for pod %q: %w", translate.NameForMessages(pod), err)}
		}
		if why := step.Refusal(used); why != "" {
			refusals = append(refusals, why)
		}
	}
	if len(refusals) > 0 {
		return &failure{"Error", "", "", fmt.Errorf("%s", resize.Refused(refusals))}
	}
	for _, step := range steps {
		if err := r.resizeStep(ctx, e, pod, step); err != nil {
			return &failure{"Error", "", "", err}
		}
	}
	return nil
}

func (r *Runner) resizeStep(ctx context.Context, e *entry, pod *corev1.Pod, step resize.Step) error {
	if step.Name == "" {
		if err := r.tellSandbox(ctx, e, pod); err != nil {
			return err
		}
		if err := r.Groups.Resize(pod, step); err != nil {
			e.size = step.Torn(e.size, r.sizeNow(e, pod, ""))
			return err
		}
		e.size = step.After(e.size)
		return nil
	}
	c := containerNamed(pod, step.Name)
	if c == nil {
		return fmt.Errorf("resize container %q: the pod has no such container", step.Name)
	}
	update := r.Groups.Update(pod, c, step, e.view.containers[step.ID].Size)
	updated := r.Holdings.Update(string(pod.UID), c.Name, update)
	err := limited(ctx, r.WorkTimeout, func(ctx context.Context) error {
		_, err := r.Runtime.UpdateContainerResources(
			ctx, &runtimeapi.UpdateContainerResourcesRequest{ContainerId: step.ID, Linux: update},
		)
		return err
	})
	updated()
	known, ok := e.view.containers[step.ID]
	switch {
	case !ok:
	case err != nil:
		known.Size = step.Torn(known.Size, r.sizeNow(e, pod, step.ID))
		e.view.containers[step.ID] = known
	default:
		known.Size = step.After(known.Size)
		e.view.containers[step.ID] = known
	}
	return err
}

// sizeNow is what the kernel tells of a container's group, or with an empty id of the pod's: after a write that failed,
// which it may know of all the same.
func (r *Runner) sizeNow(e *entry, pod *corev1.Pod, id string) resize.Size {
	has, err := r.Groups.Has(pod, id)
	if err != nil {
		r.log(e).Debug("size of a group not read", "id", id, "err", err)
	}
	return has
}

// tellSandbox tells the runtime what the pod as a whole gets, which those that run a machine for each pod want to know.
// Others, and containerd 1.6, do not have the call.
func (r *Runner) tellSandbox(ctx context.Context, e *entry, pod *corev1.Pod) error {
	e.mu.Lock()
	id := e.sandboxID
	e.mu.Unlock()
	overhead, resources := r.Groups.SandboxResources(pod)
	err := limited(ctx, r.WorkTimeout, func(ctx context.Context) error {
		_, err := r.Runtime.UpdatePodSandboxResources(
			ctx, &runtimeapi.UpdatePodSandboxResourcesRequest{PodSandboxId: id, Overhead: overhead, Resources: resources},
		)
		return err
	})
	if err != nil && status.Code(err) != codes.Unimplemented {
		return fmt.Errorf("tell the runtime the pod's new size: %w", err)
	}
	return nil
}

// adoptSizes finds out what the cgroups of a pod have that this process did not make: the kernel knows, and where it is
// not asked (v2 keeps no shares; a runtime may keep containers elsewhere) what was reported last.
func (r *Runner) adoptSizes(e *entry) {
	e.mu.Lock()
	pod, underWay := e.pod, e.resizing != 0
	e.mu.Unlock()
	group := e.size == (resize.Size{}) && len(e.view.sandboxes) > 0
	containers := slices.ContainsFunc(slices.Collect(maps.Values(e.view.containers)), unsized)
	if pod == nil || !group && !containers {
		return
	}
	want, of := r.Groups.Sizes(pod)
	if group && want != (resize.Size{}) {
		e.size = r.sizeNow(e, pod, "").Adopted(want, underWay)
	}
	for id, c := range e.view.containers {
		spec := containerNamed(pod, c.Name)
		if !unsized(c) || spec == nil {
			continue
		}
		reported := of(spec)
		if s := statusNamed(pod, c.Name); s != nil && s.Resources != nil && translate.ContainerID(s.ContainerID) == id {
			as := *spec
			as.Resources = *s.Resources
			reported = of(&as)
		}
		c.Size = r.sizeNow(e, pod, id).Adopted(reported, underWay)
		e.view.containers[id] = c
	}
}

func unsized(c podlife.Container) bool {
	return c.State == podlife.Running && c.Size == (resize.Size{})
}

func statusNamed(pod *corev1.Pod, name string) *corev1.ContainerStatus {
	for _, list := range translate.StatusLists(&pod.Status) {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}

// resized notes that a resize is complete, once a step has found nothing more to do. Caller holds e.mu; it returns the
// generation to announce, zero for none.
func (e *entry) resized(o podlife.Observation, s podlife.Status) int64 {
	generation := o.Resizing.Generation
	under := slices.ContainsFunc(
		s.Conditions, func(c podlife.Condition) bool { return c.Type == podlife.ResizeInProgress },
	)
	if generation == 0 || e.resizing != generation || under {
		return 0
	}
	e.resizing = 0
	if o.Stop != nil || s.Phase == podlife.Succeeded || s.Phase == podlife.Failed {
		return 0
	}
	return generation
}

// resizeCounts are measurements of the resizes that are there when asked.
type resizeCounts struct{ r *Runner }

var (
	pendingResizes = prometheus.NewDesc(
		"kubelet_pod_pending_resizes", "Resizes that the node has not granted, by reason", []string{"reason"}, nil,
	)
	resizesUnderWay = prometheus.NewDesc(
		"kubelet_pod_in_progress_resizes", "Resizes that are granted and not complete", nil, nil,
	)
)

// Describe implements prometheus.Collector.
func (resizeCounts) Describe(out chan<- *prometheus.Desc) {
	out <- pendingResizes
	out <- resizesUnderWay
}

// Collect implements prometheus.Collector.
func (c resizeCounts) Collect(out chan<- prometheus.Metric) {
	pending, underWay := map[string]int{}, 0
	for _, e := range c.r.entries() {
		e.mu.Lock()
		if e.pending != nil {
			pending[strings.ToLower(e.pending.Reason)]++
		}
		if e.resizing != 0 {
			underWay++
		}
		e.mu.Unlock()
	}
	for reason, n := range pending {
		out <- prometheus.MustNewConstMetric(pendingResizes, prometheus.GaugeValue, float64(n), reason)
	}
	out <- prometheus.MustNewConstMetric(resizesUnderWay, prometheus.GaugeValue, float64(underWay))
}

// sameAmounts reports whether two lists agree in what can be resized.
func sameAmounts(a, b corev1.ResourceRequirements) bool {
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		for _, lists := range [][2]corev1.ResourceList{{a.Requests, b.Requests}, {a.Limits, b.Limits}} {
			x, hasX := lists[0][name]
			y, hasY := lists[1][name]
			if hasX != hasY || x.Cmp(y) != 0 {
				return false
			}
		}
	}
	return true
}
