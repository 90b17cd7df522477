package scheduler

import (
	"iter"
	"maps"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/queue"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// An Opinion is what others outside (upstream's extenders) said about nodes for one pod that asks them (Pod.Asks).
type Opinion struct {
	// Nodes are those that nobody rejected, and what is added to the score of each, on the scale of weighted scores.
	Nodes map[string]int64
	// Rejected is why they rejected the others of those they were asked about.
	Rejected map[string]string
}

// ask returns the nodes about which others are to be asked for a pod: those on which it fits by all rules, or the one
// on which room was made for it. None: there is nothing to ask.
func (p *Placer) ask(e *entry) (names []string) {
	c := p.cluster
	e.demand = c.demandOf(e.class, e.who, e.pod.Owner)
	if w := c.wishes[e.pod.ID]; w != nil && c.Present(w.Row) && c.feasible(e.demand, e.pod.ID, w.Row) {
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

// asked is the pending pod of an ID about which others are asked; nil: they are not.
func (p *Placer) asked(id PodID) *entry {
	if p.cluster.isAssumed(id) {
		return nil
	}
	return p.queue.in(queue.Binding, id)
}

// Heard folds in what others said about a pod: it is next in line again. About a pod that is gone or placed nothing is
// said.
func (p *Placer) Heard(now unit.Instant, id PodID, o Opinion) {
	if e := p.asked(id); e != nil {
		e.opinion = &o
		p.queue.Resume(e)
	}
}

// HeardNothing folds in that they did not answer, or not sensibly: the pod tries again after its back-off.
func (p *Placer) HeardNothing(now unit.Instant, id PodID) {
	if e := p.asked(id); e != nil {
		p.queue.BindFailed(now, e, false)
	}
}

// chooseHeard is choose among the nodes that an opinion leaves. What has happened since they were asked about counts
// too.
func (c *cluster) chooseHeard(d *demand, self PodID, o *Opinion) choice {
	c.heard = map[row]int64{}
	defer func() { c.heard = nil }()
	for name, score := range o.Nodes {
		if r, ok := c.rows[name]; ok {
			c.heard[r] = score
		}
	}
	left := slices.Sorted(maps.Keys(c.heard))
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
