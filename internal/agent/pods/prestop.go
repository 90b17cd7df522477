package pods

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/podentry"
	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// preStopLeaves is what upstream leaves at least for SIGTERM after a preStop hook.
const preStopLeaves = 2 * time.Second

// beginPreStop begins the hook of a container that is stopped later. It outlives the action that begins it, and ends at
// the end of the grace period.
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
	r.workers.Go(func() { // it does not have the worker
		defer close(run.Done)
		defer cancel()
		r.runPreStop(ctx, pod, c, a, ip)
	})
}

// preStop runs the hook inside the grace, or waits inside the grace for the one that was begun. It reports whether
// there is one.
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

// hookedAtStop returns the container that is to stop if a hook has to run before; nil: there is no hook, or no time.
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
