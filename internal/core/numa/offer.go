package numa

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Offer is what a pod would get. It binds nobody until it is committed.
type Offer struct {
	Assignment Assignment
	Question   *Question // a plugin to ask for its opinion first: the offer with its answer may be another. Nil: none is left
	revision   uint64
}

// Question asks a plugin which devices go well together (GetPreferredAllocation).
type Question struct {
	Container, Resource string
	Available           []string // to choose from, those included among them
	Included            []string // settled already
	Size                int      // how many in all
}

// Answers are plugins' opinions. Without one, the devices with the lowest ids are taken.
type Answers map[Subject][]string

// Subject is what a question is about.
type Subject struct{ Container, Resource string }

// Offer works out what p would get now, or why it gets nothing. It changes nothing. As long as the offer has a Question, neither
// what it gives nor a refusal is the last word: with other devices for one container, those after it may fare otherwise. Who
// knows the plugin answers and asks for the offer again, until no question is left.
func (s *State) Offer(p Pod, answers Answers) (Offer, *Refusal) {
	if _, known := s.find(p.UID); known {
		return Offer{}, &Refusal{Reason: UnexpectedAdmission, Upstream: fmt.Sprintf("pod %s has been given its resources already", p.UID)}
	}
	if p.Berth != nil {
		if offer, refusal := s.offer(&p, answers, p.Berth); refusal == nil {
			return offer, nil
		}
	}
	return s.offer(&p, answers, nil)
}

// offer is Offer in a berth, or, with nil, anywhere.
func (s *State) offer(p *Pod, answers Answers, berth Berth) (Offer, *Refusal) {
	w := work{State: s.Fork(), pod: p, answers: answers, berth: berth, again: newSet(len(s.l.cpus) * 64)}
	if r := w.admit(); r != nil {
		return Offer{Question: w.question}, r
	}
	return Offer{Assignment{p.UID, w.holdings}, w.question, s.revision}, nil
}

// Commit makes an offer good. It fails when anything changed since the offer was made: ask for another.
func (s *State) Commit(o Offer) error {
	if o.revision != s.revision {
		return fmt.Errorf("commit offer to pod %s: made at revision %d, the state is at %d: %w", o.Assignment.Pod, o.revision, s.revision, ErrStale)
	}
	if problems := s.Adopt(o.Assignment); problems != nil {
		panic(fmt.Sprintf("numa: an offer was impossible: %q", problems))
	}
	return nil
}

// ErrStale says that an offer does not hold any more.
var ErrStale = errors.New("stale offer")

// work is an offer in the making: a copy of the state in which the containers before this one have got theirs.
type work struct {
	*State
	pod      *Pod
	answers  Answers
	holdings []Holding
	question *Question // the first without an answer: later ones depend on it

	berth Berth

	// What the berth leaves of the machine to the container that is looked at; nil: everything.
	within set // CPUs
	nodes  set

	// What finished init containers leave to those after them.
	again        set // CPUs
	againMemory  reusable
	againDevices []Devices
}

func (w *work) admit() *Refusal {
	c := w.l.config.Topology
	var whole hint
	if c.Policy != PolicyNone && c.PodScope {
		asked := w.l.askedByPod(w.pod)
		w.lay("")
		h, ok := w.hint(asked)
		if !ok {
			return w.refuseTopology("", asked)
		}
		whole = h
	}
	for container, init := range w.pod.inOrder() {
		asked, h := w.l.askedBy(w.pod, container), whole
		w.lay(container.Name)
		if c.Policy != PolicyNone && !c.PodScope {
			var ok bool
			if h, ok = w.hint(asked); !ok {
				return w.refuseTopology(container.Name, asked)
			}
		}
		if r := w.give(container, init && !container.Sidecar, asked, h); r != nil {
			return r
		}
	}
	return nil
}

// hint returns where to take what is asked from, and whether the policy lets it in.
func (w *work) hint(a asked) (hint, bool) {
	wants, impossible := w.wants(a)
	for _, want := range wants {
		want.families = w.berthed(want.families)
		impossible = impossible || len(want.families) == 0
	}
	wants = slices.DeleteFunc(wants, func(w *want) bool { return len(w.families) == 0 })
	m := merger{nodes: len(w.l.nodeID), socketsOf: w.l.socketsOf}
	if w.l.config.Topology.PreferClosest {
		m.distance = w.l.distance
	}
	switch w.l.config.Topology.Policy {
	case PolicySingleNUMANode:
		h := m.single(wants, impossible)
		return h, h.preferred
	case PolicyRestricted:
		h := m.best(wants, impossible)
		return h, h.preferred
	}
	return m.best(wants, impossible), true
}

// wants returns what is asked of the NUMA nodes. impossible: some of it cannot be had from any.
func (w *work) wants(a asked) (wants []*want, impossible bool) {
	for _, d := range a.devices {
		if i, ok := w.pool(d.Resource); ok {
			want, possible := w.pools[i].want(w.l, d.Count, w.heldAgain(i))
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
		// Memory that cannot be had has no say in upstream: that it is missing shows when it is taken.
		if families := w.memory.families(w.l, a.memory, w.againMemory); len(families) > 0 {
			wants = append(wants, &want{families: families, copies: len(a.memory), width: w.l.memoryWidth(a.memory)})
		}
	}
	return wants, impossible
}

func (w *work) wantCPUs(n int) *want {
	l := w.l
	all, free := make([]int64, len(l.nodes)), make([]int64, len(l.nodes))
	f := &family{within: l.cpuNodes, must: newSet(len(l.nodes)), loads: []load{{free, int64(n)}}}
	available := w.available()
	for i := range l.nodes {
		all[i] = int64(len(l.nodes[i].members))
		free[i] = int64(available.countIn(l.nodes[i].cpus) + w.again.countIn(l.nodes[i].cpus))
		if w.again.meets(l.nodes[i].cpus) {
			f.must.add(i)
		}
	}
	if f.isEmpty() {
		return nil
	}
	out := &want{families: []*family{f}, copies: 1, width: l.widthOf(all, n)}
	if perSocket := l.cpuNodes.count() / len(l.sockets); l.config.CPU.AlignBySocket && perSocket > 0 {
		out.sockets = (out.width + perSocket - 1) / perSocket
	}
	return out
}

// widthOf returns how many of the largest nodes hold need together: all nodes with CPUs when they do not.
func (l *Layout) widthOf(amounts []int64, need int) int {
	sorted := slices.Clone(amounts)
	slices.Sort(sorted)
	width, sum := 0, int64(0)
	for i := len(sorted) - 1; i >= 0 && sum < int64(need); i-- {
		sum += sorted[i]
		width++
	}
	return min(width, l.cpuNodes.count())
}

// socketsOf returns how many sockets the CPUs of nodes belong to.
func (l *Layout) socketsOf(nodes set) int {
	sockets := newSet(len(l.sockets))
	for i := range nodes.all {
		for _, cpu := range l.nodes[i].members {
			sockets.add(l.socketOf[cpu])
		}
	}
	return sockets.count()
}

// give takes out of the copy what a container gets: devices, CPUs, memory, as upstream does.
func (w *work) give(c *Container, init bool, a asked, h hint) *Refusal {
	holding := Holding{Container: c.Name, Init: init, Preferred: h.preferred}
	if h.nodes != nil {
		holding.Nodes = w.l.ids(h.nodes)
	}
	if r := w.giveDevices(&holding, a, h); r != nil {
		return r
	}
	if a.cpus > 0 {
		if r := w.giveCPUs(&holding, a, h); r != nil {
			return r
		}
	}
	if a.memory != nil {
		if r := w.giveMemory(&holding, a, h); r != nil {
			return r
		}
	}
	w.holdings = append(w.holdings, holding)
	return nil
}

func (w *work) giveDevices(h *Holding, a asked, at hint) *Refusal {
	a.devices = slices.SortedStableFunc(slices.Values(a.devices), func(x, y DeviceRequest) int { return cmp.Compare(x.Resource, y.Resource) })
	for _, d := range a.devices {
		i, ok := w.pool(d.Resource)
		if !ok {
			continue // nobody's devices: counted by others, if at all
		}
		p := &w.pools[i]
		got, why := p.choose(d.Count, w.heldAgain(i), at.nodes, func(available, included set) []string {
			answer, known := w.answers[Subject{h.Container, d.Resource}]
			if !known && w.question == nil {
				w.question = &Question{h.Container, d.Resource, p.names(available), p.names(included), d.Count}
			}
			return answer
		})
		if why != "" {
			return w.refuse(h.Container, a, why, p.away())
		}
		p.taken.unite(got)
		if names := p.names(got); names != nil {
			h.Devices = append(h.Devices, Devices{d.Resource, names})
			w.passOnDevices(d.Resource, names, h.Init)
		}
	}
	return nil
}

// heldAgain returns the devices of a pool that finished init containers leave.
func (w *work) heldAgain(pool int) set {
	out := newSet(len(w.pools[pool].ids))
	for _, d := range w.againDevices {
		if d.Resource == w.pools[pool].resource {
			for _, id := range d.IDs {
				if i, ok := slices.BinarySearch(w.pools[pool].ids, id); ok {
					out.add(i)
				}
			}
		}
	}
	return out
}

// passOnDevices notes that an init container leaves its devices to others, and that any other container keeps its own.
func (w *work) passOnDevices(resource string, ids []string, init bool) {
	for i := range w.againDevices {
		if w.againDevices[i].Resource == resource {
			w.againDevices[i].IDs = slices.DeleteFunc(w.againDevices[i].IDs, func(id string) bool { return slices.Contains(ids, id) })
		}
	}
	if init {
		w.againDevices = append(w.againDevices, Devices{resource, slices.Clone(ids)})
	}
}

func (w *work) giveCPUs(h *Holding, a asked, at hint) *Refusal {
	if r := w.misaligned(h.Container, a); r != nil {
		return r
	}
	free := w.available()
	free.unite(w.again)
	if w.within != nil {
		free.keep(w.within)
	}
	got := newSet(len(w.l.cpus) * 64)
	if at.nodes != nil {
		near := w.l.cpusNear(at.nodes)
		near.keep(free)
		taken, err := w.l.choose(near, min(a.cpus, near.count()))
		if err != nil {
			return w.refuse(h.Container, a, err.Error(), false)
		}
		got = taken
		free.drop(got)
	}
	rest, err := w.l.choose(free, a.cpus-got.count())
	if err != nil {
		return w.refuse(h.Container, a, err.Error(), false)
	}
	got.unite(rest)
	w.shared.drop(got)
	w.again.drop(got)
	if h.Init {
		w.again.unite(got)
	}
	h.CPUs = got.ids()
	return nil
}

// misaligned applies full-pcpus-only.
func (w *work) misaligned(container string, a asked) *Refusal {
	if !w.l.config.CPU.FullPCPUsOnly {
		return nil
	}
	if a.cpus%w.l.threads != 0 {
		return w.refuseSMT(container, a, fmt.Sprintf("requested %d cpus not multiple cpus per core = %d", a.cpus, w.l.threads))
	}
	whole := w.shared.clone()
	whole.drop(w.l.reservedCores)
	if have := whole.count(); a.cpus > have {
		return w.refuseSMT(container, a, fmt.Sprintf("not enough free physical CPUs: available physical CPUs = %d, requested CPUs = %d, CPUs per core = %d", have, a.cpus, w.l.threads))
	}
	return nil
}

// cpusNear returns the CPUs of nodes, or of their sockets when a socket is as good as a node.
func (l *Layout) cpusNear(nodes set) set {
	out := newSet(len(l.cpus) * 64)
	for i := range nodes.all {
		out.unite(l.nodes[i].cpus)
		if l.config.CPU.AlignBySocket {
			for _, cpu := range l.nodes[i].members {
				out.unite(l.sockets[l.socketOf[cpu]].cpus)
			}
		}
	}
	return out
}

func (w *work) giveMemory(h *Holding, a asked, at hint) *Refusal {
	nodes, why := w.memoryNodes(a.memory, at)
	if why != "" {
		return w.refuse(h.Container, a, why, false)
	}
	for _, m := range a.memory {
		passed := w.takeOver(nodes, m)
		h.Memory = append(h.Memory, Block{w.l.ids(nodes), w.l.kinds[m.kind], unit.Bytes(m.bytes)})
		w.memory.change(w.l, nodes, m.kind, 1, m.bytes-passed)
		w.passOnMemory(nodes, m, passed, h.Init)
	}
	return nil
}

// memoryNodes settles on which nodes memory is taken: those of the hint; more of them when they are not enough; the best
// for memory alone when anywhere will do.
func (w *work) memoryNodes(memory []amount, at hint) (set, string) {
	m := merger{nodes: len(w.l.nodeID)}
	m.steps = searchSteps
	best := func(around set) (set, bool) {
		families := w.berthed(w.memory.families(w.l, memory, w.againMemory))
		return m.narrowestAround(families, around, w.l.memoryWidth(memory))
	}
	nodes, preferred := at.nodes, at.preferred
	if nodes == nil {
		found, good := best(newSet(len(w.l.nodeID)))
		switch {
		case found == nil:
			return nil, "[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is available"
		case preferred && !good:
			return nil, "[memorymanager] failed to find the default preferred hint"
		}
		nodes, preferred = found, good
	}
	if !w.memory.fits(w.l, nodes, memory) {
		found, good := best(nodes)
		switch {
		case found == nil:
			return nil, "[memorymanager] failed to find NUMA nodes to extend the current topology hint"
		case preferred && !good:
			return nil, "[memorymanager] failed to find the extended preferred hint"
		}
		nodes = found
	}
	if w.memory.mixes(nodes) {
		return nil, "[memorymanager] preferred hint violates NUMA node allocation"
	}
	return nodes, ""
}

// narrowestAround returns the smallest set of families that has all nodes of around, sets of width nodes first.
func (m *merger) narrowestAround(families []*family, around set, width int) (set, bool) {
	var best set
	for _, f := range families {
		most := m.nodes
		if f.alone {
			most = 1
		}
		within := *f
		within.must = f.must.clone()
		within.must.unite(around)
		if nodes := within.narrowest(most, m.nodes, &m.steps); nodes != nil && (best == nil || m.less(nodes, best)) {
			best = nodes
		}
	}
	return best, best != nil && best.count() == width
}

// takeOver gives a container what it can use again on nodes, out of the blocks of finished init containers, and returns how
// much that is.
func (w *work) takeOver(nodes set, m amount) int64 {
	ids, left := w.l.ids(nodes), m.bytes
	for i := range w.holdings {
		for j := range w.holdings[i].Memory {
			b := &w.holdings[i].Memory[j]
			if w.holdings[i].Init && w.l.kind(b.PageSize) == m.kind && slices.Equal(b.Nodes, ids) {
				part := min(int64(b.Bytes), left)
				b.Bytes -= unit.Bytes(part)
				left -= part
			}
		}
	}
	return m.bytes - left
}

// passOnMemory keeps account of what finished init containers leave on nodes.
func (w *work) passOnMemory(nodes set, m amount, passed int64, init bool) {
	i := slices.IndexFunc(w.againMemory, func(b blocksOn) bool { return b.nodes.equal(nodes) })
	if i < 0 {
		if !init {
			return
		}
		i = len(w.againMemory)
		w.againMemory = append(w.againMemory, blocksOn{nodes, map[int]int64{}})
	}
	left := w.againMemory[i].bytes
	if init {
		left[m.kind] = max(left[m.kind], m.bytes)
		return
	}
	left[m.kind] -= passed
}
