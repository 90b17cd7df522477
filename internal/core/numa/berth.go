package numa

import (
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa/bitset"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa/hints"
)

// Berth is where on a node the scheduler expects a pod. The scheduler made the same offer, on what it knew to be free.
// The agent assigns the CPUs and nodes of the berth if it can, and others if not.
//
// Without berths, an offer depends only on what is free. The agent may know of more free resources than the scheduler
// did, because pods have ended since then. It would then choose other CPUs or nodes, and so take parts of what the
// scheduler has planned for the next pod. With berths every pod gets the resources that the scheduler expected. So
// everything that the scheduler counts as free is free when the next pod arrives, and perhaps more.
//
// A berth is not a claim. Its resources must be free, and an offer in a berth must be one that the policy would allow
// if everything else were taken. So a pod with a forged berth gets nothing that it could not have got by chance.
type Berth []ContainerBerth

// ContainerBerth is the berth of one container. Containers to which nothing is assigned have none.
type ContainerBerth struct {
	Container string
	CPUs      idset.Set        // the exclusive CPUs
	Nodes     []machine.NUMAID // where all resources assigned to it are; none: anywhere
}

// Berth returns the berth of a pod with assignment a.
func (a Assignment) Berth() (berth Berth) {
	for _, h := range a.Containers {
		if h.CPUs.IsEmpty() && len(h.Memory) == 0 && len(h.Devices) == 0 {
			continue
		}
		b := ContainerBerth{Container: h.Container, CPUs: h.CPUs, Nodes: slices.Clone(h.Nodes)}
		for _, m := range h.Memory {
			b.Nodes = append(b.Nodes, m.Nodes...)
		}
		slices.Sort(b.Nodes)
		b.Nodes = slices.Compact(b.Nodes)
		berth = append(berth, b)
	}
	return berth
}

// useBerth restricts the current offer to the berth of a container, or, if container is empty, to those of the whole
// pod.
func (w *work) useBerth(container string) {
	w.within, w.nodes = nil, nil
	if w.berth == nil {
		return
	}
	w.within = w.l.cpu.None()
	var nodes []machine.NUMAID
	anywhere := false
	for _, b := range w.berth {
		if container != "" && container != b.Container {
			continue
		}
		for cpu := range b.CPUs.All() {
			if cpu < len(w.l.cpu.CPUs)*64 {
				w.within.Add(cpu)
			}
		}
		nodes = append(nodes, b.Nodes...)
		anywhere = anywhere || len(b.Nodes) == 0
	}
	if w.l.config.CPU.FullPCPUsOnly { // the code below assumes that the free CPUs form whole cores
		for i := range w.l.cpu.Cores {
			if core := w.l.cpu.Cores[i].CPUs; w.within.CountIn(core) < core.Count() {
				w.within.Drop(core)
			}
		}
	}
	if !anywhere && len(nodes) > 0 {
		w.nodes = w.l.places(nodes)
	}
}

// available returns the CPUs that the container can get exclusively.
func (w *work) available() bitset.Set {
	free := w.State.available()
	if w.within != nil {
		free.Keep(w.within)
	}
	return free
}

// berthed returns the families restricted to the sets of nodes that are in the berth.
func (w *work) berthed(families []*hints.Family) []*hints.Family {
	if w.nodes == nil {
		return families
	}
	var out []*hints.Family
	for _, f := range families {
		in := *f
		in.Within, in.Must = f.Within.Clone(), f.Must.Clone()
		in.Within.Keep(w.nodes)
		in.Must.Unite(w.nodes)
		if in.Must.In(in.Within) && !in.IsEmpty() {
			out = append(out, &in)
		}
	}
	return out
}
