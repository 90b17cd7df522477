package sim

import (
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/fault"
	"github.com/plimsoll-dev/plimsoll/internal/core/heartbeat"
	"github.com/plimsoll-dev/plimsoll/internal/core/lifecycle"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// node is a machine and its objects in the API.
type node struct {
	w          *world
	name, zone string
	beat       *heartbeat.Beat
	attemptMax time.Duration // bounds one request

	fault   fault.Fault      // the newest order for the node
	effect  fault.Effect     // of fault, now
	changes unit.Instant     // when the effect changes by itself; zero: never
	inbox   []heartbeat.Fact // facts of this moment
	isDue   bool             // the node is in world.due
	missed  []heartbeat.Fact // facts that were kept while it was silent
	busy    int              // how many requests are in flight

	wake  unit.Instant // when the next step is due
	order uint64       // decides between nodes that are due at the same moment
	place int          // in world.wakes

	// The node's objects in the API.
	exists    bool
	ready     lifecycle.Status
	pressure  lifecycle.Status // of memory, disk and PID pressure
	heartbeat unit.Wall        // of the conditions in the last report
	changed   unit.Wall        // when Ready last changed
	taints    []lifecycle.Taint
	renewed   unit.Wall      // renewTime of the Lease
	used      lifecycle.Load // requests of the bound pods

	lastSign unit.Instant     // the last renewal or report that the controller may have received
	noted    lifecycle.Status // the Ready status that was last written to the trace
	pods     []*pod
}

// The allocatable resources of a node: a medium-sized server.
var allocatable = lifecycle.Load{CPU: 32 * unit.CPU, Memory: 128 * unit.GiB, Pods: 110}

func newNode(w *world, i int) *node {
	n := &node{w: w, name: nodeName(i), zone: zoneName(i % w.o.Zones)}
	n.beat = heartbeat.New(heartbeat.Config{RuntimeEvery: -1, RuntimeMax: -1, MainLoopMax: -1, Seed: fault.Chance(w.o.Seed,
		n.name)}, w.now)
	n.attemptMax = n.beat.AttemptMax()
	n.order = fault.Chance(w.o.Shuffle, n.name)
	return n
}

// schedule makes n step at this moment, with all facts of it.
func (n *node) schedule(facts ...heartbeat.Fact) {
	n.inbox = append(n.inbox, facts...)
	if !n.isDue {
		n.isDue = true
		n.w.due = append(n.w.due, n)
	}
}

// step simulates the node's I/O. internal/fleet does the same with a real API server. The facts of one moment are
// processed in the order of their kinds.
func (n *node) step() {
	w, seen := n.w, n.inbox
	n.inbox, n.isDue = n.inbox[:0], false
	slices.SortStableFunc(seen, func(a, b heartbeat.Fact) int { return int(a.Kind) - int(b.Kind) })
	seen = n.applyFault(seen)
	if n.effect.Silent {
		for _, s := range seen {
			if !slices.Contains(n.missed, s) {
				n.missed = append(n.missed, s)
			}
		}
		n.setWake(n.changes)
		return
	}
	d := n.beat.Step(w.now, seen...)
	for d.Compute {
		n.act(d)
		d = n.beat.Step(w.now, heartbeat.Fact{Kind: heartbeat.Computed, OK: true, Changed: n.differs()})
	}
	n.act(d)
	n.setWake(d.Wake.Earlier(n.changes))
	if n.mayCoast() {
		n.coasted(n.coast())
	}
}

// applyFault updates the effect of n's fault, and returns the facts for its Beat.
func (n *node) applyFault(seen []heartbeat.Fact) []heartbeat.Fact {
	now := n.w.now
	if n.changes.IsZero() || now < n.changes {
		return seen
	}
	before := n.effect
	n.effect, n.changes = n.fault.Now(now)
	if before.Silent && !n.effect.Silent {
		seen, n.missed = append(n.missed, seen...), nil
	}
	if before.NotReady != n.effect.NotReady {
		seen = append(seen, heartbeat.Fact{Kind: heartbeat.Stale})
	}
	if lost := n.effect.Silent || n.effect.Cut; lost && !before.Silent && !before.Cut {
		n.w.loseContact(n)
	}
	if n.isStopped(before) && !n.isStopped(n.effect) {
		n.w.pods.resume(n)
	}
	return seen
}

func (n *node) isStopped(e fault.Effect) bool { return e.Silent || e.Cut || e.NotReady }

// reportedReady returns the Ready status that n reports.
func (n *node) reportedReady() lifecycle.Status {
	if n.effect.NotReady {
		return lifecycle.False
	}
	return lifecycle.True
}

func (n *node) differs() bool { return n.exists && n.ready != n.reportedReady() }

func (n *node) setWake(at unit.Instant) {
	switch {
	case at.IsZero():
		n.w.wakes.Remove(n)
	case at != n.wake || !n.w.wakes.Has(n):
		n.wake = at
		n.w.wakes.Set(n)
	}
}

func (n *node) act(d heartbeat.Decision) {
	for _, a := range []struct {
		wanted bool
		kind   heartbeat.FactKind
	}{{d.Register, heartbeat.Registered}, {d.Renew, heartbeat.Renewed}, {d.Report, heartbeat.Reported}} {
		if a.wanted {
			n.request(a.kind)
		}
	}
}

// request makes one request. Its content is that of the moment when it is sent.
func (n *node) request(kind heartbeat.FactKind) {
	w := n.w
	sent := n.w.now
	ready := n.reportedReady()
	took := latency + n.effect.Delay
	lost := n.effect.Cut || took >= n.attemptMax
	if lost {
		took = n.attemptMax
	}
	n.busy++
	w.after(took, func() {
		n.busy--
		ok := !lost && !w.apiDown
		if ok {
			n.write(kind, sent, ready)
		}
		n.schedule(heartbeat.Fact{Kind: kind, OK: ok})
	})
}

// write executes a request in the simulated API server.
func (n *node) write(kind heartbeat.FactKind, sent unit.Instant, ready lifecycle.Status) {
	n.lastSign = n.w.now
	switch kind {
	case heartbeat.Renewed:
		n.renewed = n.w.wall(sent)
		n.w.leaseChanged(n)
		return
	case heartbeat.Registered:
		n.exists = true
	}
	n.setReady(ready, n.w.wall(sent))
	n.w.nodeChanged(n)
}

// setReady sets all conditions to what a node reports.
func (n *node) setReady(ready lifecycle.Status, heartbeat unit.Wall) {
	if n.ready != ready {
		n.changed = n.w.wall(n.w.now)
	}
	n.ready = ready
	n.pressure = lifecycle.False
	n.heartbeat = heartbeat
}

// shown returns the node as it is in the API.
func (n *node) shown() lifecycle.Node {
	return lifecycle.Node{
		Name: n.name, UID: n.name, Created: epoch, Heartbeat: n.heartbeat, Changed: n.changed,
		Status: map[lifecycle.ConditionType]lifecycle.Status{
			lifecycle.Ready: n.ready, lifecycle.MemoryPressure: n.pressure, lifecycle.DiskPressure: n.pressure,
			lifecycle.PIDPressure: n.pressure,
		},
		Taints: slices.Clone(n.taints), Zone: n.zone, Allocatable: allocatable,
	}
}

// mayCoast reports whether nothing happens to n until the horizon or its next change.
func (n *node) mayCoast() bool {
	unchanged := n.changes.IsZero() || n.changes > n.w.now
	return !n.w.o.Exact && n.exists && n.busy == 0 && !n.isDue && unchanged &&
		n.effect == (fault.Effect{Delay: n.effect.Delay}) && n.effect.Delay+latency < n.attemptMax && !n.w.apiDown &&
		!n.differs()
}

// coast simulates n's heartbeats up to the moment when something may happen. It modifies only n.
func (n *node) coast() (renewed, reported unit.Instant) {
	return n.beat.Coast(n.w.horizon.Earlier(n.changes), latency+n.effect.Delay)
}

// coasted applies the result of coast to the API and to the controller.
func (n *node) coasted(renewed, reported unit.Instant) {
	w := n.w
	if renewed.IsZero() && reported.IsZero() {
		return
	}
	if !renewed.IsZero() {
		n.renewed = w.wall(renewed)
	}
	if !reported.IsZero() {
		n.heartbeat = w.wall(reported)
	}
	n.lastSign = max(renewed, reported).Add(latency + n.effect.Delay)
	w.control.monitor.AssumeSigns(w.now, n.lastSign, n.name, n.renewed, n.heartbeat)
	n.setWake(n.beat.Step(w.now).Wake.Earlier(n.changes))
}

// coastAll lets every node coast that may, on all processors, since the nodes are independent.
func (w *world) coastAll() {
	if w.o.Exact || w.apiDown {
		return
	}
	type result struct{ renewed, reported unit.Instant }
	results := make([]result, len(w.nodes))
	var all sync.WaitGroup
	parts := runtime.GOMAXPROCS(0)
	for part := range parts {
		all.Go(func() {
			for i := part; i < len(w.nodes); i += parts {
				if n := w.nodes[i]; n.mayCoast() {
					results[i].renewed, results[i].reported = n.coast()
				}
			}
		})
	}
	all.Wait()
	for i, r := range results {
		w.nodes[i].coasted(r.renewed, r.reported)
	}
}
