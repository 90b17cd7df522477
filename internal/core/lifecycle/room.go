package lifecycle

import (
	"fmt"
	"strings"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Evicting the pods of a node is useless while they fit on no other node: they would only wait. If the node is merely
// cut off from the API server, pods that still serve would be lost without a replacement. So a zone has EvictionRate
// only while there is room for the pods. While there is none, it has SecondaryRate, upstream's rate for unhealthy
// zones. There is room if
//
//	what the node's pods request + what other moving pods request  <=  what is left on healthy nodes
//
// for CPU, memory and the number of pods. Other moving pods are pods on nodes whose pods are being evicted, and unbound
// pods that were created after these evictions began. A node is healthy if it is Ready, not cordoned, and has no taint
// with a node.kubernetes.io key that keeps pods away. Nodes that are reserved for some pods by other taints count as
// healthy, because those pods may be among the ones that move.
//
// Even if there is room by this sum, the pods may not fit: what is left on each of many nodes may be too small for one
// pod. Lack of room lowers upstream's rate, and never stops evictions: because of it, a node waits at most one interval
// of SecondaryRate longer, and the first node of a zone never waits. (With SecondaryRate 0, nodes wait until there is
// room.) So cluster autoscalers, which add nodes when pods wait, still see waiting pods. EvictionRate is never
// exceeded, however much room there is: it also limits the harm of a wrong decision here.

// Load is what pods request or nodes have.
type Load struct {
	CPU    unit.MilliCPU
	Memory unit.Bytes
	Pods   int64
}

// loadMax is the highest value of each part of a Load. Chosen: 2^45, 32 TiB, so that no sum over a cluster overflows,
// whatever one object says.
const loadMax = 1 << 45

func (l Load) clipped() Load {
	return Load{min(max(l.CPU, 0), loadMax), min(max(l.Memory, 0), loadMax), min(max(l.Pods, 0), loadMax)}
}

func (l Load) plus(o Load) Load  { return Load{l.CPU + o.CPU, l.Memory + o.Memory, l.Pods + o.Pods} }
func (l Load) minus(o Load) Load { return Load{l.CPU - o.CPU, l.Memory - o.Memory, l.Pods - o.Pods} }
func (l Load) within(o Load) bool {
	return l.CPU <= o.CPU && l.Memory <= o.Memory && l.Pods <= o.Pods
}

// String formats l for messages.
func (l Load) String() string {
	return fmt.Sprintf("cpu %v, memory %v, %d pods", l.CPU, l.Memory, l.Pods)
}

// capacity holds sums over all nodes and pods. Only uncount, recount, updateShare and dropWaiting change them.
type capacity struct {
	room          Load // what is left on healthy nodes
	leaving       Load // requests of pods that will move from nodes whose pods are being evicted
	waiting       Load // requests of unbound pods that were created after the evictions began
	evictingNodes int  // number of nodes whose pods are being evicted

	unbound map[PodID]*pod // unbound pods without scheduling gates, by id
}

// share is what one node contributes to capacity.
type share struct {
	used    Load // requests of all pods on it
	leaving Load // requests of the pods that would move

	offers Load // its part of capacity.room
	sends  Load // its part of capacity.leaving
	evicts bool // it is counted in capacity.evictingNodes
}

func (m *Monitor) moving() Load { return m.capacity.leaving.plus(m.waiting) }

func (m *Monitor) hasRoomFor(n *node) bool {
	return n.leaving.plus(m.moving()).within(m.room)
}

// updateShare updates what n contributes to capacity.
func (m *Monitor) updateShare(n *node) {
	if !m.o.ByRoom {
		return
	}
	offers := Load{}
	if n.takesPods() {
		offers = n.Allocatable.clipped().minus(n.used).clipped()
	}
	m.room = m.room.minus(n.offers).plus(offers)
	n.offers = offers

	evicts, sends := n.exists && (n.granted || n.hasReadiness()), Load{}
	if evicts {
		sends = n.leaving
	}
	m.capacity.leaving = m.capacity.leaving.minus(n.sends).plus(sends)
	n.sends = sends
	if evicts != n.evicts {
		n.evicts = evicts
		m.evictingNodes += one(evicts) - one(!evicts)
		if evicts && m.evictingNodes == 1 {
			m.dropWaiting()
		}
	}
}

// stateTaints is the prefix of taints that describe the state of a node, in contrast to taints that reserve it for some
// pods.
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

// dropWaiting stops counting unbound pods: pods that waited before the evictions began do not wait because of them.
func (m *Monitor) dropWaiting() {
	for _, p := range m.unbound {
		p.waits = false
	}
	m.waiting = Load{}
}
