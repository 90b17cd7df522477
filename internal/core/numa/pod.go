package numa

import (
	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa/memory"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Pod is what this package needs to know about a pod.
type Pod struct {
	UID        string
	Guaranteed bool // QoS class: exclusive CPUs and memory are only for Guaranteed pods
	PodLevel   bool // it has pod-level resources; as in upstream 1.36, it then gets no exclusive CPUs and memory
	Init       []Container
	Containers []Container
	Berth      Berth // where the scheduler expects it; nil: anywhere
}

// Container is the requests of one container.
type Container struct {
	Name    string
	Sidecar bool // an init container with restartPolicy Always
	CPU     unit.MilliCPU
	Memory  []MemoryRequest
	Devices []DeviceRequest
}

// MemoryRequest is a request of memory with one page size; 0 is ordinary memory.
type MemoryRequest struct {
	PageSize unit.Bytes
	Bytes    unit.Bytes
}

// DeviceRequest is a request of devices of one resource.
type DeviceRequest struct {
	Resource string
	Count    int
}

// Assignment is what is assigned to a pod.
type Assignment struct {
	Pod        string // UID
	Containers []Assigned
}

// Assigned is what is assigned to one container. Memory that an init container has passed on is listed with its new
// container only. CPUs and devices are listed with both, because the two never run at the same time.
type Assigned struct {
	Container string
	Init      bool // it ends before the pod's other containers start

	Nodes []machine.NUMAID // the nodes of its hint; nil: anywhere
	// The hint was preferred: even an empty machine would need as many nodes, and all resources are on the same nodes.
	Preferred bool

	CPUs    idset.Set // exclusive CPUs; empty: it runs on the shared pool
	Memory  []Block
	Devices []Devices
}

// Devices are devices of one resource.
type Devices struct {
	Resource string
	IDs      []string
}

// asked is what a container or pod requests from the three managers.
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

// askedByPod returns what the pod's containers request at the same time: the larger of what all its containers and
// sidecars request together, and the most that an init container requests together with the sidecars before it.
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
		if byKind[k].byMain { // upstream asks for no hint for kinds that only init containers use
			out.memory = append(out.memory, memory.Amount{Kind: k, Bytes: byKind[k].most()})
		}
	}
	for _, r := range resources {
		out.devices = append(out.devices, DeviceRequest{r, int(devices[r].most())})
	}
	return out
}

// peak computes the most that a pod's containers request at one time.
type peak struct {
	// init is the most while an init container runs; sidecars and main are the sums of those containers.
	init, sidecars, main int64
	byMain               bool // some container that is not an init container requests it
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

// inOrder yields the containers in the order in which they start, and whether each is an init container.
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

// Block is memory of one kind, assigned to a container on some nodes together.
type Block struct {
	Nodes    []machine.NUMAID
	PageSize unit.Bytes // 0: ordinary memory
	Bytes    unit.Bytes
}
