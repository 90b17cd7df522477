package pods

import (
	"fmt"
	"log/slog"
	"slices"

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

// enter brings the entry into a phase. Caller holds mu.
func (e *entry) enter(to phase) {
	if to != e.phase && !slices.Contains(transitions[e.phase], to) {
		broken(e.uid, fmt.Sprintf("it is %s, and becomes %s", e.phase, to))
	}
	e.phase = to
}

// check compares an entry whose worker is between two syncs with what holds then. Caller holds mu.
func (e *entry) check() {
	judged := e.phase == phaseAdmitted || e.phase == phaseRejected
	for _, c := range [...]struct {
		what  string
		wrong bool
	}{
		{"its admission has no end", e.phase == phaseConsulting || e.phase == phasePreparing},
		{"it is rejected, and no order says why", e.phase == phaseRejected && (e.stop == nil || !e.stop.Rejected)},
		{"no source has it, and yet it was judged", e.pod == nil && judged},
		{"no source has it, and yet it is held", e.pod == nil && e.hold != nil},
		{"it has an object, and nothing that it asks for", (e.pod == nil) != (e.desired == nil)},
		{"its resize is judged, and nothing is allocated", e.allocated == nil && (e.pending != nil || e.resizing != 0)},
		{"no source has its object", e.pod != nil && e.source == sourceNone},
		{"it was evicted, and is not to end", e.stop == nil && e.leftovers},
	} {
		if c.wrong {
			broken(e.uid, c.what)
		}
	}
}
