// Package csinode decides what a node publishes about its CSI drivers, and when: entries of its CSINode object, node
// IDs and topology labels of its Node object, and when a driver is asked again how many volumes the node takes.
//
// # Model
//
// A State is told which drivers registered and left, and how each write and each question ended. It answers when to
// write and whom to ask. What to write is a function of the objects as they are and of the drivers (Merge,
// MergeLabels, MergeIDs): entries of drivers that this agent has not met stay.
//
// # Invariants
//
//   - One write is under way at a time. A change meanwhile leads to another write.
//   - A write that failed is repeated with back-off until it succeeds; a driver is usable on the node meanwhile.
//   - An entry whose node ID or topology keys change is removed in one write and added in the next, because the API
//     refuses such a change. No other entry is delayed by that.
//   - A label of the Node that has another value is never overwritten: volumes may be bound to that topology.
//   - A driver is asked again only if its CSIDriver object says so (nodeAllocatableUpdatePeriodSeconds): after each
//     period, and after an attachment that failed because the node had no room, but not more often than AskMin.
//
// These are the kubelet's rules (1.36, volume/csi and its nodeinfomanager). There a driver is not usable before the API
// server has accepted its entry.
package csinode

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

const (
	// AskMin is the shortest time between two questions after failed attachments (the shortest period that the API
	// accepts: 10 s).
	AskMin = 10 * time.Second
	// askAgain is the wait after a question that failed, unless the period is shorter (chosen).
	askAgain = 30 * time.Second
	// The waits after failed writes: each is twice the one before (chosen: shorter than a pod's own back-off, since
	// schedulers need the entry). After a conflict there is no wait.
	writeMin = 100 * time.Millisecond
	writeMax = 10 * time.Second
)

// Info is what a driver says about the node (NodeGetInfo).
type Info struct {
	NodeID   string
	Topology map[string]string
	// VolumesMax is how many volumes the node takes. 0: the driver sets no limit. Less than 0, which CSI forbids,
	// counts as 0.
	VolumesMax int64
}

// State knows what is published and what is to be published. It is for one goroutine at a time.
type State struct {
	drivers map[string]*driver
	removed map[string]bool // drivers that left, whose entries are still published

	writing bool          // a write is under way
	changed bool          // something changed after the last write began
	ready   bool          // there is a Node
	wait    time.Duration // the last wait; 0: the last write succeeded
	due     unit.Instant  // not before this moment; zero: at once
}

// driver is a registered driver.
type driver struct {
	info   Info
	period time.Duration // between questions; 0: it is not asked again
	asking bool
	asked  unit.Instant // when the last question ended
	next   unit.Instant // when the next question is due; zero: none
}

// New returns the State of a node that has no Node object and no drivers yet.
func New() *State {
	return &State{drivers: map[string]*driver{}, removed: map[string]bool{}, changed: true}
}

// NodeExists records that there is a Node object, perhaps a new one: everything is to be written.
func (s *State) NodeExists() {
	s.ready = true
	s.touch()
}

// Add records that a driver registered.
func (s *State) Add(now unit.Instant, name string, info Info, period time.Duration) {
	delete(s.removed, name)
	d := &driver{info: info, period: period, asked: now}
	d.schedule(now)
	s.drivers[name] = d
	s.touch()
}

// Remove records that a driver left.
func (s *State) Remove(name string) {
	if s.drivers[name] == nil {
		return
	}
	delete(s.drivers, name)
	s.removed[name] = true
	s.touch()
}

// SetPeriod records how often a driver is to be asked again; 0: never.
func (s *State) SetPeriod(now unit.Instant, name string, period time.Duration) {
	if d := s.drivers[name]; d != nil && d.period != period {
		d.period = period
		d.schedule(now)
	}
}

// Exhausted records that a volume could not be attached to the node since the node has no room for it.
func (s *State) Exhausted(now unit.Instant, name string) {
	d := s.drivers[name]
	if d == nil || d.period == 0 {
		return
	}
	at := d.asked.Add(AskMin)
	if at < now {
		at = now
	}
	d.next = d.next.Earlier(at)
}

// Asked takes a driver's answer to another question.
func (s *State) Asked(now unit.Instant, name string, info Info, err error) {
	d := s.drivers[name]
	if d == nil || !d.asking {
		return
	}
	d.asking, d.asked = false, now
	d.schedule(now)
	if err != nil {
		if d.period > 0 {
			d.next = d.next.Earlier(now.Add(askAgain))
		}
		return
	}
	if !d.info.equal(info) {
		d.info = info
		s.touch()
	}
}

// Written takes the outcome of a write. conflict: another client changed the object since it was read.
func (s *State) Written(now unit.Instant, conflict bool, err error) {
	s.writing = false
	switch {
	case err == nil:
		s.wait, s.due = 0, 0
		return
	case conflict:
		s.due = 0
	default:
		s.wait = max(writeMin, min(2*s.wait, writeMax))
		s.due = now.Add(s.wait)
	}
	s.changed = true
}

// Decision is what to do next. The shell reports how it ended: Asked, Written.
type Decision struct {
	Ask   []string // names of drivers
	Write bool     // what Drivers and Removed return now
	Wake  unit.Instant
}

// Step returns what to do now.
func (s *State) Step(now unit.Instant) Decision {
	var out Decision
	for _, name := range slices.Sorted(maps.Keys(s.drivers)) {
		d := s.drivers[name]
		switch {
		case d.asking || d.next.IsZero():
		case d.next <= now:
			d.asking = true
			out.Ask = append(out.Ask, name)
		default:
			out.Wake = out.Wake.Earlier(d.next)
		}
	}
	switch {
	case !s.ready || !s.changed || s.writing:
	case s.due <= now:
		s.writing, s.changed = true, false
		out.Write = true
	default:
		out.Wake = out.Wake.Earlier(s.due)
	}
	return out
}

// Drivers returns what the registered drivers said last.
func (s *State) Drivers() map[string]Info {
	out := map[string]Info{}
	for name, d := range s.drivers {
		out[name] = d.info
	}
	return out
}

// Removed returns the drivers that left since the agent started, and did not come back.
func (s *State) Removed() []string { return slices.Sorted(maps.Keys(s.removed)) }

// touch makes the next Step write, after the back-off if there is one.
func (s *State) touch() { s.changed = true }

// schedule sets when the next question is due.
func (d *driver) schedule(now unit.Instant) {
	d.next = 0
	if d.period > 0 {
		d.next = now.Add(d.period)
	}
}

func (i Info) equal(j Info) bool {
	return i.NodeID == j.NodeID && i.VolumesMax == j.VolumesMax && maps.Equal(i.Topology, j.Topology)
}

// Limits of the API (CSINode), in bytes.
const (
	nodeIDMax = 256
	labelMax  = 63
	domainMax = 253
)

// Check returns why the API would refuse what a driver answered; "": it would not.
func Check(i Info) string {
	switch {
	case i.NodeID == "":
		return "NodeGetInfo: node_id is empty: want the node's name in the storage system"
	case len(i.NodeID) > nodeIDMax:
		return fmt.Sprintf("NodeGetInfo: node_id has %d bytes: want at most %d", len(i.NodeID), nodeIDMax)
	}
	for _, key := range slices.Sorted(maps.Keys(i.Topology)) {
		domain, name, qualified := strings.Cut(key, "/")
		if !qualified {
			domain, name = "x", key
		}
		if !isLabel(name) || name == "" || !isLabel(domain) && len(domain) <= labelMax || len(domain) > domainMax ||
			domain == "" {
			return fmt.Sprintf("NodeGetInfo: accessible_topology key %.100q: want a label's name, like "+
				"topology.example.com/zone", key)
		}
		if value := i.Topology[key]; !isLabel(value) {
			return fmt.Sprintf("NodeGetInfo: accessible_topology %s: %.100q: want a label's value: "+
				"at most %d letters, digits, dashes, dots and underscores", key, value, labelMax)
		}
	}
	return ""
}

// isLabel applies the API's rule for values of labels. The API server applies the finer ones to the domains of names.
func isLabel(text string) bool {
	if len(text) > labelMax {
		return false
	}
	for i, c := range []byte(text) {
		inner := i > 0 && i < len(text)-1 && (c == '-' || c == '_' || c == '.')
		if letter := c|0x20 >= 'a' && c|0x20 <= 'z'; !letter && (c < '0' || c > '9') && !inner {
			return false
		}
	}
	return true
}
