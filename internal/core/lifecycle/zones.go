package lifecycle

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/heap"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// State is the state of a zone, with upstream's names.
type State string

// The states of a zone.
const (
	Normal            State = "Normal"
	PartialDisruption State = "PartialDisruption" // at least three nodes, and the share Options.UnhealthyZone, are down
	FullDisruption    State = "FullDisruption"    // all are down
)

// StateOf returns the state of a zone of size nodes, of which down are not Ready.
func StateOf(size, down int, unhealthy float32) State {
	switch {
	case down > 0 && down == size:
		return FullDisruption
	case down > 2 && float32(down)/float32(size) >= unhealthy:
		return PartialDisruption
	}
	return Normal
}

// A Zone is the public state of a zone.
type Zone struct {
	Key        string
	State      State
	Size, Down int // number of nodes, and of those that are down, without Excluded ones
}

// zone is the nodes of one key, and a token bucket that limits the evictions: it holds at most one token and fills at
// rate.
type zone struct {
	Zone
	members int              // number of nodes, including Excluded ones
	queue   heap.Heap[*node] // nodes that are down and have no grant, the longest down first
	rate    float32          // grants per second
	last    unit.Instant     // latest grant; zero: none known
	next    unit.Instant     // when the bucket has a token
	due     unit.Instant     // when queue is checked again; valid while the zone is in Monitor.zonesDue
	place   int              // index in zonesDue
	waits   bool             // the first of queue waits for room, and a Reason said so
	counts  bool             // it is counted in disruption.counted
	allDown bool             // it is counted in disruption.allDown
	isDirty bool             // it is in disruption.dirtyZones
}

// standing is what one node contributes to its zone. Only updateStanding, count, setStopped and grantDue change it.
type standing struct {
	zone       *zone        // nil: the node does not exist
	counts, up bool         // how it is counted in zone.Size and zone.Down
	waits      bool         // for a grant: it is in zone.queue
	downSince  unit.Instant // since when it is down; valid while it waits
	queuePlace int          // index in zone.queue
	granted    bool         // its first NoExecute taint may be set
}

// disruption is the state of all zones together.
type disruption struct {
	dirtyZones []*zone // zones whose state must be computed again
	counted    int     // number of zones with nodes that count
	allDown    int     // number of them in FullDisruption
	stopped    bool    // all of them are in FullDisruption: no node is granted a NoExecute taint
}

// Zones returns all zones, sorted by key.
func (m *Monitor) Zones() []Zone {
	out := make([]Zone, 0, len(m.zones))
	for _, z := range m.zones {
		out = append(out, z.Zone)
	}
	slices.SortFunc(out, func(a, b Zone) int { return strings.Compare(a.Key, b.Key) })
	return out
}

// Stopped reports whether all nodes of every zone are down.
func (m *Monitor) Stopped() bool { return m.stopped }

func (m *Monitor) zoneOf(key string) *zone {
	z := m.zones[key]
	if z == nil {
		z = &zone{Zone: Zone{Key: key, State: Normal}, rate: m.o.EvictionRate}
		longestFirst := func(a, b *node) int {
			return cmp.Or(cmp.Compare(a.downSince, b.downSince), strings.Compare(a.Name, b.Name))
		}
		z.queue = heap.New(longestFirst, func(n *node) *int { return &n.queuePlace })
		m.zones[key] = z
	}
	return z
}

// updateStanding updates what n contributes to its zone. Advance computes the state of the zone later, once for all
// observations until then.
func (m *Monitor) updateStanding(now unit.Instant, n *node) {
	if z := n.zone; z != nil && (!n.exists || z.Key != n.Zone) {
		m.count(n, false, false)
		z.queue.Remove(n)
		n.zone = nil
		z.members--
		m.markZoneDirty(z)
	}
	if !n.exists {
		n.waits = false
		return
	}
	if n.zone == nil {
		n.zone = m.zoneOf(n.Zone)
		n.zone.members++
		m.markZoneDirty(n.zone)
	}
	ready := n.ready()
	m.count(n, !n.Excluded, ready == True)
	_, down := readinessTaint(ready)
	if !down || n.hasReadiness() {
		n.granted = false
	}
	waits := down && !n.hasReadiness() && !n.granted
	if waits && !n.waits {
		n.downSince = now
		if !m.tookOver {
			n.downSince = m.instantOf(now, n.Changed)
		}
	}
	if n.waits = waits; waits == n.zone.queue.Has(n) {
		return
	}
	if waits {
		n.zone.queue.Set(n)
	} else {
		n.zone.queue.Remove(n)
	}
	m.markZoneDirty(n.zone)
}

// ready is the node's Ready condition, as written or about to be written.
func (n *node) ready() Status {
	if n.silent {
		return Unknown
	}
	return n.Status[Ready]
}

func (m *Monitor) count(n *node, counts, up bool) {
	if n.counts == counts && n.up == up {
		return
	}
	z := n.zone
	z.Size += one(counts) - one(n.counts)
	z.Down += one(counts && !up) - one(n.counts && !n.up)
	n.counts, n.up = counts, up
	m.markZoneDirty(z)
}

func one(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (m *Monitor) markZoneDirty(z *zone) {
	if !z.isDirty {
		z.isDirty = true
		m.dirtyZones = append(m.dirtyZones, z)
	}
}

// reviewZones computes the states of zones that changed, and whether all zones are down.
func (m *Monitor) reviewZones(now unit.Instant) {
	if len(m.dirtyZones) == 0 {
		return
	}
	slices.SortFunc(m.dirtyZones, func(a, b *zone) int { return strings.Compare(a.Key, b.Key) })
	for _, z := range m.dirtyZones {
		z.isDirty = false
		before := z.State
		z.State = StateOf(z.Size, z.Down, m.o.UnhealthyZone)
		if before != z.State && z.Size > 0 {
			m.explain(z.label(), fmt.Sprintf("%s: %d of %d nodes down", z.State, z.Down, z.Size))
		}
		m.updateCounts(z)
	}
	dirty := m.dirtyZones
	m.dirtyZones = nil
	if stop := m.counted > 0 && m.allDown == m.counted; stop != m.stopped {
		m.setStopped(now, stop)
	}
	for _, z := range dirty {
		m.setRate(now, z)
		m.schedule(z)
		if z.members == 0 {
			m.zonesDue.Remove(z)
			delete(m.zones, z.Key)
		}
	}
}

// updateCounts updates what z contributes to disruption.counted and disruption.allDown.
func (m *Monitor) updateCounts(z *zone) {
	counts, allDown := z.Size > 0, z.Size > 0 && z.State == FullDisruption
	m.counted += one(counts) - one(z.counts)
	m.allDown += one(allDown) - one(z.allDown)
	z.counts, z.allDown = counts, allDown
}

// setStopped begins or ends a stop. At its beginning, the NoExecute taints of nodes that are down are removed. At its
// end, every token bucket is empty, and nodes that became silent during the stop have time to give a sign of life.
func (m *Monitor) setStopped(now unit.Instant, stop bool) {
	m.stopped = stop
	if stop {
		m.explain("all zones", fmt.Sprintf("every node of %d zones is down: no pods are evicted", m.counted))
	} else {
		m.explain("all zones", "not every zone is down any more: evictions continue")
		m.renewGrace(now)
	}
	for _, n := range m.nodes {
		if n.exists && (n.granted || n.hasReadiness()) {
			n.granted = false
			m.updateStanding(now, n)
			m.updateShare(n)
			m.markDirty(n)
			m.markPodsDirty(n)
		}
	}
	for _, z := range m.zones {
		m.setRate(now, z)
		m.schedule(z)
	}
}

// setRate gives z the rate of its state. If the rate changes, a full bucket stays full, unless the rate was zero. Any
// other bucket is empty then.
func (m *Monitor) setRate(now unit.Instant, z *zone) {
	rate := m.o.EvictionRate
	switch {
	case m.stopped:
		rate = 0
	case z.State == PartialDisruption && z.Size > m.o.LargeZone:
		rate = m.o.SecondaryRate
	case z.State == PartialDisruption:
		rate = 0
	}
	if rate == z.rate {
		return
	}
	full := z.rate > 0 && z.next <= now
	z.rate = rate
	if !full {
		z.next = now.Add(interval(rate))
	}
}

// interval is the time between two grants.
func interval(rate float32) time.Duration {
	if rate <= 0 {
		return ageMax
	}
	return time.Duration(min(float64(time.Second)/float64(rate), float64(ageMax)))
}

// schedule sets when to check z's queue.
func (m *Monitor) schedule(z *zone) {
	if z.queue.Len() == 0 || z.rate <= 0 {
		m.zonesDue.Remove(z)
		z.waits = false
		return
	}
	z.due = max(z.next, m.noEvictionsBefore)
	m.zonesDue.Set(z)
}

// roomEvery is the interval at which a zone is checked again while there is no room for the pods of its next node.
// Chosen: 1 s, a tenth of the interval between grants at upstream's rate. Room changes with every pod.
const roomEvery = time.Second

// grantDue grants the first NoExecute taint to the nodes whose time has come.
func (m *Monitor) grantDue(now unit.Instant) {
	for m.zonesDue.Len() > 0 && m.zonesDue.First().due <= now {
		z := m.zonesDue.First()
		n := z.queue.First()
		if m.noEvictionsBefore > now {
			m.schedule(z)
			continue
		}
		slow := z.last.Add(interval(m.o.SecondaryRate))
		if m.o.ByRoom && z.last != 0 && slow > now && !m.hasRoomFor(n) {
			if !z.waits {
				z.waits = true
				m.explain(z.label(), fmt.Sprintf(
					"node %s: its pods request %v, other moving pods request %v, and healthy nodes have %v left: wait",
					n.Name, n.leaving, m.moving(), m.room))
			}
			z.due = min(now.Add(roomEvery), slow)
			m.zonesDue.Set(z)
			continue
		}
		z.queue.Remove(n)
		z.last = now
		z.next = now.Add(interval(z.rate))
		z.waits = false
		n.granted, n.waits = true, false
		m.explain(n.Name, fmt.Sprintf("evictions granted: %s, %d of %d nodes down, %g nodes per second",
			z.label(), z.Down, z.Size, z.rate))
		m.updateShare(n)
		m.markDirty(n)
		m.schedule(z)
	}
}

func (z *zone) label() string {
	if z.Key == "" {
		return "nodes without zone"
	}
	return "zone " + strings.ReplaceAll(z.Key, ":\x00:", "/")
}

// restoreRates finds when each zone last had a grant, from the taints that are written.
func (m *Monitor) restoreRates() {
	for _, n := range m.nodes {
		for _, t := range n.noExecute {
			if t.isReadiness() && (n.zone.last == 0 || t.since > n.zone.last) {
				n.zone.last = t.since
				n.zone.next = t.since.Add(interval(m.o.EvictionRate))
			}
		}
	}
}
