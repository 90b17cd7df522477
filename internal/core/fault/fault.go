// Package fault is the language in which faults of nodes are ordered, and computes what they do to a node over time.
// The fleet of hollow nodes (in real time) and the simulator (in virtual time) use the same language.
//
// # Model
//
// An Order names a kind of fault, the nodes that get it, and its duration. It is written as one line, the same on a
// command line and in a script, where "at DURATION" may come first:
//
//	silence count=50 zone=zone-1 for=10m
//	at 30s partition zone=zone-0
//	at 5m  return
//
// Order.Pick chooses the nodes of an order, and Order.Begin makes one Fault for each of them. Fault.Now says what the
// fault does to its node at a moment, and when that changes.
//
// # Vocabulary
//
//	silence    the node's process does not run: it sends and receives nothing; afterwards it continues where it was
//	partition  the node runs but its requests get no answer: it retries with its back-off
//	slow       every request takes longer, by delay=
//	flap       alternates between silence for down= and normal operation for up=
//	notready   the node is alive and reports that its container runtime is down
//	return     ends the fault that the node has
//
// # Invariants
//
//   - A node has at most one fault: a new order replaces the previous fault of the nodes that it picks.
//   - The same orders, seed and nodes give the same picks and the same course.
//   - An order that was written by String can be read by Parse.
package fault

import (
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Kind is a kind of fault.
type Kind string

// The kinds of faults.
const (
	Silence   Kind = "silence"
	Partition Kind = "partition"
	Slow      Kind = "slow"
	Flap      Kind = "flap"
	NotReady  Kind = "notready"
	Return    Kind = "return"
)

// Order is one fault for some nodes.
type Order struct {
	At time.Duration // since the script began; zero: at once
	// Kind is what goes wrong, Select for which nodes.
	Kind   Kind
	Select Selector
	For    time.Duration // how long; zero: until Return
	Delay  time.Duration // for Slow: how much longer each request takes
	Up     time.Duration // for Flap: how long the node runs between two silences
	Down   time.Duration // for Flap: how long each silence lasts
}

// Fault is the fault of one node. The zero Fault is none. It does not change after Begin.
type Fault struct {
	kind        Kind
	from, until unit.Instant // until zero: until another order
	delay       time.Duration
	up, down    time.Duration
}

// Begin makes the order's fault for a node that starts at now. A flapping node starts its first silence at a moment
// within one period that follows from chance, so that nodes do not flap together. chance is a random number of this
// node.
func (o Order) Begin(now unit.Instant, chance uint64) Fault {
	if o.Kind == Return {
		return Fault{}
	}
	f := Fault{kind: o.Kind, from: now, delay: o.Delay, up: o.Up, down: o.Down}
	if o.For > 0 {
		f.until = now.Add(o.For)
	}
	if o.Kind == Flap {
		f.from = now.Add(time.Duration(chance % uint64(o.Up+o.Down)))
	}
	return f
}

// Effect is what a fault does to a node at a moment.
type Effect struct {
	Silent   bool          // the process does not run
	Cut      bool          // its requests get no answer
	NotReady bool          // it reports that its runtime is down
	Delay    time.Duration // its requests take longer by this
}

// Now returns the effect of f at now, and when it changes next; zero: only by another order.
func (f Fault) Now(now unit.Instant) (e Effect, next unit.Instant) {
	if f.Kind(now) == "" {
		return Effect{}, 0
	}
	next = f.until
	switch f.kind {
	case Silence:
		e.Silent = true
	case Partition:
		e.Cut = true
	case NotReady:
		e.NotReady = true
	case Slow:
		e.Delay = f.delay
	case Flap:
		if now < f.from {
			return e, next.Earlier(f.from)
		}
		period := f.up + f.down
		into := now.Sub(f.from) % period
		start := now.Add(-into)
		if e.Silent = into < f.down; e.Silent {
			next = next.Earlier(start.Add(f.down))
		} else {
			next = next.Earlier(start.Add(period))
		}
	}
	return e, next
}

// Kind returns the kind of fault at now; empty if there is none or it is over.
func (f Fault) Kind(now unit.Instant) Kind {
	if !f.until.IsZero() && now >= f.until {
		return ""
	}
	return f.kind
}
