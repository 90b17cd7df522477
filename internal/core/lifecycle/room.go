package lifecycle

import (
	"fmt"
	"strings"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// To empty a node helps nobody while its pods fit nowhere else: they would only wait, and if the node is merely cut off,
// pods that still serve would be replaced by none. So the pace of a zone is EvictionRate only while there is room, and
// SecondaryRate, the pace upstream knows for trouble, while there is none:
//
//	what the node's pods ask for + what others on their way ask for  <=  what is left on healthy nodes
//
// for CPU, memory and number of pods each. On their way are pods on nodes that are being emptied, and pods bound nowhere
// that have come since the emptying began. Healthy are nodes that are Ready, not cordoned and without a taint of
// node.kubernetes.io that keeps pods away; nodes kept for some pods count, as those may be among ours.
//
// The sum is a necessary condition only: free pieces on many nodes may be too small for one pod. It can therefore slow
// upstream's pace down and never hold it: a node waits at most one interval of SecondaryRate longer for lack of room,
// and the first node of a zone never. (With SecondaryRate 0 it waits until there is room.) Clusters that grow when pods wait (autoscalers) see pods wait. EvictionRate is never
// exceeded, however much room there is: it also protects from our own misjudgement.

// Load is what pods ask for or nodes have.
type Load struct {
	CPU    unit.MilliCPU
	Memory unit.Bytes
	Pods   int64
}

// loadMax bounds each part of a Load, so that sums over a cluster do not overflow. Chosen: 2^45, 32 TiB; what is written in
// one object cannot make the sum of all wrap around.
const loadMax = 1 << 45

func (l Load) clipped() Load {
	return Load{min(max(l.CPU, 0), loadMax), min(max(l.Memory, 0), loadMax), min(max(l.Pods, 0), loadMax)}
}

func (l Load) plus(o Load) Load  { return Load{l.CPU + o.CPU, l.Memory + o.Memory, l.Pods + o.Pods} }
func (l Load) minus(o Load) Load { return Load{l.CPU - o.CPU, l.Memory - o.Memory, l.Pods - o.Pods} }
func (l Load) within(o Load) bool {
	return l.CPU <= o.CPU && l.Memory <= o.Memory && l.Pods <= o.Pods
}

// String prints l as people write it.
func (l Load) String() string {
	return fmt.Sprintf("cpu %v, memory %v, %d pods", l.CPU, l.Memory, l.Pods)
}

// capacity is the sums over all nodes and pods.
type capacity struct {
	room     Load // left on healthy nodes
	leaving  Load // of pods on nodes that are being emptied
	waiting  Load // of pods bound nowhere that came since the emptying began
	emptying int  // nodes that are being emptied

	unbound map[PodID]*pod
}

// share is a node's part in capacity.
type share struct {
	used    Load // of all pods on it
	leaving Load // of those that would go

	offers  Load // counted in capacity.room
	sends   Load // counted in capacity.leaving
	empties bool // counted in capacity.emptying
}

func (m *Monitor) onTheirWay() Load { return m.capacity.leaving.plus(m.waiting) }

func (m *Monitor) hasRoomFor(n *node) bool {
	return n.leaving.plus(m.onTheirWay()).within(m.room)
}

// settle brings n's share of the cluster's room up to date.
func (m *Monitor) settle(n *node) {
	if !m.o.ByRoom {
		return
	}
	offers := Load{}
	if n.takesPods() {
		offers = n.Allocatable.clipped().minus(n.used).clipped()
	}
	m.room = m.room.minus(n.offers).plus(offers)
	n.offers = offers

	empties, sends := n.exists && (n.granted || n.hasReadiness()), Load{}
	if empties {
		sends = n.leaving
	}
	m.capacity.leaving = m.capacity.leaving.minus(n.sends).plus(sends)
	n.sends = sends
	if empties != n.empties {
		n.empties = empties
		m.emptying += one(empties) - one(!empties)
		if empties && m.emptying == 1 {
			m.forgetWaiting()
		}
	}
}

// stateTaints begin the keys of taints that say how a node is, and not whom it is for.
const stateTaints = "node.kubernetes.io/"

func (n *node) takesPods() bool {
	if !n.exists || n.ready() != True || n.Cordoned {
		return false
	}
	for _, t := range n.Taints {
		if strings.HasPrefix(t.Key, stateTaints) && (t.Effect == NoSchedule || t.Effect == NoExecute) {
			return false
		}
	}
	return true
}

// forgetWaiting stops counting pods that are bound nowhere: whoever waited before the first node was emptied waits for
// something else than its pods do.
func (m *Monitor) forgetWaiting() {
	for _, p := range m.unbound {
		p.waits = false
	}
	m.waiting = Load{}
}
