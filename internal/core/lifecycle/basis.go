package lifecycle

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// A Basis is all on which one Action depends, as plain data. A journal keeps it, so that the decision can be explained
// and repeated.
type Basis struct {
	Now     unit.Instant
	Options Options

	Node         Node
	Exists       bool         // the Node object exists
	Missing      unit.Instant // since when it is known to be missing; zero while it exists
	Silent       bool         // it gave no sign for its grace period
	Deadline     unit.Instant // when it becomes silent, or became so
	NoExecute    []Dated      // its NoExecute taints
	Granted      bool         // its first NoExecute taint may be set
	Stopped      bool         // all nodes of every zone are down
	Disconnected bool         // the API server cannot be reached
	Zone         Zone
	Rate         float32 // of the zone: grants per second

	// These are about the pod of the Action, if it is about one.
	Arrived           unit.Instant // when it was bound to the node, as far as known
	Did               uint8        // what was done to it, one bit for each Verb
	Failures          int          // failed attempts in a row
	NoEvictionsBefore unit.Instant
}

// Dated is a taint, and since when the node has it.
type Dated struct {
	Taint
	Since unit.Instant
}

// SilentSince returns when the grace period of a silent node ended; zero: it is not silent.
func (m *Monitor) SilentSince(node string) unit.Instant {
	if n := m.nodes[node]; n != nil && n.silent {
		return n.deadline
	}
	return 0
}

// Basis returns on what an Action depends. It must be called before another fact is recorded.
func (m *Monitor) Basis(now unit.Instant, a Action) Basis {
	b := Basis{
		Now:               now,
		Options:           m.o,
		Stopped:           m.stopped,
		Disconnected:      m.isDisconnected(now),
		NoEvictionsBefore: m.noEvictionsBefore,
	}
	if n := m.nodes[a.Node]; n != nil {
		b.Node = n.Node
		b.Node.Status = maps.Clone(n.Status)
		b.Exists = n.exists
		b.Missing = n.missing
		b.Silent = n.silent
		b.Deadline = n.deadline
		b.Granted = n.granted
		for _, t := range n.noExecute {
			b.NoExecute = append(b.NoExecute, Dated{t.Taint, t.since})
		}
		if z := n.zone; z != nil {
			b.Zone, b.Rate = z.Zone, z.rate
		}
	}
	if a.Pod == nil {
		return b
	}
	if p := m.pods[a.Pod.ID]; p != nil {
		b.Arrived = p.arrived
		b.Did = p.did
		b.Failures = p.work.failures
	}
	return b
}

// monitor returns a Monitor that knows b and nothing else.
func (b *Basis) monitor() (*Monitor, *node) {
	m := New(b.Now, b.Options)
	m.tookOver = true
	m.stopped = b.Stopped
	m.disconnected = b.Disconnected
	m.noEvictionsBefore = b.NoEvictionsBefore
	n := m.node(b.Node.Name)
	n.Node = b.Node
	n.exists = b.Exists
	n.missing = b.Missing
	n.silent = b.Silent
	n.deadline = b.Deadline
	n.granted = b.Granted
	for _, t := range b.NoExecute {
		n.noExecute = append(n.noExecute, datedTaint{t.Taint, t.Since})
	}
	return m, n
}

// Repeat decides again from b: about its node, or about a pod there if of is not nil. none says that nothing would be
// done.
func (b *Basis) Repeat(of *Pod) (a Action, none bool) {
	m, n := b.monitor()
	var out []Action
	if of == nil {
		out = m.planNode(b.Now, n, nil)
	} else {
		p := &pod{Pod: *of, home: n, arrived: b.Arrived, did: b.Did}
		p.work.failures = b.Failures
		m.pods[p.ID] = p
		n.pods[p.ID] = p
		out = m.planPod(b.Now, p, nil)
	}
	if len(out) == 0 {
		return Action{}, true
	}
	return out[0], false
}

// Differs repeats the decision, and says how the outcome differs from a; empty: it does not.
func (b *Basis) Differs(a Action) string {
	again, none := b.Repeat(a.Pod)
	if state := StateOf(b.Zone.Size, b.Zone.Down, b.Options.UnhealthyZone); b.Zone.State != "" && state != b.Zone.State {
		return fmt.Sprintf("the zone is %s with %d of %d nodes down: %s was recorded", state, b.Zone.Down, b.Zone.Size,
			b.Zone.State)
	}
	switch {
	case none:
		return "nothing would be done"
	case b.Silent && b.Exists && b.Deadline > b.Now:
		return fmt.Sprintf("the node is silent %v before its deadline", b.Deadline.Sub(b.Now))
	case !again.same(a):
		return fmt.Sprintf("would be done: %+v", again)
	}
	return ""
}

// same reports whether a and b do the same.
func (a Action) same(b Action) bool {
	if (a.Pod == nil) != (b.Pod == nil) || a.Pod != nil && a.Pod.ID != b.Pod.ID {
		return false
	}
	return a.Node == b.Node && a.Do == b.Do && a.Due == b.Due && slices.Equal(a.Unknown, b.Unknown) &&
		slices.Equal(a.Add, b.Add) && slices.Equal(a.Drop, b.Drop) && maps.Equal(a.Labels, b.Labels)
}

// Why says on what an Action depends, with the numbers.
func (b *Basis) Why(a Action) string {
	switch {
	case a.Pod == nil:
		return b.whyNode(a)
	case a.Do == CollectOrphan:
		return fmt.Sprintf("its node has been missing for %v (at least %v)", age(b.Now, b.Missing), b.Options.OrphanAfter)
	case a.Do == CollectOutOfService:
		return "it is terminating, and its node is out of service"
	case a.Do == MarkNotReady:
		return fmt.Sprintf("its node gave no sign of life for %v", b.silence())
	}
	for _, t := range b.NoExecute {
		d, ends := toleratedTime(t.Taint, a.Pod.Tolerations)
		if ends && max(t.Since, b.Arrived).Add(d) <= max(a.Due, b.Now) {
			return fmt.Sprintf("its node has had the taint %s for %v, which it tolerates for %v", t.Taint, age(b.Now, t.Since),
				d)
		}
	}
	return "a taint of its node"
}

func (b *Basis) whyNode(a Action) string {
	text := fmt.Sprintf("Ready is %s", statusText(b.Node.Status[Ready]))
	if b.Silent {
		text = fmt.Sprintf("no sign of life for %v", b.silence())
	}
	if slices.ContainsFunc(append(slices.Clone(a.Add), a.Drop...), Taint.isReadiness) {
		text += fmt.Sprintf("; zone %s: %d of %d nodes down, %g nodes per second", b.Zone.State, b.Zone.Down, b.Zone.Size,
			b.Rate)
	}
	return text
}

// silence is how long the node has given no sign: the grace period ended at its deadline.
func (b *Basis) silence() time.Duration { return age(b.Now, b.Deadline) + b.Options.Grace }

func age(now, since unit.Instant) time.Duration {
	return max(0, now.Sub(since)).Round(time.Millisecond)
}

func statusText(s Status) string {
	return map[Status]string{True: "True", False: "False", Unknown: "Unknown", Absent: "not reported"}[s]
}
