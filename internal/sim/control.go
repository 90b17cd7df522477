package sim

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/heartbeat"
	"github.com/plimsoll-dev/plimsoll/internal/core/lifecycle"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// control simulates the controller. Changes reach it at once; its writes take time.
type control struct {
	monitor *lifecycle.Monitor
	since   unit.Instant // when this process started
	contact unit.Instant // when the next probe of the API server is due
	scan    unit.Instant // when the next scan is due, if the policy scans
	sender
}

// order is a write that the Monitor has decided.
type order struct {
	lifecycle.Action
	decided unit.Instant
	left    int // how many of its requests have not been made
}

// startController starts a controller that knows only the objects in the API, which it gets in an arbitrary order.
func (w *world) startController() {
	w.control = control{monitor: lifecycle.New(w.now, w.healthOptions()), since: w.now, contact: w.now, scan: w.now,
		sender: newSender(w.now, w.policy)}
	order := slices.Clone(w.nodes)
	slices.SortFunc(order, func(a, b *node) int { return cmp.Compare(a.order, b.order) })
	for _, n := range order {
		if n.exists {
			w.control.monitor.NodeSeen(w.now, w.wall(w.now), n.shown())
			w.leaseChanged(n)
		}
	}
	for _, p := range w.pods.all {
		if !p.gone {
			w.podChanged(p)
		}
	}
}

func (w *world) nodeChanged(n *node) {
	if n.ready != n.noted {
		n.noted = n.ready
		w.note("ready", n.name+" "+statusNames[n.ready])
	}
	w.control.monitor.NodeSeen(w.now, w.wall(w.now), n.shown())
}

var statusNames = map[lifecycle.Status]string{lifecycle.Absent: "absent", lifecycle.True: "True",
	lifecycle.False: "False", lifecycle.Unknown: "Unknown"}

func (w *world) leaseChanged(n *node) {
	if n.renewed != 0 {
		w.control.monitor.LeaseSeen(w.now, w.wall(w.now), n.name, n.renewed)
	}
}

// step lets the controller decide, if that is due, and returns when it is due next.
func (c *control) step(w *world) (wake unit.Instant) {
	if w.now >= c.contact {
		c.monitor.Contact(w.now, !w.apiDown)
		c.contact = w.now.Add(contactEvery)
	}
	c.takeAnswers(w)
	if w.policy.Scan > 0 {
		if w.now < c.scan {
			return c.scan.Earlier(c.contact).Earlier(c.send(w))
		}
		c.scan = w.now.Add(w.policy.Scan)
	}
	d := c.monitor.Advance(w.now)
	for _, a := range d.Actions {
		c.put(&order{Action: a, decided: w.now})
	}
	wake = c.send(w)
	if w.policy.Scan > 0 {
		return c.scan.Earlier(c.contact).Earlier(wake)
	}
	return d.Wake.Earlier(c.contact).Earlier(wake)
}

// write executes a write of the controller in the simulated API server, with its consequences.
func (w *world) write(o *order) {
	m := w.control.monitor
	switch {
	case w.apiDown:
		m.Done(w.now, o.Action, false)
	case o.Pod != nil:
		w.writePod(o)
		m.Done(w.now, o.Action, true)
	default:
		w.writeNode(o)
		m.Done(w.now, o.Action, true)
	}
}

func (w *world) writeNode(o *order) {
	n := w.byName[o.Node]
	if len(o.Unknown) > 0 && n.lastSign >= o.decided {
		return // the lease was read again, and it is newer
	}
	if len(o.Unknown) > 0 {
		if n.ready != lifecycle.Unknown {
			n.changed = w.wall(w.now)
		}
		n.ready, n.pressure = lifecycle.Unknown, lifecycle.Unknown
		w.noteUnknown(n)
	}
	n.taints = slices.DeleteFunc(n.taints, func(t lifecycle.Taint) bool { return slices.ContainsFunc(o.Drop, t.Same) })
	for _, t := range o.Add {
		if t.Added == 0 {
			t.Added = w.wall(w.now)
		}
		n.taints = append(n.taints, t)
	}
	if o.StartsEvictions() {
		w.emptied++
	}
	w.note("node", fmt.Sprintf("%s unknown=%d +%v -%v", n.name, len(o.Unknown), o.Add, o.Drop))
	w.nodeChanged(n)
	if len(o.Unknown) > 0 && !n.effect.Silent && !n.effect.Cut {
		n.schedule(heartbeat.Fact{Kind: heartbeat.Stale})
	}
}
