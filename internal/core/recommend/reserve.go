// Package recommend computes systemReserved and kubeReserved from measurements of what a node's own programs use.
//
// # Model
//
// A Sample is one moment: counters of CPU time, memory in use, and the processes outside the pods. A Part is a group of
// programs. Runtime and Agent are what kubeReserved is for. System is everything else outside the pods: daemons,
// logins, short-lived programs, and the kernel. A Watch turns samples into one series of points per part:
//
//	CPU outside the pods    = busy time of the machine - CPU time of the pods' groups
//	memory outside the pods = memory in use and not reclaimable - the part of it that the pods use
//
// For runtime and agent, the use of their processes is added up. The system gets the rest. So nothing is lost: use that
// cannot be attributed counts as the system's, for example that of a program that ran only between two samples.
//
// A Report has the percentiles of the series. Recommend turns it into amounts with reasons. Formulas are what vendors
// reserve without measuring.
//
// # Invariants
//
//   - Rates are computed over the time that really passed between samples, not over the nominal period.
//   - A counter that decreased (a process was replaced, a group was made again) counts as no use, not as negative use.
//   - The same samples give the same report.
//
// # What it does not do
//
// It reads nothing (internal/recommend does) and applies nothing: a person decides. It makes no forecast: what did not
// happen during the measurement is not included.
package recommend

import (
	"cmp"
	"slices"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Part is a group of programs that a node reserves resources for.
type Part int

// The parts.
const (
	System Part = iota // everything outside the pods that belongs to no other part
	Runtime
	Agent
	parts
)

// String returns the name of a part in reports.
func (p Part) String() string { return [...]string{"system", "runtime", "agent"}[p] }

// ProcessID identifies a process, also after its PID is used again.
type ProcessID struct {
	PID   int
	Start int64 // start time, in any unit, as long as the shell always uses the same
}

// Process is a process outside the pods.
type Process struct {
	ID       ProcessID
	Name     string
	Part     Part
	PerPod   bool          // there is one for each pod, as for shims
	CPU      time.Duration // CPU time since its start, without its children
	Resident unit.Bytes    // its share of the memory that is resident for it, including program text
	Private  unit.Bytes    // the part of Resident that cannot be reclaimed
}

// Sample is what was measured at one moment.
type Sample struct {
	At   unit.Instant
	CPUs int64         // online
	Busy time.Duration // CPU time since boot in which CPUs of the machine were not idle

	InUse unit.Bytes // memory of the whole machine that cannot be reclaimed
	// PodGroups are the groups of all pods, by path.
	PodGroups map[string]Group
	Slice     *Group // system.slice; nil: the machine has none
	Pods      int    // number of pods with at least one process
	// Processes are those outside the pods.
	Processes []Process
}

// Group is what a cgroup uses, with all groups below it.
type Group struct {
	CPU    time.Duration // since it was made
	Memory unit.Bytes    // memory that cannot be reclaimed
}

// Watch collects samples. The zero Watch has none. Only Observe changes it. It is for one goroutine at a time.
type Watch struct {
	// The last sample, nil: none yet; and when the first was taken.
	last  *Sample
	first unit.Instant
	used  map[ProcessID]time.Duration // CPU time of the processes of the last sample
	// One point per sample and part; for CPU none for the first sample.
	cpu    [parts]series[unit.MilliCPU]
	memory [parts]series[unit.Bytes]
	slice  struct {
		cpu    series[unit.MilliCPU]
		memory series[unit.Bytes]
	}
	perPod    series[unit.Bytes] // per sample: resident memory of PerPod processes, divided by the number of pods
	kubeSpent time.Duration      // CPU time of runtime and agent
	podTime   time.Duration      // sum over all pods of the time in which they existed
	pods      series[int]
	consumers map[string]*Consumer // programs of the system, by name
}

// series is the points of one quantity, in the order of samples.
type series[T ~int | ~int64] []T

// Quantiles summarize one quantity.
type Quantiles[T ~int | ~int64] struct{ P50, P99, Peak T }

// quantiles returns nearest-rank quantiles: each is a point of the series. An empty series gives zeros.
func (s series[T]) quantiles() Quantiles[T] {
	if len(s) == 0 {
		return Quantiles[T]{}
	}
	up := slices.Sorted(slices.Values(s))
	at := func(percent int) T { return up[max(0, (percent*len(up)+99)/100-1)] }
	return Quantiles[T]{P50: at(50), P99: at(99), Peak: up[len(up)-1]}
}

// Observe takes the next sample. It ignores a sample that is not later than the last one.
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

// observeCPU adds the CPU rates over the elapsed time.
func (w *Watch) observeCPU(s Sample, elapsed time.Duration) {
	var spent [parts]time.Duration
	for _, p := range s.Processes {
		// A process that is new has used all its CPU time since the last sample, because it started after that.
		delta := max(0, p.CPU-w.used[p.ID])
		if p.Part != System {
			spent[p.Part] += delta
		} else if c := w.consumer(p.Name); delta > 0 {
			c.spent += delta
		}
	}
	// Kernels count busy time in ticks, and update idle CPUs late. More than the time of all CPUs belongs to an earlier
	// moment.
	outside := min(s.Busy-w.last.Busy, elapsed*time.Duration(s.CPUs))
	for name, group := range s.PodGroups {
		if before, ok := w.last.PodGroups[name]; ok {
			outside -= max(0, group.CPU-before.CPU)
		}
	}
	if s.Slice != nil && w.last.Slice != nil {
		slice := max(0, s.Slice.CPU-w.last.Slice.CPU)
		w.slice.cpu = append(w.slice.cpu, rate(slice, elapsed))
		outside = max(outside, slice) // ticks miss programs that run for less than a tick; a group's counter does not
	}
	spent[System] = max(0, outside-spent[Runtime]-spent[Agent])
	for part, time := range spent {
		w.cpu[part] = append(w.cpu[part], rate(time, elapsed))
	}
	w.kubeSpent += spent[Runtime] + spent[Agent]
	w.podTime += elapsed * time.Duration(s.Pods)
}

// rate is CPU time per time, rounded up, so that no use is reported as zero.
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

// Consumer is a program of the system: all processes of one name together.
type Consumer struct {
	Name   string
	Memory unit.Bytes    // the most at one time
	CPU    unit.MilliCPU // on average

	// Spent is the CPU time so far.
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

// Report summarizes the samples.
type Report struct {
	For     time.Duration
	Samples int
	Pods    Quantiles[int]
	Parts   [parts]Usage
	Slice   *Usage // of system.slice; nil: there is none; its processes are also counted in the parts
	PerPod  PerPod
	System  []Consumer // the programs that use most memory, the largest first
}

// PerPod is what each pod costs outside the pod. It is zero when no pods were seen.
type PerPod struct {
	Memory     unit.Bytes    // resident memory of the processes that exist once per pod: the most that was seen
	CPUPerHour time.Duration // of runtime and agent, on average; includes what they use without pods
}

// consumersMost is how many programs of the system a report names. Chosen: as many as a reader can compare easily.
const consumersMost = 5

// Report returns the summary of all samples so far.
func (w *Watch) Report() Report {
	r := Report{Samples: len(w.pods), Pods: w.pods.quantiles(), PerPod: PerPod{Memory: w.perPod.quantiles().Peak}}
	if w.podTime > 0 {
		seconds := w.kubeSpent.Seconds() / w.podTime.Hours()
		r.PerPod.CPUPerHour = time.Duration(seconds * float64(time.Second)).Round(time.Millisecond)
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
