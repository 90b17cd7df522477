// Package qos computes kernel settings from a pod's requests and limits: the pod's QoS class, the values of the cgroups
// of its containers, of the pod and of its QoS class, and the OOM score adjustment of its processes.
//
// # Model
//
// A Pod holds its containers' requests and limits, its pod-level ones and its overhead. The QoS class is a function of
// them. The cgroups form a tree: the node's group (kubepods); in it one group per QoS class, called a tier (Guaranteed
// pods are directly in the node's group); in a tier one group per pod; in a pod's group its containers. Values are the
// settings of one group.
//
// # Invariants
//
//   - The same pod gives the same result: no clock, no machine and no map order matters.
//   - Absent, zero and unlimited are different; see unit.Amount and unit.Limit.
//   - Every number equals what Kubernetes 1.36 writes with its default feature gates, with one exception: fractions of
//     a byte are rounded up per container and not once per pod. (The API accepts "1500m" of memory, but it is not
//     useful.)
//
// # What it does not do
//
// It touches no cgroup (internal/host/cgroup does), chooses no CPUs (internal/core/numa) and does not know what fits on
// the node (internal/core/allocatable).
package qos

import "github.com/plimsoll-dev/plimsoll/internal/core/unit"

// Class is a QoS class, spelled as in pod.status.qosClass.
type Class string

// The classes. When memory runs out, pods of the last one are killed first.
const (
	Guaranteed Class = "Guaranteed"
	Burstable  Class = "Burstable"
	BestEffort Class = "BestEffort"
)

// Amounts are requests or limits.
type Amounts struct {
	CPU       unit.Amount[unit.MilliCPU]
	Memory    unit.Amount[unit.Bytes]
	HugePages map[unit.Bytes]unit.Bytes // page size to bytes; a missing size is absent
}

// Resources are the requests and limits of one container or of the pod as a whole.
type Resources struct {
	Requests, Limits Amounts
}

// Container is one container of a pod.
type Container struct {
	Name string
	Resources
	Sidecar bool // an init container with restartPolicy Always, which runs at the same time as the main containers
}

// Pod is what this package needs to know about a pod.
type Pod struct {
	Containers []Container // at least one
	Init       []Container // in order, including sidecars
	// Pod-level resources; nil: the pod has none; empty pod-level resources are different from none.
	Level    *Resources
	Overhead Amounts // what running the pod costs in addition to its containers
	Recorded Class   // class in the pod's status, which takes precedence; empty: compute it

	NodeCritical bool // priority class system-node-critical, or a static pod of the same importance
	Critical     bool // static, or with the priority of a system component: it gets no swap
}

// ClassOf returns p's QoS class. It is BestEffort when no CPU or memory is requested or limited anywhere, Guaranteed
// when CPU and memory are limited everywhere and requests equal limits, and otherwise Burstable. Zero counts as absent.
// If the pod has pod-level resources, only they count.
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
		// Pod-level resources without limits are Burstable or BestEffort by the sums below.
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

// plus returns the sums. A sum is stated if one of its parts is.
func (a Amounts) plus(b Amounts) Amounts {
	sum := Amounts{CPU: a.CPU.Plus(b.CPU), Memory: a.Memory.Plus(b.Memory), HugePages: merge(a.HugePages, b.HugePages)}
	for size := range sum.HugePages {
		sum.HugePages[size] = a.HugePages[size] + b.HugePages[size]
	}
	return sum
}

// max returns the larger amount of each resource.
func (a Amounts) max(b Amounts) Amounts {
	larger := Amounts{CPU: a.CPU.Max(b.CPU), Memory: a.Memory.Max(b.Memory), HugePages: merge(a.HugePages, b.HugePages)}
	for size := range larger.HugePages {
		larger.HugePages[size] = max(a.HugePages[size], b.HugePages[size])
	}
	return larger
}

// over returns a, with the amounts that b states instead of a's.
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

// stated reports whether any amount is stated.
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

// Requests returns what p as a whole requests: the larger of the sum over all containers and sidecars, and the most
// that is requested at one time during the start. Pod-level requests replace that. Overhead is added.
func Requests(p Pod) Amounts {
	sum := aggregate(p, func(r Resources) Amounts { return r.Requests }, nil)
	if p.Level != nil && p.Level.Requests.stated() {
		sum = sum.over(p.Level.Requests)
	}
	return sum.plus(p.Overhead)
}

// limits returns the limits of p as a whole by the same rule. Overhead is added only where there is a limit. A limit
// that not every container states does not limit the pod; see PodValues. If seen is not nil, it is called with the
// limits of each container.
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

// aggregate combines the containers' amounts. The i-th init container runs at the same time as the sidecars before it,
// so at that time their amounts are added to its own. If seen is not nil, it is called with the amounts of each
// container, for an init container with the sum at its time.
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
