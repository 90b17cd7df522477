// Package lifecycle decides which nodes are alive, silent or deleted, and what must be written because of that:
// conditions, taints, readiness of pods, and evictions of pods. It does what upstream's node lifecycle controller and
// taint eviction controller do.
//
// # Model
//
// A Monitor receives what the API shows of nodes, leases and pods, and whether the API server can be reached. Advance
// returns actions. The shell performs each of them and reports its outcome with Done. Everything is level-triggered: an
// action follows from what was last seen. So an action that was lost or has failed is returned again, with growing
// back-off, until it is done.
//
// A sign of life is a lease whose renewTime differs from the last one seen, or a Ready condition whose heartbeat
// differs. Its time is the moment at which it is seen, on this process's monotonic clock. A timestamp of a node is only
// compared with an earlier timestamp of the same node. A node without a sign for its grace period is silent: its Ready
// and pressure conditions become Unknown, it gets the unreachable taints, and its pods are marked not Ready.
//
// NoSchedule taints are set at once. A NoExecute taint evicts the pods of a node. Therefore the NoExecute taints for
// not-ready and unreachable are granted to one node after another, per zone. The rate falls when many nodes of the zone
// are down (zones.go), or when the rest of the cluster has no room for the pods (room.go). A pod on a node with
// NoExecute taints is evicted when the time that its tolerations allow is over (toleration.go, pods.go).
//
// # Vocabulary
//
//	sign          an observation that only a living node can cause
//	grace         how long a node may give no sign: the node-monitor grace period
//	silent        a node that gave no sign for its grace period
//	disconnected  the API server cannot be reached or the watch is broken, so that silence of a node means nothing
//	zone          nodes that fail together, by upstream's zone key
//	down          a node whose Ready condition is False or Unknown
//	grant         permission to set the first NoExecute taint of a node that is down
//	stop          all nodes of every zone are down: no pods are evicted, because a fault of this process's
//	              network is more likely
//	room          the resources that healthy nodes have left
//
// # Choices
//
//   - First sight. A controller that starts knows only what is written. A node whose lease is fresh gets the rest of
//     its grace period, computed with calendar time. A node whose lease expired long ago gets FirstSightGrace instead
//     of a whole grace period; a living node gives a sign within FirstSightGrace. So a restart does not give a dead
//     node its whole grace period again. Nor does it taint a living node whose clock is wrong: a wrong renewTime only
//     makes the first grace period longer or shorter. A renewTime in the future counts as now. If as many leases are
//     expired as nodes must be down in an unhealthy zone, the API server was away, and not the nodes. Then all nodes
//     get their whole grace period.
//   - Clock steps of a node do not matter: any change of its renewTime is a sign, also a step backwards. Upstream waits
//     until the old time is reached again. Clock steps of this process's machine matter only at first sight.
//   - Broken watch. While the API server cannot be reached, or when this process itself did not run, no node becomes
//     silent, none is granted a NoExecute taint, and no pod is evicted because of one. Afterwards every node that was
//     not silent gets a new grace period, because it could not renew either, and no pods are evicted before
//     FirstSightGrace is over.
//   - State across restarts is what is written. Taints stay as they are; upstream removes all at its start and sets
//     them again. The time that a pod tolerates a taint counts from the taint's timeAdded. The eviction rate counts
//     from the latest timeAdded.
//   - A node that existed before this process gets the Event RegisteredNode only if it is younger than the start-up
//     grace period, because the previous leader may have missed it. Upstream writes an Event for every node at every
//     start: 5,000 when the leader changes.
//   - A node that has never reported Ready keeps the not-ready taint with which it was created. Upstream removes that
//     taint until the start-up grace period is over.
//   - A change between not-ready and unreachable keeps the time of the first taint, so that the pods' toleration times
//     are not restarted.
//
// Heaps of deadlines replace periodic scans. A node costs time when it gives a sign, and once per grace period. A pod
// costs time when it changes, and when it must be evicted. Only rare events evaluate every node: the first lists, the
// end of a broken watch, the beginning and the end of a stop.
//
// The package is not safe for concurrent use.
package lifecycle

import (
	"cmp"
	"strings"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/heap"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/core/wellknown"
)

// Status is the status of a condition. The zero value means that the node has no such condition.
type Status int

// The values of Status.
const (
	Absent Status = iota
	True
	False
	Unknown
)

// A ConditionType names a condition, spelled as the API spells it.
type ConditionType string

// The conditions that this package uses.
const (
	Ready              ConditionType = wellknown.ConditionReady
	MemoryPressure     ConditionType = wellknown.ConditionMemoryPressure
	DiskPressure       ConditionType = wellknown.ConditionDiskPressure
	PIDPressure        ConditionType = wellknown.ConditionPIDPressure
	NetworkUnavailable ConditionType = wellknown.ConditionNetworkUnavailable
)

// Node is what the API shows of a node.
type Node struct {
	Name      string
	UID       string
	Created   unit.Wall
	Cordoned  bool
	Status    map[ConditionType]Status // no entry: Absent
	Heartbeat unit.Wall                // lastHeartbeatTime of the Ready condition
	Changed   unit.Wall                // lastTransitionTime of the Ready condition
	Taints    []Taint
	Zone      string // key of its zone; empty: all nodes without a zone are one zone
	Excluded  bool   // the node does not count for the state of its zone
	// Relabel are labels to set: they must equal other labels of the node and do not; see translate.LifecycleNode.
	Relabel     map[string]string
	Allocatable Load
}

// PodID is a pod's UID.
type PodID string

// Pod is what the API shows of a pod.
type Pod struct {
	ID              PodID
	Namespace, Name string
	Node            string    // spec.nodeName; empty: not bound
	Bound           unit.Wall // when it was bound; zero: not known
	Ready           bool
	Terminating     bool // it has a deletion timestamp
	Ended           bool // it succeeded or failed: it uses no resources, and is not evicted
	Gated           bool // it has scheduling gates
	Tolerations     []Toleration
	Requests        Load // Pods: 1
}

// A Verb is an action on a pod.
type Verb int

// The actions on a pod.
const (
	MarkNotReady        Verb = iota
	Evict                    // delete it with its grace period, because of a NoExecute taint
	CollectOrphan            // its node was deleted: delete the pod if the API server confirms that
	CollectOutOfService      // its node has the out-of-service taint: delete the pod
)

// An Action is something to write: either Pod is set, or the other fields are.
type Action struct {
	Node string

	// Unknown are the conditions to set to Unknown, in order. Before that, the shell reads the node's lease again; if
	// it changed, the shell reports a sign of life instead.
	Unknown []UnknownCondition
	// Add and Drop are the taints to add and to remove; other taints stay as they are. A taint in Add that has a time
	// keeps that time.
	Add, Drop []Taint
	// Labels are the labels to set.
	Labels map[string]string

	// Pod is the pod that Do is about. Nil: the action is about the node.
	Pod *Pod
	Do  Verb
	Due unit.Instant // for Evict: since when the pod should be evicted
}

// StartsEvictions reports whether a adds the first NoExecute taint of this package to a node. Only such actions are
// rate-limited and counted.
func (a Action) StartsEvictions() bool {
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

// UnknownCondition is a condition to set to Unknown.
type UnknownCondition struct {
	Type  ConditionType
	Never bool // the node has never reported this condition
}

// A Notice is an Event about a node, or about a pod if Pod is set, with upstream's reason and text.
type Notice struct {
	Node, UID, Reason, Message string
	Pod                        *Pod
}

// A Reason explains a decision about a node or zone, with the numbers.
type Reason struct{ Subject, Text string }

// Decision is the result of Advance.
type Decision struct {
	Actions []Action // nodes before pods
	Notices []Notice
	Reasons []Reason
	Wake    unit.Instant // call Advance again by then, even without new observations; zero: not necessary
}

// Monitor watches the nodes; see the package documentation. Only its methods change its fields.
type Monitor struct {
	o     Options
	nodes map[string]*node
	pods  map[PodID]*pod
	zones map[string]*zone

	alarms    heap.Heap[*node] // by alarm, then by name
	podAlarms heap.Heap[*pod]  // by alarm, then by id
	zonesDue  heap.Heap[*zone] // zones with a node that waits for a grant, by due, then by key
	dirty     []*node          // nodes that may need an action
	dirtyPods []*pod           // pods that may need an action
	notices   []Notice         // for the next Decision
	reasons   []Reason         // for the next Decision

	began             unit.Instant // when New was called
	lastContact       unit.Instant // when the API server last answered
	disconnected      bool         // the last contact with the API server failed
	noEvictionsBefore unit.Instant // no pods are evicted because of a node that is down before this moment
	tookOver          bool         // Advance was called: observations since then are changes, not the first lists
	calendar          unit.Wall    // the last calendar time that was passed in, at calendarAt
	calendarAt        unit.Instant

	disruption
	capacity
}

// node is everything known under one name: a Node, a Lease, pods bound to it. Each of them may be missing.
type node struct {
	Node
	exists  bool         // the Node object exists
	missing unit.Instant // since when the Node object is known to be missing; zero while it exists

	renewed  unit.Wall      // last renewTime seen; zero: no lease seen
	deadline unit.Instant   // when the node becomes silent, if it gives no sign until then
	overdue  bool           // its lease was expired at first sight
	silent   bool           // it gave no sign for its grace period, and none since then
	pods     map[PodID]*pod // bound to it

	noExecute []datedTaint // its NoExecute taints
	standing               // in its zone
	share                  // of the cluster's resources

	work    work         // the action about the node
	isDirty bool         // in Monitor.dirty
	alarm   unit.Instant // when it is due in Monitor.alarms; zero: it is not there
	place   int          // index in alarms
}

// work is the state of the action about a node or pod.
type work struct {
	busy     bool         // an action was returned by Advance, and its outcome was not reported yet
	failures int          // failures in a row
	retryAt  unit.Instant // when the next attempt may be made
}

// New returns a Monitor without observations. now counts as contact with the API server.
func New(now unit.Instant, o Options) *Monitor {
	o.FirstSightGrace = min(o.FirstSightGrace, o.Grace)
	return &Monitor{
		o:                 o,
		nodes:             map[string]*node{},
		pods:              map[PodID]*pod{},
		zones:             map[string]*zone{},
		began:             now,
		lastContact:       now,
		noEvictionsBefore: now.Add(o.FirstSightGrace),
		capacity:          capacity{unbound: map[PodID]*pod{}},
		alarms:            heap.New(byAlarm, func(n *node) *int { return &n.place }),
		podAlarms:         heap.New(podsByAlarm, func(p *pod) *int { return &p.place }),
		zonesDue:          heap.New(zonesByDue, func(z *zone) *int { return &z.place }),
	}
}

func byAlarm(a, b *node) int {
	return cmp.Or(cmp.Compare(a.alarm, b.alarm), strings.Compare(a.Name, b.Name))
}

func podsByAlarm(a, b *pod) int {
	return cmp.Or(cmp.Compare(a.alarm, b.alarm), cmp.Compare(a.ID, b.ID))
}

func zonesByDue(a, b *zone) int {
	return cmp.Or(cmp.Compare(a.due, b.due), strings.Compare(a.Key, b.Key))
}

func (m *Monitor) node(name string) *node {
	n := m.nodes[name]
	if n == nil {
		n = &node{Node: Node{Name: name}, pods: map[PodID]*pod{}}
		m.nodes[name] = n
	}
	return n
}

// drop drops the entry of a node if neither a Node nor a Lease nor a pod is left under its name.
func (m *Monitor) drop(n *node) {
	if !n.exists && n.renewed == 0 && len(n.pods) == 0 {
		m.dropAlarm(n)
		delete(m.nodes, n.Name)
	}
}

// NodeSeen records a node that is new or changed. wall is this process's calendar time now.
func (m *Monitor) NodeSeen(now unit.Instant, wall unit.Wall, seen Node) {
	m.calendar, m.calendarAt = wall, now
	n := m.node(seen.Name)
	before, existed := n.Node, n.exists
	if existed && before.UID != seen.UID {
		m.NodeGone(now, seen.Name) // deleted and created again between two observations
		n, existed = m.node(seen.Name), false
	}
	n.Node = seen
	n.exists = true
	n.missing = 0
	m.dateTaints(now, n, existed)
	switch {
	case !existed:
		if m.tookOver || wall.Sub(n.Created) < m.o.StartupGrace {
			m.noticeNode(n, "RegisteredNode", "event: Registered Node "+n.Name+" in Controller")
		}
		m.firstSight(now, wall, n)
	case n.Status[Ready] == Absent: // no sign: the node has not reported anything yet
	case before.Status[Ready] == Absent || before.Heartbeat != n.Heartbeat:
		m.noteSign(now, n)
	}
	m.updateStanding(now, n)
	m.updateShare(n)
	m.markDirty(n)
	if !existed || before.Status[Ready] != n.Status[Ready] || before.outOfService() != n.outOfService() {
		m.markPodsDirty(n)
	}
}

// NodeGone records that a node was deleted.
func (m *Monitor) NodeGone(now unit.Instant, name string) {
	n := m.nodes[name]
	if n == nil || !n.exists {
		return
	}
	m.noticeNode(n, "RemovingNode", "event: Removing Node "+n.Name+" from Controller")
	n.Node = Node{Name: name}
	n.exists = false
	n.silent = false
	n.deadline = 0
	n.noExecute = nil
	n.granted = false
	n.missing = now
	m.updateStanding(now, n)
	m.updateShare(n)
	m.dropAlarm(n)
	m.markPodsDirty(n)
	m.drop(n)
}

// LeaseSeen records the renewTime of a node's lease.
func (m *Monitor) LeaseSeen(now unit.Instant, wall unit.Wall, name string, renewed unit.Wall) {
	m.calendar, m.calendarAt = wall, now
	n := m.node(name)
	first, same := n.renewed == 0, n.renewed == renewed
	n.renewed = renewed
	switch {
	case !n.exists || same:
	case first && now < n.deadline && n.Status[Ready] != Absent && !n.silent:
		m.firstSight(now, wall, n) // the node was seen before its lease; the lease gives a better deadline
	default:
		m.noteSign(now, n)
	}
}

// LeaseGone records that a lease was deleted. That says nothing about whether the node is alive.
func (m *Monitor) LeaseGone(name string) {
	if n := m.nodes[name]; n != nil {
		n.renewed = 0
		m.drop(n)
	}
}

// Contact records whether the API server answered just now. Call it every few seconds (see Options.ContactTimeout).
func (m *Monitor) Contact(now unit.Instant, ok bool) {
	if !ok {
		m.disconnected = true
		return
	}
	if m.disconnected || now.Sub(m.lastContact) > m.o.ContactTimeout {
		m.disconnected = false
		m.renewGrace(now)
	}
	m.lastContact = now
}

// renewGrace gives every node that is not silent a new grace period. It also prevents evictions because of nodes that
// are down until FirstSightGrace is over.
func (m *Monitor) renewGrace(now unit.Instant) {
	m.noEvictionsBefore = max(m.noEvictionsBefore, now.Add(m.o.FirstSightGrace))
	for _, n := range m.nodes {
		if n.exists && !n.silent {
			m.setDeadline(n, max(n.deadline, now.Add(m.graceOf(n))))
		}
	}
}

// wallNow is this process's calendar time at now, computed from the last one that was passed in. Zero: none was.
func (m *Monitor) wallNow(now unit.Instant) unit.Wall {
	if m.calendar == 0 {
		return 0
	}
	return m.calendar + unit.Wall(now.Sub(m.calendarAt))
}

// instantOf converts the calendar time w to a moment in the past. An unknown w, and one in the future, is now.
func (m *Monitor) instantOf(now unit.Instant, w unit.Wall) unit.Instant {
	today := m.wallNow(now)
	if w == 0 || today == 0 || w >= today {
		return now
	}
	return now.Add(-min(today.Sub(w), ageMax))
}

// ageMax limits how far in the past a moment may be. Chosen: ten years, so that the timestamps of a broken clock cannot
// cause an overflow.
const ageMax = 10 * 365 * 24 * time.Hour

func (m *Monitor) noticeNode(n *node, reason, text string) {
	message := "Node " + n.Name + " " + text
	m.notices = append(m.notices, Notice{Node: n.Name, UID: n.UID, Reason: reason, Message: message})
}

func (m *Monitor) explain(subject, text string) {
	m.reasons = append(m.reasons, Reason{subject, text})
}
