package pods

import (
	"log/slog"

	"k8s.io/apimachinery/pkg/types"
)

// phase is how far a pod has come on this node; the package's documentation draws it. Only the pod's worker changes it.
// phaseConsulting and phasePreparing last no longer than the part of a sync that asks for admission.
type phase int

const (
	// The node has not judged the pod yet. It has no resources here, unless an agent before this one started it.
	phaseNew phase = iota
	// Device plugins are asked which of their devices go well together, before the pod can be judged. It has nothing.
	phaseConsulting
	// The pod was judged to fit and has what it asks for; device plugins make that ready.
	phasePreparing
	// The pod may run, and has its resources until it has ended. Or its end was ordered while plugins were asked:
	// then nothing more is asked about it.
	phaseAdmitted
	// The node rejected the pod before anything of it ran: the stop order says why. It has nothing.
	phaseRejected
	// Nothing of the pod is left here. It has no worker any more, and the Runner no longer knows it.
	phaseDropped
)

var phaseNames = [...]string{
	phaseNew:        "new",
	phaseConsulting: "consulting",
	phasePreparing:  "preparing",
	phaseAdmitted:   "admitted",
	phaseRejected:   "rejected",
	phaseDropped:    "dropped",
}

func (p phase) String() string { return phaseNames[p] }

// transitions are the phases that may follow each.
var transitions = map[phase][]phase{
	phaseNew:        {phaseConsulting, phasePreparing, phaseAdmitted, phaseRejected, phaseDropped},
	phaseConsulting: {phaseNew, phasePreparing, phaseAdmitted},
	phasePreparing:  {phaseNew, phaseAdmitted},
	phaseAdmitted:   {phaseDropped},
	phaseRejected:   {phaseDropped},
	phaseDropped:    {},
}

// broken is called where what an entry is to be at all times does not hold. The agent goes on; tests end.
var broken = func(uid types.UID, what string) { slog.Error("pod in an impossible state", "uid", uid, "what", what) }
