// Package top is what `plimsoll top` shows: a cluster's nodes and pods with what they have, reserve, request and use,
// and the last decisions, as lines of text.
//
// # Model
//
// A State is what is known at one moment. A View is what the user looks at: page, order, filter, selection, size of the
// terminal. View.Key changes the View for a key, and says what else has to be done. View.Lines and Text return lines;
// a line is spans of text with a style. Package source makes States, package screen draws lines on a terminal.
//
// # Invariants
//
//   - The same State and View give the same lines.
//   - No line is wider than the terminal, and there are no more lines than it has.
//   - What is not known is shown as a question mark, and the State says why. It is never shown as 0.
//   - Text from the cluster cannot change the terminal: control characters become spaces.
//   - Rows that are not visible are not formatted, and are sorted only when they or the order have changed.
//
// # What it does not do
//
// It opens nothing, reads no clock and knows no terminal. It judges nothing: the story of a pod is that of package
// explain.
package top

import (
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Amounts are amounts of the resources that every node has.
type Amounts struct {
	CPU    unit.MilliCPU `json:"cpu"`    // thousandths of a CPU
	Memory unit.Bytes    `json:"memory"` // bytes
	Disk   unit.Bytes    `json:"ephemeralStorage"`
	Pods   int64         `json:"pods"`
}

// Usage is what something uses. The zero Usage is not known.
type Usage struct {
	At     time.Time     `json:"at,omitzero"` // when it was measured
	CPU    unit.MilliCPU `json:"cpu"`
	Memory unit.Bytes    `json:"memory"` // working set
}

// Known reports whether it was measured.
func (u Usage) Known() bool { return !u.At.IsZero() }

// Node is a node. What is reserved is Capacity - Allocatable.
type Node struct {
	Name        string   `json:"name"`
	Kubelet     string   `json:"kubelet"`       // the version that its agent reports
	Ours        bool     `json:"plimsollAgent"` // its agent is plimsoll's
	State       string   `json:"state"`         // Ready, NotReady, Unknown
	Cordoned    bool     `json:"cordoned,omitempty"`
	Pressure    []string `json:"pressure,omitempty"` // memory, disk, pid
	Taints      []string `json:"taints,omitempty"`
	Capacity    Amounts  `json:"capacity"`
	Allocatable Amounts  `json:"allocatable"`
	Requested   *Amounts `json:"requested"` // nil: pods may not be read
	Used        Usage    `json:"used,omitzero"`
}

// Reserved is what the system keeps, and what hard eviction thresholds keep free.
func (n *Node) Reserved() Amounts {
	return Amounts{
		CPU:    n.Capacity.CPU - n.Allocatable.CPU,
		Memory: n.Capacity.Memory - n.Allocatable.Memory,
		Disk:   n.Capacity.Disk - n.Allocatable.Disk,
		Pods:   n.Capacity.Pods - n.Allocatable.Pods,
	}
}

// Pod is a pod that has not ended.
type Pod struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       string    `json:"uid"`
	Node      string    `json:"node,omitempty"` // empty: it waits for one
	State     string    `json:"state"`          // its phase, or what it waits for
	Restarts  int       `json:"restarts"`
	Created   time.Time `json:"created"`
	Requested Amounts   `json:"requested"`
	Used      Usage     `json:"used,omitzero"`
	ID        string    `json:"-"` // NAMESPACE/NAME, made once: pods are sorted by it
}

func podID(p *Pod) string { return p.ID }

// A Decision is what a component decided, from its journal or an Event.
type Decision struct {
	Time  time.Time `json:"time"`
	From  string    `json:"from"`  // who: scheduler, kubelet, ...
	About string    `json:"about"` // NAMESPACE/NAME of a pod, or the name of a node
	Pod   bool      `json:"pod"`   // About is a pod
	Text  string    `json:"text"`
	Bad   bool      `json:"bad"` // a warning
}

// Stall is the share of time, in percent over 10 seconds, in which some or all tasks waited for a resource (PSI: Linux,
// Documentation/accounting/psi.rst). Negative: not known.
type Stall struct {
	CPUSome    float64 `json:"cpuSome"`
	MemorySome float64 `json:"memorySome"`
	MemoryFull float64 `json:"memoryFull"`
	IOSome     float64 `json:"ioSome"`
	IOFull     float64 `json:"ioFull"`
}

// NoStall is a Stall of which nothing is known.
var NoStall = Stall{CPUSome: -1, MemorySome: -1, MemoryFull: -1, IOSome: -1, IOFull: -1}

// Sample is what a node's agent measured at one moment.
type Sample struct {
	Used  Usage `json:"used"`
	Stall Stall `json:"stall"`
}

// NUMANode is a NUMA node of a machine.
type NUMANode struct {
	ID     int        `json:"id"`
	CPUs   []CPU      `json:"cpus"`
	Memory unit.Bytes `json:"memory"`
	Free   unit.Bytes `json:"free"` // memory that is not assigned to containers
}

// CPU is a logical CPU. Its owner is a container NAMESPACE/POD/CONTAINER.
type CPU struct {
	ID    int    `json:"id"`
	Owner string `json:"owner,omitempty"`
	Kept  bool   `json:"reserved,omitempty"` // no container may have it for itself
}

// Detail is what is known of the node that the user looks at, beyond the API's Node.
type Detail struct {
	Node      string           `json:"node"`
	Samples   []Sample         `json:"samples,omitempty"` // the newest last
	NoSamples string           `json:"noSamples,omitempty"`
	Policy    string           `json:"topologyPolicy,omitempty"`
	NUMA      []NUMANode       `json:"numa,omitempty"`
	NoNUMA    string           `json:"noNuma,omitempty"` // why there is no map
	Uses      map[string]Usage `json:"-"`                // of its pods, by UID
	Decisions []Decision       `json:"decisions,omitempty"`
	NoJournal string           `json:"noJournal,omitempty"`
}

// Lack is something that could not be read.
type Lack struct {
	What string `json:"what"`
	Why  string `json:"why"`
}

// State is what is known at one moment.
type State struct {
	Now       time.Time  `json:"time"`
	Server    string     `json:"server"`
	Synced    bool       `json:"synced"`         // the objects were read once
	Away      string     `json:"away,omitempty"` // why the API server does not answer; empty: it does
	Since     time.Time  `json:"since,omitzero"` // when it answered last
	NodeCount int        `json:"nodeCount"`
	PodCount  int        `json:"podCount"`
	Waiting   int        `json:"waiting"`               // how many pods have no node
	Blind     bool       `json:"podsUnknown,omitempty"` // pods may not be read
	Nodes     []*Node    `json:"nodes"`                 // by name; shared with other States, as pods: not to be changed
	Pods      []*Pod     `json:"pods,omitempty"`        // those that the View shows, by ID
	Decisions []Decision `json:"decisions,omitempty"`
	Detail    *Detail    `json:"detail,omitempty"`
	Lacks     []Lack     `json:"lacks,omitempty"`
	// Measured says that metrics.k8s.io answers: what nodes use is known.
	Measured bool `json:"measured"`
}
