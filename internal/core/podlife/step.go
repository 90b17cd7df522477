package podlife

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Life is the memory of one pod between steps. Make one with New.
type Life struct {
	backoffMax time.Duration
	crashes    map[string]*crash   // by container
	troubles   map[string]*trouble // by troubleKey
}

// New returns a Life that remembers nothing. backoffMax caps crash back-off; zero means BackoffMax.
func New(backoffMax time.Duration) *Life {
	if backoffMax == 0 {
		backoffMax = BackoffMax
	}
	return &Life{backoffMax: backoffMax, crashes: map[string]*crash{}, troubles: map[string]*trouble{}}
}

// Failed records that an action of the last decision failed. Starting and creating are retried with the crash
// back-off's curve beginning at its base; stops and removals are retried after a second. reason is a waiting reason in
// upstream's words (ErrImagePull, CreateContainerError, ...).
func (l *Life) Failed(now unit.Instant, a Action, reason, message string) {
	key := troubleKey(a)
	t := l.troubles[key]
	if t == nil || t.reason != reason {
		t = &trouble{}
		l.troubles[key] = t
	}
	t.reason, t.message, t.since = reason, message, now
	t.tries++
	wait := retryStop
	if a.Kind == StartContainer || a.Kind == CreateSandbox {
		wait = delayAfter(t.tries, l.backoffMax)
	}
	if a.Kind == CreateSandbox {
		wait = min(wait, retrySandboxMax)
	}
	t.retryAt = now.Add(wait)
}

// sandboxKey is where the trouble of creating a sandbox is kept.
const sandboxKey = ""

// troubleKey tells apart what may fail in one pod: creating its sandbox, starting a container, ending a thing.
func troubleKey(a Action) string {
	switch a.Kind {
	case CreateSandbox:
		return sandboxKey
	case StartContainer:
		return a.Container
	}
	return "end " + a.ID
}

// retryStop is the wait after a stop or removal that failed: the runtime is restarting or hung, and a restart of it
// takes about a second (measured, containerd 1.6). retrySandboxMax keeps a node whose network comes late from leaving its
// pods waiting for minutes after it came (chosen).
const (
	retryStop       = time.Second
	retrySandboxMax = 20 * time.Second
)

// Retry forgets waits for retries, because something they may have waited for has changed.
func (l *Life) Retry() {
	for _, t := range l.troubles {
		t.retryAt = 0
	}
}

// Step decides what to do next. now must not go backwards; wall is the calendar at the same moment, used only to
// compare with the runtime's timestamps.
func (l *Life) Step(now unit.Instant, wall unit.Wall, o Observation) Decision {
	p := &plan{life: l, now: now, wall: wall, o: o, byName: newestByName(o.Containers)}
	p.sandbox = newestSandbox(o.Sandboxes)
	stop := o.Stop
	if stop == nil && o.Terminal == "" {
		if stop = p.overDeadline(); stop == nil {
			p.run()
		}
	}
	done := o.Terminal != "" || stop == nil && p.finished()
	switch {
	case stop != nil:
		p.end(*stop)
	case done:
		p.end(StopOrder{Deadline: now.Add(o.Spec.Grace)})
	}
	d := Decision{Actions: p.actions, Wake: p.wake}
	d.Status = p.status(stop)
	return d
}

// plan is the working memory of one step.
type plan struct {
	life    *Life
	now     unit.Instant
	wall    unit.Wall
	o       Observation
	byName  map[string][]Container // newest first
	sandbox *Sandbox
	actions []Action
	wake    unit.Instant
}

func (p *plan) do(a Action) { p.actions = append(p.actions, a) }

func (p *plan) wakeAt(t unit.Instant) { p.wake = p.wake.Earlier(t) }

// newest returns the current container of that name.
func (p *plan) newest(name string) (Container, bool) {
	if all := p.byName[name]; len(all) > 0 {
		return all[0], true
	}
	return Container{}, false
}

func newestByName(all []Container) map[string][]Container {
	by := map[string][]Container{}
	for _, c := range all {
		by[c.Name] = append(by[c.Name], c)
	}
	for _, list := range by {
		slices.SortFunc(list, func(a, b Container) int {
			return cmp.Or(cmp.Compare(b.Attempt, a.Attempt), cmp.Compare(b.CreatedAt, a.CreatedAt), cmp.Compare(a.ID, b.ID))
		})
	}
	return by
}

func newestSandbox(all []Sandbox) *Sandbox {
	var newest *Sandbox
	for i := range all {
		if newest == nil || all[i].Attempt > newest.Attempt {
			newest = &all[i]
		}
	}
	return newest
}

// overDeadline turns an active deadline that has passed into a stop order, and otherwise wakes when it will.
func (p *plan) overDeadline() *StopOrder {
	if p.o.Spec.ActiveDeadline == 0 || p.o.StartTime == 0 {
		return nil
	}
	left := p.o.Spec.ActiveDeadline - p.wall.Sub(p.o.StartTime)
	if left > 0 {
		p.wakeAt(p.now.Add(left))
		return nil
	}
	return &StopOrder{
		Deadline: p.now.Add(p.o.Spec.Grace), Phase: Failed, Reason: "DeadlineExceeded",
		Message: "Pod was active on the node longer than the specified deadline",
	}
}

// run plans the way to the running pod.
func (p *plan) run() {
	if p.finished() {
		return
	}
	if p.sandbox == nil || p.sandbox.State != SandboxReady {
		p.renewSandbox()
		return
	}
	delete(p.life.troubles, sandboxKey)
	p.startInOrder()
	p.sweep()
}

// renewSandbox clears what is left of the last sandbox, then asks for the next.
func (p *plan) renewSandbox() {
	alive := false
	for _, c := range p.o.Containers {
		if c.State == Running || c.State == Unknown {
			alive = true
			p.stop(c, p.o.Spec.Grace, "its sandbox is gone")
		}
	}
	if alive {
		return
	}
	attempt := uint32(0)
	if p.sandbox != nil {
		attempt = p.sandbox.Attempt + 1
	}
	if p.waiting(sandboxKey) {
		return
	}
	if p.sandbox != nil {
		p.do(Action{Kind: StopSandbox, ID: p.sandbox.ID, Why: "it is not ready"}) // frees its network before the next takes one
	}
	p.do(Action{Kind: CreateSandbox, Attempt: attempt, Why: fmt.Sprintf("no ready sandbox (attempt %d)", attempt)})
}

// startInOrder starts what may start now: inits one after the other, then all mains; sidecars stay up throughout.
func (p *plan) startInOrder() {
	blocked := false
	for _, s := range p.o.Spec.Containers {
		if blocked && !p.running(s.Name) {
			return
		}
		c, exists := p.newest(s.Name)
		if exists && p.sandbox != nil && c.SandboxID != p.sandbox.ID && s.Kind == Init && !p.mainsStarted() {
			exists = false // a new sandbox runs its inits again
		}
		switch s.Kind {
		case Init:
			if p.mainsStarted() || exists && c.State == Exited && c.ExitCode == 0 {
				continue
			}
			p.tend(s, c, exists)
			blocked = true
		case Sidecar:
			p.tend(s, c, exists)
			blocked = blocked || !p.started(s.Name)
		case Main:
			p.tend(s, c, exists)
		}
	}
}

// mainsStarted reports whether a main container was already started in the current sandbox: the inits are behind us.
func (p *plan) mainsStarted() bool {
	for _, s := range p.o.Spec.Containers {
		if c, ok := p.newest(s.Name); ok && s.Kind == Main && p.sandbox != nil && c.SandboxID == p.sandbox.ID {
			return true
		}
	}
	return false
}

func (p *plan) running(name string) bool {
	c, ok := p.newest(name)
	return ok && c.State == Running
}

func (p *plan) started(name string) bool { return p.running(name) && !p.o.Probes[name].Starting }

// tend brings one container towards running.
func (p *plan) tend(s ContainerSpec, c Container, exists bool) {
	switch {
	case !exists:
		p.start(s, c)
	case c.State == Running && p.o.Probes[s.Name].Dead:
		p.stop(c, p.o.Spec.Grace, cmp.Or(p.o.Probes[s.Name].Message, "liveness probe failed"))
	case c.State == Running && c.Hash != "" && s.Hash != "" && c.Hash != s.Hash:
		p.stop(c, p.o.Spec.Grace, "its specification changed")
	case c.State == Running:
		delete(p.life.troubles, s.Name)
	case c.State == Unknown:
		p.stop(c, p.o.Spec.Grace, "the runtime lost track of it")
	case c.State == Created:
		// We died, or the runtime failed, between create and start: its environment may be stale by now.
		p.doEnd(Action{Kind: RemoveContainer, Container: c.Name, ID: c.ID, Attempt: c.Attempt, Why: "it was created and never started"})
	case c.State == Exited && p.restarts(s, c):
		k := p.life.crashes[s.Name]
		if k == nil {
			k = &crash{}
			p.life.crashes[s.Name] = k
		}
		k.note(p.now, p.wall, c, p.life.backoffMax)
		if p.now < k.readyAt {
			p.wakeAt(k.readyAt)
			return
		}
		p.start(s, c)
	}
}

// restarts reports whether the exit of c is followed by a restart.
func (p *plan) restarts(s ContainerSpec, c Container) bool {
	switch s.Policy {
	case Always:
		return s.Kind != Init || c.ExitCode != 0
	case OnFailure:
		return c.ExitCode != 0
	}
	return c.Hash != "" && s.Hash != "" && c.Hash != s.Hash
}

func (p *plan) start(s ContainerSpec, last Container) {
	if p.waiting(s.Name) {
		return
	}
	attempt := uint32(0)
	if last.ID != "" {
		attempt = last.Attempt + 1
	} else if all := p.byName[s.Name]; len(all) > 0 {
		attempt = all[0].Attempt + 1
	} else if past := p.o.Past[s.Name]; past.Ran {
		attempt = past.RestartCount + 1
	}
	p.do(Action{Kind: StartContainer, Container: s.Name, ID: p.sandbox.ID, Attempt: attempt, Why: fmt.Sprintf("it should run (attempt %d)", attempt)})
}

// waiting reports whether the last failure's wait is not over yet, and if so wakes when it is.
func (p *plan) waiting(key string) bool {
	t := p.life.troubles[key]
	if t == nil || p.now >= t.retryAt {
		return false
	}
	p.wakeAt(t.retryAt)
	if shown := t.since.Add(shownFor); p.now < shown {
		p.wakeAt(shown)
	}
	return true
}

func (p *plan) stop(c Container, grace time.Duration, why string) {
	p.doEnd(Action{Kind: StopContainer, Container: c.Name, ID: c.ID, Grace: grace, Why: why})
}

// doEnd plans an action that ends something, unless it failed a moment ago.
func (p *plan) doEnd(a Action) {
	if !p.waiting(troubleKey(a)) {
		p.do(a)
	}
}

// sweep removes dead containers beyond the newest two of a name (the current one and the one before it, whose log
// `kubectl logs --previous` reads) and sandboxes that nothing refers to.
func (p *plan) sweep() {
	const keep = 2 // kubelet: MaxPerPodContainer 1 dead beside the current one
	used := map[string]bool{}
	for _, s := range slices.Sorted(maps.Keys(p.byName)) {
		for i, c := range p.byName[s] {
			if i >= keep && c.State == Exited {
				p.doEnd(Action{Kind: RemoveContainer, Container: c.Name, ID: c.ID, Attempt: c.Attempt, Why: "it is dead and older than the last two"})
			} else {
				used[c.SandboxID] = true
			}
		}
	}
	for _, s := range p.o.Sandboxes {
		if s.ID != p.sandbox.ID && s.State != SandboxReady && !used[s.ID] {
			p.doEnd(Action{Kind: RemoveSandbox, ID: s.ID, Why: "nothing of it is left"})
		}
	}
}

// finished reports whether every container has run for the last time: the pod has succeeded or failed.
func (p *plan) finished() bool {
	ended := 0
	for _, s := range p.o.Spec.Containers {
		c, ok := p.newest(s.Name)
		switch s.Kind {
		case Sidecar:
			continue
		case Init:
			if ok && c.State == Exited && c.ExitCode != 0 && !p.restarts(s, c) {
				return true // an init that failed for good ends the pod
			}
			continue
		}
		if !ok || c.State != Exited || p.restarts(s, c) {
			return false
		}
		ended++
	}
	return ended > 0
}

// end plans the way to nothing: mains first, then sidecars in reverse order, then the sandbox, and when the pod object
// goes, every trace.
func (p *plan) end(order StopOrder) {
	if p.stopContainers(order) {
		return
	}
	for _, s := range p.o.Sandboxes {
		if s.State == SandboxReady {
			p.doEnd(Action{Kind: StopSandbox, ID: s.ID, Why: "its containers have ended"})
		}
	}
	if !order.Remove {
		return
	}
	for _, s := range p.o.Sandboxes {
		p.doEnd(Action{Kind: RemoveSandbox, ID: s.ID, Why: "its pod is going"}) // takes its containers with it
	}
	if len(p.o.Sandboxes) == 0 {
		for _, c := range p.o.Containers {
			p.doEnd(Action{Kind: RemoveContainer, Container: c.Name, ID: c.ID, Attempt: c.Attempt, Why: "its pod is going"})
		}
	}
	if len(p.o.Sandboxes) == 0 && len(p.o.Containers) == 0 {
		p.do(Action{Kind: Finish, Why: "nothing of the pod is left in the runtime"})
	}
}

// stopContainers stops the next group of containers and reports whether any is still alive.
func (p *plan) stopContainers(order StopOrder) bool {
	grace := max(order.Deadline.Sub(p.now), 0)
	kinds := map[string]Kind{}
	place := map[string]int{}
	for i, s := range p.o.Spec.Containers {
		kinds[s.Name], place[s.Name] = s.Kind, i
	}
	var mains, sidecars []Container
	for _, c := range p.o.Containers {
		if c.State != Running && c.State != Unknown {
			continue
		}
		if kind, known := kinds[c.Name]; known && kind == Sidecar {
			sidecars = append(sidecars, c)
		} else {
			mains = append(mains, c)
		}
	}
	if len(mains) == 0 && len(sidecars) > 0 {
		slices.SortFunc(sidecars, func(a, b Container) int { return place[b.Name] - place[a.Name] })
		mains = sidecars[:1]
	}
	for _, c := range mains {
		p.stop(c, grace, cmp.Or(order.Reason, "its pod ends"))
	}
	return len(mains) > 0
}
