package podentry

import (
	"log/slog"

	"k8s.io/apimachinery/pkg/types"
)

// Phase is how far a pod has come on this node; the package's documentation draws it. Only the pod's worker changes it.
// PhaseConsulting and PhasePreparing last no longer than the part of a sync that asks for admission.
type Phase int

const (
	// The node has not judged the pod yet. It has no resources here, unless an agent before this one started it.
	PhaseNew Phase = iota
	// Device plugins are asked which of their devices go well together, before the pod can be judged. It has nothing.
	PhaseConsulting
	// The pod was judged to fit and has what it asks for; device plugins make that ready.
	PhasePreparing
	// The pod may run, and has its resources until it has ended. Or its end was ordered while plugins were asked:
	// then nothing more is asked about it.
	PhaseAdmitted
	// The node rejected the pod before anything of it ran: the stop order says why. It has nothing.
	PhaseRejected
	// Nothing of the pod is left here. It has no worker any more, and the Runner no longer knows it.
	PhaseDropped
)

var phaseNames = [...]string{
	PhaseNew:        "new",
	PhaseConsulting: "consulting",
	PhasePreparing:  "preparing",
	PhaseAdmitted:   "admitted",
	PhaseRejected:   "rejected",
	PhaseDropped:    "dropped",
}

func (p Phase) String() string { return phaseNames[p] }

// transitions are the phases that may follow each.
var transitions = map[Phase][]Phase{
	PhaseNew:        {PhaseConsulting, PhasePreparing, PhaseAdmitted, PhaseRejected, PhaseDropped},
	PhaseConsulting: {PhaseNew, PhasePreparing, PhaseAdmitted},
	PhasePreparing:  {PhaseNew, PhaseAdmitted},
	PhaseAdmitted:   {PhaseDropped},
	PhaseRejected:   {PhaseDropped},
	PhaseDropped:    {},
}

// Broken is called when an invariant of an entry does not hold. The agent logs it and goes on; tests fail.
var Broken = func(uid types.UID, what string) { slog.Error("pod in an impossible state", "uid", uid, "what", what) }
