package numa

import (
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa/bitset"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa/hints"
)

// Berth is where in a node a pod is expected by whoever sent it there: a scheduler that made the same offer on what it
// believed to be free. The agent lays the pod there if it can, and anywhere else if not.
//
// Without berths an offer follows from what is free alone, and the agent may know of more than the scheduler did: pods have
// ended meanwhile. It would then lay a pod elsewhere, and break up what the scheduler has promised to the next one. With
// berths every pod lies where it was expected, so that all that was believed to be free is free when the next one comes, and
// at most more than that.
//
// A berth is no right: what it names has to be free, and an offer in it is one that the policy allows when everything else
// is taken. So a pod that brings a berth of its own making takes nothing that it could not have been given by chance.
type Berth []ContainerBerth

// ContainerBerth is that of one container; those that own nothing have none.
type ContainerBerth struct {
	Container string
	CPUs      idset.Set        // that become its own
	Nodes     []machine.NUMAID // where all that it owns is; none: anywhere
}

// Berth returns where a pod lies that owns a.
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

// lay confines an offer in the making to the berth of a container, or, with an empty name, to those of the whole pod.
func (w *work) lay(container string) {
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
	if w.l.config.CPU.FullPCPUsOnly { // what is free is taken to be whole cores
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

// available returns the CPUs that the container can get for its own.
func (w *work) available() bitset.Set {
	free := w.State.available()
	if w.within != nil {
		free.Keep(w.within)
	}
	return free
}

// berthed returns of the sets of nodes in families those that are the berth's.
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
