package podlife

import (
	"fmt"
	"maps"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// RestartsAfter reports whether an exit with that code is followed by a restart of the container, by its rules and
// otherwise by its policy, and whether by a restart of all containers of the pod. A rule that matches code 0 does not
// repeat an init container, which has then done its work; it may restart all.
func (s ContainerSpec) RestartsAfter(code int32) (restarts, all bool) {
	if s.Kind == Ephemeral {
		return false, false
	}
	if rule := s.ruleFor(code); rule != nil {
		return rule.All || s.Kind != Init || code != 0, rule.All
	}
	switch s.Policy {
	case Always:
		return s.Kind != Init || code != 0, false
	case OnFailure:
		return code != 0, false
	}
	return false, false
}

// ruleFor returns the first rule that matches an exit code; nil: none does.
func (s ContainerSpec) ruleFor(code int32) *ExitRule {
	for i := range s.Rules {
		if slices.Contains(s.Rules[i].Codes, code) != s.Rules[i].Except {
			return &s.Rules[i]
		}
	}
	return nil
}

// AllRestarting is the condition of a pod with rules that restart all of its containers, in upstream's word: it is true
// while such a restart is in progress and the containers of the run before it are not all dead.
const AllRestarting = "AllContainersRestarting"

// findCauses notes the containers whose exits ask for a restart of all containers.
func (p *plan) findCauses() {
	for _, s := range p.o.Spec.Containers {
		if c, exists := p.newest(s.Name); exists && c.State == Exited {
			if _, all := s.RestartsAfter(c.ExitCode); all {
				p.causes = append(p.causes, c)
			}
		}
	}
}

// restartAll ends the present run of the whole pod if an exit asks for that. It reports whether the pod may go on:
// nothing asks, or all is over and the next run begins in this step. Ephemeral containers are not part of it.
//
// The next run is not remembered here. Each container is reported as waiting for its next run, which makes all of its
// runs up to now superseded, for this process and for every later one.
func (p *plan) restartAll() bool {
	if len(p.causes) == 0 {
		return true
	}
	cause := p.causes[0]
	why := fmt.Sprintf("Container %s exited with code %d, all containers will be restarted", cause.Name, cause.ExitCode)
	alive := false
	for _, s := range slices.Backward(p.o.Spec.Containers) {
		for _, c := range p.byName[s.Name] {
			if s.Kind != Ephemeral && c.alive() {
				alive = true
				p.stopWithin(c, 0, why) // upstream: without grace period and hooks
			}
		}
	}
	if ready := p.backOffCauses(); alive || p.now < ready {
		if !alive {
			p.wakeAt(ready)
		}
		if p.sandbox != nil && p.sandbox.State == SandboxReady {
			p.startEphemeral() // to debug a pod that waits
		}
		return false
	}
	p.supersede()
	return true
}

// backOffCauses counts the exits that ask for the restart, and returns when it may begin.
func (p *plan) backOffCauses() (ready unit.Instant) {
	for _, c := range p.causes {
		k := p.crashOf(c.Name)
		k.countExit(p.now, p.wall, c, p.before(c), p.life.backoffMax)
		ready = max(ready, k.readyAt)
	}
	return ready
}

// supersede ends the current run of every container: each waits for its next run from now on.
func (p *plan) supersede() {
	p.o.Past = maps.Clone(p.o.Past)
	for _, s := range p.o.Spec.Containers {
		c, exists := p.newest(s.Name)
		if s.Kind == Ephemeral || !exists {
			continue
		}
		past := p.o.Past[s.Name]
		next := Past{RestartCount: max(c.Attempt, past.RestartCount) + 1, Last: ending(c)}
		if c.State == Created {
			next.Last = p.endBefore(c)
		}
		p.o.Past[s.Name] = next
		delete(p.life.troubles, s.Name)
	}
	p.causes = nil
	p.findReached()
}

// allRestartingCondition returns the condition AllRestarting; nil: the pod has no rule that asks for it.
func (p *plan) allRestartingCondition(phase Phase) *Condition {
	if !slices.ContainsFunc(p.o.Spec.Containers, func(s ContainerSpec) bool {
		return slices.ContainsFunc(s.Rules, func(r ExitRule) bool { return r.All })
	}) {
		return nil
	}
	switch {
	case phase == Succeeded:
		return &Condition{Type: AllRestarting, Reason: "PodCompleted"}
	case phase == Failed:
		return &Condition{Type: AllRestarting, Reason: "PodFailed"}
	case p.order == nil && len(p.causes) > 0:
		return &Condition{
			Type: AllRestarting, True: true, Reason: "RestartAllContainersStarted",
			Message: "container exited with restart policy rule",
		}
	}
	return &Condition{Type: AllRestarting}
}
