// Package fault is the language in which faults of nodes are ordered, and what they do to a node as time passes. The
// fleet of hollow nodes (in real time) and the simulator (in virtual time) obey the same orders.
//
// # Model
//
// An Order names a kind of fault, the nodes it is for, and for how long. It is written as one line, the same on a command
// line and in a script, where "at DURATION" stands before it:
//
//	silence count=50 zone=zone-1 for=10m
//	at 30s partition zone=zone-0
//	at 5m  return
//
// Selector.Pick turns an order into nodes, Order.Begin into one Fault for each of them. Fault.Now says what a node
// suffers at a moment, and when that changes.
//
// # Vocabulary
//
//	silence    the node's process does not run: it sends nothing and hears nothing; afterwards it goes on where it was
//	partition  the node runs but its requests get no answer: it tries on, with its back-off
//	slow       every request takes longer, by delay=
//	flap       silence and life in turn, for down= and up=
//	notready   the node is alive and reports that its container runtime is down
//	return     the end of whatever was ordered
//
// # Invariants
//
//   - A node has at most one fault: a new order replaces the one before, on the nodes it picks.
//   - Same orders, same seed, same nodes: same picks and the same course.
//   - An order that can be written can be read back (String, Parse).
package fault

import (
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Kind is what goes wrong.
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
	At     time.Duration // since the script began; zero: at once
	Kind   Kind
	Select Selector
	For    time.Duration // zero: until Return
	Delay  time.Duration // of Slow
	Up     time.Duration // of Flap
	Down   time.Duration // of Flap
}

// Fault is what one node suffers. The zero Fault is none.
type Fault struct {
	kind        Kind
	from, until unit.Instant // until zero: until another order
	delay       time.Duration
	up, down    time.Duration
}

// Begin makes the order's fault for a node from now on. Flapping nodes start their first silence at a moment that chance
// draws within one period, so that they do not flap in step; chance is a number of this node's own.
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

// Effect is what a node suffers at a moment.
type Effect struct {
	Silent   bool          // it does nothing
	Cut      bool          // its requests get no answer
	NotReady bool          // its runtime is down
	Delay    time.Duration // its requests take longer by this
}

// Now returns what f does at now, and when that changes next; zero: not by itself.
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

// Kind returns the kind of fault a node has at now; empty when it has none or it is over.
func (f Fault) Kind(now unit.Instant) Kind {
	if !f.until.IsZero() && now >= f.until {
		return ""
	}
	return f.kind
}
