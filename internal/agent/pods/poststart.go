package pods

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
)

// hookRun is a postStart hook. It is a user's code, and may take for ever: it has a goroutine of its own, while the pod's worker
// goes on and core/podlife holds up what comes after it.
type hookRun struct {
	start  podlife.Action // that made the container
	cancel context.CancelFunc
	state  podlife.HookState
	err    error // of one that failed; nil once users were told
}

// postStart begins a container's hook, if it has one.
func (r *Runner) postStart(e *entry, pod *corev1.Pod, c *corev1.Container, a podlife.Action, id string) {
	if c.Lifecycle == nil || c.Lifecycle.PostStart == nil {
		return
	}
	r.mu.Lock()
	ctx, cancel := context.WithCancel(r.ctx)
	r.mu.Unlock()
	h, ip := &hookRun{start: a, cancel: cancel, state: podlife.HookRuns}, r.addressOf(e, pod)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stop != nil { // an order that came while the container started
		cancel()
		return
	}
	e.hooks[id] = h
	r.workers.Go(func() {
		defer cancel()
		err := r.Hooks.PostStart(ctx, pod, c, id, ip)
		if e.hookEnded(id, h, err, ctx.Err() != nil) {
			r.kick(e)
		}
	})
}

// hookEnded notes how a hook ended, and reports whether anybody still wants to know. One that was cut short did not fail.
func (e *entry) hookEnded(id string, h *hookRun, err error, cut bool) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.hooks[id] != h {
		return false
	}
	if err == nil || cut {
		delete(e.hooks, id)
		return true
	}
	h.state, h.err = podlife.HookFailed, err
	return true
}

// endHook cuts a container's hook short: the container is to stop, or has ended. Caller holds e.mu.
func (e *entry) endHook(id string) {
	if h := e.hooks[id]; h != nil {
		h.cancel()
		delete(e.hooks, id)
	}
}

// followHooks ends the hooks of containers that do not run any more, and tells users of those that failed.
func (r *Runner) followHooks(e *entry, pod *corev1.Pod) {
	var failed []podlife.Action
	var why []error
	e.mu.Lock()
	for id, h := range e.hooks {
		if e.view.containers[id].State != podlife.Running {
			e.endHook(id)
		} else if h.err != nil {
			failed, why = append(failed, h.start), append(why, h.err)
			h.err = nil
		}
	}
	e.mu.Unlock()
	for i, start := range failed {
		r.failed(e, pod, start, &failure{"PostStartHookError", "FailedPostStartHook", "PostStartHook failed: ", why[i]})
	}
}

// containersIn are the containers of the view, with what is known of their hooks. Caller holds e.mu.
func (e *entry) containersIn() []podlife.Container {
	var all []podlife.Container
	for id, c := range e.view.containers {
		if h := e.hooks[id]; h != nil {
			c.Hook = h.state
		}
		all = append(all, c)
	}
	return all
}
