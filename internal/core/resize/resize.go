// Package resize plans how to change the cgroups of a running pod from their actual sizes to the desired ones without a
// restart: what to write, and in which order.
//
// # Model
//
// A container has four sizes, which may differ: what its specification asks for; its allocated resources, which are the
// specification that the node last accepted (core/admission); the desired size of its cgroup, which follows from the
// allocated resources (core/qos); and the actual size of its cgroup. This package compares the last two. Plan is a
// function of both and remembers nothing. If a plan was interrupted at any point, by a failure or by the end of the
// agent, the next plan leads from the actual sizes to the same result.
//
// Vocabulary: a *size* is the kernel's setting for CPU and memory; a *request* is a CPU weight; a *limit* is a CPU
// quota or a memory limit; a *step* writes request, limit or both of one resource of one group; the *pod's group* is
// the cgroup around its containers.
//
// # Invariants
//
//   - At every moment, whichever step fails, a container's limits are within the limits of the pod's group, as far as
//     they were before: the pod's group grows before its containers and shrinks after them. (cgroup v1 refuses
//     everything else for the CPU quota.)
//   - Containers that shrink come before those that grow, and memory comes before CPU: upstream's order.
//   - A memory limit is not set below the memory in use: WhyNot says why. Otherwise the kernel would kill (v2) or
//     refuse the write (v1).
//   - Equal sizes need no step. The same sizes give the same steps.
//
// # What it does not do
//
// It writes nothing. It does not decide whether a size fits (core/admission), or when to restart (core/podlife: a
// container whose resize policy requires a restart is leaving, and is not resized while it runs).
package resize

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/qos"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Size is the kernel's setting of a group. Sizes are compared with ==. In the zero Size nothing is known.
type Size struct {
	Shares unit.Amount[qos.Shares]   // absent: not known
	Quota  unit.Limit[time.Duration] // per Period; kept: not known
	Period time.Duration             // belongs to Quota; zero if there is no quota
	Memory unit.Limit[unit.Bytes]    // kept: not known
	// Soft is what else is set for memory on v2: protection of the request, throttling, swap. It is not read back from
	// the kernel.
	Soft Soft
}

// Soft is memory.min, memory.low, memory.high and memory.swap.max. They change together with the limit or, where a
// policy protects the request, with the request alone. Their order does no harm.
type Soft struct {
	Known     bool
	Min, Low  unit.Amount[unit.Bytes]
	High      unit.Limit[unit.Bytes]
	SwapSpace unit.Limit[unit.Bytes]
}

// SizeOf returns the size that values set. Values without a limit mean that there is none.
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

// Or returns s, with unknown parts taken from other.
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

// Adopted returns the size of a group that another process has set. s is what the kernel returns. Parts that the kernel
// does not return are as reported last. The shares, which v2 does not return, are not known if a resize was in
// progress, or if s differs from what was reported: the process that wrote it may have ended before it reported
// anything.
func (s Size) Adopted(reported Size, underWay bool) Size {
	out := s.Or(reported)
	told := out.Quota == reported.Quota && out.Period == reported.Period && out.Memory == reported.Memory
	if !s.Shares.IsSet() && (underWay || !told) {
		out.Shares = unit.Amount[qos.Shares]{}
	}
	return out
}

// CPURequest returns the CPU request that the shares were computed from, to the millicore; false: not known.
func (s Size) CPURequest() (unit.MilliCPU, bool) {
	shares, known := s.Shares.Get()
	// Round up, because shares were rounded down.
	return unit.MilliCPU((int64(shares)*int64(unit.CPU) + sharesPerCPU - 1) / sharesPerCPU), known
}

// CPULimit returns the CPU limit that quota and period express; false: there is none, or it is not known.
func (s Size) CPULimit() (unit.MilliCPU, bool) {
	quota, bounded := s.Quota.Get()
	if !bounded || s.Period <= 0 {
		return 0, false
	}
	return unit.MilliCPU(quota.Microseconds() * int64(unit.CPU) / s.Period.Microseconds()), true
}

// sharesPerCPU is v1's scale: the shares of one CPU (kernel, sched-design-CFS: 1024 is the default of a task group).
const sharesPerCPU = 1024

// String formats the known parts of s.
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

// The resources that can be resized, in the order in which they are resized.
const (
	Memory Resource = iota
	CPU
)

func (r Resource) String() string { return [...]string{"memory", "cpu"}[r] }

// Group is a cgroup that may have to change: that of a container, or the pod's own.
type Group struct {
	Name    string // of the container; empty: the pod's group
	ID      string // of the container
	Has     Size   // actual size
	Want    Size   // desired size
	Leaving bool   // the container keeps Has until it is stopped, and starts again with Want
}

// Step is one write: of the parts of To that belong to Resource, and to Request or Limit.
type Step struct {
	Name, ID string // of the container; empty: the pod's group
	Resource Resource
	Request  bool // write the CPU weight
	Limit    bool // write the CPU quota, or the memory limit and Soft
	Lowers   bool // it lowers a memory limit, or sets one where there was none; see WhyNot
	To       Size
}

// After returns the size of a group that had size s, after the step succeeded.
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

// Torn returns the size of a group that had size s, after the step failed, because a part of it may have been written
// all the same. has is what the kernel returns now. For parts that the kernel does not return, limits are assumed to be
// as before, so that a step that lowers them is still recognized as such. The rest is not known, and so it is written
// again; for a container everything known is written with it.
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

// Plan returns the steps from the actual to the desired sizes of pod and containers, in order. The shell stops at the
// first step that fails. The next plan continues there.
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
	// Limits are raised before requests and lowered after them, so that no request is ever above its limit.
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
		return steps // containers that are leaving still need the resources
	}
	add(pod, requestChange(r, pod) == lower, false)
	add(pod, false, limitChange(r, pod) == lower)
	return steps
}

// change is the direction in which a value changes. An unknown value counts as lower than any other, so it is written
// early, which is harmless.
type change int

const (
	lower  change = -1
	same   change = 0
	higher change = 1
)

func requestChange(r Resource, g Group) change {
	if r == Memory { // memory requests are not written to the kernel
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
			return higher // only Soft changes
		}
		return c
	}
	return compare(g.Has.Quota, g.Want.Quota, max(g.Has.Period, 1), max(g.Want.Period, 1))
}

// compare compares limits in proportion to their periods.
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

// WhyNot returns why the step must not be made while the group uses that much memory, in upstream's words; empty: it
// may be made. used is the memory that the kernel cannot drop at once (without inactive page cache). Upstream includes
// the page cache, so a container that reads files can never shrink.
func (step Step) WhyNot(used unit.Bytes) string {
	limit, bounded := step.To.Memory.Get()
	if !step.Lowers || !bounded || used < limit {
		return ""
	}
	if step.Name == "" {
		return fmt.Sprintf("attempting to set pod memory limit (%d) below current usage (%d)", limit, used)
	}
	return fmt.Sprintf("attempting to set container %q memory limit (%d) below current usage (%d)", step.Name, limit, used)
}

// NotMade is the message of a resize of which some steps must not be made.
func NotMade(reasons []string) string {
	text := strings.Join(reasons, ", ")
	if len(reasons) > 1 {
		text = "[" + text + "]"
	}
	return "cannot decrease memory limits: " + text
}
