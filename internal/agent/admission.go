package agent

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/allocation"
	agentnuma "github.com/plimsoll-dev/plimsoll/internal/agent/numa"
	"github.com/plimsoll-dev/plimsoll/internal/agent/podentry"
	"github.com/plimsoll-dev/plimsoll/internal/agent/pods"
	"github.com/plimsoll-dev/plimsoll/internal/core/admission"
	"github.com/plimsoll-dev/plimsoll/internal/core/eviction"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// admit applies core/admission with the pods that are here and what the node offers now. It implements pods.Admission.
// Its fields are set once; what changes is in ledger.
type admit struct {
	ledger      *ledger
	assignments *agentnuma.Manager
	plugins     *plugins

	staticCPUs   bool // cpuManagerPolicy is static
	staticMemory bool // memoryManagerPolicy is Static
	swaps        func(*corev1.Pod, *corev1.Container) bool

	node  func() *corev1.Node          // as last seen; nil: not yet
	fresh func() (*corev1.Node, error) // as it is now, from the API server
	// elsewhere are resources that assignments count, with those that pods keep while their plugin is away.
	elsewhere func() []string

	conditions func() []eviction.Condition // the pressures of this moment
}

// Admit assigns to the pod what it has for itself and counts what it requests, both or neither, in upstream's order: a
// rejection by the former comes first.
func (a admit) Admit(pod *corev1.Pod, others []*corev1.Pod) *pods.Rejection {
	asked := a.ledger.candidate(pod)
	if r := admission.UnderPressure(asked.Applicant, a.conditions()); r != nil {
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

// Consult implements pods.Admission.
func (a admit) Consult(ctx context.Context, pod *corev1.Pod) *pods.Rejection {
	rejection := a.assignments.Consult(ctx, string(pod.UID))
	if rejection == nil {
		return nil
	}
	return notAssigned(rejection)
}

// notAssigned translates a rejection by the assignments: other pods may have what this one lacks.
func notAssigned(r *numa.Rejection) *pods.Rejection {
	rejected := pods.RejectionOf(r)
	rejected.Room = true
	return rejected
}

// Give implements pods.Admission.
func (a admit) Give(ctx context.Context, pod *corev1.Pod) *pods.Rejection {
	return a.plugins.allocate(ctx, string(pod.UID))
}

// Wait implements pods.Admission.
func (a admit) Wait(pod *corev1.Pod, since time.Time) (string, time.Time) {
	a.plugins.update() // what is waited for may be there this moment
	return a.plugins.wait(pod, since)
}

// count checks the pod against what the others leave.
func (a admit) count(pod *corev1.Pod, others []*corev1.Pod) *pods.Rejection {
	r := a.ledger.check(pod, others, a.node(), a.elsewhere())
	if r != nil && (r.Reason == admission.NodeAffinity || r.Reason == admission.TaintToleration) {
		// The label that the pod asks for may have come a moment ago, or the taint that it does not tolerate gone.
		if node, err := a.fresh(); err == nil {
			r = a.ledger.check(pod, others, node, a.elsewhere())
		}
	}
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

// Resize judges pods that ask for other resources than are allocated to them.
func (a admit) Resize(requests []allocation.Request, held []*corev1.Pod) []allocation.Verdict {
	asked := make([]admission.Resize, 0, len(requests))
	for _, request := range requests {
		change := a.changeOf(request)
		asked = append(asked, admission.Resize{Class: change.Class, Since: request.Since, Never: admission.Never(change)})
	}
	verdicts := make([]allocation.Verdict, 0, len(requests))
	for _, v := range a.ledger.resizes(requests, asked, held, a.node(), a.elsewhere()) {
		verdicts = append(verdicts, allocation.Verdict(v))
	}
	return verdicts
}

// changeOf says what a resize changes, and what of this node stands against it.
func (a admit) changeOf(request allocation.Request) admission.Change {
	c := translate.AdmissionChange(request.Allocated, request.Desired, a.swaps)
	c.StaticCPUs = a.staticCPUs
	c.StaticMemory = a.staticMemory
	return c
}
