package agent

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/allocation"
	agentnuma "github.com/plimsoll-dev/plimsoll/internal/agent/numa"
	"github.com/plimsoll-dev/plimsoll/internal/agent/podentry"
	"github.com/plimsoll-dev/plimsoll/internal/agent/pods"
	agentshutdown "github.com/plimsoll-dev/plimsoll/internal/agent/shutdown"
	"github.com/plimsoll-dev/plimsoll/internal/core/admission"
	"github.com/plimsoll-dev/plimsoll/internal/core/eviction"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/journal"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// admit applies core/admission to the pods that are on the node and to what the node offers now. It implements
// pods.Admission. Its fields are set once; what changes is in ledger.
type admit struct {
	ledger      *ledger
	assignments *agentnuma.Manager
	plugins     *plugins

	staticCPUs   bool // cpuManagerPolicy is static
	staticMemory bool // memoryManagerPolicy is Static
	swaps        func(*corev1.Pod, *corev1.Container) bool

	node  func() *corev1.Node          // the Node as the watch delivered it last; nil: not yet
	fresh func() (*corev1.Node, error) // the Node as it is now, from the API server
	// elsewhere returns the resources that assignments count instead of the ledger: those of device plugins, including the
	// plugins that are not connected.
	elsewhere func() []string

	// judged has what the last Admit decided from, for the journal. Calls of Admit and Judged are made one at a time.
	judged *journal.Judged

	conditions   func() []eviction.Condition // the present pressure conditions
	shuttingDown func() bool                 // the machine is about to shut down; nil: never
}

// Admit assigns CPUs, memory and devices to the pod and counts its requests, both or neither. As upstream does, it
// reports a failed assignment before requests that do not fit.
func (a admit) Admit(pod *corev1.Pod, others []*corev1.Pod) *pods.Rejection {
	*a.judged = journal.Judged{}
	if a.shuttingDown != nil && a.shuttingDown() {
		return &pods.Rejection{Reason: agentshutdown.ReasonReject, Message: agentshutdown.MessageReject}
	}
	asked := a.ledger.candidate(pod)
	conditions := a.conditions()
	a.judged.Basis = admission.PressureBasis(asked.Applicant, conditions)
	if r := admission.UnderPressure(asked.Applicant, conditions); r != nil {
		a.judged.Rejection = r
		return &pods.Rejection{Reason: r.Reason, Message: r.Message}
	}
	var rejected *pods.Rejection
	rejection, asks := a.assignments.Admit(asked.numa, func() bool {
		rejected = a.count(pod, others)
		return rejected == nil
	})
	switch {
	case asks:
		return &pods.Rejection{Asks: true}
	case rejection != nil:
		return notAssigned(rejection)
	}
	return rejected
}

// Judged returns what the last Admit decided from.
func (a admit) Judged() journal.Judged { return *a.judged }

// assigned notes what core/numa decided from.
func (a *Agent) assigned(d agentnuma.Decision) {
	out := &journal.Assignment{
		Policy:  a.numa.Topology.Policy.String(),
		Free:    journal.FreeOf(d.Before.Free()),
		Pod:     d.Pod,
		Berth:   journal.BerthOf(d.Pod.Berth),
		Answers: journal.AnswersOf(&d.Pod, d.Answers),
		State:   d.Object,
	}
	out.Pod.Berth = nil
	if d.Rejection != nil {
		out.Message = d.Rejection.Message()
	} else {
		out.Decided = agentnuma.NoteOf(d.Assignment)
		out.Given = journal.GivenOf(d.Assignment)
	}
	a.judged.Assignment = out
}

// Consult implements pods.Admission.
func (a admit) Consult(ctx context.Context, pod *corev1.Pod) *pods.Rejection {
	rejection := a.assignments.Consult(ctx, string(pod.UID))
	if rejection == nil {
		return nil
	}
	return notAssigned(rejection)
}

// notAssigned translates a rejection by the assignments. Room is set because other pods may have what this one lacks.
func notAssigned(r *numa.Rejection) *pods.Rejection {
	rejected := pods.RejectionOf(r)
	rejected.Room = true
	return rejected
}

// Allocate implements pods.Admission.
func (a admit) Allocate(ctx context.Context, pod *corev1.Pod) *pods.Rejection {
	return a.plugins.allocate(ctx, string(pod.UID))
}

// Wait implements pods.Admission.
func (a admit) Wait(pod *corev1.Pod, since time.Time) (string, time.Time) {
	a.plugins.update() // the awaited plugin may have connected just now
	return a.plugins.wait(pod, since)
}

// count checks the pod against what the other pods leave of the node.
func (a admit) count(pod *corev1.Pod, others []*corev1.Pod) *pods.Rejection {
	basis := a.judged.Basis
	r := a.ledger.check(pod, others, a.node(), a.elsewhere(), basis)
	if r != nil && (r.Reason == admission.NodeAffinity || r.Reason == admission.TaintToleration) {
		// The pod's label may have been added to the Node a moment ago, or its taint removed: the watch may be behind.
		if node, err := a.fresh(); err == nil {
			r = a.ledger.check(pod, others, node, a.elsewhere(), basis)
		}
	}
	a.judged.Rejection = r
	if r != nil {
		critical := a.ledger.candidate(pod).Critical
		return &pods.Rejection{Reason: r.Reason, Message: r.Message, Room: r.Room, Preempts: r.Room && critical}
	}
	return nil
}

// Preempt implements pods.Admission.
func (a admit) Preempt(
	pod *corev1.Pod, others []*corev1.Pod, present []podentry.Present,
) (admission.Preemption, bool) {
	var occupants []admission.Occupant
	for _, p := range present {
		if p.Pod.UID != pod.UID && !p.Ended {
			soon := !p.KillAt.IsZero() && time.Until(p.KillAt) < admission.EndsSoon
			occupants = append(occupants, translate.AdmissionOccupant(p.Pod, soon))
		}
	}
	return a.ledger.preempt(pod, others, occupants, a.node(), a.elsewhere())
}

// Resize returns the verdicts on pods that request other resources than are allocated to them.
func (a admit) Resize(requests []allocation.Request, holders []*corev1.Pod) []allocation.Verdict {
	asked := make([]admission.Resize, 0, len(requests))
	for _, request := range requests {
		change := a.changeOf(request)
		asked = append(asked, admission.Resize{Class: change.Class, Since: request.Since, Never: admission.Never(change)})
	}
	verdicts := make([]allocation.Verdict, 0, len(requests))
	for _, v := range a.ledger.resizes(requests, asked, holders, a.node(), a.elsewhere()) {
		verdicts = append(verdicts, allocation.Verdict(v))
	}
	return verdicts
}

// changeOf returns what a resize changes, and the settings of this node that may forbid it.
func (a admit) changeOf(request allocation.Request) admission.Change {
	c := translate.AdmissionChange(request.Allocated, request.Desired, a.swaps)
	c.StaticCPUs = a.staticCPUs
	c.StaticMemory = a.staticMemory
	return c
}

// admission constructs the node's admission of pods.
func (a *Agent) admission(ctx context.Context) admit {
	c := a.o.Config
	return admit{
		ledger:       newLedger(a.resources),
		judged:       &a.judged,
		assignments:  a.assignments,
		plugins:      a.plugins,
		staticCPUs:   c.CPUManagerPolicy == "static",
		staticMemory: c.MemoryManagerPolicy == "Static",
		swaps:        a.groups.swaps,
		node:         a.node.Node,
		fresh:        func() (*corev1.Node, error) { return a.nodeNow(ctx) },
		elsewhere:    a.plugins.resources,
		conditions:   func() []eviction.Condition { return a.guard.Pressure() },
		shuttingDown: a.shuttingDown,
	}
}
