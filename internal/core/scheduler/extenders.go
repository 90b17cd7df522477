package scheduler

import (
	"iter"
	"maps"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/queue"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// An ExtenderAnswer is the answer of extenders about the nodes for one pod (Pod.AsksExtenders).
type ExtenderAnswer struct {
	// Nodes are the nodes that no extender rejected, each with the points that are added to its weighted score.
	Nodes map[string]int64
	// Rejected has the reasons for the nodes that an extender rejected.
	Rejected map[string]string
}

// extenderNodes returns the nodes about which extenders are to be asked for a pod: those on which it fits, or only the
// one on which it is nominated, if it fits there. If there are none, extenders are not asked.
func (p *Placer) extenderNodes(e *entry) (names []string) {
	c := p.cluster
	e.demand = c.demandOf(e.class, e.who, e.pod.Owner)
	if w := c.nominations[e.pod.ID]; w != nil && c.Present(w.Row) && c.feasible(e.demand, e.pod.ID, w.Row) {
		return []string{c.name[w.Row]}
	}
	for r := range c.candidates(e.demand) {
		if c.seen[r] && c.feasible(e.demand, e.pod.ID, r) {
			names = append(names, c.name[r])
		}
	}
	slices.Sort(names)
	return names
}

// waitingForExtenders returns the pending pod about which extenders are being asked; nil: there is none with this ID.
func (p *Placer) waitingForExtenders(id PodID) *entry {
	if p.cluster.isAssumed(id) {
		return nil
	}
	return p.queue.in(queue.Binding, id)
}

// ExtendersAnswered records the answer of extenders about a pod. The pod becomes active. Answers about pods that are
// gone or placed are ignored.
func (p *Placer) ExtendersAnswered(now unit.Instant, id PodID, o ExtenderAnswer) {
	if e := p.waitingForExtenders(id); e != nil {
		e.answer = &o
		p.queue.Resume(e)
	}
}

// ExtendersFailed records that extenders failed to answer, or answered with an error: the pod is tried again after its
// back-off.
func (p *Placer) ExtendersFailed(now unit.Instant, id PodID) {
	if e := p.waitingForExtenders(id); e != nil {
		p.queue.BindFailed(now, e, false)
	}
}

// chooseAnswered is choose among the nodes that the extenders did not reject. The rules are evaluated again, because
// facts may have changed since the extenders were asked.
func (c *cluster) chooseAnswered(d *demand, self PodID, o *ExtenderAnswer) choice {
	c.extenderScores = map[row]int64{}
	defer func() { c.extenderScores = nil }()
	for name, score := range o.Nodes {
		if r, ok := c.rows[name]; ok {
			c.extenderScores[r] = score
		}
	}
	left := slices.Sorted(maps.Keys(c.extenderScores))
	made := c.chooseAmong(d, self, iter.Seq[row](slices.Values(left)), len(left))
	if made.failure != nil && len(o.Rejected) > 0 {
		failure := *made.failure
		failure.Reasons = maps.Clone(failure.Reasons)
		for _, why := range o.Rejected {
			failure.Reasons[why]++
		}
		made.failure = &failure
	}
	return made
}
