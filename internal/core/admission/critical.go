package admission

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/qos"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
)

// Texts about a pod that ends to make room for a critical one, in upstream's words (pkg/kubelet/preemption).
const (
	ReasonPreempting  = "Preempting"
	MessagePreempting = "Preempted in order to admit critical pod"
	MessageDisruption = "Pod was preempted by Kubelet to accommodate a critical pod."
)

// Occupant is a pod on the node that may have to make room.
type Occupant struct {
	ID       scheduler.PodID
	Requests []scheduler.Amount
	Priority int32
	Critical bool
	Class    qos.Class
	Ending   bool // it ends within EndsSoon, whatever is decided
}

// EndsSoon is how long a critical pod waits for pods that end anyway before others have to end for it: the API's
// default termination grace period.
const EndsSoon = 30 * time.Second

// A Preemption says which pods have to end before the node has room for a critical pod.
type Preemption struct {
	// Victims have to end, if they do not end already. None: the pods that end soon are enough, and the critical pod
	// waits for them.
	Victims []scheduler.PodID
	// Resource is the first one that the node lacks, by the order of Node.Check.
	Resource string
}

// Preempt chooses the pods that end so that a critical pod fits on the node. ok is false if the pod is not critical, if
// something other than an amount rejects it (a host port, a label), or if it would not fit even without all pods that
// may have to end.
//
// Pods that end soon count first. Of the others, a pod may have to end if it is not critical or has a lower priority
// (upstream's rule). BestEffort pods end before Burstable ones, and these before Guaranteed ones; of each class no more
// pods end than necessary. Within a class, the next pod to end is the one after which the least is missing; among equal
// pods the one that requests less memory, then less CPU, then the one with the lower priority, then by ID.
func (n *Node) Preempt(pod Applicant, occupants []Occupant) (p Preemption, ok bool) {
	lacked := slices.Collect(n.shortages(pod.Pod))
	if !pod.Critical || len(lacked) == 0 || n.offers.Name != "" && n.objection(pod.Pod) != nil {
		return Preemption{}, false
	}
	p.Resource = lacked[0].resource
	var need amounts
	for _, s := range lacked {
		need = append(need, scheduler.Amount{Resource: s.resource, Value: s.requested + s.used - s.capacity})
	}
	may := map[qos.Class][]Occupant{}
	for _, o := range occupants {
		switch {
		case o.Ending:
			need = need.without(o)
		case !o.Critical || o.Priority < pod.Pod.Priority:
			may[o.Class] = append(may[o.Class], o)
		}
	}
	guaranteed, enough := need.without(may[qos.BestEffort]...).without(may[qos.Burstable]...).choose(may[qos.Guaranteed])
	if !enough {
		return Preemption{}, false
	}
	need = need.without(guaranteed...)
	burstable, _ := need.without(may[qos.BestEffort]...).choose(may[qos.Burstable])
	bestEffort, _ := need.without(burstable...).choose(may[qos.BestEffort])
	for _, victim := range slices.Concat(bestEffort, burstable, guaranteed) {
		p.Victims = append(p.Victims, victim.ID)
	}
	return p, true
}

// amounts are what is still missing; none is zero or less.
type amounts []scheduler.Amount

// without returns what is still missing once pods have ended.
func (need amounts) without(ended ...Occupant) amounts {
	var left amounts
	for _, a := range need {
		for i := range ended {
			a.Value -= ended[i].requests(a.Resource)
		}
		if a.Value > 0 {
			left = append(left, a)
		}
	}
	return left
}

// choose returns pods whose end is enough. It takes one after the other, each time the one after which the least is
// missing.
func (need amounts) choose(from []Occupant) (chosen []Occupant, enough bool) {
	from = slices.Clone(from)
	for len(need) > 0 {
		if len(from) == 0 {
			return nil, false
		}
		best := 0
		for i := range from {
			if order := cmp.Compare(need.distance(from[i]), need.distance(from[best])); order < 0 ||
				order == 0 && less(from[i], from[best]) {
				best = i
			}
		}
		chosen = append(chosen, from[best])
		need = need.without(from[best])
		from = slices.Delete(from, best, best+1)
	}
	return chosen, true
}

// distance is how much is still missing after a pod's end: the sum of the squares of the missing part of each amount,
// so that a resource weighs the same whatever its unit (upstream's measure).
func (need amounts) distance(o Occupant) (sum float64) {
	for _, a := range need {
		if left := a.Value - o.requests(a.Resource); left > 0 {
			sum += math.Pow(float64(left)/float64(a.Value), 2)
		}
	}
	return sum
}

func less(a, b Occupant) bool {
	return cmp.Or(
		cmp.Compare(a.requests(scheduler.Memory), b.requests(scheduler.Memory)),
		cmp.Compare(a.requests(scheduler.CPU), b.requests(scheduler.CPU)),
		cmp.Compare(a.Priority, b.Priority),
		cmp.Compare(a.ID, b.ID),
	) < 0
}

// requests is how much of a resource a pod gives back when it ends.
func (o Occupant) requests(resource string) int64 {
	if resource == pods {
		return 1
	}
	for _, a := range o.Requests {
		if a.Resource == resource {
			return a.Value
		}
	}
	return 0
}
