package pods

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/podentry"
	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// preStopLeaves is how much time a container has at least after SIGTERM that follows a preStop hook (kubelet:
// minimumGracePeriodInSeconds).
const preStopLeaves = 2 * time.Second

// beginPreStop begins the preStop hook of a container that is stopped by a later action. The hook may run until the end
// of the termination grace period.
func (w *worker) beginPreStop(pod *corev1.Pod, a podlife.Action) {
	c := hookedAtStop(pod, a)
	if c == nil {
		return
	}
	r, ip := w.r, w.address(pod)
	ctx, cancel := r.hookContext()
	run := &podentry.PreStopRun{Cancel: cancel, Done: make(chan struct{})}
	if !w.e.AddPreStop(a.ID, run) {
		cancel()
		return
	}
	r.workers.Go(func() { // this goroutine must not touch the worker
		defer close(run.Done)
		defer cancel()
		r.runPreStop(ctx, pod, c, a, ip)
	})
}

// preStop runs the container's preStop hook, or waits for the hook if it was begun before, within the termination grace
// period. It reports whether there is a hook.
func (w *worker) preStop(ctx context.Context, pod *corev1.Pod, a podlife.Action) bool {
	c := hookedAtStop(pod, a)
	if c == nil {
		return false
	}
	begun := w.e.PreStop(a.ID)
	if begun == nil {
		w.r.runPreStop(ctx, pod, c, a, w.address(pod))
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, a.Grace)
	defer cancel()
	select {
	case <-begun.Done:
	case <-ctx.Done():
		begun.Cancel()
	}
	return true
}

// hookedAtStop returns the container that is to stop if its preStop hook must run first; nil: there is no hook, or no
// time for it.
func hookedAtStop(pod *corev1.Pod, a podlife.Action) *corev1.Container {
	c := translate.ContainerNamed(pod, a.Container)
	if c == nil || c.Lifecycle == nil || c.Lifecycle.PreStop == nil || a.Grace == 0 || a.NoHook {
		return nil
	}
	return c
}

func (r *Runner) runPreStop(ctx context.Context, pod *corev1.Pod, c *corev1.Container, a podlife.Action, ip string) {
	ctx, cancel := context.WithTimeout(ctx, a.Grace)
	defer cancel()
	if err := r.Hooks.PreStop(ctx, pod, c, a.ID, ip); err != nil {
		r.event(pod, a.Container, corev1.EventTypeWarning, "FailedPreStopHook", "PreStopHook failed: "+err.Error())
	}
}
