package admission

import (
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/eviction"
	"github.com/plimsoll-dev/plimsoll/internal/core/qos"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/selector"
	"github.com/plimsoll-dev/plimsoll/internal/core/wellknown"
)

// Applicant is a pod as far as pressure asks who it is.
type Applicant struct {
	Pod      scheduler.Pod
	Critical bool
	Class    qos.Class
	// Started: a container of it was started on this node before, by whatever agent.
	Started bool
}

// UnderPressure reports whether a node under the given conditions takes a pod in; nil means that it does. Critical pods
// are always admitted. So are pods that were started here before: if an agent or a machine starts with a full disk, the
// pods that ran come back, and eviction chooses among them by what each uses. (Kubelets have the same result: they
// admit the pods that are there before they know any condition.) Memory pressure alone rejects BestEffort pods that do
// not tolerate it; any other pressure rejects all.
func UnderPressure(a Applicant, conditions []eviction.Condition) *Rejection {
	if len(conditions) == 0 || a.Critical || a.Started {
		return nil
	}
	onlyMemory := !slices.ContainsFunc(conditions, func(c eviction.Condition) bool { return c != eviction.MemoryPressure })
	if onlyMemory && (a.Class != qos.BestEffort || toleratesMemoryPressure(a.Pod)) {
		return nil
	}
	return &Rejection{Reason: eviction.Reason, Message: eviction.PressureMessage(conditions)}
}

func toleratesMemoryPressure(pod scheduler.Pod) bool {
	taint := scheduler.Taint{Key: wellknown.TaintMemoryPressure, Effect: scheduler.NoSchedule}
	return selector.Tolerate(pod.Tolerations, taint)
}
