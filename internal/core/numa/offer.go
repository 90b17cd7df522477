package numa

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/numa/bitset"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa/hints"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa/memory"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Offer is what a pod would get. It has no effect until it is committed.
type Offer struct {
	Assignment Assignment
	// A question to ask a plugin first, because its answer may change the offer; nil: there is none.
	Question *Question
	revision uint64 // revision of the State for which it was made
}

// Question asks a plugin which devices it prefers together (GetPreferredAllocation).
type Question struct {
	Container, Resource string
	Available           []string // devices to choose from, including those in Included
	Included            []string // devices that the container gets in any case
	Size                int      // number of devices, including those in Included
}

// Answers are the plugins' preferences. Without an answer, the devices with the lowest ids are taken.
type Answers map[Subject][]string

// Subject identifies a question.
type Subject struct{ Container, Resource string }

// Offer computes what p would get now, or why it gets nothing. It changes nothing. As long as the offer has a Question,
// neither the assignment nor a rejection is final: with other devices for one container, the result for later
// containers may be different. A caller that can ask the plugin answers, and asks for the offer again until no question
// is left.
func (s *State) Offer(p Pod, answers Answers) (Offer, *Rejection) {
	if _, known := s.find(p.UID); known {
		return Offer{}, Unexpected(fmt.Sprintf("pod %s is assigned its resources already", p.UID))
	}
	if p.Berth != nil {
		if offer, rejection := s.offer(&p, answers, p.Berth); rejection == nil {
			return offer, nil
		}
	}
	return s.offer(&p, answers, nil)
}

// offer is Offer restricted to a berth, or unrestricted if berth is nil.
func (s *State) offer(p *Pod, answers Answers, berth Berth) (Offer, *Rejection) {
	w := work{State: s.Fork(), pod: p, answers: answers, berth: berth, passedCPUs: s.l.cpu.None()}
	if r := w.admit(); r != nil {
		return Offer{Question: w.question}, r
	}
	return Offer{Assignment{p.UID, w.given}, w.question, s.revision}, nil
}

// Commit assigns the resources of an offer. It fails when s has changed since the offer was made; then the caller asks
// for a new one.
func (s *State) Commit(o Offer) error {
	if o.revision != s.revision {
		return fmt.Errorf("commit offer to pod %s: made at revision %d, the state is at %d: %w", o.Assignment.Pod, o.revision,
			s.revision, ErrStale)
	}
	if problems := s.Adopt(o.Assignment); problems != nil {
		panic(fmt.Sprintf("numa: an offer was impossible: %q", problems))
	}
	return nil
}

// ErrStale: the State has changed since the offer was made.
var ErrStale = errors.New("stale offer")

// work is an offer while it is being computed: a copy of the State, in which the earlier containers have their
// resources.
type work struct {
	*State
	pod      *Pod
	answers  Answers
	given    []Assigned // of the containers so far
	question *Question  // the first without an answer; later ones depend on it

	berth Berth

	// What the berth allows for the current container; nil: everything.
	within bitset.Set // CPUs
	nodes  bitset.Set // places

	// What finished init containers have passed on, and no later container has taken yet.
	passedCPUs    bitset.Set // CPUs
	passedMemory  memory.Reusable
	passedDevices []Devices
}

func (w *work) admit() *Rejection {
	c := w.l.config.Topology
	var whole hints.Hint
	if c.Policy != hints.PolicyNone && c.PodScope {
		asked := w.l.askedByPod(w.pod)
		w.useBerth("")
		h, ok := w.hint(asked)
		if !ok {
			return w.rejectTopology("", asked)
		}
		whole = h
	}
	for container, init := range w.pod.inOrder() {
		asked, h := w.l.askedBy(w.pod, container), whole
		w.useBerth(container.Name)
		if c.Policy != hints.PolicyNone && !c.PodScope {
			var ok bool
			if h, ok = w.hint(asked); !ok {
				return w.rejectTopology(container.Name, asked)
			}
		}
		if r := w.assign(container, init && !container.Sidecar, asked, h); r != nil {
			return r
		}
	}
	return nil
}

// hint returns the nodes to take what is requested from, and whether the policy admits it.
func (w *work) hint(a asked) (hints.Hint, bool) {
	wants, impossible := w.wants(a)
	for _, want := range wants {
		want.Families = w.berthed(want.Families)
		impossible = impossible || len(want.Families) == 0
	}
	wants = slices.DeleteFunc(wants, func(w *hints.Want) bool { return len(w.Families) == 0 })
	m := hints.NewMerger(len(w.l.nodeID))
	m.SocketsOf = w.l.socketsOf
	if w.l.config.Topology.PreferClosest {
		m.Distance = w.l.distance
	}
	return m.Merge(w.l.config.Topology.Policy, wants, impossible)
}

// wants returns what is requested of the NUMA nodes. impossible: some of it is on no set of nodes.
func (w *work) wants(a asked) (wants []*hints.Want, impossible bool) {
	for _, d := range a.devices {
		if i, ok := w.pool(d.Resource); ok {
			want, possible := w.pools[i].want(w.l, d.Count, w.passedOnDevices(i))
			if want != nil {
				wants = append(wants, want)
			}
			impossible = impossible || !possible
		}
	}
	if a.cpus > 0 {
		if want := w.wantCPUs(a.cpus); want != nil {
			wants = append(wants, want)
		} else {
			impossible = true
		}
	}
	if a.memory != nil {
		// Memory that is not available does not change the hint, as upstream. The failure shows when the memory is
		// taken.
		if families := w.memory.Families(w.l.memory, a.memory, w.passedMemory); len(families) > 0 {
			wants = append(wants, &hints.Want{Families: families, Copies: len(a.memory), Width: w.l.memory.Width(a.memory)})
		}
	}
	return wants, impossible
}

func (w *work) wantCPUs(n int) *hints.Want {
	l := w.l
	all, free := make([]int64, len(l.cpu.Nodes)), make([]int64, len(l.cpu.Nodes))
	f := &hints.Family{
		Within: l.cpu.NodesWithCPUs,
		Must:   bitset.New(len(l.cpu.Nodes)),
		Loads:  []hints.Load{{Weight: free, Need: int64(n)}},
	}
	available := w.available()
	for i := range l.cpu.Nodes {
		all[i] = int64(len(l.cpu.Nodes[i].Members))
		free[i] = int64(available.CountIn(l.cpu.Nodes[i].CPUs) + w.passedCPUs.CountIn(l.cpu.Nodes[i].CPUs))
		if w.passedCPUs.Meets(l.cpu.Nodes[i].CPUs) {
			f.Must.Add(i)
		}
	}
	if f.IsEmpty() {
		return nil
	}
	out := &hints.Want{Families: []*hints.Family{f}, Copies: 1, Width: l.widthOf(all, n)}
	if perSocket := l.cpu.NodesWithCPUs.Count() / len(l.cpu.Sockets); l.config.CPU.AlignBySocket && perSocket > 0 {
		out.Sockets = (out.Width + perSocket - 1) / perSocket
	}
	return out
}

// widthOf returns how many of the largest nodes are needed for need together, or all nodes with CPUs if that is not
// enough.
func (l *Layout) widthOf(amounts []int64, need int) int {
	sorted := slices.Clone(amounts)
	slices.Sort(sorted)
	width, sum := 0, int64(0)
	for i := len(sorted) - 1; i >= 0 && sum < int64(need); i-- {
		sum += sorted[i]
		width++
	}
	return min(width, l.cpu.NodesWithCPUs.Count())
}

// socketsOf returns how many sockets the CPUs of nodes belong to.
func (l *Layout) socketsOf(nodes bitset.Set) int {
	sockets := bitset.New(len(l.cpu.Sockets))
	for i := range nodes.All {
		for _, cpu := range l.cpu.Nodes[i].Members {
			sockets.Add(l.cpu.SocketOf[cpu])
		}
	}
	return sockets.Count()
}

// assign takes from the copy what a container gets: devices, then CPUs, then memory, as upstream.
func (w *work) assign(c *Container, init bool, a asked, h hints.Hint) *Rejection {
	given := Assigned{Container: c.Name, Init: init, Preferred: h.Preferred}
	if h.Nodes != nil {
		given.Nodes = w.l.ids(h.Nodes)
	}
	if r := w.assignDevices(&given, a, h); r != nil {
		return r
	}
	if a.cpus > 0 {
		if r := w.assignCPUs(&given, a, h); r != nil {
			return r
		}
	}
	if a.memory != nil {
		if r := w.assignMemory(&given, a, h); r != nil {
			return r
		}
	}
	w.given = append(w.given, given)
	return nil
}

func (w *work) assignDevices(h *Assigned, a asked, at hints.Hint) *Rejection {
	a.devices = slices.SortedStableFunc(slices.Values(a.devices), func(x, y DeviceRequest) int {
		return cmp.Compare(x.Resource, y.Resource)
	})
	for _, d := range a.devices {
		i, ok := w.pool(d.Resource)
		if !ok {
			continue // not a device plugin's resource: others count it, if at all
		}
		p := &w.pools[i]
		got, why := p.choose(d.Count, w.passedOnDevices(i), at.Nodes, func(available, included bitset.Set) []string {
			answer, known := w.answers[Subject{h.Container, d.Resource}]
			if !known && w.question == nil {
				w.question = &Question{
					Container: h.Container,
					Resource:  d.Resource,
					Available: p.names(available),
					Included:  p.names(included),
					Size:      d.Count,
				}
			}
			return answer
		})
		if why != "" {
			return w.reject(h.Container, a, why, p.away())
		}
		p.taken.Unite(got)
		if names := p.names(got); names != nil {
			h.Devices = append(h.Devices, Devices{d.Resource, names})
			w.passOnDevices(d.Resource, names, h.Init)
		}
	}
	return nil
}

// passedOnDevices returns the devices of a pool that finished init containers have passed on.
func (w *work) passedOnDevices(pool int) bitset.Set {
	out := bitset.New(len(w.pools[pool].ids))
	for _, d := range w.passedDevices {
		if d.Resource == w.pools[pool].resource {
			for _, id := range d.IDs {
				if i, ok := slices.BinarySearch(w.pools[pool].ids, id); ok {
					out.Add(i)
				}
			}
		}
	}
	return out
}

// passOnDevices records that an init container passes its devices on, and that any other container keeps its devices.
func (w *work) passOnDevices(resource string, ids []string, init bool) {
	for i := range w.passedDevices {
		if w.passedDevices[i].Resource == resource {
			w.passedDevices[i].IDs = slices.DeleteFunc(w.passedDevices[i].IDs, func(id string) bool {
				return slices.Contains(ids, id)
			})
		}
	}
	if init {
		w.passedDevices = append(w.passedDevices, Devices{resource, slices.Clone(ids)})
	}
}

func (w *work) assignCPUs(h *Assigned, a asked, at hints.Hint) *Rejection {
	if r := w.misaligned(h.Container, a); r != nil {
		return r
	}
	free := w.available()
	free.Unite(w.passedCPUs)
	if w.within != nil {
		free.Keep(w.within)
	}
	got := w.l.cpu.None()
	if at.Nodes != nil {
		near := w.l.cpusNear(at.Nodes)
		near.Keep(free)
		taken, err := w.l.cpu.Choose(near, min(a.cpus, near.Count()))
		if err != nil {
			return w.reject(h.Container, a, err.Error(), false)
		}
		got = taken
		free.Drop(got)
	}
	rest, err := w.l.cpu.Choose(free, a.cpus-got.Count())
	if err != nil {
		return w.reject(h.Container, a, err.Error(), false)
	}
	got.Unite(rest)
	w.shared.Drop(got)
	w.passedCPUs.Drop(got)
	if h.Init {
		w.passedCPUs.Unite(got)
	}
	h.CPUs = got.IDs()
	return nil
}

// misaligned applies the option full-pcpus-only.
func (w *work) misaligned(container string, a asked) *Rejection {
	if !w.l.config.CPU.FullPCPUsOnly {
		return nil
	}
	if a.cpus%w.l.cpu.Threads != 0 {
		return w.rejectSMT(container, a, fmt.Sprintf("requested %d cpus not multiple cpus per core = %d", a.cpus,
			w.l.cpu.Threads))
	}
	whole := w.shared.Clone()
	whole.Drop(w.l.reservedCores)
	if have := whole.Count(); a.cpus > have {
		return w.rejectSMT(container, a, fmt.Sprintf("not enough free physical CPUs: available physical CPUs = %d, "+
			"requested CPUs = %d, CPUs per core = %d", have, a.cpus, w.l.cpu.Threads))
	}
	return nil
}

// cpusNear returns the CPUs of nodes, or with align-by-socket those of the nodes' sockets.
func (l *Layout) cpusNear(nodes bitset.Set) bitset.Set {
	out := l.cpu.None()
	for i := range nodes.All {
		out.Unite(l.cpu.Nodes[i].CPUs)
		if l.config.CPU.AlignBySocket {
			for _, cpu := range l.cpu.Nodes[i].Members {
				out.Unite(l.cpu.Sockets[l.cpu.SocketOf[cpu]].CPUs)
			}
		}
	}
	return out
}

func (w *work) assignMemory(h *Assigned, a asked, at hints.Hint) *Rejection {
	nodes, why := w.memory.Pick(w.l.memory, a.memory, w.passedMemory, at, w.berthed)
	if why != "" {
		return w.reject(h.Container, a, why, false)
	}
	for _, m := range a.memory {
		passed := w.takeOver(nodes, m)
		h.Memory = append(h.Memory, Block{w.l.ids(nodes), w.l.memory.Kinds[m.Kind], unit.Bytes(m.Bytes)})
		w.memory.Change(w.l.memory, nodes, m.Kind, 1, m.Bytes-passed)
		w.passOnMemory(nodes, m, passed, h.Init)
	}
	return nil
}

// takeOver moves memory from the blocks of finished init containers on nodes to a container, and returns how much.
func (w *work) takeOver(nodes bitset.Set, m memory.Amount) int64 {
	ids, left := w.l.ids(nodes), m.Bytes
	for i := range w.given {
		for j := range w.given[i].Memory {
			b := &w.given[i].Memory[j]
			if w.given[i].Init && w.l.memory.Kind(b.PageSize) == m.Kind && slices.Equal(b.Nodes, ids) {
				part := min(int64(b.Bytes), left)
				b.Bytes -= unit.Bytes(part)
				left -= part
			}
		}
	}
	return m.Bytes - left
}

// passOnMemory records how much memory finished init containers have passed on, on nodes.
func (w *work) passOnMemory(nodes bitset.Set, m memory.Amount, passed int64, init bool) {
	i := slices.IndexFunc(w.passedMemory, func(b memory.BlocksOn) bool { return b.Nodes.Equal(nodes) })
	if i < 0 {
		if !init {
			return
		}
		i = len(w.passedMemory)
		w.passedMemory = append(w.passedMemory, memory.BlocksOn{Nodes: nodes, Bytes: map[int]int64{}})
	}
	left := w.passedMemory[i].Bytes
	if init {
		left[m.Kind] = max(left[m.Kind], m.Bytes)
		return
	}
	left[m.Kind] -= passed
}
