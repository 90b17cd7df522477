package podlife

import (
	"fmt"
	"strings"
)

// lostExitCode is what upstream reports for a container whose end nobody saw: 128 + SIGKILL.
const lostExitCode = 137

// status says what to report, given the order the pod is under (nil: run).
func (p *plan) status(order *StopOrder) Status {
	s := Status{}
	for _, spec := range p.o.Spec.Containers {
		s.Containers = append(s.Containers, p.containerStatus(spec))
	}
	s.Phase = p.phase(s.Containers, order)
	if order != nil && (s.Phase == Failed || s.Phase == Succeeded || order.Phase != "") {
		s.Reason, s.Message = order.Reason, order.Message
	}
	if p.sandbox != nil && p.sandbox.State == SandboxReady {
		s.IPs = p.sandbox.IPs
		if len(s.IPs) == 0 {
			s.IPs = p.o.HostIPs
		}
	}
	s.Conditions = p.conditions(s)
	return s
}

func (p *plan) containerStatus(spec ContainerSpec) ContainerStatus {
	st := ContainerStatus{Name: spec.Name, Kind: spec.Kind}
	all := p.byName[spec.Name]
	if len(all) == 0 {
		p.absent(&st)
		return st
	}
	c := all[0]
	st.ID, st.ImageID, st.RestartCount = c.ID, c.ImageID, c.Attempt
	if len(all) > 1 && all[1].State == Exited {
		st.Last = ending(all[1])
	} else {
		st.Last = p.o.Past[spec.Name].Last
	}
	switch c.State {
	case Running:
		since := c.StartedAt
		st.Running = &since
		st.Started = !p.o.Probes[spec.Name].Starting
		st.Ready = st.Started && !p.o.Probes[spec.Name].Unready
	case Exited, Unknown:
		st.Ended = ending(c)
		st.Ready = spec.Kind == Init && c.ExitCode == 0
		p.waitingToRestart(spec, c, &st)
	default:
		st.Waiting = p.whyWaiting(spec)
	}
	return st
}

// absent fills in a container that the runtime does not have.
func (p *plan) absent(st *ContainerStatus) {
	past := p.o.Past[st.Name]
	st.RestartCount, st.Last = past.RestartCount, past.Last
	if past.Ran && p.o.Terminal == "" && p.o.Stop == nil {
		st.Last = &Terminated{ExitCode: lostExitCode, Reason: "ContainerStatusUnknown", Message: "The container could not be located when the pod was started again"}
	}
	if (p.o.Terminal != "" || p.o.Stop != nil) && past.Ran {
		if past.Last != nil {
			st.Ended, st.Last = past.Last, nil
		} else {
			st.Ended = &Terminated{ExitCode: lostExitCode, Reason: "ContainerStatusUnknown", Message: "The container could not be located when the pod was terminated"}
		}
		return
	}
	for _, s := range p.o.Spec.Containers {
		if s.Name == st.Name {
			st.Waiting = p.whyWaiting(s)
		}
	}
}

// waitingToRestart turns an exit that a restart will follow into a wait, as users see a crash loop.
func (p *plan) waitingToRestart(spec ContainerSpec, c Container, st *ContainerStatus) {
	if p.o.Stop != nil || p.o.Terminal != "" || !p.restarts(spec, c) {
		return
	}
	if t := p.life.troubles[spec.Name]; t != nil {
		st.Waiting, st.Last, st.Ended = p.waitingFor(t), st.Ended, nil
		return
	}
	if k := p.life.crashes[spec.Name]; k != nil && k.id == c.ID && p.now < k.readyAt {
		st.Waiting = &Waiting{"CrashLoopBackOff", fmt.Sprintf("back-off %s restarting failed container=%s", k.delay, spec.Name)}
		st.Last, st.Ended = st.Ended, nil
	}
}

// whyWaiting says why a container that should run does not exist yet.
func (p *plan) whyWaiting(spec ContainerSpec) *Waiting {
	if t := p.life.troubles[spec.Name]; t != nil {
		return p.waitingFor(t)
	}
	if spec.Kind == Main && !p.initialized() {
		return &Waiting{Reason: "PodInitializing"}
	}
	return &Waiting{Reason: "ContainerCreating"}
}

// waitingFor names a trouble: the failure itself right after it, the back-off while waiting to retry.
func (p *plan) waitingFor(t *trouble) *Waiting {
	if t.reason == "ErrImagePull" && p.now >= t.since.Add(shownFor) {
		return &Waiting{"ImagePullBackOff", "Back-off pulling image: " + t.message}
	}
	return &Waiting{t.reason, t.message}
}

func ending(c Container) *Terminated {
	if c.State == Unknown {
		return &Terminated{ID: c.ID, ExitCode: lostExitCode, Reason: "ContainerStatusUnknown", Message: c.Message, StartedAt: c.StartedAt}
	}
	t := &Terminated{ID: c.ID, ExitCode: c.ExitCode, Reason: c.Reason, Message: c.Message, StartedAt: c.StartedAt, FinishedAt: c.FinishedAt}
	if t.Reason == "" {
		t.Reason = "Completed"
		if c.ExitCode != 0 {
			t.Reason = "Error"
		}
	}
	return t
}

// phase follows upstream: pending until every init has passed and every main has been started once.
func (p *plan) phase(list []ContainerStatus, order *StopOrder) Phase {
	if p.o.Terminal != "" {
		return p.o.Terminal
	}
	var waiting, running, failed, ended int
	for i, st := range list {
		spec := p.o.Spec.Containers[i]
		if spec.Kind != Main {
			if st.Ended != nil && st.Ended.ExitCode != 0 && spec.Kind == Init && !p.restarts(spec, Container{ExitCode: st.Ended.ExitCode}) {
				return Failed
			}
			continue
		}
		switch {
		case st.Running != nil:
			running++
		case st.Ended != nil:
			ended++
			if st.Ended.ExitCode != 0 {
				failed++
			}
		case st.Last != nil:
			running++ // in back-off: it has run and will again
		default:
			waiting++
		}
	}
	alive := running > 0
	for _, c := range p.o.Containers {
		alive = alive || c.State == Running || c.State == Unknown
	}
	if order != nil && !alive {
		switch {
		case order.Phase != "":
			return order.Phase
		case failed > 0 || waiting > 0 && ended > 0:
			return Failed
		case ended > 0:
			return Succeeded
		}
		return Pending
	}
	switch {
	case order == nil && !p.initialized() && !p.mainsStarted():
		return Pending
	case waiting > 0:
		return Pending
	case running > 0 || order != nil:
		return Active
	case !p.finished():
		return Active // between an exit and its restart
	case failed > 0:
		return Failed
	}
	return Succeeded
}

// initialized reports whether every init has succeeded and every sidecar has started.
func (p *plan) initialized() bool { return len(p.uninitialized()) == 0 }

func (p *plan) uninitialized() []string {
	var names []string
	for _, s := range p.o.Spec.Containers {
		c, ok := p.newest(s.Name)
		switch {
		case s.Kind == Init && !p.mainsStarted() && !(ok && c.State == Exited && c.ExitCode == 0),
			s.Kind == Sidecar && !p.mainsStarted() && !p.started(s.Name):
			names = append(names, s.Name)
		}
	}
	return names
}

// conditions follow upstream's types, reasons and messages.
func (p *plan) conditions(s Status) []Condition {
	list := func(names []string) string { return "[" + strings.Join(names, " ") + "]" }
	sandboxed := p.sandbox != nil && p.sandbox.State == SandboxReady
	initialized := Condition{Type: "Initialized", True: true}
	ready := Condition{Type: "ContainersReady", True: true}
	var unready []string
	for _, c := range s.Containers {
		if c.Kind != Init && !c.Ready {
			unready = append(unready, c.Name)
		}
	}
	missing := p.uninitialized()
	if len(missing) > 0 && s.Phase != Succeeded {
		initialized = Condition{Type: "Initialized", Reason: "ContainersNotInitialized", Message: "containers with incomplete status: " + list(missing)}
	}
	switch {
	case s.Phase == Succeeded:
		initialized.Reason = "PodCompleted"
		ready = Condition{Type: "ContainersReady", Reason: "PodCompleted"}
	case s.Phase == Failed:
		ready = Condition{Type: "ContainersReady", Reason: "PodFailed"}
	case len(unready) > 0:
		ready = Condition{Type: "ContainersReady", Reason: "ContainersNotReady", Message: "containers with unready status: " + list(unready)}
	}
	podReady := ready
	podReady.Type = "Ready"
	if shut := p.shutGates(); podReady.True && len(shut) > 0 {
		podReady = Condition{Type: "Ready", Reason: "ReadinessGatesNotReady", Message: fmt.Sprintf("corresponding condition of pod readiness gate %q is not true", shut[0])}
	}
	return []Condition{{Type: "PodReadyToStartContainers", True: sandboxed}, initialized, podReady, ready, {Type: "PodScheduled", True: true}}
}

func (p *plan) shutGates() []string {
	var shut []string
	for _, g := range p.o.Spec.Gates {
		if !p.o.GatesTrue[g] {
			shut = append(shut, g)
		}
	}
	return shut
}
