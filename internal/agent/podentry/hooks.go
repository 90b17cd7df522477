package podentry

import (
	"context"

	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
)

// Hooks that run beside the pod's worker.

// HookRun is a postStart hook. It is a user's code, and may take for ever: it has a goroutine of its own, while the
// pod's worker goes on and core/podlife starts nothing that comes after it.
type HookRun struct {
	start  podlife.Action     // that made the container; never changes
	cancel context.CancelFunc // never changes
	state  podlife.HookState  // guarded by Entry.mu
	err    error              // of one that failed; nil once it was reported. Guarded by Entry.mu
}

// PreStopRun is a preStop hook that was begun before the turn of its container to stop has come.
type PreStopRun struct {
	Cancel context.CancelFunc // never changes
	Done   chan struct{}      // closed when the hook has ended; never changes
}

// AddHook notes a postStart hook that begins: start made its container, cancel ends it. It returns nil where the pod is
// to end already.
func (e *Entry) AddHook(id string, start podlife.Action, cancel context.CancelFunc) *HookRun {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stop != nil {
		return nil
	}
	h := &HookRun{start: start, cancel: cancel, state: podlife.HookRuns}
	e.hooks[id] = h
	return h
}

// HookEnded notes how a hook ended, and reports whether that still matters. One that was cut short did not fail.
func (e *Entry) HookEnded(id string, h *HookRun, err error, cut bool) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.hooks[id] != h {
		return false
	}
	if err == nil || cut {
		delete(e.hooks, id)
		return true
	}
	h.state = podlife.HookFailed
	h.err = err
	return true
}

// endHook cuts a container's hook short: the container is to stop, or has ended. Caller holds mu.
func (e *Entry) endHook(id string) {
	if h := e.hooks[id]; h != nil {
		h.cancel()
		delete(e.hooks, id)
	}
}

// HookFailure is a postStart hook that failed.
type HookFailure struct {
	Start podlife.Action // that made the container
	Err   error
}

// FollowHooks ends the hooks of containers that do not run any more, and returns those that failed since it was called
// last.
func (e *Entry) FollowHooks(runs func(id string) bool) (failed []HookFailure) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for id, h := range e.hooks {
		if !runs(id) {
			e.endHook(id)
		} else if h.err != nil {
			failed = append(failed, HookFailure{Start: h.start, Err: h.err})
			h.err = nil
		}
	}
	for id, run := range e.preStops {
		if !runs(id) {
			run.Cancel()
			delete(e.preStops, id)
		}
	}
	return failed
}

// AddPreStop notes a hook that begins. It returns false where the container's was begun already.
func (e *Entry) AddPreStop(id string, run *PreStopRun) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.preStops[id] != nil {
		return false
	}
	e.preStops[id] = run
	return true
}

// PreStop is the hook of a container that was begun before its turn; nil: none was.
func (e *Entry) PreStop(id string) *PreStopRun {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.preStops[id]
}
