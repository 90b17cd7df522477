package podlife

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// run plans the actions towards a running pod.
func (p *plan) run() {
	if !p.restartAll() {
		return
	}
	if p.sandbox == nil || p.sandbox.State != SandboxReady {
		p.renewSandbox()
		return
	}
	delete(p.life.troubles, sandboxKey)
	p.stopStrays()
	p.resize()
	p.startEphemeral()
	p.startInOrder()
	p.removeLeftovers()
}

// renewSandbox ends what is left of the last sandbox, then creates the next one.
func (p *plan) renewSandbox() {
	for _, c := range p.o.Containers {
		if c.alive() {
			p.stop(c, p.o.Spec.Grace, "its sandbox is gone")
		}
	}
	if p.alive() || p.waiting(sandboxKey) {
		return
	}
	if p.o.Hold != nil {
		p.wakeAt(p.o.Hold.Until)
		return
	}
	attempt := uint32(0)
	if p.sandbox != nil {
		attempt = p.sandbox.Attempt + 1
		// Frees its network before the next sandbox needs one.
		if !p.doOnce(Action{Kind: StopSandbox, ID: p.sandbox.ID, Why: "it is not ready"}) {
			return
		}
	}
	p.doOnce(Action{Kind: CreateSandbox, Attempt: attempt, Why: fmt.Sprintf("no ready sandbox (attempt %d)", attempt)})
}

// stopStrays stops containers that run in an older sandbox, or that are older than another container of their name.
func (p *plan) stopStrays() {
	for _, c := range p.o.Containers {
		if c.alive() && p.stray(c) {
			p.stop(c, p.o.Spec.Grace, "a newer sandbox or container has replaced it")
		}
	}
}

func (p *plan) stray(c Container) bool {
	newest, _ := p.newest(c.Name)
	return c.ID != newest.ID || c.SandboxID != "" && c.SandboxID != p.sandbox.ID
}

// startInOrder starts what may start now: init containers one after the other, then all main containers; sidecars are
// kept running throughout. If a container exists in this sandbox, everything before it is done, however it ended. Main
// containers wait for the postStart hooks of the main containers before them.
func (p *plan) startInOrder() {
	for i, s := range p.o.Spec.Containers {
		c, exists := p.newest(s.Name)
		if s.Kind == Init {
			here := exists && c.SandboxID == p.sandbox.ID // a new sandbox runs its init containers again
			if i < p.reached || here && c.State == Exited && c.ExitCode == 0 {
				continue
			}
			p.keepRunning(s, c, here)
			return
		}
		if s.Kind == Ephemeral {
			continue
		}
		p.keepRunning(s, c, exists)
		if s.Kind == Sidecar && i >= p.reached && !p.started(s.Name) {
			return
		}
		p.queued = p.queued || s.Kind == Main && (c.inPostStart() || s.PostStart && p.starts(s.Name))
	}
}

// starts reports whether a start of that container is planned.
func (p *plan) starts(name string) bool {
	return slices.ContainsFunc(p.actions, func(a Action) bool { return a.Kind == StartContainer && a.Container == name })
}

// startEphemeral starts ephemeral containers, even while init containers run. One that has run, in this sandbox or an
// earlier one, is not started again.
func (p *plan) startEphemeral() {
	for _, s := range p.o.Spec.Containers {
		c, exists := p.newest(s.Name)
		if s.Kind != Ephemeral || exists && c.State != Unknown || !exists && p.o.Past[s.Name].begun() {
			continue
		}
		p.keepRunning(s, c, exists)
	}
}

// started reports whether a container runs and has passed its startup probe.
func (p *plan) started(name string) bool {
	c, ok := p.newest(name)
	return ok && c.State == Running && !c.inPostStart() && !p.o.Probes[name].Starting
}

// keepRunning plans the next action for one container towards running.
func (p *plan) keepRunning(s ContainerSpec, c Container, exists bool) {
	switch {
	case !exists:
		p.start(s, c)
	case c.alive() && p.stray(c): // it is being stopped
	case c.State == Running && changed(s, c):
		p.stopToRestart(c, fmt.Sprintf("Container %s definition changed, will be restarted", s.Name))
	case c.State == Running && p.o.Probes[s.Name].Dead:
		p.stopDead(s, c)
	case c.State == Running && needsResizeRestart(s, c):
		p.life.restartAfterStop[s.Name] = c.ID
		p.stopToRestart(c, fmt.Sprintf("Container %s resize requires restart", s.Name))
	case c.State == Running && c.Hook == HookFailed:
		p.stopToRestart(c, "FailedPostStartHook")
	case c.inPostStart(): // it has not started yet
	case c.State == Running:
		delete(p.life.troubles, s.Name)
	case c.State == Unknown:
		p.stop(c, p.o.Spec.Grace, "the runtime lost track of it")
	case c.State == Created: // it is being removed
	case p.restarts(s, c):
		p.restart(s, c)
	}
}

// stopToRestart stops a container that must be replaced. text is the text of the Event, in upstream's words.
func (p *plan) stopToRestart(c Container, text string) {
	p.stopWithin(c, p.o.Spec.Grace, text)
}

func (p *plan) stopWithin(c Container, grace time.Duration, text string) {
	p.doOnce(Action{Kind: StopContainer, Container: c.Name, ID: c.ID, Grace: grace, Why: text, Event: text})
}

// stopDead stops a container whose liveness or startup probe has failed. Unless its restart policy is Never, it is
// started again even if it exits with code 0.
func (p *plan) stopDead(s ContainerSpec, c Container) {
	text := cmp.Or(p.o.Probes[s.Name].Message, "Container "+s.Name+" failed liveness probe")
	if s.Policy != Never {
		p.life.restartAfterStop[s.Name] = c.ID
		text += ", will be restarted"
	}
	grace := p.o.Spec.Grace
	if g := p.o.Probes[s.Name].Grace; g != nil {
		grace = *g
	}
	p.stopWithin(c, grace, text)
}

// restart starts an exited container again when its back-off is over.
func (p *plan) restart(s ContainerSpec, c Container) {
	if t := p.life.troubles[s.Name]; t != nil {
		if c.StartedAt != 0 && (c.Attempt > t.attempt || c.Attempt == t.attempt && !created[t.reason]) {
			delete(p.life.troubles, s.Name) // it has started since that failure
		} else {
			p.wakeWhenShown(t)
		}
	}
	if !changed(s, c) && !needsResizeRestart(s, c) {
		k := p.crashOf(s.Name)
		k.countExit(p.now, p.wall, c, p.before(c), p.life.backoffMax)
		if p.now < k.readyAt {
			p.wakeAt(k.readyAt)
			return
		}
	}
	p.start(s, c)
}

// crashOf returns what is remembered of a container's exits.
func (p *plan) crashOf(name string) *crash {
	k := p.life.crashes[name]
	if k == nil {
		k = &crash{}
		p.life.crashes[name] = k
	}
	return k
}

// before returns the end of the run before c if c was stopped in order to be started again; see crash.countExit.
func (p *plan) before(c Container) *stopped {
	if c.ID == "" || p.life.restartAfterStop[c.Name] != c.ID {
		return nil
	}
	if end := p.endBefore(c); end != nil {
		return &stopped{since: end.FinishedAt}
	}
	return &stopped{}
}

// start starts a new run of a container. last is the previous run, if there is one.
func (p *plan) start(s ContainerSpec, last Container) {
	if p.queued || p.alive(s.Name) || p.waiting(s.Name) {
		return
	}
	past := p.o.Past[s.Name]
	attempt := past.RestartCount
	if past.begun() {
		attempt++
	}
	if last.Name != "" {
		attempt = max(attempt, last.Attempt+1)
	}
	p.do(Action{
		Kind:      StartContainer,
		Container: s.Name,
		ID:        p.sandbox.ID,
		Attempt:   attempt,
		Why:       fmt.Sprintf("it should run (attempt %d)", attempt),
	})
}
