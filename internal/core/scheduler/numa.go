package scheduler

import (
	"cmp"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/encode"
)

// expectedNUMA is the state of a node's NUMA nodes when every pod on the row has arrived there: the agent's last
// report, plus the pods that the report does not have yet.
//
// Such a pod has the CPUs and NUMA nodes that it was offered when it was placed. Its bind carries them (numa.Berth).
// The agent computes the same offers, and assigns exactly these even if more is free by then. So the agent will arrive
// at the computed state. A new report replaces the computed state. Pods that were bound by others, without a Berth, are
// added as the agent would admit them, in the order in which they came.
//
// A pod that is deleted from the API but is still in the report counts until the agent has released what was assigned
// to it. A pod that was in a report and is not in the last one has ended, whatever the API says. A pod that the agent
// will reject does not count; only other schedulers bind such pods.
type expectedNUMA struct {
	report   *numa.State   // never nil, never changed in place
	state    *numa.State   // report with the other pods added; nil: to be computed
	verdicts *numaVerdicts // what is shared with equal states

	// The pods that a trial adds or removes, and the state after that; nil: there is no trial.
	inTrial map[PodID]bool
	trial   *numa.State
}

// numaVerdicts has the verdicts for all states that Offer cannot distinguish. Thousands of nodes of one type share a
// few.
type numaVerdicts struct {
	key  numaStateKey
	refs int // how many rows have this state
	// byPod has the verdicts that were asked for, by class.numaKey; at most verdictsMax.
	byPod map[string]numaVerdict
}

type numaStateKey struct {
	layout *numa.Layout
	state  string // numa.State.AppendLikeness
}

// verdictsMax limits the verdicts kept for one state. Chosen: pods with so many different requests hardly ever wait at
// the same time. If they do, offers are recomputed (some microseconds each). Each verdict takes about 200 bytes.
const verdictsMax = 64

// numaVerdict is the answer of an offer for pods with equal requests.
type numaVerdict struct {
	reason string // of the rejection, in upstream's words; empty: admitted
	final  bool   // the node would reject the pod even without any other pods
}

// setReport records the report of a node's agent; nil: there is none any more. changed says that pods may be judged
// differently now.
func (c *cluster) setReport(node string, report *numa.State) (r row, changed bool) {
	r = c.rowOf(node)
	b := c.expected[r]
	if report == nil {
		if b == nil {
			c.dropRowIfEmpty(r)
			return r, false
		}
		c.dropVerdicts(b)
		c.expected[r] = nil
		c.rowChanged(r)
		c.waits.roomGained(r)
		c.dropRowIfEmpty(r)
		return r, true
	}
	var before numaStateKey
	if b == nil {
		b = &expectedNUMA{}
		c.expected[r] = b
	} else {
		before = c.computeNUMA(r, b).verdicts.key
	}
	b.report, b.state = report, nil
	if changed = c.computeNUMA(r, b).verdicts.key != before; changed {
		c.rowChanged(r)
		c.waits.roomGained(r)
	}
	return r, changed
}

// computeNUMA computes the state of b, if it is not known.
func (c *state) computeNUMA(r row, b *expectedNUMA) *expectedNUMA {
	if b.state != nil {
		return b
	}
	var late []*placedPod
	for _, h := range c.podsOn[r] {
		if h.class.numa != nil && b.isLate(h) {
			late = append(late, h)
		}
	}
	slices.SortFunc(late, func(a, b *placedPod) int { return cmp.Compare(a.order, b.order) })
	b.state = b.report
	for _, h := range late {
		b.add(h)
	}
	c.shareVerdicts(b)
	return b
}

// isLate reports whether h has not arrived on the node yet.
func (b *expectedNUMA) isLate(h *placedPod) bool {
	_, reported := b.report.Assignment(string(h.id))
	h.arrived = h.arrived || reported
	return !h.arrived
}

// add adds h to the state. A pod with a Berth gets it even if another pod has it in the report: h was offered it
// because that pod has ended since the report.
func (b *expectedNUMA) add(h *placedPod) {
	assigned := h.assigned
	if assigned == nil {
		p := h.class.numaPod(h.id)
		p.Berth = h.berth
		offer, rejection := b.state.Offer(p, nil)
		if rejection != nil || !offer.Assignment.Owns() {
			return
		}
		if assigned = &offer.Assignment; h.berth != nil {
			h.assigned = assigned
		}
	}
	if b.state == b.report {
		b.state = b.report.Fork()
	}
	b.state.Adopt(*assigned)
}

// shareVerdicts finds the verdicts for b's state, which it shares with equal states.
func (c *state) shareVerdicts(b *expectedNUMA) {
	c.scratch = b.state.AppendLikeness(c.scratch[:0])
	if b.verdicts != nil && b.verdicts.key.layout == b.state.Layout() && b.verdicts.key.state == string(c.scratch) {
		return
	}
	c.dropVerdicts(b)
	key := numaStateKey{b.state.Layout(), string(c.scratch)}
	a := c.numaVerdicts[key]
	if a == nil {
		a = &numaVerdicts{key: key, byPod: map[string]numaVerdict{}}
		c.numaVerdicts[key] = a
	}
	a.refs++
	b.verdicts = a
}

func (c *state) dropVerdicts(b *expectedNUMA) {
	if a := b.verdicts; a != nil {
		if a.refs--; a.refs == 0 {
			delete(c.numaVerdicts, a.key)
		}
		b.verdicts = nil
	}
}

// berth returns the CPUs and NUMA nodes that are expected for a pod that was just placed; nil: none are assigned, or
// the node has no report.
func (c *cluster) berth(id PodID) numa.Berth {
	h := c.pods[id]
	b := c.expected[h.Row]
	if b == nil || h.class.numa == nil {
		return nil
	}
	a, known := c.computeNUMA(h.Row, b).state.Assignment(string(id))
	if !known || !a.Owns() {
		return nil
	}
	h.assigned, h.berth = &a, a.Berth()
	return h.berth
}

// countNUMA records that h was put on its row (sign 1) or left it (sign -1).
func (c *cluster) countNUMA(h *placedPod, sign int64) {
	b := c.expected[h.Row]
	if b == nil || h.class.numa == nil || b.state == nil || !b.isLate(h) {
		return
	}
	if sign < 0 || slices.ContainsFunc(c.podsOn[h.Row], func(o *placedPod) bool { return o.order > h.order }) {
		b.state = nil // later pods may get something else
		return
	}
	b.add(h)
	c.shareVerdicts(b)
}

// numaInTrial adds h (sign 1) or removes it (sign -1) for a trial. What is assigned to a pod on the row is free without
// it. A pod that is not on the row gets what it would be offered.
func (c *state) numaInTrial(h *placedPod, sign int64) {
	b := c.expected[h.Row]
	if b == nil || h.class.numa == nil {
		return
	}
	c.computeNUMA(h.Row, b)
	if b.trial == nil {
		b.trial, b.inTrial = b.state.Fork(), map[PodID]bool{}
	}
	if b.inTrial[h.id] {
		delete(b.inTrial, h.id)
	} else {
		b.inTrial[h.id] = true
	}
	switch {
	case len(b.inTrial) == 0:
		b.trial, b.inTrial = nil, nil
	case sign < 0:
		b.trial.Release(string(h.id))
	default:
		if owned, known := b.state.Assignment(string(h.id)); known {
			b.trial.Adopt(owned)
		} else if offer, rejection := b.trial.Offer(h.class.numaPod(h.id), nil); rejection == nil {
			_ = b.trial.Commit(offer) // it cannot fail: the state has not changed since Offer
		}
	}
}

// judgeNUMA returns the answer of the agent of row r to d.
func (c *state) judgeNUMA(d *demand, r row) numaVerdict {
	b := c.expected[r]
	if b == nil || d.numa == nil {
		return numaVerdict{}
	}
	c.computeNUMA(r, b)
	if b.trial != nil {
		return offerTo(b.trial, d)
	}
	v, known := b.verdicts.byPod[d.numaKey]
	if !known {
		if len(b.verdicts.byPod) == verdictsMax {
			clear(b.verdicts.byPod)
		}
		v = offerTo(b.state, d)
		b.verdicts.byPod[d.numaKey] = v
	}
	return v
}

func offerTo(s *numa.State, d *demand) numaVerdict {
	_, rejection := s.Offer(d.numaPod(""), nil)
	if rejection == nil {
		return numaVerdict{}
	}
	empty := s.Fork()
	for _, a := range empty.Assignments() {
		empty.Release(a.Pod)
	}
	_, final := empty.Offer(d.numaPod(""), nil)
	return numaVerdict{reason: rejection.Upstream, final: final != nil}
}

// detailNUMA returns our message for the rejection on row r, which has the numbers; empty: there is no rejection.
func (c *state) detailNUMA(d *demand, r row) string {
	s := c.computeNUMA(r, c.expected[r]).state
	if c.expected[r].trial != nil {
		s = c.expected[r].trial
	}
	if _, rejection := s.Offer(d.numaPod(""), nil); rejection != nil {
		return rejection.Message()
	}
	return ""
}

// numaPod returns what a pod of the class requests of the node's agent.
func (k *class) numaPod(id PodID) numa.Pod {
	p := *k.numa
	p.UID = string(id)
	return p
}

// appendNUMA encodes what a pod requests of its node's agent, so that pods with equal requests share verdicts.
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
