// Package health decides which nodes are alive, silent or gone, and what must be written because of it: conditions,
// taints, readiness of pods.
//
// # Model
//
// A Monitor is told what the API shows of nodes, leases and pods, and whether the API can be heard at all. Advance
// answers with actions; the shell carries each out and reports with Done. Everything is level-triggered: an action is
// derived from what was last seen, so that a lost or refused one is derived again.
//
// A sign of life is a lease whose renewTime differs from the last one seen, or a Ready condition whose heartbeat does.
// It is dated by our own monotonic clock, when it is seen; what a node's clock says is only compared with what
// the same clock said before. A node that gives none for its grace is silent: its Ready and pressure conditions become
// Unknown, it is tainted unreachable, its pods are marked not Ready.
//
// # Vocabulary
//
//	sign      an observation that only a living node can cause
//	grace     how long a node may give no sign
//	hearing   the least time a node is given to give a sign after we see it for the first time
//	silent    judged: no sign for the grace
//	deaf      we ourselves cannot hear the API, so that silence means nothing
//
// # Choices
//
//   - First sight. A controller that starts knows only what is written. A node whose lease is fresh gets what is left of its
//     grace by the calendar; one whose lease is long over gets Hearing, in which a living node gives a sign, and not
//     its grace anew. So a restart neither forgives a dead node nor condemns one whose clock is wrong: an absurd
//     renewTime costs at most the difference. A renewTime in the future counts as now.
//   - Clock steps of a node do not matter: any change of its renewTime is a sign, also a step backwards (upstream waits
//     until the old time is passed again). Steps of our own calendar matter at first sight only.
//   - Deafness. Nobody is judged while the API cannot be heard, nor when the process itself did not run; afterwards every
//     node that was not silent has its grace anew, because it could not renew either.
//   - A node that has never reported Ready keeps the not-ready taint it was created with; upstream removes it until its
//     start-up grace is over.
//   - Both taint effects are set at once. Pacing NoExecute by zone, and evicting pods that do not tolerate it, are not done
//     here yet: pods on a dead node stay bound until something else deletes them. Do not run this beside a
//     taint-eviction controller, which would empty all silent nodes without pause.
//
// A heap of deadlines replaces a periodic scan: a node costs something when it gives a sign and once per grace.
//
// It is not safe for concurrent use.
package health

import (
	"cmp"
	"strings"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/heap"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Options are the periods a Monitor judges by.
type Options struct {
	// Grace is how long a node may give no sign. Upstream's --node-monitor-grace-period, 50 s: it must exceed the
	// HTTP/2 health check of the agents (30 s + 15 s) and several renewals. Raising it leaves pods longer on dead
	// nodes, lowering it condemns slow ones.
	Grace time.Duration
	// StartupGrace is Grace for a node that has never reported Ready, from its creation on. Upstream: 60 s.
	StartupGrace time.Duration
	// Hearing is the least time a node is given at first sight. It must exceed the renewal of a lease (10 s: a quarter
	// of its 40 s) with some room. Chosen: 15 s.
	Hearing time.Duration
	// DeafAfter is how long the API may give no proof of contact before we count as deaf. Chosen: 12 s, two missed
	// probes at one each 5 s.
	DeafAfter time.Duration
}

// Defaults returns upstream's periods, and ours where upstream has none.
func Defaults() Options {
	return Options{Grace: 50 * time.Second, StartupGrace: 60 * time.Second, Hearing: 15 * time.Second, DeafAfter: 12 * time.Second}
}

// Status of a condition. The zero value means that the node has no such condition.
type Status int

// The states of a condition.
const (
	Absent Status = iota
	True
	False
	Unknown
)

// A ConditionType names a condition, spelled as the API spells it.
type ConditionType string

// The conditions that matter here.
const (
	Ready              ConditionType = "Ready"
	MemoryPressure     ConditionType = "MemoryPressure"
	DiskPressure       ConditionType = "DiskPressure"
	PIDPressure        ConditionType = "PIDPressure"
	NetworkUnavailable ConditionType = "NetworkUnavailable"
)

// Node is what the API shows of a node.
type Node struct {
	Name      string
	UID       string
	Created   unit.Wall
	Cordoned  bool
	Status    map[ConditionType]Status // without an entry: Absent
	Heartbeat unit.Wall                // of the Ready condition
	Taints    []Taint
}

// PodID is a pod's UID.
type PodID string

// Pod is what the API shows of a pod.
type Pod struct {
	ID              PodID
	Namespace, Name string
	Node            string // where it is bound; empty: nowhere, of no interest
	Ready           bool
}

// An Action is something to write. Exactly one of Pod and the other fields is meant.
type Action struct {
	Node string

	// Unknown are the conditions to set to Unknown, in order. The shell reads the node's lease again before it does so
	// and reports a sign instead if there is one.
	Unknown []UnknownCondition
	// Add and Drop change the node's taints; others stay as they are.
	Add, Drop []Taint

	// Pod is to be marked not Ready. Nil: the action is about the node.
	Pod *Pod
}

// UnknownCondition is a condition nobody can vouch for any more.
type UnknownCondition struct {
	Type ConditionType
	// Never: the node has never posted it.
	Never bool
}

// A Notice is an Event about a node, with upstream's reason and text.
type Notice struct {
	Node, UID, Reason, Message string
}

// Decision is what Advance wants.
type Decision struct {
	Actions []Action
	Notices []Notice
	Wake    unit.Instant // call Advance again by then, even if nothing was heard; zero: no need
}

// Retry of an action that failed: retryMin doubled with each failure, at most retryMax. Chosen: a conflict is settled
// within a watch's delay; an API server in trouble is asked six times a minute.
const (
	retryMin = 200 * time.Millisecond
	retryMax = 10 * time.Second
)

// Monitor watches over the nodes. See the package documentation.
type Monitor struct {
	o     Options
	nodes map[string]*node
	pods  map[PodID]*pod

	alarms  heap.Heap[*node] // by alarm, then by name
	dirty   []*node          // may need an action
	notices []Notice

	lastContact unit.Instant
	deaf        bool
}

// node is one name: a Node, a Lease, pods bound to it, any of them possibly not there (yet).
type node struct {
	Node
	exists bool

	renewed  unit.Wall // last renewTime seen; zero: no lease seen
	deadline unit.Instant
	silent   bool
	pods     map[PodID]*pod

	work    work
	isDirty bool
	alarm   unit.Instant // when it stands in alarms; zero: it does not
	place   int          // in alarms
}

type pod struct {
	Pod
	work work
}

// work is the state of what is being written about a node or pod.
type work struct {
	busy     bool
	failures int
	retryAt  unit.Instant
}

// New returns a Monitor that knows nothing. now counts as contact with the API.
func New(now unit.Instant, o Options) *Monitor {
	byAlarm := func(a, b *node) int { return cmp.Or(cmp.Compare(a.alarm, b.alarm), strings.Compare(a.Name, b.Name)) }
	return &Monitor{
		o: o, nodes: map[string]*node{}, pods: map[PodID]*pod{}, lastContact: now,
		alarms: heap.New(byAlarm, func(n *node) *int { return &n.place }),
	}
}

func (m *Monitor) node(name string) *node {
	n := m.nodes[name]
	if n == nil {
		n = &node{Node: Node{Name: name}, pods: map[PodID]*pod{}}
		m.nodes[name] = n
	}
	return n
}

// drop forgets a name of which nothing is left.
func (m *Monitor) drop(n *node) {
	if !n.exists && n.renewed == 0 && len(n.pods) == 0 {
		m.disarm(n)
		delete(m.nodes, n.Name)
	}
}

// NodeSeen folds in a node that is new or changed. wall is our calendar now.
func (m *Monitor) NodeSeen(now unit.Instant, wall unit.Wall, seen Node) {
	n := m.node(seen.Name)
	before, existed := n.Node, n.exists
	if existed && before.UID != seen.UID {
		m.NodeGone(now, seen.Name) // deleted and made anew between two observations
		n, existed = m.node(seen.Name), false
	}
	n.Node, n.exists = seen, true
	switch {
	case !existed:
		m.notices = append(m.notices, Notice{n.Name, n.UID, "RegisteredNode", "Node " + n.Name + " event: Registered Node " + n.Name + " in Controller"})
		m.firstSight(now, wall, n)
	case n.Status[Ready] == Absent: // no sign: it has nothing to say yet
	case before.Status[Ready] == Absent || before.Heartbeat != n.Heartbeat:
		m.sign(now, n)
	}
	m.touch(n)
}

// NodeGone folds in that a node was deleted.
func (m *Monitor) NodeGone(_ unit.Instant, name string) {
	n := m.nodes[name]
	if n == nil || !n.exists {
		return
	}
	m.notices = append(m.notices, Notice{n.Name, n.UID, "RemovingNode", "Node " + n.Name + " event: Removing Node " + n.Name + " from Controller"})
	n.Node, n.exists, n.silent, n.deadline = Node{Name: name}, false, false, 0
	m.disarm(n)
	m.drop(n)
}

// LeaseSeen folds in the renewTime of a node's lease.
func (m *Monitor) LeaseSeen(now unit.Instant, wall unit.Wall, name string, renewed unit.Wall) {
	n := m.node(name)
	first, same := n.renewed == 0, n.renewed == renewed
	n.renewed = renewed
	switch {
	case !n.exists || same:
	case first && now < n.deadline && n.Status[Ready] != Absent && !n.silent:
		m.firstSight(now, wall, n) // the node came first; now we know more
	default:
		m.sign(now, n)
	}
	m.touch(n)
}

// LeaseGone folds in that a lease was deleted. That is no sign, of life or death.
func (m *Monitor) LeaseGone(name string) {
	if n := m.nodes[name]; n != nil {
		n.renewed = 0
		m.drop(n)
	}
}

// Contact folds in whether the API answered just now. It wants to be told every few seconds (see Options.DeafAfter).
func (m *Monitor) Contact(now unit.Instant, ok bool) {
	if !ok {
		m.deaf = true
		return
	}
	if m.deaf || now.Sub(m.lastContact) > m.o.DeafAfter {
		m.deaf = false
		for _, n := range m.nodes {
			if n.exists && !n.silent {
				m.arm(n, max(n.deadline, now.Add(m.graceOf(n))))
			}
		}
	}
	m.lastContact = now
}
