package podentry

import (
	"log/slog"

	"k8s.io/apimachinery/pkg/types"
)

// Phase is a pod's progress on this node; the package's documentation draws it. Only the pod's worker changes it.
// PhaseConsulting and PhasePreparing exist only during the part of a sync that asks for admission.
type Phase int

const (
	// The node has not judged the pod yet. The pod has no resources, unless an earlier agent started it.
	PhaseNew Phase = iota
	// Device plugins are asked for their preferred devices before the pod can be judged. It has no resources.
	PhaseConsulting
	// The pod was judged to fit and has its resources; device plugins allocate its devices.
	PhasePreparing
	// The pod may run, and has its resources until it has ended. Or it got a stop order while plugins were asked; then
	// they are not asked any more.
	PhaseAdmitted
	// The node rejected the pod before anything of it ran; the stop order says why. It has no resources.
	PhaseRejected
	// Nothing of the pod is left on this node. It has no worker any more, and the Runner no longer knows it.
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

// transitions are the phases that may follow each phase.
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
