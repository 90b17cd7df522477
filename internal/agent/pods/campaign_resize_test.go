package pods

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/agent/allocation"
	"github.com/plimsoll-dev/plimsoll/internal/agent/podentry"
	"github.com/plimsoll-dev/plimsoll/internal/agent/podstatus"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// sizing is what the world knows of a pod's resizes. It is guarded by world.mu.
type sizing struct {
	wishes            []*wish // in the order in which they were asked for; the first is the pod as it was created
	ran               bool    // it has had a sandbox
	reported          int     // the wish that was last reported as allocated; -1: none since it ran
	pending, resizing int64   // greatest generation of each condition
	done              int64   // and of a resize that is complete
}

// wish is what a pod requested at one time.
type wish struct {
	pod       *corev1.Pod
	allocated bool
}

// asksFor reports whether a pod has resources that can be changed.
func asksFor(pod *corev1.Pod) bool {
	return len(pod.Spec.Containers) > 0 && len(pod.Spec.Containers[0].Resources.Requests) > 0
}

// resources returns a container's resources. Its CPU request is different for each generation of the pod.
func (h *history) resources(generation int64) corev1.ResourceRequirements {
	cpu := int64(50*(1+h.r.IntN(12))) + generation%50
	memory := int64(64<<20) * int64(1+h.r.IntN(8))
	return corev1.ResourceRequirements{
		Requests: amountsOf(cpu, memory),
		Limits:   amountsOf(cpu+int64(100*(1+h.r.IntN(5))), memory+int64(64<<20)*int64(1+h.r.IntN(4))),
	}
}

// amountsOf returns that many millicores and bytes.
func amountsOf(milli, bytes int64) corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewMilliQuantity(milli, resource.DecimalSI),
		corev1.ResourceMemory: *resource.NewQuantity(bytes, resource.BinarySI),
	}
}

// resizable gives most containers of a new pod resources, and some a resizePolicy that requires a restart.
func (h *history) resizable(pod *corev1.Pod) {
	if h.r.IntN(2) == 0 {
		return
	}
	restarts := *pod.Spec.TerminationGracePeriodSeconds <= 30 && pod.Spec.RestartPolicy != corev1.RestartPolicyNever
	for k, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			if k+i > 0 && h.r.IntN(6) == 0 {
				continue // the container has no limits, so the pod has none
			}
			list[i].Resources = h.resources(pod.Generation)
			if restarts && k == 0 && h.r.IntN(4) == 0 {
				list[i].ResizePolicy = []corev1.ContainerResizePolicy{
					{ResourceName: corev1.ResourceMemory, RestartPolicy: corev1.RestartContainer},
				}
			}
		}
	}
	h.w.sizings[pod.UID] = &sizing{reported: -1, wishes: []*wish{{pod: pod}}}
}

// resize makes a user request other resources, up to three times in a row. Sometimes the agent crashes afterwards, or
// the pod is deleted. The caller holds mu.
func (h *history) resize(pod *corev1.Pod) {
	w, uid := h.w, pod.UID
	for range 1 + h.r.IntN(3) {
		if pod = w.api.byUID(uid); pod == nil || w.sizings[uid] == nil {
			return
		}
		h.wish(pod)
		w.mu.Unlock()
		h.pass(time.Duration(h.r.IntN(60)) * time.Millisecond)
		w.mu.Lock()
	}
	switch h.r.IntN(6) {
	case 0:
		w.mu.Unlock()
		w.crash()
		h.pass(time.Duration(h.r.IntN(2_000)) * time.Millisecond)
		w.begin()
		w.mu.Lock()
	case 1:
		if pod = w.api.byUID(uid); pod != nil {
			w.say("user deletes %s within 10s", uid)
			w.api.toEnd(pod, 10)
		}
	}
}

// wish stores in the API what a user requests. The caller holds mu.
func (h *history) wish(pod *corev1.Pod) {
	w, s := h.w, h.w.sizings[pod.UID]
	pod = pod.DeepCopy()
	pod.Generation++
	kind := h.r.IntN(8)
	back := s.wishes[h.r.IntN(len(s.wishes))].pod
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			r := &list[i].Resources
			if list[i].Name == "init" || len(r.Requests) == 0 {
				continue // the API refuses a resize of it
			}
			switch kind {
			case 0: // earlier resources
				*r = *translate.ContainerNamed(back, list[i].Name).Resources.DeepCopy()
			case 1, 2: // only limits
				cpu, memory := r.Requests.Cpu().MilliValue(), r.Requests.Memory().Value()
				r.Limits = amountsOf(cpu+int64(100*(1+h.r.IntN(5))), memory+int64(64<<20)*int64(1+h.r.IntN(4)))
			case 3: // more than the node has
				r.Requests, r.Limits = amountsOf(9000+pod.Generation%50, 1<<30), amountsOf(9999, 2<<30)
			default:
				*r = h.resources(pod.Generation)
			}
		}
	}
	s.wishes = append(s.wishes, &wish{pod: pod})
	w.say("user resizes %s, generation %d: %v", pod.UID, pod.Generation, resourcesOf{pod})
	w.api.put(pod)
}

// use changes how much memory a container uses, within its limit. The caller holds mu.
func (h *history) use(b *box) {
	limit, bounded := h.w.kernel[b.id].Memory.Get()
	if bounded {
		b.used, b.usedSince = unit.Bytes(h.r.Int64N(int64(limit))), time.Now()
		h.w.say("%s %s#%d uses %s", b.uid, b.name, b.attempt, b.used)
	}
}

// resourcesOf prints the resources of a pod's containers.
type resourcesOf struct{ pod *corev1.Pod }

func (o resourcesOf) String() string {
	var b strings.Builder
	for _, list := range [][]corev1.Container{o.pod.Spec.InitContainers, o.pod.Spec.Containers} {
		for i := range list {
			r := list[i].Resources
			fmt.Fprintf(
				&b, "%s cpu %s/%s memory %s/%s; ", list[i].Name, r.Requests.Cpu(), r.Limits.Cpu(), r.Requests.Memory(),
				r.Limits.Memory(),
			)
		}
	}
	return b.String()
}

// allocate records that the node judged a pod to fit. The caller holds mu.
func (w *world) allocate(pod *corev1.Pod) {
	s := w.sizings[pod.UID]
	if s == nil {
		return
	}
	for _, wish := range slices.Backward(s.wishes) {
		if sameResources(wish.pod, pod) {
			wish.allocated = true
			w.say("  %s is allocated generation %d", pod.UID, wish.pod.Generation)
			return
		}
	}
	if s.reported < 0 && !s.ran {
		return // limits of a status that was reported before it was admitted
	}
	w.judged("%s is allocated what nobody asked for: %s", pod.UID, resourcesOf{pod})
}

// wasAllocated reports whether a wish was allocated. If the requests were allocated, the limits need no verdict.
func (s *sizing) wasAllocated(asked *wish) bool {
	return slices.ContainsFunc(s.wishes, func(o *wish) bool { return o.allocated && sameRequests(o.pod, asked.pod) })
}

func sameRequests(a, b *corev1.Pod) bool {
	a, b = a.DeepCopy(), b.DeepCopy()
	for _, pod := range []*corev1.Pod{a, b} {
		for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
			for i := range list {
				list[i].Resources.Limits = nil
			}
		}
	}
	return sameResources(a, b)
}

// sameResources compares what two versions of a pod request.
func sameResources(a, b *corev1.Pod) bool {
	same := func(x, y []corev1.Container) bool {
		return slices.EqualFunc(x, y, func(x, y corev1.Container) bool { return allocation.Same(x.Resources, y.Resources) })
	}
	return same(a.Spec.InitContainers, b.Spec.InitContainers) && same(a.Spec.Containers, b.Spec.Containers)
}

// allocated reports whether a status says that what pod requests is allocated.
func allocated(status *corev1.PodStatus, pod *corev1.Pod) bool {
	for _, list := range translate.StatusLists(status) {
		for i := range list {
			c := translate.ContainerNamed(pod, list[i].Name)
			reported, asked := corev1.ResourceRequirements{Requests: list[i].AllocatedResources}, corev1.ResourceRequirements{}
			if c != nil {
				asked.Requests = c.Resources.Requests
			}
			if !allocation.Same(reported, asked) {
				return false
			}
		}
	}
	return true
}

// judgeResize compares what is reported of resizes with what was reported, requested and allocated before. The caller
// holds mu.
func (w *world) judgeResize(pod *corev1.Pod) {
	s := w.sizings[pod.UID]
	if s == nil {
		return
	}
	if s.ran && len(pod.Status.ContainerStatuses) > 0 && translate.PodlifeTerminal(pod) == "" {
		w.judgeAllocated(pod, s)
	}
	pending, resizing := int64(0), int64(0)
	for _, c := range pod.Status.Conditions {
		switch {
		case c.Type == corev1.PodResizePending && c.Status == corev1.ConditionTrue:
			pending = c.ObservedGeneration
		case c.Type == corev1.PodResizeInProgress && c.Status == corev1.ConditionTrue:
			resizing = c.ObservedGeneration
		}
	}
	if pending != 0 && pending < s.pending {
		w.judged("%s: a resize of generation %d is pending after %d was", pod.UID, pending, s.pending)
	}
	if resizing != 0 && (resizing < s.resizing || resizing <= s.done) {
		w.judged(
			"%s: a resize of generation %d is under way after %d was, and %d was complete", pod.UID, resizing, s.resizing,
			s.done,
		)
	}
	if pending != 0 && s.reported >= 0 && pending <= s.wishes[s.reported].pod.Generation {
		w.judged(
			"%s: a resize of generation %d is pending, and %d is allocated", pod.UID, pending,
			s.wishes[s.reported].pod.Generation,
		)
	}
	if resizing == 0 {
		s.done = s.resizing
	}
	s.pending, s.resizing = max(s.pending, pending), max(s.resizing, resizing)
}

// judgeAllocated checks that what is reported as allocated was allocated, and does not go back to an earlier wish. The
// caller holds mu.
func (w *world) judgeAllocated(pod *corev1.Pod, s *sizing) {
	for i := max(s.reported, 0); i < len(s.wishes); i++ {
		if s.wasAllocated(s.wishes[i]) && allocated(&pod.Status, s.wishes[i].pod) {
			s.reported = i
			return
		}
	}
	w.judged(
		"%s is reported to have what it was not allocated, or not since generation %d", pod.UID,
		s.wishes[max(s.reported, 0)].pod.Generation,
	)
}

// unsized returns what was allocated and is not set, or not reported, a while after the trouble ended.
func (w *world) unsized() string {
	var out []string
	r := w.life.runner
	for _, e := range r.entries() {
		now, desired := e.Snapshot(), e.Wants()
		pod, admitted := now.Pod, now.Phase == podentry.PhaseAdmitted
		if pod == nil || !admitted || now.Stop != nil || translate.PodlifeTerminal(pod) != "" {
			continue
		}
		request, asks := e.Asks()
		if asks && r.Admission.Resize([]allocation.Request{request}, r.Holders())[0].Allocated {
			out = append(out, fmt.Sprintf("%s waits for what it can have", e.UID()))
		}
		w.mu.Lock()
		out = append(out, w.unsizedPod(pod, desired, allocation.Of(pod).Meets(desired))...)
		w.mu.Unlock()
	}
	slices.Sort(out)
	return strings.Join(out, "; ")
}

// unsizedPod is unsized for one pod, which has its allocated resources. The caller holds mu.
func (w *world) unsizedPod(pod, desired *corev1.Pod, meets bool) (out []string) {
	uid := pod.UID
	api := w.api.byUID(uid)
	if api == nil || w.sizings[uid] == nil || w.api.final[uid] != "" || w.over(pod) || w.waitsForEnd(uid) {
		return nil
	}
	complain := func(format string, args ...any) {
		out = append(out, string(uid)+" "+fmt.Sprintf(format, args...))
	}
	size, of := fakeGroups{}.Sizes(pod)
	if has := w.kernel[string(uid)]; w.hasSandbox(uid) && !sameSize(has, size) {
		complain("has %s, and was allocated %s", has, size)
	}
	for _, b := range w.containers {
		c := translate.ContainerNamed(pod, b.name)
		if b.uid != uid || !b.alive || c == nil {
			continue
		}
		if has := w.kernel[b.id]; !sameSize(has, of(c)) {
			complain("%s#%d has %s, and was allocated %s", b.name, b.attempt, has, of(c))
		}
		if s := translate.StatusNamed(api, b.name); s == nil || s.Resources == nil ||
			!allocation.Same(*s.Resources, c.Resources) {
			complain("%s#%d is not reported to have what it was allocated", b.name, b.attempt)
		}
	}
	if !allocated(&api.Status, pod) {
		complain("is not reported to be allocated what it was allocated")
	}
	// A container that was stopped to be restarted with its new size may wait for another's hook, which may not end.
	if c := podstatus.Condition(api.Status, corev1.PodResizeInProgress); c != nil && w.hooks[uid] == 0 {
		complain("is being resized: %s", c.Message)
	}
	if c := podstatus.Condition(api.Status, corev1.PodResizePending); (c != nil) == meets {
		complain("is reported to have a pending resize: %v", c != nil)
	}
	if !sameResources(desired, api) {
		complain("has not been heard of")
	}
	return out
}

// waitsForEnd reports whether a pod's worker waits, for up to a grace period of an hour, until a container that failed
// its liveness probe has ended. Like the kubelet's, it does nothing else to the pod meanwhile. The caller holds mu.
func (w *world) waitsForEnd(uid types.UID) bool {
	for c := range w.flying {
		if c.uid == uid && c.kind == "stop waits" {
			return true
		}
	}
	return false
}

// over reports whether a pod may be ending by itself: none of its main containers runs, and none need run again. The
// caller holds mu.
func (w *world) over(pod *corev1.Pod) bool {
	for _, b := range w.containers {
		if b.uid == pod.UID && b.alive && strings.HasPrefix(b.name, "main") {
			return false
		}
	}
	return pod.Spec.RestartPolicy != corev1.RestartPolicyAlways
}
