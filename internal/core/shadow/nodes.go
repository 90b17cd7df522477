package shadow

import (
	"cmp"
	"maps"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/lifecycle"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/core/wellknown"
)

// Nodes compares what is done about nodes and the pods on them. It is not safe for concurrent use.
type Nodes struct {
	monitor  *lifecycle.Monitor
	nodes    map[string]*node
	pods     map[lifecycle.PodID]*evictee
	switches map[switchKey]*openSwitch // the open ones
	decides  bool                      // it has decided once: what we do from now on began while we watched
}

// node is a real node, and what ours would have made of it.
type node struct {
	real lifecycle.Node
	// known is each condition as the node's agent reported it last; Unknown only if it was so at first sight.
	known   map[lifecycle.ConditionType]lifecycle.Status
	unknown map[lifecycle.ConditionType]bool // the conditions that we would have set to Unknown
	taints  []lifecycle.Taint                // those that a controller owns, as we would have them
	renewed unit.Wall
}

// evictee is a pod, and who evicted it.
type evictee struct {
	pod          lifecycle.Pod
	ours, theirs bool
}

// switchKey is something that both sides may do.
type switchKey struct{ node, pod, what string }

// openSwitch is something that one side has done.
type openSwitch struct {
	ours bool // who
	done string
	why  string
	at   unit.Instant
	// early says that we do it because of what was so when we began to watch.
	early bool
}

// The conditions that become Unknown when a node is silent.
var silenced = []lifecycle.ConditionType{lifecycle.Ready, lifecycle.MemoryPressure, lifecycle.DiskPressure,
	lifecycle.PIDPressure}

// NewNodes returns Nodes without facts. Collect is not used: pod garbage collection is not compared.
func NewNodes(now unit.Instant, o lifecycle.Options) *Nodes {
	o.Collect = false
	return &Nodes{
		monitor:  lifecycle.New(now, o),
		nodes:    map[string]*node{},
		pods:     map[lifecycle.PodID]*evictee{},
		switches: map[switchKey]*openSwitch{},
	}
}

// owned reports whether a node-lifecycle controller sets and removes a taint.
func owned(t lifecycle.Taint) bool {
	switch t.Key {
	case wellknown.TaintNotReady, wellknown.TaintUnreachable:
		return t.Effect == lifecycle.NoSchedule || t.Effect == lifecycle.NoExecute
	case wellknown.TaintMemoryPressure, wellknown.TaintDiskPressure, wellknown.TaintPIDPressure,
		wellknown.TaintNetworkUnavailable, wellknown.TaintUnschedulable:
		return t.Effect == lifecycle.NoSchedule
	}
	return false
}

// NodeSeen records a node.
func (s *Nodes) NodeSeen(now unit.Instant, wall unit.Wall, seen lifecycle.Node) (out []Event) {
	n := s.nodes[seen.Name]
	if n != nil && n.real.UID != seen.UID {
		s.NodeGone(now, seen.Name)
		n = nil
	}
	if n == nil {
		n = &node{
			real:    seen,
			known:   maps.Clone(seen.Status),
			unknown: map[lifecycle.ConditionType]bool{},
		}
		for _, t := range seen.Taints {
			if owned(t) {
				n.taints = append(n.taints, t)
			}
		}
		s.nodes[seen.Name] = n
	}
	before, oursBefore := n.real, n.effective().Status[lifecycle.Ready]
	n.real = seen
	for t, status := range seen.Status {
		if status != lifecycle.Unknown || !slices.Contains(silenced, t) {
			n.known[t] = status
		}
	}
	if before.Heartbeat != seen.Heartbeat {
		clear(n.unknown)
	}
	s.monitor.NodeSeen(now, wall, n.effective())
	ours := n.effective().Status[lifecycle.Ready]
	out = append(out, s.readiness(now, n.real.Name, oursBefore, ours, before.Status[lifecycle.Ready],
		seen.Status[lifecycle.Ready])...)
	for _, t := range before.Taints {
		if owned(t) && !slices.ContainsFunc(seen.Taints, t.Same) {
			out = append(out, s.turn(now, switchKey{node: seen.Name, what: t.String()}, false, "taint "+t.String()+" removed",
				"")...)
		}
	}
	for _, t := range seen.Taints {
		if owned(t) && !slices.ContainsFunc(before.Taints, t.Same) {
			out = append(out, s.turn(now, switchKey{node: seen.Name, what: t.String()}, false, "taint "+t.String()+" added",
				"")...)
		}
	}
	return out
}

// readiness turns the switch of a node's Ready condition. When the node's agent reports, it turns for both sides.
func (s *Nodes) readiness(
	now unit.Instant, name string, oursBefore, ours, theirsBefore, theirs lifecycle.Status,
) (out []Event) {
	key := switchKey{node: name, what: "Ready"}
	done := func(status lifecycle.Status) string {
		if status == lifecycle.Unknown {
			return "Ready becomes Unknown"
		}
		return "Ready is reported again"
	}
	turned := (oursBefore == lifecycle.Unknown) != (ours == lifecycle.Unknown)
	theirsTurned := (theirsBefore == lifecycle.Unknown) != (theirs == lifecycle.Unknown)
	if turned && theirsTurned {
		return nil
	}
	if turned {
		out = append(out, s.turn(now, key, true, done(ours), "")...)
	}
	if theirsTurned {
		out = append(out, s.turn(now, key, false, done(theirs), "")...)
	}
	return out
}

// effective is the node as it would be if our controller acted, and no other.
func (n *node) effective() lifecycle.Node {
	out := n.real
	out.Relabel = nil
	out.Status = maps.Clone(n.real.Status)
	if out.Status == nil {
		out.Status = map[lifecycle.ConditionType]lifecycle.Status{}
	}
	for _, t := range silenced {
		if status, known := n.known[t]; known {
			out.Status[t] = status
		} else {
			delete(out.Status, t)
		}
		if n.unknown[t] {
			out.Status[t] = lifecycle.Unknown
		}
	}
	out.Taints = slices.Clone(n.taints)
	for _, t := range n.real.Taints {
		if !owned(t) {
			out.Taints = append(out.Taints, t)
		}
	}
	return out
}

// NodeGone records that a node was deleted. Nothing about it is compared any more.
func (s *Nodes) NodeGone(now unit.Instant, name string) {
	delete(s.nodes, name)
	for key := range s.switches {
		if key.node == name && key.pod == "" {
			delete(s.switches, key)
		}
	}
	s.monitor.NodeGone(now, name)
}

// LeaseSeen records the renewTime of a node's lease.
func (s *Nodes) LeaseSeen(now unit.Instant, wall unit.Wall, name string, renewed unit.Wall) []Event {
	s.monitor.LeaseSeen(now, wall, name, renewed)
	n := s.nodes[name]
	if n == nil {
		return nil
	}
	same := n.renewed == renewed
	n.renewed = renewed
	if same || !n.unknown[lifecycle.Ready] || n.real.Status[lifecycle.Ready] == lifecycle.Unknown {
		return nil
	}
	// The node lives, and its agent has nothing to correct in the real API. If ours had written, it would report soon.
	clear(n.unknown)
	s.monitor.NodeSeen(now, wall, n.effective())
	return s.turn(now, switchKey{node: name, what: "Ready"}, true, "Ready is reported again", "")
}

// LeaseGone records that a lease was deleted.
func (s *Nodes) LeaseGone(name string) { s.monitor.LeaseGone(name) }

// Contact records whether the API server answered just now.
func (s *Nodes) Contact(now unit.Instant, ok bool) { s.monitor.Contact(now, ok) }

// PodSeen records a pod. byTaint says that their controller evicts it because of a taint.
func (s *Nodes) PodSeen(now unit.Instant, pod lifecycle.Pod, byTaint bool) (out []Event) {
	p := s.pods[pod.ID]
	if p == nil {
		p = &evictee{theirs: byTaint && pod.Terminating}
		s.pods[pod.ID] = p
	}
	p.pod = pod
	if byTaint && pod.Terminating && !p.theirs {
		p.theirs = true
		out = s.turn(now, p.key(), false, "evicted because of a taint", "")
	}
	s.monitor.PodSeen(now, p.effective())
	return out
}

// effective is the pod as it would be if our controller acted. What is marked not ready is not compared.
func (p *evictee) effective() lifecycle.Pod {
	out := p.pod
	out.Ready = false
	if p.theirs && !p.ours {
		out.Terminating = false
	}
	return out
}

func (p *evictee) key() switchKey {
	return switchKey{node: p.pod.Node, pod: p.pod.Namespace + "/" + p.pod.Name, what: string(p.pod.ID)}
}

// PodGone records that a pod was deleted.
func (s *Nodes) PodGone(now unit.Instant, id lifecycle.PodID) (out []Event) {
	p := s.pods[id]
	if p == nil {
		return nil
	}
	if open := s.switches[p.key()]; open != nil {
		delete(s.switches, p.key())
		out = append(out, alone(now, p.key(), open))
	}
	delete(s.pods, id)
	s.monitor.PodGone(now, id)
	return out
}

// advancesMax limits how often Advance asks the Monitor at one moment. Chosen: a node needs two, a condition and its
// taint, and then its pods a third.
const advancesMax = 8

// Advance decides what our controller would do now. wall is this process's calendar time.
func (s *Nodes) Advance(now unit.Instant, wall unit.Wall) (out []Event, wake unit.Instant) {
	for range advancesMax {
		d := s.monitor.Advance(now)
		if wake = d.Wake; len(d.Actions) == 0 {
			break
		}
		whys := make([]string, len(d.Actions))
		for i, a := range d.Actions {
			b := s.monitor.Basis(now, a)
			whys[i] = b.Why(a)
		}
		for i, a := range d.Actions {
			out = append(out, s.act(now, wall, a, whys[i])...)
			s.monitor.Done(now, a, true)
		}
	}
	s.decides = true
	return out, wake
}

// act does in our world what an Action says.
func (s *Nodes) act(now unit.Instant, wall unit.Wall, a lifecycle.Action, why string) (out []Event) {
	if a.Pod != nil {
		p := s.pods[a.Pod.ID]
		if p == nil || p.ours || a.Do != lifecycle.Evict {
			return nil
		}
		p.ours = true
		return s.turn(now, p.key(), true, "evicted because of a taint", why)
	}
	n := s.nodes[a.Node]
	if n == nil {
		return nil
	}
	before := n.effective().Status[lifecycle.Ready]
	for _, u := range a.Unknown {
		n.unknown[u.Type] = true
	}
	if len(a.Unknown) > 0 && before != lifecycle.Unknown && n.unknown[lifecycle.Ready] {
		out = append(out, s.turn(now, switchKey{node: a.Node, what: "Ready"}, true, "Ready becomes Unknown", why)...)
	}
	for _, t := range a.Drop {
		n.taints = slices.DeleteFunc(n.taints, t.Same)
		out = append(out, s.turn(now, switchKey{node: a.Node, what: t.String()}, true, "taint "+t.String()+" removed",
			why)...)
	}
	for _, t := range a.Add {
		if t.Added == 0 {
			t.Added = wall
		}
		n.taints = append(n.taints, t)
		out = append(out, s.turn(now, switchKey{node: a.Node, what: t.String()}, true, "taint "+t.String()+" added",
			why)...)
	}
	s.monitor.NodeSeen(now, wall, n.effective())
	return out
}

// turn records that one side turned a switch.
func (s *Nodes) turn(now unit.Instant, key switchKey, ours bool, done, why string) (out []Event) {
	open := s.switches[key]
	if ours && open == nil {
		out = append(out, Event{At: now, Kind: Would, Node: key.node, Pod: key.pod, What: done, Why: why})
	}
	switch {
	case open == nil:
		s.switches[key] = &openSwitch{
			ours:  ours,
			done:  done,
			why:   why,
			at:    now,
			early: !s.decides,
		}
	case open.ours == ours:
		delete(s.switches, key)
		out = append(out, alone(now, key, open))
	default:
		delete(s.switches, key)
		e := Event{At: now, Kind: BothDid, Node: key.node, Pod: key.pod, What: done, Why: cmp.Or(open.why, why)}
		if !open.early {
			e.Lead, e.HasLead = now.Sub(open.at), true
		}
		if ours {
			e.Lead = -e.Lead
		}
		out = append(out, e)
	}
	return out
}

// alone is the Event about what one side did and undid, or that ended with its object. Lead is for how long it was so.
func alone(now unit.Instant, key switchKey, open *openSwitch) Event {
	e := Event{At: now, Kind: OnlyTheirs, Node: key.node, Pod: key.pod, What: open.done, Why: open.why}
	if open.ours {
		e.Kind = OnlyOurs
	}
	e.Lead = now.Sub(open.at)
	return e
}

// Open returns what one side has done and the other has not, the oldest first.
func (s *Nodes) Open(now unit.Instant) (out []Event) {
	for key, open := range s.switches {
		out = append(out, alone(now, key, open))
	}
	slices.SortFunc(out, func(a, b Event) int {
		return cmp.Or(cmp.Compare(b.Lead, a.Lead), cmp.Compare(a.Node, b.Node), cmp.Compare(a.Pod, b.Pod),
			cmp.Compare(a.What, b.What))
	})
	return out
}
