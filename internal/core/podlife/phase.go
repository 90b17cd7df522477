package podlife

import (
	"fmt"
	"strings"
)

// phase returns the pod's phase by upstream's rules: Pending until every init container has succeeded and every main
// container was started once, Running as long as a container is alive or will be started again, then by exit codes.
func (p *plan) phase(list []ContainerStatus) Phase {
	switch {
	case p.o.Terminal != "":
		return p.o.Terminal
	case p.order != nil && !p.alive():
		return p.endPhase(list)
	case len(p.uninitialized()) > 0:
		return Pending
	}
	for _, st := range list {
		if st.Kind == Main && st.Waiting != nil && st.Last == nil {
			return Pending
		}
	}
	return Active
}

// endPhase is the phase of a pod without living containers.
func (p *plan) endPhase(list []ContainerStatus) Phase {
	if p.order.Phase != "" {
		return p.order.Phase
	}
	for _, st := range list {
		if st.Kind == Main && (st.Ended == nil || st.Ended.ExitCode != 0) {
			return Failed
		}
	}
	return Succeeded
}

// uninitialized returns the init containers that have not succeeded and the sidecars that have not started, as long as
// no main container was started.
func (p *plan) uninitialized() []string {
	var names []string
	for i, s := range p.o.Spec.Containers {
		c, exists := p.newest(s.Name)
		switch {
		case s.Kind == Init && i >= p.reached && !(exists && c.State == Exited && c.ExitCode == 0):
			names = append(names, s.Name)
		case s.Kind == Sidecar && !p.started(s.Name):
			names = append(names, s.Name)
		case s.Kind == Main && (p.reached >= i || p.order != nil && exists):
			return nil
		}
	}
	return names
}

// conditions returns the pod's conditions, with upstream's types, reasons and messages.
func (p *plan) conditions(s Status) []Condition {
	initialized := Condition{Type: "Initialized", True: true}
	if missing := p.uninitialized(); s.Phase == Succeeded {
		initialized.Reason = "PodCompleted"
	} else if len(missing) > 0 && !p.o.Initialized {
		initialized = Condition{
			Type:    "Initialized",
			Reason:  "ContainersNotInitialized",
			Message: "containers with incomplete status: " + bracketed(missing),
		}
	}
	ready := containersReady(s)
	podReady := ready
	podReady.Type = "Ready"
	if shut := p.unmetGates(); podReady.True && len(shut) > 0 {
		podReady = Condition{Type: "Ready", Reason: "ReadinessGatesNotReady", Message: strings.Join(shut, ", ")}
	}
	sandboxed := Condition{Type: "PodReadyToStartContainers", True: p.sandbox != nil && p.sandbox.State == SandboxReady}
	if h := p.o.Hold; h != nil && !sandboxed.True {
		sandboxed.Reason, sandboxed.Message = h.Reason, h.Message
	}
	all := []Condition{sandboxed, initialized, podReady, ready, {Type: "PodScheduled", True: true}}
	if p.order != nil && p.order.Disruption != "" {
		all = append(all, Condition{
			Type:    DisruptionTarget,
			True:    true,
			Reason:  "TerminationByKubelet",
			Message: p.order.Disruption,
		})
	}
	if c := p.allRestartingCondition(s.Phase); c != nil {
		all = append(all, *c)
	}
	return append(all, p.resizeConditions()...)
}

// DisruptionTarget is the condition of a pod that the node ends for its own reasons. It stays once it was reported:
// shells keep conditions that a decision does not mention.
const DisruptionTarget = "DisruptionTarget"

func containersReady(s Status) Condition {
	c := Condition{Type: "ContainersReady"}
	var unready []string
	for _, st := range s.Containers {
		if st.Kind != Init && st.Kind != Ephemeral && !st.Ready {
			unready = append(unready, st.Name)
		}
	}
	switch {
	case s.Phase == Succeeded:
		c.Reason = "PodCompleted"
	case s.Phase == Failed:
		c.Reason = "PodFailed"
	case len(unready) > 0:
		c.Reason, c.Message = "ContainersNotReady", "containers with unready status: "+bracketed(unready)
	default:
		c.True = true
	}
	return c
}

// unmetGates returns a message for each readiness gate whose condition is not True.
func (p *plan) unmetGates() []string {
	var shut []string
	for _, g := range p.o.Spec.Gates {
		switch status, exists := p.o.Gates[g]; {
		case !exists:
			shut = append(shut, fmt.Sprintf("corresponding condition of pod readiness gate %q does not exist.", g))
		case status != "True":
			shut = append(shut, fmt.Sprintf("the status of pod readiness gate %q is not %q, but %s", g, "True", status))
		}
	}
	return shut
}

func bracketed(names []string) string { return "[" + strings.Join(names, " ") + "]" }
