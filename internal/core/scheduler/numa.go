package scheduler

import (
	"cmp"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/encode"
)

// belief is what a node's agent will think of its NUMA nodes when every pod that counts on the row has arrived: its
// last report, and on top of it the pods that the report does not have. Each lies where it was offered a place when it
// was placed itself, and takes that along with its bind (numa.Berth): the agent makes the same offers, and lays pods in
// their berths also where more is free by then. So what is believed is what will be, and what is believed to be free is
// free; a report takes the place of what was believed until then. Pods that others bound, without a berth, are let in
// as the agent would, in the order in which they came.
//
// A pod that is gone from the API but still in the report counts until the agent has let go of what it owned; one that
// was in a report and is in the last no more has ended, whatever the API still says. A pod that the agent will refuse,
// as others than us may bind one, counts for nothing here.
type belief struct {
	report *numa.State // never changed
	state  *numa.State // with the pods on top; nil: to be made anew
	alike  *alike      // of state

	// While pods are counted or left out for the sake of a question: which, and the state without or with them.
	lifted  map[PodID]bool
	passing *numa.State
}

// alike is what was said of states that offers cannot tell apart. Thousands of nodes of one kind share a few of them.
type alike struct {
	key      alikeKey
	refs     int // beliefs
	verdicts map[string]numaVerdict
}

type alikeKey struct {
	layout *numa.Layout
	state  string // numa.State.AppendLikeness
}

// verdictsMax bounds the verdicts kept for one kind of state. Chosen: more kinds of pods than wait at a time. Below the
// number of kinds that come in turn, offers are made anew (some microseconds each); each costs about 200 bytes.
const verdictsMax = 64

// numaVerdict is the answer to an offer.
type numaVerdict struct {
	reason string // of the refusal; empty: admitted
	final  bool   // an empty machine would refuse, too
}

// setReport takes note of what the agent of a node says; nil: nothing any more. changed: pods may be judged otherwise
// now.
func (c *cluster) setReport(node string, report *numa.State) (r row, changed bool) {
	r = c.rowOf(node)
	b := c.beliefs[r]
	if report == nil {
		if b == nil {
			c.release(r)
			return r, false
		}
		c.forgetAlike(b)
		c.beliefs[r] = nil
		c.touch(r)
		c.waits.gained(r)
		c.release(r)
		return r, true
	}
	var before alikeKey
	if b == nil {
		b = &belief{}
		c.beliefs[r] = b
	} else {
		before = c.settle(r, b).alike.key
	}
	b.report, b.state = report, nil
	if changed = c.settle(r, b).alike.key != before; changed {
		c.touch(r)
		c.waits.gained(r)
	}
	return r, changed
}

// settle makes the state of b, if something happened that it does not follow from by adding a pod.
func (c *state) settle(r row, b *belief) *belief {
	if b.state != nil {
		return b
	}
	var late []*held
	for _, h := range c.held[r] {
		if h.class.numa != nil && b.isLate(h) {
			late = append(late, h)
		}
	}
	slices.SortFunc(late, func(a, b *held) int { return cmp.Compare(a.turn, b.turn) })
	b.state = b.report
	for _, h := range late {
		b.add(h)
	}
	c.liken(b)
	return b
}

// isLate reports whether h has yet to arrive.
func (b *belief) isLate(h *held) bool {
	_, reported := b.report.Assignment(string(h.id))
	h.arrived = h.arrived || reported
	return !h.arrived
}

// add lets h arrive. A pod with a berth lies there, even if the report has somebody else there: that one has ended
// since the report was made, or h could not have been promised its place.
func (b *belief) add(h *held) {
	lies := h.lies
	if lies == nil {
		p := h.class.numaPod(h.id)
		p.Berth = h.berth
		offer, refusal := b.state.Offer(p, nil)
		if refusal != nil || !offer.Assignment.Owns() {
			return
		}
		if lies = &offer.Assignment; h.berth != nil {
			h.lies = lies
		}
	}
	if b.state == b.report {
		b.state = b.report.Fork()
	}
	b.state.Adopt(*lies)
}

// liken finds the verdicts of b's state.
func (c *state) liken(b *belief) {
	c.scratch = b.state.AppendLikeness(c.scratch[:0])
	if b.alike != nil && b.alike.key.layout == b.state.Layout() && b.alike.key.state == string(c.scratch) {
		return
	}
	c.forgetAlike(b)
	key := alikeKey{b.state.Layout(), string(c.scratch)}
	a := c.alikes[key]
	if a == nil {
		a = &alike{key: key, verdicts: map[string]numaVerdict{}}
		c.alikes[key] = a
	}
	a.refs++
	b.alike = a
}

func (c *state) forgetAlike(b *belief) {
	if a := b.alike; a != nil {
		if a.refs--; a.refs == 0 {
			delete(c.alikes, a.key)
		}
		b.alike = nil
	}
}

// berth is where a pod that was just placed is expected to lie; nil: it owns nothing, or nobody knows.
func (c *cluster) berth(id PodID) numa.Berth {
	h := c.pods[id]
	b := c.beliefs[h.Row]
	if b == nil || h.class.numa == nil {
		return nil
	}
	a, known := c.settle(h.Row, b).state.Assignment(string(id))
	if !known || !a.Owns() {
		return nil
	}
	h.lies, h.berth = &a, a.Berth()
	return h.berth
}

// countNUMA notes that h came to its row (sign 1) or left it.
func (c *cluster) countNUMA(h *held, sign int64) {
	b := c.beliefs[h.Row]
	if b == nil || h.class.numa == nil || b.state == nil || !b.isLate(h) {
		return
	}
	if sign < 0 || slices.ContainsFunc(c.held[h.Row], func(o *held) bool { return o.turn > h.turn }) {
		b.state = nil // those after it get something else
		return
	}
	b.add(h)
	c.liken(b)
}

// liftNUMA counts or leaves out h for the sake of a question: what a pod on the row owns is free without it; a pod that
// is not there takes what it would be offered.
func (c *state) liftNUMA(h *held, sign int64) {
	b := c.beliefs[h.Row]
	if b == nil || h.class.numa == nil {
		return
	}
	c.settle(h.Row, b)
	if b.passing == nil {
		b.passing, b.lifted = b.state.Fork(), map[PodID]bool{}
	}
	if b.lifted[h.id] {
		delete(b.lifted, h.id)
	} else {
		b.lifted[h.id] = true
	}
	switch {
	case len(b.lifted) == 0:
		b.passing, b.lifted = nil, nil
	case sign < 0:
		b.passing.Release(string(h.id))
	default:
		if owned, known := b.state.Assignment(string(h.id)); known {
			b.passing.Adopt(owned)
		} else if offer, refusal := b.passing.Offer(h.class.numaPod(h.id), nil); refusal == nil {
			_ = b.passing.Commit(offer) // nothing came between
		}
	}
}

// judgeNUMA asks what the agent of row r would say to d.
func (c *state) judgeNUMA(d *demand, r row) numaVerdict {
	b := c.beliefs[r]
	if b == nil || d.numa == nil {
		return numaVerdict{}
	}
	c.settle(r, b)
	if b.passing != nil {
		return offerTo(b.passing, d)
	}
	v, known := b.alike.verdicts[d.numaKey]
	if !known {
		if len(b.alike.verdicts) == verdictsMax {
			clear(b.alike.verdicts)
		}
		v = offerTo(b.state, d)
		b.alike.verdicts[d.numaKey] = v
	}
	return v
}

func offerTo(s *numa.State, d *demand) numaVerdict {
	_, refusal := s.Offer(d.numaPod(""), nil)
	if refusal == nil {
		return numaVerdict{}
	}
	empty := s.Fork()
	for _, a := range empty.Assignments() {
		empty.Release(a.Pod)
	}
	_, final := empty.Offer(d.numaPod(""), nil)
	return numaVerdict{reason: refusal.Upstream, final: final != nil}
}

// detailNUMA is the refusal with all its numbers.
func (c *state) detailNUMA(d *demand, r row) string {
	s := c.settle(r, c.beliefs[r]).state
	if c.beliefs[r].passing != nil {
		s = c.beliefs[r].passing
	}
	if _, refusal := s.Offer(d.numaPod(""), nil); refusal != nil {
		return refusal.Message()
	}
	return ""
}

// numaPod is what a pod of the class asks of its node's agent.
func (k *class) numaPod(id PodID) numa.Pod {
	p := *k.numa
	p.UID = string(id)
	return p
}

// appendNUMA writes what a pod asks, so that pods that ask the same share verdicts.
func appendNUMA(b []byte, p *numa.Pod) []byte {
	if p == nil {
		return append(b, 0)
	}
	b = encode.Bool(encode.Bool(append(b, 1), p.Guaranteed), p.PodLevel)
	for _, list := range [][]numa.Container{p.Init, p.Containers} {
		b = encode.Number(b, int64(len(list)))
		for i := range list {
			k := &list[i]
			b = encode.Number(encode.Bool(encode.String(b, k.Name), k.Sidecar), int64(k.CPU))
			b = encode.Number(b, int64(len(k.Memory)))
			for _, m := range k.Memory {
				b = encode.Number(encode.Number(b, int64(m.PageSize)), int64(m.Bytes))
			}
			b = encode.Number(b, int64(len(k.Devices)))
			for _, d := range k.Devices {
				b = encode.Number(encode.String(b, d.Resource), int64(d.Count))
			}
		}
	}
	return b
}
