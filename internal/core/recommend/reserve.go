// Package recommend turns what a node's own programs were seen to use into what to keep back for them: systemReserved and
// kubeReserved, measured instead of guessed.
//
// # Model
//
// A Sample is one moment: counters of CPU time, memory in use, and the processes outside the pods. Who uses something is a
// Part: the runtime and the agent, which kubeReserved is for, and the system, which is all the rest outside the pods: daemons,
// logins, short-lived programs, and the kernel. A Watch folds samples into a series of points per part:
//
//	CPU of all that is not a pod = what the machine was busy - what the pods' groups used
//	memory of all that is not a pod = what is in use and not reclaimable - what of that the pods hold
//
// The runtime's and the agent's own are summed over their processes, the system has the remainder. So nothing is lost
// between them: what cannot be attributed, like a program that came and went between two samples, is the system's.
//
// A Report has the percentiles of the series. Recommend turns it into amounts with reasons. Formulas are what others would
// reserve without looking.
//
// # Invariants
//
//   - Rates are over the time that really passed between samples, never the nominal period.
//   - Counters that went backwards (a process that was replaced, a group that was made anew) count as nothing, not as less.
//   - Same samples, same report.
//
// # What it does not do
//
// It reads nothing (internal/recommend does) and applies nothing: a person decides. It does not foresee: what did not happen
// while it watched is not in it.
package recommend

import (
	"cmp"
	"slices"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Part is somebody whom a node keeps resources back for.
type Part int

// Parts.
const (
	System Part = iota // all that is not a pod and none of the others
	Runtime
	Agent
	parts
)

// String names a part as reports do.
func (p Part) String() string { return [...]string{"system", "runtime", "agent"}[p] }

// ProcessID tells a process from a later one with its number.
type ProcessID struct {
	PID   int
	Start int64 // when it started, in whatever unit the shell has
}

// Process is a process outside the pods.
type Process struct {
	ID       ProcessID
	Name     string
	Part     Part
	PerPod   bool          // there is one for each pod, as shims are
	CPU      time.Duration // of its own, since its start
	Resident unit.Bytes    // its share of what is in memory for it, program text included
	Private  unit.Bytes    // of that, what no reclaim can free
}

// Sample is one moment.
type Sample struct {
	At   unit.Instant
	CPUs int64         // online
	Busy time.Duration // CPU time of the whole machine that was not idle, since boot

	InUse     unit.Bytes // memory that no reclaim can free, of the whole machine
	PodGroups map[string]Group
	Slice     *Group // system.slice; nil: this machine has none
	Pods      int    // with at least one process
	Processes []Process
}

// Group is what a control group uses, all below it included.
type Group struct {
	CPU    time.Duration // since it was made
	Memory unit.Bytes    // that no reclaim can free
}

// Watch folds samples. The zero Watch has seen none.
type Watch struct {
	last   *Sample
	first  unit.Instant
	used   map[ProcessID]time.Duration // CPU time that processes of the last sample had used
	cpu    [parts]series[unit.MilliCPU]
	memory [parts]series[unit.Bytes]
	slice  struct {
		cpu    series[unit.MilliCPU]
		memory series[unit.Bytes]
	}
	perPod    series[unit.Bytes] // resident memory of processes that there is one of for each pod, per pod
	kubeSpent time.Duration      // CPU time of runtime and agent
	podTime   time.Duration      // time that pods were there, of all pods together
	pods      series[int]
	consumers map[string]*Consumer // of the system, by name
}

// series are the points of one quantity, in the order they were seen.
type series[T ~int | ~int64] []T

// Quantiles are what was seen of one quantity.
type Quantiles[T ~int | ~int64] struct{ P50, P99, Peak T }

// quantiles are of nearest rank: each was really seen. Nothing seen gives zeros.
func (s series[T]) quantiles() Quantiles[T] {
	if len(s) == 0 {
		return Quantiles[T]{}
	}
	up := slices.Sorted(slices.Values(s))
	at := func(percent int) T { return up[max(0, (percent*len(up)+99)/100-1)] }
	return Quantiles[T]{P50: at(50), P99: at(99), Peak: up[len(up)-1]}
}

// Observe takes the next sample. One that is not later than the last is dropped.
func (w *Watch) Observe(s Sample) {
	if w.last == nil {
		w.first = s.At
		w.consumers = map[string]*Consumer{}
	} else if s.At <= w.last.At {
		return
	} else {
		w.observeCPU(s, s.At.Sub(w.last.At))
	}
	w.observeMemory(s)
	w.pods = append(w.pods, s.Pods)
	w.used = make(map[ProcessID]time.Duration, len(s.Processes))
	for _, p := range s.Processes {
		w.used[p.ID] = p.CPU
	}
	w.last = &s
}

// observeCPU appends the rates over the elapsed time.
func (w *Watch) observeCPU(s Sample, elapsed time.Duration) {
	var spent [parts]time.Duration
	for _, p := range s.Processes {
		// A process that was not there has used all its time since: it started in between.
		delta := max(0, p.CPU-w.used[p.ID])
		if p.Part != System {
			spent[p.Part] += delta
		} else if c := w.consumer(p.Name); delta > 0 {
			c.spent += delta
		}
	}
	// Kernels count busy time in ticks, and idle CPUs' late: more than all CPUs have is another moment's.
	outside := min(s.Busy-w.last.Busy, elapsed*time.Duration(s.CPUs))
	for name, group := range s.PodGroups {
		if before, ok := w.last.PodGroups[name]; ok {
			outside -= max(0, group.CPU-before.CPU)
		}
	}
	if s.Slice != nil && w.last.Slice != nil {
		slice := max(0, s.Slice.CPU-w.last.Slice.CPU)
		w.slice.cpu = append(w.slice.cpu, rate(slice, elapsed))
		outside = max(outside, slice) // ticks miss what is shorter than they are; a group's own counter does not
	}
	spent[System] = max(0, outside-spent[Runtime]-spent[Agent])
	for part, time := range spent {
		w.cpu[part] = append(w.cpu[part], rate(time, elapsed))
	}
	w.kubeSpent += spent[Runtime] + spent[Agent]
	w.podTime += elapsed * time.Duration(s.Pods)
}

// rate is CPU time per time, rounded up: what was used was not nothing.
func rate(spent, elapsed time.Duration) unit.MilliCPU {
	return unit.MilliCPU((int64(spent)*int64(unit.CPU) + int64(elapsed) - 1) / int64(elapsed))
}

func (w *Watch) observeMemory(s Sample) {
	var held [parts]unit.Bytes
	var private, perPod unit.Bytes
	system := map[string]unit.Bytes{}
	for _, p := range s.Processes {
		if p.Part == System {
			system[p.Name] += p.Resident
			continue
		}
		held[p.Part] += p.Resident
		private += p.Private
		if p.PerPod {
			perPod += p.Resident
		}
	}
	rest := s.InUse - private
	for _, group := range s.PodGroups {
		rest -= group.Memory
	}
	held[System] = max(0, rest)
	for part, bytes := range held {
		w.memory[part] = append(w.memory[part], bytes)
	}
	if s.Slice != nil {
		w.slice.memory = append(w.slice.memory, s.Slice.Memory)
	}
	if s.Pods > 0 {
		w.perPod = append(w.perPod, perPod/unit.Bytes(s.Pods))
	}
	for name, bytes := range system {
		c := w.consumer(name)
		c.Memory = max(c.Memory, bytes)
	}
}

// Consumer is a program that is part of the system, all processes of its name together.
type Consumer struct {
	Name   string
	Memory unit.Bytes    // most at once
	CPU    unit.MilliCPU // on average

	spent time.Duration
}

func (w *Watch) consumer(name string) *Consumer {
	c := w.consumers[name]
	if c == nil {
		c = &Consumer{Name: name}
		w.consumers[name] = c
	}
	return c
}

// Usage is what one part used.
type Usage struct {
	CPU    Quantiles[unit.MilliCPU]
	Memory Quantiles[unit.Bytes]
}

// Report is what was seen.
type Report struct {
	For     time.Duration
	Samples int
	Pods    Quantiles[int]
	Parts   [parts]Usage
	Slice   *Usage // of system.slice; nil: there is none. Its processes are part of the others too
	PerPod  PerPod
	System  []Consumer // largest first
}

// PerPod is what each pod costs outside itself. It is zero when no pods were seen.
type PerPod struct {
	Memory     unit.Bytes    // resident, of processes that there is one of for each pod, at most
	CPUPerHour time.Duration // of runtime and agent, on average; what they do without pods is in it
}

// consumersMost is how many programs of the system a report names. Chosen: what one takes in at a glance.
const consumersMost = 5

// Report returns what was seen so far.
func (w *Watch) Report() Report {
	r := Report{Samples: len(w.pods), Pods: w.pods.quantiles(), PerPod: PerPod{Memory: w.perPod.quantiles().Peak}}
	if w.podTime > 0 {
		r.PerPod.CPUPerHour = time.Duration(w.kubeSpent.Seconds() / w.podTime.Hours() * float64(time.Second)).Round(time.Millisecond)
	}
	if w.last != nil {
		r.For = w.last.At.Sub(w.first)
	}
	for part := range r.Parts {
		r.Parts[part] = Usage{w.cpu[part].quantiles(), w.memory[part].quantiles()}
	}
	if len(w.slice.memory) > 0 {
		r.Slice = &Usage{w.slice.cpu.quantiles(), w.slice.memory.quantiles()}
	}
	for _, c := range w.consumers {
		if r.For > 0 {
			c.CPU = rate(c.spent, r.For)
		}
		if c.CPU > 0 || c.Memory > 0 {
			r.System = append(r.System, *c)
		}
	}
	slices.SortFunc(r.System, func(a, b Consumer) int {
		return cmp.Or(cmp.Compare(b.Memory, a.Memory), cmp.Compare(a.Name, b.Name))
	})
	r.System = r.System[:min(len(r.System), consumersMost)]
	return r
}
