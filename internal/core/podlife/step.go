package podlife

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Step decides what to do next. now must not go backwards. wall is the calendar time at the same moment; it is only
// compared with the runtime's timestamps.
func (l *Life) Step(now unit.Instant, wall unit.Wall, o Observation) Decision {
	l.dropOutdated(now, o.Spec)
	p := newPlan(l, now, wall, o)
	if p.order = p.orderToEnd(); p.order != nil {
		p.end(*p.order)
	} else {
		p.run()
	}
	return Decision{Actions: p.actions, Wake: p.wake, Status: p.status()}
}

// plan is the working memory of one step.
type plan struct {
	life    *Life
	now     unit.Instant
	wall    unit.Wall
	o       Observation
	byName  map[string][]Container // newest first; includes runs that only the API shows
	sandbox *Sandbox               // the newest; nil: none
	reached int                    // index in the spec of the last container that exists in sandbox; -1: none
	order   *StopOrder             // nil: run
	causes  []Container            // whose exits ask for a restart of all containers
	// Main containers must wait, because a postStart hook before them runs or is about to.
	queued  bool
	actions []Action
	wake    unit.Instant
}

func newPlan(l *Life, now unit.Instant, wall unit.Wall, o Observation) *plan {
	p := &plan{life: l, now: now, wall: wall, o: o, byName: newestByName(o), sandbox: newestSandbox(o.Sandboxes)}
	p.findReached()
	p.findCauses()
	return p
}

// findReached notes how far the pod has come in its present sandbox.
func (p *plan) findReached() {
	p.reached = -1
	for i, s := range p.o.Spec.Containers {
		for _, c := range p.byName[s.Name] {
			if s.Kind != Ephemeral && p.sandbox != nil && c.SandboxID == p.sandbox.ID && !p.superseded(c) {
				p.reached = i
			}
		}
	}
}

func newestByName(o Observation) map[string][]Container {
	by := map[string][]Container{}
	for _, c := range o.Containers {
		by[c.Name] = append(by[c.Name], c)
	}
	for _, s := range o.Spec.Containers {
		if past := o.Past[s.Name]; lostByRuntime(by[s.Name], past) {
			by[s.Name] = append(by[s.Name], exitFromAPI(s, past))
		}
	}
	for _, list := range by {
		slices.SortFunc(list, func(a, b Container) int {
			return cmp.Or(cmp.Compare(b.Attempt, a.Attempt), cmp.Compare(b.CreatedAt, a.CreatedAt), cmp.Compare(a.ID, b.ID))
		})
	}
	return by
}

// lostByRuntime reports whether the runtime has lost the run that the API shows. If runtime and API only count attempts
// differently, a running container is believed to be that run.
func lostByRuntime(list []Container, past Past) bool {
	return (past.Running || past.Ended != nil) && !slices.ContainsFunc(list, func(c Container) bool {
		return c.ID == past.ID || !c.inPostStart() && (c.alive() || c.State != Created && c.Attempt >= past.RestartCount)
	})
}

// exitFromAPI is the exit of a container that only the API shows.
func exitFromAPI(s ContainerSpec, past Past) Container {
	end := past.Ended
	if end == nil {
		end = lost(notLocated)
	}
	return Container{
		ID: past.ID, ImageID: past.ImageID, Name: s.Name, Attempt: past.RestartCount, State: Exited, ExitCode: end.ExitCode,
		Reason: end.Reason, Message: end.Message, StartedAt: end.StartedAt, FinishedAt: end.FinishedAt,
	}
}

// onlyInAPI reports whether only the API shows c.
func (p *plan) onlyInAPI(c Container) bool {
	return !slices.ContainsFunc(p.o.Containers, func(has Container) bool { return has.ID == c.ID })
}

func newestSandbox(all []Sandbox) *Sandbox {
	var newest *Sandbox
	for i := range all {
		if newest == nil || all[i].Attempt > newest.Attempt || all[i].Attempt == newest.Attempt && all[i].ID < newest.ID {
			newest = &all[i]
		}
	}
	return newest
}

// newest returns the current container of that name.
func (p *plan) newest(name string) (Container, bool) {
	if all := p.byName[name]; len(all) > 0 && !p.superseded(all[0]) {
		return all[0], true
	}
	return Container{}, false
}

// superseded reports whether the API already counts a later run than c that has not begun.
func (p *plan) superseded(c Container) bool {
	past := p.o.Past[c.Name]
	return !c.alive() && !past.begun() && past.RestartCount > c.Attempt
}

func (c Container) alive() bool { return c.State == Running || c.State == Unknown }

// inPostStart reports whether c runs and its postStart hook has not succeeded: it is not reported as started yet.
func (c Container) inPostStart() bool { return c.State == Running && c.Hook != HookOver }

// alive reports whether any container may have a process; with names, any of those.
func (p *plan) alive(names ...string) bool {
	return slices.ContainsFunc(p.o.Containers, func(c Container) bool {
		return c.alive() && (len(names) == 0 || slices.Contains(names, c.Name))
	})
}

func (p *plan) do(a Action) { p.actions = append(p.actions, a) }

// doOnce plans an action, and reports whether it did. It does not if the action failed or was planned a moment ago. A
// stop may follow another at once if its deadline is earlier.
func (p *plan) doOnce(a Action) bool {
	if p.waiting(troubleKey(a)) {
		return false
	}
	key, by := askedKey(a), p.now.Add(a.Grace)
	if at, asked := p.life.asked[key]; asked && by >= p.life.askedBy[key] {
		p.wakeAt(at.Add(retryEnd))
		return false
	}
	p.life.asked[key], p.life.askedBy[key] = p.now, by
	p.do(a)
	return true
}

func (p *plan) stop(c Container, grace time.Duration, why string) {
	p.doOnce(Action{Kind: StopContainer, Container: c.Name, ID: c.ID, Grace: grace, Why: why})
}

func (p *plan) remove(c Container, why string) {
	p.doOnce(Action{Kind: RemoveContainer, Container: c.Name, ID: c.ID, Attempt: c.Attempt, Why: why})
}

func (p *plan) wakeAt(t unit.Instant) { p.wake = p.wake.Earlier(t) }

// waiting reports whether the action must still wait after its last failure, and if so sets the wake-up time.
func (p *plan) waiting(key string) bool {
	t := p.life.troubles[key]
	if t == nil || p.now >= t.retryAt {
		return false
	}
	p.wakeAt(t.retryAt)
	p.wakeWhenShown(t)
	return true
}

// wakeWhenShown sets the wake-up time to when a failure has been shown long enough.
func (p *plan) wakeWhenShown(t *trouble) {
	if shown := t.since.Add(shownFor); p.now < shown {
		p.wakeAt(shown)
	}
}

// orderToEnd returns the order to end the pod: the caller's, or one that follows from the pod's own state. The latter
// is kept, so that the pod ends within one grace period, whatever happens to clocks and specification.
func (p *plan) orderToEnd() *StopOrder {
	l := p.life
	if p.o.Stop != nil {
		return p.o.Stop
	}
	if l.over == nil && (p.o.Terminal != "" || p.finished()) {
		l.over = &StopOrder{Deadline: p.now.Add(p.o.Spec.Grace)}
	}
	if l.over == nil && p.overDeadline() {
		l.over = &StopOrder{
			Deadline: p.now.Add(p.o.Spec.Grace), Phase: Failed, Reason: ReasonDeadlineExceeded,
			Message: "Pod was active on the node longer than the specified deadline",
		}
	}
	return l.over
}

// overDeadline reports whether the active deadline has passed; if not, it sets the wake-up time to the deadline.
func (p *plan) overDeadline() bool {
	if p.o.Spec.ActiveDeadline == 0 || p.o.StartTime == 0 {
		return false
	}
	left := p.o.Spec.ActiveDeadline - p.wall.Sub(p.o.StartTime)
	if left > 0 {
		p.wakeAt(p.now.Add(left))
	}
	return left <= 0
}

// finished reports whether every container has run for the last time: the pod has succeeded or failed.
func (p *plan) finished() bool {
	ended := 0
	for _, s := range p.o.Spec.Containers {
		c, ok := p.newest(s.Name)
		over := ok && c.State == Exited && !p.restarts(s, c)
		switch s.Kind {
		case Init:
			if over && c.ExitCode != 0 {
				return true // an init container that failed for good ends the pod
			}
		case Main:
			if !over {
				return false
			}
			ended++
		}
	}
	return ended > 0
}

// restarts reports whether the exit of c is followed by a restart.
func (p *plan) restarts(s ContainerSpec, c Container) bool {
	if s.Kind == Ephemeral {
		return false
	}
	if changed(s, c) && (s.Kind != Init || c.ExitCode != 0) {
		return true
	}
	if c.ID != "" && p.life.restartAfterStop[s.Name] == c.ID {
		return true
	}
	if past := p.o.Past[s.Name]; needsResizeRestart(s, c) && past.ID == c.ID && !past.Over {
		return true // it was stopped to be resized, by a previous agent process
	}
	if len(p.causes) > 0 {
		return true // with all others
	}
	again, _ := s.RestartsAfter(c.ExitCode)
	return again
}

// changed reports whether c was made from an older specification.
func changed(s ContainerSpec, c Container) bool {
	return c.Hash != "" && s.Hash != "" && c.Hash != s.Hash
}

// needsResizeRestart reports whether c has resources that cannot be changed without a restart.
func needsResizeRestart(s ContainerSpec, c Container) bool {
	return c.Fixed != "" && s.Fixed != "" && c.Fixed != s.Fixed
}

// removeLeftovers removes containers that never ran, dead containers except the newest two of a name (the current one,
// and the one before it, whose log `kubectl logs --previous` reads), and sandboxes that a newer one has replaced.
func (p *plan) removeLeftovers() {
	const keep = 2 // kubelet: MaxPerPodContainer 1 dead container in addition to the current one
	used, alive := map[string]bool{}, map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(p.byName)) {
		runs := 0
		for _, c := range p.byName[name] {
			alive[c.SandboxID] = alive[c.SandboxID] || c.alive()
			if c.State == Created {
				// The agent died or the runtime failed between create and start: its environment may be outdated.
				p.remove(c, "it was created and never started")
			} else if runs++; runs > keep && c.State == Exited {
				p.remove(c, "it is dead and older than the last two")
			} else {
				used[c.SandboxID] = true
			}
		}
	}
	for _, s := range p.o.Sandboxes {
		switch {
		case s.ID == p.sandbox.ID || alive[s.ID]:
		case s.State == SandboxReady:
			p.doOnce(Action{Kind: StopSandbox, ID: s.ID, Why: fmt.Sprintf("attempt %d has replaced it", p.sandbox.Attempt)})
		case !used[s.ID]:
			p.doOnce(Action{Kind: RemoveSandbox, ID: s.ID, Why: "it has no containers left"})
		}
	}
}
