package numa

import (
	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa/memory"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Pod is what matters of a pod here.
type Pod struct {
	UID        string
	Guaranteed bool // QoS class: only then are CPUs and memory its own
	PodLevel   bool // it states resources for the whole pod. As in upstream 1.36, such a pod has no CPUs and memory of its own
	Init       []Container
	Containers []Container
	Berth      Berth // where it is expected; nil: anywhere
}

// Container is one container's requests.
type Container struct {
	Name    string
	Sidecar bool // an init container that keeps running
	CPU     unit.MilliCPU
	Memory  []MemoryRequest
	Devices []DeviceRequest
}

// MemoryRequest is memory in pages of one size; 0 is ordinary memory.
type MemoryRequest struct {
	PageSize unit.Bytes
	Bytes    unit.Bytes
}

// DeviceRequest is devices of one resource.
type DeviceRequest struct {
	Resource string
	Count    int
}

// Assignment is what a pod owns.
type Assignment struct {
	Pod        string // UID
	Containers []Holding
}

// Holding is what one container owns: what an init container passed on belongs to its successor alone, except that CPUs
// and devices stay with both, who never run at the same time.
type Holding struct {
	Container string
	Init      bool // ends before the pod's other containers start

	Nodes     []machine.NUMAID // where its resources were to come from; nil: anywhere
	Preferred bool             // no narrower set of nodes would do on an empty machine, and all its resources agree

	CPUs    idset.Set // exclusive; empty: the shared pool
	Memory  []Block
	Devices []Devices
}

// Devices is devices of one resource.
type Devices struct {
	Resource string
	IDs      []string
}

// asked is what a container or pod wants from the three of them.
type asked struct {
	cpus    int
	memory  []memory.Amount
	devices []DeviceRequest
}

func (l *Layout) askedBy(p *Pod, c *Container) asked {
	a := asked{devices: c.Devices}
	if !p.Guaranteed || p.PodLevel {
		return a
	}
	if l.config.CPU.Static && c.CPU%unit.CPU == 0 {
		a.cpus = int(c.CPU / unit.CPU)
	}
	if l.config.Memory.Static {
		for _, m := range c.Memory {
			if k := l.memory.Kind(m.PageSize); k >= 0 || m.Bytes > 0 {
				a.memory = append(a.memory, memory.Amount{Kind: k, Bytes: int64(m.Bytes)})
			}
		}
	}
	return a
}

// askedByPod adds up what containers have at the same time: the largest of what each init container needs beside the
// sidecars before it, or all others together.
func (l *Layout) askedByPod(p *Pod) asked {
	var cpus peak
	byKind, devices := map[int]*peak{}, map[string]*peak{}
	var kinds []int
	var resources []string
	for c, init := range p.inOrder() {
		a := l.askedBy(p, c)
		cpus.add(int64(a.cpus), init, c.Sidecar)
		for _, m := range a.memory {
			if byKind[m.Kind] == nil {
				byKind[m.Kind] = &peak{}
				kinds = append(kinds, m.Kind)
			}
			byKind[m.Kind].add(m.Bytes, init, c.Sidecar)
		}
		for _, d := range a.devices {
			if devices[d.Resource] == nil {
				devices[d.Resource] = &peak{}
				resources = append(resources, d.Resource)
			}
			devices[d.Resource].add(int64(d.Count), init, c.Sidecar)
		}
	}
	out := asked{cpus: int(cpus.most())}
	for _, k := range kinds {
		if byKind[k].byMain { // upstream asks no hint for kinds that only init containers use
			out.memory = append(out.memory, memory.Amount{Kind: k, Bytes: byKind[k].most()})
		}
	}
	for _, r := range resources {
		out.devices = append(out.devices, DeviceRequest{r, int(devices[r].most())})
	}
	return out
}

// peak is the most that a pod has of something at one time.
type peak struct {
	init, sidecars, main int64
	byMain               bool
}

func (p *peak) add(n int64, init, sidecar bool) {
	switch {
	case sidecar:
		p.sidecars += n
	case init:
		p.init = max(p.init, p.sidecars+n)
	default:
		p.main, p.byMain = p.main+n, true
	}
}

func (p *peak) most() int64 { return max(p.init, p.main+p.sidecars) }

// inOrder yields the containers in the order of their starts, and whether each is an init container.
func (p *Pod) inOrder() func(yield func(*Container, bool) bool) {
	return func(yield func(*Container, bool) bool) {
		for i := range p.Init {
			if !yield(&p.Init[i], true) {
				return
			}
		}
		for i := range p.Containers {
			if !yield(&p.Containers[i], false) {
				return
			}
		}
	}
}

// Block is memory of one kind that a container owns on some nodes together.
type Block struct {
	Nodes    []machine.NUMAID
	PageSize unit.Bytes // 0: ordinary memory
	Bytes    unit.Bytes
}
