package admission

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/qos"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
)

// Of a pod that ends to make room for a critical one, in upstream's words (pkg/kubelet/preemption).
const (
	ReasonPreempting  = "Preempting"
	MessagePreempting = "Preempted in order to admit critical pod"
	MessageDisruption = "Pod was preempted by Kubelet to accommodate a critical pod."
)

// Occupant is a pod on the node, as one that may have to make room.
type Occupant struct {
	ID       scheduler.PodID
	Requests []scheduler.Amount
	Priority int32
	Critical bool
	Class    qos.Class
	Ending   bool // it ends within EndsSoon, whatever is decided
}

// EndsSoon is how long a critical pod waits for pods that end anyway before others have to end for it: the API's default
// termination grace period.
const EndsSoon = 30 * time.Second

// A Preemption says what has to end before the node has room for a critical pod.
type Preemption struct {
	// Victims are to end, if they do not already. None: what ends soon is enough, and is to be waited for.
	Victims []scheduler.PodID
	// Resource is the first one that the node lacks, by the order of Node.Check.
	Resource string
}

// Preempt chooses the pods that end so that a critical pod fits on the node. ok is false for a pod that is not
// critical, that the node does not lack only amounts for (a host port or a label frees nothing), or that would not fit
// if all others ended that may have to.
//
// What ends soon makes room first. Of the rest, a pod may have to end if it is not critical or has a lower priority
// (upstream's rule). BestEffort pods end before Burstable ones, and these before Guaranteed ones: of each class as few
// as the classes before it leave necessary. Within a class the pod ends next that leaves the least of what is lacked;
// of equal ones the one with the smaller requests of memory, then of CPU, then with the lower priority, then by ID.
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

// amounts are what is needed still; none is zero or less.
type amounts []scheduler.Amount

// without is what is needed still once pods have ended.
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

// choose returns pods whose end is enough, one by one the nearest to what is needed then.
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

// distance is how much a pod's end leaves of what is needed: the sum of the squares of what part of each amount it
// leaves, so that a resource weighs the same whatever its unit (upstream's measure).
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
