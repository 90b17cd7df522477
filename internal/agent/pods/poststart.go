package pods

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
)

// postStart begins a container's postStart hook, if it has one.
func (w *worker) postStart(pod *corev1.Pod, c *corev1.Container, a podlife.Action, id string) {
	if c.Lifecycle == nil || c.Lifecycle.PostStart == nil {
		return
	}
	r, e := w.r, w.e
	ip := w.address(pod)
	ctx, cancel := r.hookContext()
	h := e.AddHook(id, a, cancel)
	if h == nil { // the pod got a stop order while the container started
		cancel()
		return
	}
	r.workers.Go(func() { // this goroutine must not touch the worker
		defer cancel()
		err := r.Hooks.PostStart(ctx, pod, c, id, ip)
		if e.HookEnded(id, h, err, ctx.Err() != nil) {
			r.resync(e)
		}
	})
}

// followHooks ends the hooks of containers that do not run any more, and records the failures of hooks.
func (w *worker) followHooks() {
	pod := w.e.Object()
	runs := func(id string) bool { return w.view.Containers[id].State == podlife.Running }
	for _, f := range w.e.FollowHooks(runs) {
		w.failed(pod, f.Start, &failure{
			reason: podlife.ReasonPostStartHookError,
			event:  "FailedPostStartHook",
			prefix: "PostStartHook failed: ",
			err:    f.Err,
		})
	}
}
