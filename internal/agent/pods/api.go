package pods

import (
	"context"
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/plimsoll-dev/plimsoll/internal/agent/podentry"
	"github.com/plimsoll-dev/plimsoll/internal/agent/staticpods"
	"github.com/plimsoll-dev/plimsoll/internal/core/admission"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// specGraceDefault is upstream's default of terminationGracePeriodSeconds.
const specGraceDefault = corev1.DefaultTerminationGracePeriodSeconds * time.Second

// watchAPI watches the pods that are bound to this node. While the API server cannot be reached, the agent goes on with
// the pods that it knows.
func (r *Runner) watchAPI(ctx context.Context) {
	handler := cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { r.apiPod(obj.(*corev1.Pod)) },
		UpdateFunc: func(_, obj any) { r.apiPod(obj.(*corev1.Pod)) },
		DeleteFunc: func(obj any) {
			if pod, ok := kube.Deleted[*corev1.Pod](obj); ok {
				r.apiGone(pod)
			}
		},
	}
	_, controller := r.Client.Informer(kube.Pods, kube.Selection{
		Fields: fields.OneTermEqualSelector("spec.nodeName", r.Node),
		Trim:   func(o runtime.Object) { translate.FromAPI(o.(*corev1.Pod)) },
		Order:  func(a, b any) int { return r.inOrder(a.(*corev1.Pod), b.(*corev1.Pod)) },
	}, handler)
	go func() {
		if cache.WaitForCacheSync(ctx.Done(), controller.HasSynced) {
			r.apiSynced()
		}
	}()
	controller.RunWithContext(ctx)
}

// inOrder compares pods that a source delivers together: the lesser one is admitted first.
func (r *Runner) inOrder(a, b *corev1.Pod) int { return admission.Order(r.arrival(a), r.arrival(b)) }

// arrival returns what core/admission needs to order pods that come together.
func (r *Runner) arrival(pod *corev1.Pod) admission.Arrival {
	a := translate.AdmissionArrival(pod)
	if e := r.entryOf(pod.UID); e != nil && e.InRuntime() {
		a.Standing = admission.Remains
	}
	return a
}

// apiSynced is called when the watch has delivered every pod that is bound to this node.
func (r *Runner) apiSynced() {
	r.mu.Lock()
	r.synced = true
	r.mu.Unlock()
	r.static.MirrorsSynced()
	r.sourceSynced()
}

// sourceSynced is called when the watch, or the directory of manifests, has delivered every pod. Once both have, a pod
// that neither has is an orphan.
func (r *Runner) sourceSynced() {
	if !r.Synced() {
		return
	}
	r.mu.Lock()
	r.sweepLater()
	r.mu.Unlock()
	slog.Info("pods of this node known", "node", r.Node)
	for _, e := range r.entries() {
		r.resync(e)
	}
	r.sweep()
}

// sweep removes directories and cgroups of pods that are gone. There are two ways in which they are left behind. The
// agent may crash after it removed a pod's last container and before it removed the rest. And a runtime that was
// interrupted while it created a sandbox may create the pod's cgroup again after the pod is gone.
func (r *Runner) sweep() {
	now, _ := r.now()
	synced := r.Synced()
	r.mu.Lock()
	due := synced && now < r.sweepEnd
	r.mu.Unlock()
	if !due {
		return
	}
	// Directories and cgroups are read before the known pods: a pod is known before anything is created for it.
	grouped, err := r.Groups.Pods()
	if err != nil {
		slog.Warn("left-over pod cgroups not read", "err", err)
	}
	var logged []types.UID
	for _, uid := range r.logs().Pods() {
		logged = append(logged, types.UID(uid))
	}
	known := map[types.UID]bool{}
	for _, e := range r.entries() {
		known[e.UID()] = true
	}
	orphans, err := r.Volumes.Orphans(known)
	if err != nil {
		slog.Warn("left-over pod directories not read", "err", err)
	}
	for _, uid := range slices.Concat(orphans, grouped, logged) {
		if !known[uid] {
			r.takeDown(uid)
		}
	}
}

// takeDown starts a worker that removes the remains of a pod of which nothing else is known.
func (r *Runner) takeDown(uid types.UID) {
	r.mu.Lock()
	e := r.pods[uid]
	if e == nil {
		e = r.newEntry(uid)
		e.FoundOutside()
		r.pods[uid] = e
	}
	r.mu.Unlock()
	r.resync(e)
}

func (r *Runner) apiPod(pod *corev1.Pod) {
	if staticpods.IsMirror(pod) {
		r.static.MirrorSeen(pod)
		return
	}
	r.take(pod, false)
}

func (r *Runner) apiGone(pod *corev1.Pod) {
	if staticpods.IsMirror(pod) {
		r.static.MirrorGone(pod)
		return
	}
	e := r.entryOf(pod.UID)
	if e == nil {
		return
	}
	now, _ := r.now()
	e.Vanish(now)
	r.resync(e)
}

// take receives a pod, or its latest version, from a source.
func (r *Runner) take(pod *corev1.Pod, static bool) *podentry.Entry {
	now, _ := r.now()
	r.mu.Lock()
	e := r.pods[pod.UID]
	if e == nil {
		e = r.newEntry(pod.UID)
		if !r.relisted {
			e.MarkDirty("")
		}
		r.pods[pod.UID] = e
		r.turns.Join(e)
	}
	r.mu.Unlock()
	first := e.Claim(static)
	if first {
		r.Metrics.ContainersPerPod.Observe(float64(len(pod.Spec.Containers)))
	}
	if first && !static {
		r.recallEviction(e, pod)
	}
	if !static {
		r.countRequestedResizes(e.Wants(), pod)
	}
	changed := e.Set(pod, now)
	r.version.Add(1)
	if changed {
		r.Volumes.Update(e.Object())
		r.resync(e) // its worker compares what it reports with what the API has
	}
	return e
}
