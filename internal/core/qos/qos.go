// Package qos turns a pod's requests and limits into what the kernel is told: the pod's quality-of-service class, the
// values of the cgroups of its containers, itself and its tier, and the OOM score of its processes.
//
// # Model
//
// A Pod is its containers' requests and limits, its pod-level ones and its overhead. A class is a function of them. The
// cgroups form a tree: the node's group (kubepods), under it one tier per class (Guaranteed pods live directly in the
// node's group), under a tier one group per pod, under a pod its containers. Values are what one group is set to.
//
// # Invariants
//
//   - Same pod, same answer: no clock, no machine, no order of maps.
//   - Absent, zero and unlimited are different: see unit.Amount and unit.Limit.
//   - Every number equals what Kubernetes 1.36 would write with its default feature gates, except that fractions of a
//     byte are rounded up per container and not once per pod (the API accepts "1500m" of memory; nobody means it).
//
// # What it does not do
//
// It touches no cgroup (internal/host/cgroup does), chooses no CPUs (internal/core/numa) and knows nothing of what the node
// can carry (internal/core/allocatable).
package qos

import "github.com/plimsoll-dev/plimsoll/internal/core/unit"

// Class is a pod's quality-of-service class, spelled as in pod.status.qosClass.
type Class string

// The classes, from the last to be sacrificed to the first.
const (
	Guaranteed Class = "Guaranteed"
	Burstable  Class = "Burstable"
	BestEffort Class = "BestEffort"
)

// Amounts are requests or limits.
type Amounts struct {
	CPU       unit.Amount[unit.MilliCPU]
	Memory    unit.Amount[unit.Bytes]
	HugePages map[unit.Bytes]unit.Bytes // page size to bytes; a missing size is absent; nil is none
}

// Resources are the requests and limits of one container or of the pod as a whole.
type Resources struct {
	Requests, Limits Amounts
}

// Container is one container of a pod.
type Container struct {
	Name string
	Resources
	Sidecar bool // an init container that restarts always and runs beside the others
}

// Pod is what this package needs to know of a pod.
type Pod struct {
	Containers []Container // at least one
	Init       []Container // in order, sidecars among them
	Level      *Resources  // pod-level resources; nil: the pod has none. Present but empty is a statement too
	Overhead   Amounts     // what running the pod costs beside its containers
	Recorded   Class       // class the API server recorded, which rules; empty: compute it

	NodeCritical bool // priority class system-node-critical, or its static equivalent
	Critical     bool // static, or of a priority of system components: gets no swap
}

// ClassOf returns p's class: BestEffort when no CPU or memory is requested or limited anywhere, Guaranteed when CPU and
// memory are limited everywhere and requests equal limits, else Burstable. Zero counts as absent. Pod-level resources,
// when present, rule alone.
func ClassOf(p Pod) Class {
	if p.Recorded != "" {
		return p.Recorded
	}
	parts := []Resources{}
	if p.Level != nil {
		parts = append(parts, *p.Level)
	} else {
		for _, c := range p.Containers {
			parts = append(parts, c.Resources)
		}
		for _, c := range p.Init {
			parts = append(parts, c.Resources)
		}
	}
	var request, limit struct {
		cpu    unit.MilliCPU
		memory unit.Bytes
	}
	limited := true
	for _, r := range parts {
		request.cpu += max(0, r.Requests.CPU.OrZero())
		request.memory += max(0, r.Requests.Memory.OrZero())
		limit.cpu += max(0, r.Limits.CPU.OrZero())
		limit.memory += max(0, r.Limits.Memory.OrZero())
		// Pod-level resources that state no limit at all are Burstable or BestEffort by the sums below.
		limited = limited && r.Limits.CPU.OrZero() > 0 && r.Limits.Memory.OrZero() > 0
	}
	switch {
	case request.cpu == 0 && request.memory == 0 && limit.cpu == 0 && limit.memory == 0:
		return BestEffort
	case limited && request == limit:
		return Guaranteed
	}
	return Burstable
}

// plus returns the sum of two lists; what either states, the sum states.
func (a Amounts) plus(b Amounts) Amounts {
	sum := Amounts{CPU: a.CPU.Plus(b.CPU), Memory: a.Memory.Plus(b.Memory), HugePages: merge(a.HugePages, b.HugePages)}
	for size := range sum.HugePages {
		sum.HugePages[size] = a.HugePages[size] + b.HugePages[size]
	}
	return sum
}

// max returns the larger of two lists, resource by resource.
func (a Amounts) max(b Amounts) Amounts {
	larger := Amounts{CPU: a.CPU.Max(b.CPU), Memory: a.Memory.Max(b.Memory), HugePages: merge(a.HugePages, b.HugePages)}
	for size := range larger.HugePages {
		larger.HugePages[size] = max(a.HugePages[size], b.HugePages[size])
	}
	return larger
}

// over returns a with b's stated amounts in the place of a's.
func (a Amounts) over(b Amounts) Amounts {
	out := Amounts{CPU: a.CPU, Memory: a.Memory, HugePages: merge(a.HugePages, b.HugePages)}
	if b.CPU.IsSet() {
		out.CPU = b.CPU
	}
	if b.Memory.IsSet() {
		out.Memory = b.Memory
	}
	return out
}

// stated reports whether any amount is.
func (a Amounts) stated() bool { return a.CPU.IsSet() || a.Memory.IsSet() || len(a.HugePages) > 0 }

// merge returns a copy of a with b's entries; nil when both are empty.
func merge(a, b map[unit.Bytes]unit.Bytes) map[unit.Bytes]unit.Bytes {
	if len(a)+len(b) == 0 {
		return nil
	}
	out := make(map[unit.Bytes]unit.Bytes, len(a)+len(b))
	for size, v := range a {
		out[size] = v
	}
	for size, v := range b {
		out[size] = v
	}
	return out
}

// Requests returns what p as a whole requests: the larger of (all containers and sidecars together) and (the dearest
// moment of its start), overridden by pod-level requests, plus overhead.
func Requests(p Pod) Amounts {
	sum := aggregate(p, func(r Resources) Amounts { return r.Requests }, nil)
	if p.Level != nil && p.Level.Requests.stated() {
		sum = sum.over(p.Level.Requests)
	}
	return sum.plus(p.Overhead)
}

// limits returns what p as a whole is limited to, by the same rule; overhead is added only where there is a limit.
// A limit that not every container states does not limit the pod: see PodValues. seen, if not nil, is shown each
// container's.
func limits(p Pod, seen func(Amounts)) Amounts {
	sum := aggregate(p, func(r Resources) Amounts { return r.Limits }, seen)
	if p.Level != nil {
		sum = sum.over(p.Level.Limits)
	}
	if sum.CPU.OrZero() != 0 {
		sum.CPU = sum.CPU.Plus(p.Overhead.CPU)
	}
	if sum.Memory.OrZero() != 0 {
		sum.Memory = sum.Memory.Plus(p.Overhead.Memory)
	}
	for size, v := range p.Overhead.HugePages {
		if sum.HugePages[size] != 0 {
			sum.HugePages[size] += v
		}
	}
	return sum
}

// aggregate folds the containers' amounts. The i-th init container runs beside the sidecars before it, so a moment of
// the start costs its own amount and theirs; a sidecar's own moment is the sidecars so far. seen, when given, is told
// every container's amount and every such moment's.
func aggregate(p Pod, of func(Resources) Amounts, seen func(Amounts)) Amounts {
	tell := func(a Amounts) {
		if seen != nil {
			seen(a)
		}
	}
	var sum, sidecars, start Amounts
	for _, c := range p.Containers {
		tell(of(c.Resources))
		sum = sum.plus(of(c.Resources))
	}
	for _, c := range p.Init {
		moment := sidecars.plus(of(c.Resources))
		if c.Sidecar {
			sum = sum.plus(of(c.Resources))
			sidecars = moment
		}
		tell(moment)
		start = start.max(moment)
	}
	return sum.max(start)
}
