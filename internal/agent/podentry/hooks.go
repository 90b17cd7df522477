package podentry

import (
	"context"

	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
)

// This file has the hooks that run while the pod's worker goes on.

// HookRun is a postStart hook. It runs a user's code and may take forever, so it has a goroutine of its own. Meanwhile
// the pod's worker goes on, and core/podlife starts no container that comes after this one.
type HookRun struct {
	start  podlife.Action     // the action that created the container; never changes
	cancel context.CancelFunc // never changes
	state  podlife.HookState  // guarded by Entry.mu
	err    error              // why it failed; nil once that was reported. Guarded by Entry.mu
}

// PreStopRun is a preStop hook that was begun before its container's turn to stop.
type PreStopRun struct {
	Cancel context.CancelFunc // never changes
	Done   chan struct{}      // closed when the hook has ended; never changes
}

// AddHook stores a postStart hook that begins. start is the action that created its container; cancel ends the hook. It
// returns nil if the pod has a stop order already.
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

// HookEnded stores how a hook ended, and reports whether that still matters. cut means that it was cancelled, which is
// not a failure.
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

// endHook cancels a container's hook because the container stops or has ended. The caller holds mu.
func (e *Entry) endHook(id string) {
	if h := e.hooks[id]; h != nil {
		h.cancel()
		delete(e.hooks, id)
	}
}

// HookFailure is a postStart hook that failed.
type HookFailure struct {
	Start podlife.Action // the action that created the container
	Err   error
}

// FollowHooks cancels the hooks of containers that do not run any more, and returns the hooks that failed since the
// last call.
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

// AddPreStop stores a preStop hook that begins. It returns false if the container's hook was begun already.
func (e *Entry) AddPreStop(id string, run *PreStopRun) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.preStops[id] != nil {
		return false
	}
	e.preStops[id] = run
	return true
}

// PreStop returns the preStop hook of a container that was begun before its turn to stop; nil: none was.
func (e *Entry) PreStop(id string) *PreStopRun {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.preStops[id]
}
