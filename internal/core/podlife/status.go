package podlife

import (
	"fmt"
	"unicode/utf8"
)

// status returns what to report.
func (p *plan) status() Status {
	s := Status{}
	for _, spec := range p.o.Spec.Containers {
		s.Containers = append(s.Containers, p.containerStatus(spec))
	}
	shorten(s.Containers)
	s.Phase = p.phase(s.Containers)
	if p.sandbox != nil && p.sandbox.State == SandboxReady {
		s.IPs = p.sandbox.IPs
		if len(s.IPs) == 0 {
			s.IPs = p.o.HostIPs
		}
	}
	s.Conditions = p.conditions(s)
	if s.Phase == Succeeded || s.Phase == Failed {
		p.close(&s)
	}
	return s
}

// The longest messages that the containers of one pod may have together, in bytes: about ends, once for the state and
// once for the last state (kubelet: MaxPodTerminationMessageLogLength), and about waits, which upstream does not limit.
// A runtime's message may repeat a command of 100 KiB. With higher limits, the status of a pod with many containers
// becomes larger than the API accepts. Lower limits cut more messages.
const (
	endMessagesMax  = 12 << 10
	waitMessagesMax = 64 << 10
)

// shorten cuts messages so that all containers of the pod together stay within the limits.
func shorten(all []ContainerStatus) {
	for i := range all {
		for _, t := range []**Terminated{&all[i].Ended, &all[i].Last} {
			if *t != nil && len((*t).Message) > endMessagesMax/len(all) {
				cut := **t // a copy, because t may belong to the caller
				cut.Message = first(cut.Message, endMessagesMax/len(all))
				*t = &cut
			}
		}
		if w := all[i].Waiting; w != nil {
			all[i].Waiting = &Waiting{w.Reason, first(w.Message, waitMessagesMax/len(all))}
		}
	}
}

// first returns the beginning of a text: at most n bytes, and only whole characters.
func first(text string, n int) string {
	if len(text) <= n {
		return text
	}
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n]
}

// close completes the status of a pod that has ended.
func (p *plan) close(s *Status) {
	if p.order.Phase == "" || p.order.Phase == s.Phase {
		s.Reason, s.Message = p.order.Reason, p.order.Message
	}
	if refused := p.order.Rejected || p.o.Terminal != ""; refused && !p.known() { // users then read the pod's reason
		s.Containers = nil
		return
	}
	begun := 0 // containers before this index count as having run: the last that has run, and all before it
	for i, st := range s.Containers {
		if st.Kind == Ephemeral {
			continue
		}
		if i == 0 || st.Waiting == nil || st.Last != nil {
			begun = i + 1
		}
		if st.Kind == Main && (begun > i || len(p.uninitialized()) == 0) {
			begun = len(p.o.Spec.Containers)
		}
	}
	for i := range s.Containers {
		switch st := &s.Containers[i]; {
		case st.Waiting == nil:
		case i < begun && st.Kind != Ephemeral:
			st.Waiting, st.Ended = nil, lost(notLocated)
		default:
			st.Waiting = p.notYet()
		}
	}
}

// known reports whether anything of the pod was ever seen on this node.
func (p *plan) known() bool {
	for _, past := range p.o.Past {
		if past.begun() || past.Last != nil {
			return true
		}
	}
	return len(p.o.Sandboxes) > 0 || len(p.o.Containers) > 0
}

func (p *plan) containerStatus(spec ContainerSpec) ContainerStatus {
	st := ContainerStatus{Name: spec.Name, Kind: spec.Kind}
	c, exists := p.begun(spec.Name)
	if !exists {
		past := p.o.Past[spec.Name]
		st.RestartCount = past.RestartCount
		st.Last = past.Last
		st.Waiting = p.whyWaiting(spec)
		return st
	}
	st.ID = c.ID
	st.ImageID = c.ImageID
	st.RestartCount = c.Attempt
	st.Last = p.endBefore(c)
	if past := p.o.Past[spec.Name]; past.ID == c.ID {
		st.RestartCount = max(c.Attempt, past.RestartCount)
	}
	switch c.State {
	case Running:
		since := c.StartedAt
		st.Running = &since
		st.Started = !p.o.Probes[spec.Name].Starting
		st.Ready = spec.Kind != Init && spec.Kind != Ephemeral && st.Started && !p.o.Probes[spec.Name].Unready
	case Exited:
		st.Ended = ending(c)
		st.Ready = spec.Kind == Init && c.ExitCode == 0
		p.waitingToRestart(spec, c, &st)
	case Unknown:
		st.Ended = ending(c)
	}
	return st
}

// begun returns the newest container of that name that was started. A container that was only created does not count,
// and neither does one whose postStart hook has not succeeded.
func (p *plan) begun(name string) (Container, bool) {
	for _, c := range p.byName[name] {
		if c.State != Created && !c.inPostStart() && !p.superseded(c) {
			return c, true
		}
	}
	return Container{}, false
}

// endBefore returns the end of the run before c.
func (p *plan) endBefore(c Container) *Terminated {
	for _, older := range p.byName[c.Name] {
		if older.Attempt < c.Attempt && older.State == Exited {
			return ending(older)
		}
	}
	past := p.o.Past[c.Name]
	switch {
	case past.ID == c.ID:
		return past.Last
	case past.Ended != nil:
		return past.Ended
	case past.Running:
		return lost("The container could not be located when the pod was started again")
	}
	return past.Last
}

// waitingToRestart turns an exit after which a restart follows into a wait, as users know it from crash loops.
func (p *plan) waitingToRestart(spec ContainerSpec, c Container, st *ContainerStatus) {
	if p.order != nil || !p.restarts(spec, c) {
		return
	}
	t, k := p.life.troubles[spec.Name], p.life.crashes[spec.Name]
	switch {
	case t != nil && (p.now < t.since.Add(shownFor) || k == nil || t.since >= k.readyAt):
		st.Waiting = p.waitingFor(spec, t)
	case k != nil && k.id == c.ID && k.delay > 0:
		why := fmt.Sprintf("back-off %s restarting failed container=%s pod=%s", k.delay, spec.Name, p.o.Spec.Name)
		st.Waiting = &Waiting{ReasonCrashLoopBackOff, why}
	case len(p.causes) > 0:
		text := fmt.Sprintf("container %s exited with a code that restarts all containers", p.causes[0].Name)
		st.Waiting = &Waiting{"RestartingAllContainers", text}
	case needsResizeRestart(spec, c): // it was stopped to start again at once with other resources
		st.Waiting = p.notYet()
	case p.o.Past[spec.Name].Running && p.onlyInAPI(c): // the next run is waiting
		st.Waiting = p.whyWaiting(spec)
		st.ID = ""
		st.ImageID = ""
		st.RestartCount++
	default:
		return
	}
	st.Last, st.Ended = st.Ended, nil
}

// whyWaiting says why a container that should run does not exist yet.
func (p *plan) whyWaiting(spec ContainerSpec) *Waiting {
	if t := p.life.troubles[spec.Name]; t != nil {
		return p.waitingFor(spec, t)
	}
	return p.notYet()
}

// notYet is the Waiting of a container that only waits for its turn.
func (p *plan) notYet() *Waiting {
	w := &Waiting{Reason: ReasonContainerCreating}
	if p.o.Spec.Containers[0].Kind != Main { // a pod has init containers if its first container is one
		w.Reason = ReasonPodInitializing
	}
	if p.o.Hold != nil {
		w.Message = p.o.Hold.Message
	}
	return w
}

// waitingFor returns the Waiting for a trouble: the failure itself at first, later the back-off.
func (p *plan) waitingFor(spec ContainerSpec, t *trouble) *Waiting {
	if pulling[t.reason] && p.now >= t.since.Add(shownFor) {
		why := fmt.Sprintf("Back-off pulling image %q: %s: %s", spec.Image, t.reason, t.message)
		return &Waiting{ReasonImagePullBackOff, why}
	}
	return &Waiting{t.reason, t.message}
}

// ending returns how an exited container ended.
func ending(c Container) *Terminated {
	if c.State == Unknown {
		t := lost(c.Message)
		t.ID, t.StartedAt = c.ID, c.StartedAt
		return t
	}
	t := &Terminated{
		ID:         c.ID,
		ExitCode:   c.ExitCode,
		Reason:     c.Reason,
		Message:    c.Message,
		StartedAt:  c.StartedAt,
		FinishedAt: c.FinishedAt,
	}
	if t.Reason == "" {
		t.Reason = ReasonCompleted
		if c.ExitCode != 0 {
			t.Reason = "Error"
		}
	}
	return t
}

// lost is the end of a container of which no exit is known.
func lost(message string) *Terminated {
	const killed = 137 // what upstream reports: 128 + SIGKILL
	return &Terminated{ExitCode: killed, Reason: "ContainerStatusUnknown", Message: message}
}

// notLocated is upstream's text about a container of which nothing is known when its pod ends.
const notLocated = "The container could not be located when the pod was terminated"
