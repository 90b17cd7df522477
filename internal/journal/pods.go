package journal

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/admission"
	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// This file has what an agent records about the pods of its node, apart from evictions.

// Verdict is what an agent decided about a pod that came to its node.
type Verdict string

// Verdicts.
const (
	Admits  Verdict = "admitted"
	Rejects Verdict = "rejected"
	Holds   Verdict = "waits" // it is judged again
)

// Admission is the Detail of an Admitted record.
type Admission struct {
	Verdict Verdict `json:"verdict"`
	Reason  string  `json:"reason,omitempty"`
	Message string  `json:"message,omitempty"`
	Judged
}

// Judged has what the rules decided from. A pod may be rejected without them.
type Judged struct {
	// Basis is what core/admission decided from: Basis.Repeat() returns Rejection again. Nil: it was not asked.
	Basis     *admission.Basis     `json:"basis,omitempty"`
	Rejection *admission.Rejection `json:"rejection,omitempty"` // nil: it admitted the pod, or was not asked
	// Assignment is what core/numa decided from. Nil: it was not asked, or assigns nothing to the pod.
	Assignment *Assignment `json:"assignment,omitempty"`
}

// Given is what is assigned to one container.
type Given struct {
	Container string         `json:"container"`
	CPUs      string         `json:"cpus,omitempty"` // as in /sys: 2-3,8
	NUMANodes []int          `json:"numaNodes,omitempty"`
	Memory    []Memory       `json:"memory,omitempty"`
	Devices   []numa.Devices `json:"devices,omitempty"`
}

// Memory is memory of one page size on NUMA nodes together.
type Memory struct {
	NUMANodes []int      `json:"numaNodes"`
	PageSize  unit.Bytes `json:"pageSize,omitempty"` // 0: ordinary memory
	Bytes     unit.Bytes `json:"bytes"`
}

// Assignment is what core/numa decided from: numa.State.Offer(Pod, Answers) of State leads to Decided or Message again.
type Assignment struct {
	Policy  string     `json:"policy"` // topologyManagerPolicy
	Free    []Free     `json:"free"`   // on each NUMA node, before the pod
	Pod     numa.Pod   `json:"pod"`    // without its Berth
	Berth   []Berth    `json:"berth,omitempty"`
	Answers []Answered `json:"answers,omitempty"`
	State   any        `json:"state"`             // the node's NodeResourceTopology before the pod
	Given   []Given    `json:"given,omitempty"`   // what the pod got
	Decided string     `json:"decided,omitempty"` // what the pod got, as topology.EncodePod writes it
	Message string     `json:"message,omitempty"` // why it got nothing
}

// Answered is which devices a plugin preferred.
type Answered struct {
	Container string   `json:"container"`
	Resource  string   `json:"resource"`
	Devices   []string `json:"devices"`
}

// Free is what one NUMA node has that is not assigned.
type Free struct {
	NUMANode int        `json:"numaNode"`
	CPUs     string     `json:"cpus,omitempty"` // that can become exclusive
	Memory   unit.Bytes `json:"memory"`         // ordinary memory
}

// FreeOf returns what is free as it is recorded.
func FreeOf(free []numa.NodeFree) []Free {
	out := make([]Free, 0, len(free))
	for _, f := range free {
		n := Free{NUMANode: int(f.Node), CPUs: f.CPUs.String()}
		for _, m := range f.Memory {
			if m.PageSize == 0 {
				n.Memory = m.Bytes
			}
		}
		out = append(out, n)
	}
	return out
}

// AnswersOf returns what plugins preferred as it is recorded, in the order of the pod's requests.
func AnswersOf(p *numa.Pod, answers numa.Answers) (out []Answered) {
	for _, list := range [][]numa.Container{p.Init, p.Containers} {
		for i := range list {
			for _, d := range list[i].Devices {
				of := numa.Subject{Container: list[i].Name, Resource: d.Resource}
				if ids, asked := answers[of]; asked {
					out = append(out, Answered{Container: of.Container, Resource: of.Resource, Devices: ids})
				}
			}
		}
	}
	return out
}

// Asked returns the pod and the answers to put to core/numa again.
func (a *Assignment) Asked() (numa.Pod, numa.Answers, error) {
	pod := a.Pod
	for _, b := range a.Berth {
		cpus, err := idset.Parse(b.CPUs)
		if err != nil {
			return pod, nil, fmt.Errorf("berth of container %.40q: %w", b.Container, err)
		}
		of := numa.ContainerBerth{Container: b.Container, CPUs: cpus}
		for _, n := range b.NUMANodes {
			of.Nodes = append(of.Nodes, machine.NUMAID(n))
		}
		pod.Berth = append(pod.Berth, of)
	}
	var answers numa.Answers
	for _, of := range a.Answers {
		if answers == nil {
			answers = numa.Answers{}
		}
		answers[numa.Subject{Container: of.Container, Resource: of.Resource}] = of.Devices
	}
	return pod, answers, nil
}

// GivenOf returns an assignment as it is recorded. Containers that get nothing are left out.
func GivenOf(a numa.Assignment) (out []Given) {
	for _, h := range a.Containers {
		if h.CPUs.IsEmpty() && len(h.Memory) == 0 && len(h.Devices) == 0 {
			continue
		}
		g := Given{Container: h.Container, CPUs: h.CPUs.String(), Devices: h.Devices}
		for _, n := range h.Nodes {
			g.NUMANodes = append(g.NUMANodes, int(n))
		}
		for _, b := range h.Memory {
			m := Memory{PageSize: b.PageSize, Bytes: b.Bytes}
			for _, n := range b.Nodes {
				m.NUMANodes = append(m.NUMANodes, int(n))
			}
			g.Memory = append(g.Memory, m)
		}
		out = append(out, g)
	}
	return out
}

// Text implements Detail.
func (d *Admission) Text() string {
	text := string(d.Verdict)
	if d.Reason != "" {
		text += ": " + d.Reason
	}
	if d.Message != "" {
		text += ": " + d.Message
	}
	if d.Verdict == Admits && d.Basis != nil && d.Basis.Checked {
		for i, r := range d.Basis.Room {
			sep := "; "
			if i == 0 {
				sep = ": "
			}
			text += fmt.Sprintf("%s%s: %s requested, %s free of %s", sep, r.Resource, amount(r.Resource, r.Requested),
				amount(r.Resource, r.Allocatable-r.Used), amount(r.Resource, r.Allocatable))
		}
		text += fmt.Sprintf("; %d pods of %d were here", d.Basis.Pods, d.Basis.PodsMax)
	}
	if a := d.Assignment; a != nil && d.Verdict == Admits {
		for i := range a.Given {
			text += "; " + a.Given[i].text()
		}
		text += "; before it were free"
		for i, f := range a.Free {
			text += fmt.Sprintf("%s on NUMA node %d CPUs %s, memory %s", comma(i), f.NUMANode, cmp.Or(f.CPUs, "none"), f.Memory)
		}
		text += " (policy " + a.Policy + ")"
	}
	return text
}

func (g *Given) text() string {
	var parts []string
	if g.CPUs != "" {
		parts = append(parts, "CPUs "+g.CPUs)
	}
	for _, m := range g.Memory {
		size := ""
		if m.PageSize != 0 {
			size = " in pages of " + m.PageSize.String()
		}
		parts = append(parts, fmt.Sprintf("memory %s%s of NUMA nodes %v", m.Bytes, size, m.NUMANodes))
	}
	for _, of := range g.Devices {
		parts = append(parts, of.Resource+" "+strings.Join(of.IDs, " "))
	}
	text := "container " + g.Container + " gets " + strings.Join(parts, ", ")
	if len(g.NUMANodes) > 0 {
		text += fmt.Sprintf(", aligned on NUMA nodes %v", g.NUMANodes)
	}
	return text
}

func comma(i int) string {
	if i == 0 {
		return ""
	}
	return ","
}

// Size implements Detail.
func (d *Admission) Size() int {
	size := 120 + len(d.Reason) + len(d.Message)
	if b := d.Basis; b != nil {
		size += 330 + 48*len(b.Room) + 40*(len(b.Taken)+len(b.Taints))
	}
	if d.Rejection != nil {
		size += 40 // its texts are those of the message
	}
	if a := d.Assignment; a != nil {
		size += 6000 + len(a.Decided) + 200*len(a.Given) + 60*len(a.Free) // most is its State
	}
	return size
}

// Pull is the Detail of a Pulled record: an attempt to pull an image. An image that was there already has none.
type Pull struct {
	Container string        `json:"container,omitempty"` // empty: the image is that of a volume
	Image     string        `json:"image"`               // as written in the pod
	Registry  string        `json:"registry"`            // of the name; the runtime may have used a mirror of it
	ID        string        `json:"id,omitempty"`        // of the image that came
	Bytes     uint64        `json:"bytes,omitempty"`
	Waited    time.Duration `json:"waited"` // for other pulls, before it began
	Took      time.Duration `json:"took"`
	Error     string        `json:"error,omitempty"`
}

// Text implements Detail.
func (d *Pull) Text() string {
	waited := ""
	if d.Waited >= time.Millisecond {
		waited = fmt.Sprintf(" (and waited %v for other pulls)", round(d.Waited))
	}
	if d.Error != "" {
		return fmt.Sprintf("image %s was not pulled from %s, after %v%s: %s", d.Image, d.Registry, round(d.Took), waited,
			d.Error)
	}
	return fmt.Sprintf("image %s was pulled from %s in %v%s, %s", d.Image, d.Registry, round(d.Took), waited,
		unit.Bytes(d.Bytes))
}

// Size implements Detail.
func (d *Pull) Size() int { return 140 + len(d.ID) + len(d.Error) + len(d.Registry) } // the pod has the image's name

// Start is the Detail of a Started record: a container was started.
type Start struct {
	Container string `json:"container"`
	Run       int    `json:"run"` // 1: its first one
	ID        string `json:"id"`  // in the runtime
}

// Text implements Detail.
func (d *Start) Text() string { return fmt.Sprintf("container %s starts (run %d)", d.Container, d.Run) }

// Size implements Detail.
func (d *Start) Size() int { return 48 + len(d.ID) }

// End is the Detail of an Ended record: a container has ended.
type End struct {
	Container string        `json:"container"`
	Run       int           `json:"run"`
	ID        string        `json:"id"`
	Ran       time.Duration `json:"ran"`
	Code      int32         `json:"code"`
	Signal    int32         `json:"signal,omitempty"`
	Reason    string        `json:"reason,omitempty"`
	Message   string        `json:"message,omitempty"`
	// Waits is why it does not run again at once, in the words of its status; empty: nothing was said about that.
	Waits string `json:"waits,omitempty"`
}

// Text implements Detail.
func (d *End) Text() string {
	text := fmt.Sprintf("container %s ends (run %d) after %v: exit code %d", d.Container, d.Run, round(d.Ran), d.Code)
	if d.Signal != 0 {
		text += fmt.Sprintf(", signal %d", d.Signal)
	}
	if d.Reason != "" {
		text += ", " + d.Reason
	}
	if d.Message != "" {
		text += ": " + d.Message
	}
	if d.Waits != "" {
		text += "; " + d.Waits
	}
	return text
}

// Size implements Detail.
func (d *End) Size() int { return 130 + len(d.ID) + len(d.Message) + len(d.Waits) }

// Stop is the Detail of a Stopped record: a container is ordered to end.
type Stop struct {
	Container string        `json:"container"`
	ID        string        `json:"id"`
	Why       string        `json:"why"`
	Grace     time.Duration `json:"grace"` // from SIGTERM, or the preStop hook, to SIGKILL; 0: SIGKILL at once
}

// Text implements Detail.
func (d *Stop) Text() string {
	if d.Grace <= 0 {
		return fmt.Sprintf("container %s is killed: %s", d.Container, d.Why)
	}
	return fmt.Sprintf("container %s is stopped: %s; it is killed if it runs for %v more", d.Container, d.Why,
		round(d.Grace))
}

// Size implements Detail.
func (d *Stop) Size() int { return 64 + len(d.ID) + len(d.Why) }

// Probe is the Detail of a Probed record: the probes of a container changed what follows for it.
type Probe struct {
	Container string `json:"container"`
	Probe     string `json:"probe"` // Startup, Readiness or Liveness
	Failed    bool   `json:"failed,omitempty"`
	Times     int    `json:"times"`            // in a row: the threshold that was reached
	Output    string `json:"output,omitempty"` // of the last failure
}

// Text implements Detail.
func (d *Probe) Text() string {
	times := fmt.Sprintf("%d times in a row", d.Times)
	if d.Times == 1 {
		times = "once"
	}
	name := strings.ToLower(d.Probe)
	switch {
	case d.Failed && d.Probe == "Readiness":
		return fmt.Sprintf("container %s is not ready: its readiness probe failed %s: %s", d.Container, times, d.Output)
	case d.Failed:
		return fmt.Sprintf("container %s must end: its %s probe failed %s: %s", d.Container, name, times, d.Output)
	case d.Probe == "Readiness":
		return fmt.Sprintf("container %s is ready: its readiness probe succeeded %s", d.Container, times)
	}
	return fmt.Sprintf("container %s has started: its %s probe succeeded %s", d.Container, name, times)
}

// Size implements Detail.
func (d *Probe) Size() int { return 64 + len(d.Output) }

// Preemption is the Detail of a Preempted record: pods end so that a critical one fits. The first of the record's pods
// is the one that ends, the second the critical one.
type Preemption struct {
	For      string `json:"for"`   // namespace/name
	Resource string `json:"lacks"` // what the critical pod lacks
}

// Text implements Detail.
func (d *Preemption) Text() string {
	return fmt.Sprintf("ends to make room for the critical pod %s, which lacks %s", d.For, d.Resource)
}

// Size implements Detail.
func (d *Preemption) Size() int { return 48 + len(d.For) + len(d.Resource) }

// OOMKill is the Detail of an OutOfMemory record: the kernel killed a process because memory ran out.
type OOMKill struct {
	Container string     `json:"container"`
	PID       int        `json:"pid"`
	Command   string     `json:"command"`
	RSS       unit.Bytes `json:"rss"`
	First     bool       `json:"first"` // the container's first process, so that it ends
	What      string     `json:"what"`  // in words
}

// Text implements Detail.
func (d *OOMKill) Text() string { return d.What }

// Size implements Detail.
func (d *OOMKill) Size() int { return 64 + len(d.Command) + len(d.What) }
