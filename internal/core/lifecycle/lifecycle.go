// Package lifecycle decides which nodes are alive, silent or gone, and what must be written because of it: conditions,
// taints, readiness of pods, and which pods have to leave.
//
// # Model
//
// A Monitor is told what the API shows of nodes, leases and pods, and whether the API can be heard at all. Advance
// answers with actions; the shell carries each out and reports with Done. Everything is level-triggered: an action is
// derived from what was last seen, so that a lost or refused one is derived again, with growing pauses, until it is done.
//
// A sign of life is a lease whose renewTime differs from the last one seen, or a Ready condition whose heartbeat does.
// It is dated by our own monotonic clock, when it is seen; what a node's clock says is only compared with what
// the same clock said before. A node that gives none for its grace is silent: its Ready and pressure conditions become
// Unknown, it is tainted unreachable, its pods are marked not Ready.
//
// NoSchedule taints are set at once. A NoExecute taint empties a node, so those for not-ready and unreachable are granted
// one node after another, per zone, at a pace that falls when much of the zone is down (zones.go) or when the rest of the
// cluster has no room for the pods (room.go). A pod on a node with NoExecute taints leaves when its tolerations of them
// are over (pods.go).
//
// # Vocabulary
//
//	sign      an observation that only a living node can cause
//	grace     how long a node may give no sign
//	hearing   the least time a node is given to give a sign after we see it for the first time
//	silent    judged: no sign for the grace
//	deaf      we ourselves cannot hear the API, so that silence means nothing
//	zone      nodes that fail together; upstream's zone key
//	grant     leave to set the first NoExecute taint of a node that is down
//	stop      every zone is wholly down: nobody is emptied, as it is more likely that we are cut off
//	patience  how long a pod tolerates a NoExecute taint
//	room      what healthy nodes could still take in
//
// # Choices
//
//   - First sight. A controller that starts knows only what is written. A node whose lease is fresh gets what is left of its
//     grace by the calendar; one whose lease is long over gets Hearing, in which a living node gives a sign, and not
//     its grace anew. So a restart neither forgives a dead node nor condemns one whose clock is wrong: an absurd
//     renewTime costs at most the difference. A renewTime in the future counts as now. When so many leases are over that
//     their zone would count as unhealthy, it was the API that was away: then they get their grace.
//   - Clock steps of a node do not matter: any change of its renewTime is a sign, also a step backwards (upstream waits
//     until the old time is passed again). Steps of our own calendar matter at first sight only.
//   - Deafness. Nobody is judged, granted a NoExecute taint or evicted because of one while the API cannot be heard, nor when
//     the process itself did not run; afterwards every node that was not silent has its grace anew, because it could not
//     renew either, and nobody is emptied before Hearing is over.
//   - Memory across restarts is what is written: taints stay as they are (upstream takes all away at its start and sets them
//     anew), patience is counted from a taint's timeAdded, the pace from the latest of them.
//   - A node that was there before us is announced (RegisteredNode) only if it is younger than the start-up grace, for its
//     last leader may have missed it. Upstream writes an Event for every node at every start: 5,000 when a leader changes.
//   - A node that has never reported Ready keeps the not-ready taint it was created with; upstream removes it until its
//     start-up grace is over.
//   - A change between not-ready and unreachable keeps the time of the first: patience goes on.
//
// Heaps of deadlines replace periodic scans: a node costs something when it gives a sign and once per grace, a pod when
// it changes and when its time has come. Only rare events look at every node: the first lists, the return of the API, the
// beginning and end of a stop.
//
// It is not safe for concurrent use.
package lifecycle

import (
	"cmp"
	"strings"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/heap"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

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
	Changed   unit.Wall                // last transition of the Ready condition
	Taints    []Taint
	Zone      string // key of its zone; empty: all nodes without one are one zone
	// Excluded: it does not count when the state of its zone is worked out.
	Excluded bool
	// Relabel are labels that must follow others and do not; see translate.HealthNode.
	Relabel     map[string]string
	Allocatable Load
}

// PodID is a pod's UID.
type PodID string

// Pod is what the API shows of a pod.
type Pod struct {
	ID              PodID
	Namespace, Name string
	Node            string    // where it is bound; empty: nowhere yet
	Bound           unit.Wall // when; zero: not known
	Ready           bool
	Terminating     bool // it was asked to go
	Ended           bool // it succeeded or failed: it holds nothing, and is not evicted
	Gated           bool // it may not be scheduled yet
	Tolerations     []Toleration
	Requests        Load // Pods: 1
}

// A Verb says what to do to a pod.
type Verb int

// What an Action about a pod asks for.
const (
	MarkNotReady        Verb = iota
	Evict                    // delete it, with its grace, because of a NoExecute taint
	CollectOrphan            // its node is gone for good, if the API says so once more: remove it
	CollectOutOfService      // its node is said to be out of service: remove it
)

// An Action is something to write. Exactly one of Pod and the other fields is meant.
type Action struct {
	Node string

	// Unknown are the conditions to set to Unknown, in order. The shell reads the node's lease again before it does so
	// and reports a sign instead if there is one.
	Unknown []UnknownCondition
	// Add and Drop change the node's taints; others stay as they are. One in Add with a time keeps it.
	Add, Drop []Taint
	// Labels are set.
	Labels map[string]string

	// Pod is whom Do is about. Nil: the action is about the node.
	Pod *Pod
	Do  Verb
	Due unit.Instant // of an Evict: since when it is wanted
}

// Empties reports whether a adds a NoExecute taint to a node that had none of ours: what is paced and counted.
func (a Action) Empties() bool {
	for _, t := range a.Drop {
		if t.isReadiness() {
			return false
		}
	}
	for _, t := range a.Add {
		if t.isReadiness() {
			return true
		}
	}
	return false
}

// UnknownCondition is a condition nobody can vouch for any more.
type UnknownCondition struct {
	Type ConditionType
	// Never: the node has never posted it.
	Never bool
}

// A Notice is an Event about a node or, when Pod is set, about a pod, with upstream's reason and text.
type Notice struct {
	Node, UID, Reason, Message string
	Pod                        *Pod
}

// A Reason says why something was decided about a node or zone, with the numbers.
type Reason struct{ Subject, Text string }

// Decision is what Advance wants.
type Decision struct {
	Actions []Action // nodes before pods
	Notices []Notice
	Reasons []Reason
	Wake    unit.Instant // call Advance again by then, even if nothing was heard; zero: no need
}

// Monitor watches over the nodes. See the package documentation.
type Monitor struct {
	o     Options
	nodes map[string]*node
	pods  map[PodID]*pod
	zones map[string]*zone

	alarms    heap.Heap[*node] // by alarm, then by name
	podAlarms heap.Heap[*pod]  // by alarm, then by id
	paces     heap.Heap[*zone] // zones with a node that waits for a grant, by due, then by key
	dirty     []*node          // may need an action
	dirtyPods []*pod
	notices   []Notice
	reasons   []Reason

	began       unit.Instant
	lastContact unit.Instant
	deaf        bool
	listenUntil unit.Instant // nobody is emptied before
	looked      bool         // Advance was called: what comes now is news, not the first lists
	calendar    unit.Wall    // last heard of, at calendarAt
	calendarAt  unit.Instant

	disruption
	capacity
}

// node is one name: a Node, a Lease, pods bound to it, any of them possibly not there (yet).
type node struct {
	Node
	exists  bool
	missing unit.Instant // since when it is known not to exist; zero while it does

	renewed  unit.Wall // last renewTime seen; zero: no lease seen
	deadline unit.Instant
	overdue  bool // at first sight its lease was over
	silent   bool
	pods     map[PodID]*pod

	noExecute []dated // its NoExecute taints
	standing          // in its zone
	share             // of the cluster's room

	work    work
	isDirty bool
	alarm   unit.Instant // when it stands in alarms; zero: it does not
	place   int          // in alarms
}

// work is the state of what is being written about a node or pod.
type work struct {
	busy     bool
	failures int
	retryAt  unit.Instant
}

// New returns a Monitor that knows nothing. now counts as contact with the API.
func New(now unit.Instant, o Options) *Monitor {
	o.Hearing = min(o.Hearing, o.Grace)
	return &Monitor{
		o: o, nodes: map[string]*node{}, pods: map[PodID]*pod{}, zones: map[string]*zone{},
		began: now, lastContact: now, listenUntil: now.Add(o.Hearing), capacity: capacity{unbound: map[PodID]*pod{}},
		alarms: heap.New(func(a, b *node) int { return cmp.Or(cmp.Compare(a.alarm, b.alarm), strings.Compare(a.Name, b.Name)) },
			func(n *node) *int { return &n.place }),
		podAlarms: heap.New(func(a, b *pod) int { return cmp.Or(cmp.Compare(a.alarm, b.alarm), cmp.Compare(a.ID, b.ID)) },
			func(p *pod) *int { return &p.place }),
		paces: heap.New(func(a, b *zone) int { return cmp.Or(cmp.Compare(a.due, b.due), strings.Compare(a.Key, b.Key)) },
			func(z *zone) *int { return &z.place }),
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
	m.calendar, m.calendarAt = wall, now
	n := m.node(seen.Name)
	before, existed := n.Node, n.exists
	if existed && before.UID != seen.UID {
		m.NodeGone(now, seen.Name) // deleted and made anew between two observations
		n, existed = m.node(seen.Name), false
	}
	n.Node, n.exists, n.missing = seen, true, 0
	m.date(now, n, existed)
	switch {
	case !existed:
		if m.looked || wall.Sub(n.Created) < m.o.StartupGrace {
			m.noticeNode(n, "RegisteredNode", "event: Registered Node "+n.Name+" in Controller")
		}
		m.firstSight(now, wall, n)
	case n.Status[Ready] == Absent: // no sign: it has nothing to say yet
	case before.Status[Ready] == Absent || before.Heartbeat != n.Heartbeat:
		m.sign(now, n)
	}
	m.stand(now, n)
	m.settle(n)
	m.touch(n)
	if !existed || before.Status[Ready] != n.Status[Ready] || before.outOfService() != n.outOfService() {
		m.touchPods(n)
	}
}

// NodeGone folds in that a node was deleted.
func (m *Monitor) NodeGone(now unit.Instant, name string) {
	n := m.nodes[name]
	if n == nil || !n.exists {
		return
	}
	m.noticeNode(n, "RemovingNode", "event: Removing Node "+n.Name+" from Controller")
	n.Node, n.exists, n.silent, n.deadline, n.noExecute, n.granted = Node{Name: name}, false, false, 0, nil, false
	n.missing = now
	m.stand(now, n)
	m.settle(n)
	m.disarm(n)
	m.touchPods(n)
	m.drop(n)
}

// LeaseSeen folds in the renewTime of a node's lease.
func (m *Monitor) LeaseSeen(now unit.Instant, wall unit.Wall, name string, renewed unit.Wall) {
	m.calendar, m.calendarAt = wall, now
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
		m.forgive(now)
	}
	m.lastContact = now
}

// forgive gives every node that is not silent its grace anew, and the others time to be heard before they are emptied.
func (m *Monitor) forgive(now unit.Instant) {
	m.listenUntil = max(m.listenUntil, now.Add(m.o.Hearing))
	for _, n := range m.nodes {
		if n.exists && !n.silent {
			m.arm(n, max(n.deadline, now.Add(m.graceOf(n))))
		}
	}
}

// today is our calendar at now, as far as we were told it. Zero: not at all.
func (m *Monitor) today(now unit.Instant) unit.Wall {
	if m.calendar == 0 {
		return 0
	}
	return m.calendar + unit.Wall(now.Sub(m.calendarAt))
}

// dateOf is the moment when w was by the calendar, if that is in the past; else now. An unknown w is now too.
func (m *Monitor) dateOf(now unit.Instant, w unit.Wall) unit.Instant {
	today := m.today(now)
	if w == 0 || today == 0 || w >= today {
		return now
	}
	return now.Add(-min(today.Sub(w), ageMax))
}

// ageMax bounds how long ago anything was. Chosen: ten years; what is written with a broken clock must not overflow.
const ageMax = 10 * 365 * 24 * time.Hour

func (m *Monitor) noticeNode(n *node, reason, text string) {
	m.notices = append(m.notices, Notice{Node: n.Name, UID: n.UID, Reason: reason, Message: "Node " + n.Name + " " + text})
}

func (m *Monitor) because(subject, text string) {
	m.reasons = append(m.reasons, Reason{subject, text})
}
