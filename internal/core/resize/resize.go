// Package resize brings the cgroups of a running pod from the sizes that they have to the sizes that its allocation
// asks for, without a restart: in which order to write what.
//
// # Model
//
// Four sizes of a container can differ. What its specification asks for; what the node has allocated to it, which is
// the specification last granted (core/admission); what its cgroup is to be set to, which follows from the allocation
// (core/qos); and what its cgroup has. This package compares the last two. Plan is a function of both and remembers
// nothing: a plan that was interrupted anywhere, by a failure or by the death of the agent, is followed by another that
// leads from wherever the kernel is to the same end.
//
// Vocabulary: a *size* is what the kernel is told about CPU and memory; a *request* is a CPU weight, a *limit* a CPU
// quota or a bound of memory; a *step* writes one or both of one resource of one group; the *pod's group* is the cgroup
// around its containers.
//
// # Invariants
//
//   - At every moment, whatever step fails, a container's limits are within the limits of the pod's group, as far as
//     they were before: the pod's group grows before its containers and shrinks after them. (cgroup v1 refuses anything
//     else for the CPU quota.)
//   - Containers that shrink go before those that grow, and memory before CPU: upstream's order.
//   - A memory limit is not set below what is in use: Refusal says why. The kernel would kill (v2) or refuse (v1).
//   - Equal sizes need no step; steps are the same for the same sizes.
//
// # What it does not do
//
// It writes nothing, decides nothing about room (core/admission) or restarts (core/podlife: a container whose resize
// policy asks for one is leaving, and is not sized while it runs).
package resize

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/qos"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Size is what the kernel is told of a group. Sizes are compared with ==. The zero Size knows nothing.
type Size struct {
	Shares unit.Amount[qos.Shares]   // absent: not known
	Quota  unit.Limit[time.Duration] // per Period; kept: not known
	Period time.Duration             // goes with Quota; zero where there is no quota
	Memory unit.Limit[unit.Bytes]    // kept: not known
	// What else is told of memory on v2: protection of the request, throttling, swap. The kernel is not asked what it
	// has.
	Soft Soft
}

// Soft is memory.min, memory.low, memory.high and memory.swap.max. They change with the limit, and where a policy has
// protection follow the request, with that alone; nobody is hurt by their order.
type Soft struct {
	Known     bool
	Min, Low  unit.Amount[unit.Bytes]
	High      unit.Limit[unit.Bytes]
	SwapSpace unit.Limit[unit.Bytes]
}

// SizeOf is the size that values ask for. Values that state no limit for a container mean that there is none.
func SizeOf(v qos.Values) Size {
	s := Size{
		Shares: v.CPUShares, Quota: unit.Unlimited[time.Duration](), Memory: unit.Unlimited[unit.Bytes](),
		Soft: Soft{Known: true, Min: v.MemoryMin, Low: v.MemoryLow, High: v.MemoryHigh, SwapSpace: v.Swap},
	}
	if q, ok := v.CPUQuota.Get(); ok {
		s.Quota, s.Period = unit.LimitTo(q), v.CPUPeriod
	}
	if m, ok := v.Memory.Get(); ok {
		s.Memory = unit.LimitTo(m)
	}
	return s
}

// Or returns s with what it does not know taken from other.
func (s Size) Or(other Size) Size {
	if !s.Shares.IsSet() {
		s.Shares = other.Shares
	}
	if s.Quota.IsKept() {
		s.Quota, s.Period = other.Quota, other.Period
	}
	if s.Memory.IsKept() {
		s.Memory = other.Memory
	}
	if !s.Soft.Known {
		s.Soft = other.Soft
	}
	return s
}

// Adopted is the size of a group that another process sized: s is what the kernel tells, and what it does not tell is
// as was reported last. The shares, which v2 does not tell, are not known where a resize was under way, or where what
// the kernel tells was not reported: whoever wrote that may have died before it reported anything.
func (s Size) Adopted(reported Size, underWay bool) Size {
	out := s.Or(reported)
	told := out.Quota == reported.Quota && out.Period == reported.Period && out.Memory == reported.Memory
	if !s.Shares.IsSet() && (underWay || !told) {
		out.Shares = unit.Amount[qos.Shares]{}
	}
	return out
}

// CPURequest is the request that the shares were made of, to the millicore; false: not known.
func (s Size) CPURequest() (unit.MilliCPU, bool) {
	shares, known := s.Shares.Get()
	return unit.MilliCPU((int64(shares)*int64(unit.CPU) + sharesPerCPU - 1) / sharesPerCPU), known // shares were rounded down
}

// CPULimit is the limit that quota and period are; false: there is none, or it is not known.
func (s Size) CPULimit() (unit.MilliCPU, bool) {
	quota, bounded := s.Quota.Get()
	if !bounded || s.Period <= 0 {
		return 0, false
	}
	return unit.MilliCPU(quota.Microseconds() * int64(unit.CPU) / s.Period.Microseconds()), true
}

// sharesPerCPU is v1's scale: the shares of one CPU (kernel, sched-design-CFS: 1024 is the default of one task group).
const sharesPerCPU = 1024

// String prints what is known of s.
func (s Size) String() string {
	var parts []string
	if shares, ok := s.Shares.Get(); ok {
		parts = append(parts, fmt.Sprintf("shares=%d", shares))
	}
	if quota, ok := s.Quota.Get(); ok {
		parts = append(parts, fmt.Sprintf("quota=%s/%s", quota, s.Period))
	} else if s.Quota.IsUnlimited() {
		parts = append(parts, "quota=none")
	}
	if memory, ok := s.Memory.Get(); ok {
		parts = append(parts, fmt.Sprintf("memory=%s", memory))
	} else if s.Memory.IsUnlimited() {
		parts = append(parts, "memory=none")
	}
	if low := s.Soft.Min.Max(s.Soft.Low); low.OrZero() > 0 {
		parts = append(parts, fmt.Sprintf("protected=%s", low))
	}
	if high, ok := s.Soft.High.Get(); ok {
		parts = append(parts, fmt.Sprintf("high=%s", high))
	}
	if swap, ok := s.Soft.SwapSpace.Get(); ok {
		parts = append(parts, fmt.Sprintf("swap=%s", swap))
	}
	if len(parts) == 0 {
		return "unknown"
	}
	return strings.Join(parts, " ")
}

// Resource is CPU or memory.
type Resource int

// The resources that can be resized, in the order in which they are.
const (
	Memory Resource = iota
	CPU
)

func (r Resource) String() string { return [...]string{"memory", "cpu"}[r] }

// Group is a cgroup that may have to change: a container's or the pod's own.
type Group struct {
	Name    string // of the container; empty: the pod's group
	ID      string // of the container
	Has     Size
	Want    Size
	Leaving bool // a container that runs with Has until it is stopped, and starts again with Want
}

// Step is one write. Exactly the parts of To that belong to Resource, and to Request or Limit, are written.
type Step struct {
	Name, ID string // of the container; empty: the pod's group
	Resource Resource
	Request  bool // write the CPU weight
	Limit    bool // write the quota, or the bound of memory and what goes with it
	Lowers   bool // a limit of memory that was higher, or that was not there: see Refusal
	To       Size
}

// After is the size of a group that had size s, once the step is done.
func (step Step) After(s Size) Size {
	switch {
	case step.Resource == Memory:
		s.Memory, s.Soft = step.To.Memory, step.To.Soft
		return s
	case step.Request:
		s.Shares = step.To.Shares
	}
	if step.Resource == CPU && step.Limit {
		s.Quota, s.Period = step.To.Quota, step.To.Period
	}
	return s
}

// Torn is the size of a group that had size s, once the step has failed: it may have been taken all the same. has is
// what the kernel tells now. Of what it does not tell, limits are taken to be as before, so that lowering one stays
// known as that, and the rest is not known: it is written again, and for a container all that is known with it.
func (step Step) Torn(s, has Size) Size {
	now := has.Or(s)
	switch {
	case step.Resource == Memory:
		s.Memory, s.Soft = now.Memory, Soft{}
		return s
	case step.Request, has.Quota.IsKept():
		s.Shares = has.Shares
	}
	if step.Limit {
		s.Quota, s.Period = now.Quota, now.Period
	}
	return s
}

func (step Step) String() string {
	name := step.Name
	if name == "" {
		name = "(pod)"
	}
	to := Step{Resource: step.Resource, Request: step.Request, Limit: step.Limit, To: step.To}.After(Size{})
	return fmt.Sprintf("%s %s", name, to)
}

// Plan returns the steps from what pod and containers have to what they are to have, in order. The shell stops at the
// first step that fails; the next plan begins where it stopped.
func Plan(pod Group, containers []Group) []Step {
	var steps []Step
	for _, r := range []Resource{Memory, CPU} {
		steps = append(steps, plan(r, pod, containers)...)
	}
	return steps
}

func plan(r Resource, pod Group, containers []Group) (steps []Step) {
	add := func(g Group, request, limit bool) {
		if request || limit {
			steps = append(steps, Step{
				Name: g.Name, ID: g.ID, Resource: r, Request: request, Limit: limit,
				Lowers: r == Memory && limit && limitChange(r, g) == lower, To: g.Want,
			})
		}
	}
	// Limits open before requests and close after them, so that no request is ever above its limit.
	add(pod, false, limitChange(r, pod) == higher)
	add(pod, requestChange(r, pod) == higher, false)
	stays := slices.DeleteFunc(slices.Clone(containers), func(g Group) bool { return g.Leaving })
	for _, direction := range []change{lower, higher} {
		for _, g := range stays {
			request, limit := requestChange(r, g), limitChange(r, g)
			main := limit
			if main == same {
				main = request
			}
			if main == direction {
				add(g, request != same, limit != same)
			}
		}
	}
	if len(stays) < len(containers) {
		return steps // what leaves still needs the room
	}
	add(pod, requestChange(r, pod) == lower, false)
	add(pod, false, limitChange(r, pod) == lower)
	return steps
}

// change is the direction in which a value goes. What is not known counts as lower than anything: it is written early,
// which is harmless.
type change int

const (
	lower  change = -1
	same   change = 0
	higher change = 1
)

func requestChange(r Resource, g Group) change {
	if r == Memory { // requests of memory are not told to the kernel
		return same
	}
	want, stated := g.Want.Shares.Get()
	has, known := g.Has.Shares.Get()
	switch {
	case !stated || known && has == want:
		return same
	case known && want < has:
		return lower
	}
	return higher
}

func limitChange(r Resource, g Group) change {
	if r == Memory {
		c := compare(g.Has.Memory, g.Want.Memory, 1, 1)
		if c == same && g.Has.Soft != g.Want.Soft && g.Want.Soft.Known {
			return higher // only a word about the same limit
		}
		return c
	}
	return compare(g.Has.Quota, g.Want.Quota, max(g.Has.Period, 1), max(g.Want.Period, 1))
}

// compare compares limits as shares of their periods.
func compare[T ~int64](has, want unit.Limit[T], hasPer, wantPer time.Duration) change {
	if want.IsKept() {
		return same
	}
	h, hasBound := has.Get()
	w, wantBound := want.Get()
	switch {
	case has.IsKept():
		return higher
	case !hasBound && !wantBound:
		return same
	case !wantBound:
		return higher
	case !hasBound:
		return lower
	}
	switch a, b := float64(h)/float64(hasPer), float64(w)/float64(wantPer); {
	case b > a:
		return higher
	case b < a:
		return lower
	}
	return same
}

// Refusal says, in upstream's words, why the step may not be taken while the group uses that much memory; empty: it
// may. Used is what the kernel cannot drop at once (without inactive page cache). Upstream counts the page cache too,
// so that a container that reads files can never shrink.
func (step Step) Refusal(used unit.Bytes) string {
	limit, bounded := step.To.Memory.Get()
	if !step.Lowers || !bounded || used < limit {
		return ""
	}
	if step.Name == "" {
		return fmt.Sprintf("attempting to set pod memory limit (%d) below current usage (%d)", limit, used)
	}
	return fmt.Sprintf("attempting to set container %q memory limit (%d) below current usage (%d)", step.Name, limit, used)
}

// Refused is the message of a resize some of whose steps may not be taken.
func Refused(refusals []string) string {
	text := strings.Join(refusals, ", ")
	if len(refusals) > 1 {
		text = "[" + text + "]"
	}
	return "cannot decrease memory limits: " + text
}
