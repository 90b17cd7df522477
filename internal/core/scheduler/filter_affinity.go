package scheduler

import (
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/encode"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/rows"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/selector"
)

// PluginNodeAffinity is upstream's name of the rule about a node's labels and name, ReasonNodeAffinity what it says of
// a node that the pod's own terms do not allow.
const (
	PluginNodeAffinity = "NodeAffinity"
	ReasonNodeAffinity = "node(s) didn't match Pod's node affinity/selector"
)

type nodeAffinityFilter struct{}

func (nodeAffinityFilter) about() ruling {
	return ruling{
		rule:   RuleNodeAffinity,
		plugin: PluginNodeAffinity,
		ends:   byNode,
		reads:  podFields{"NodeSelector", "NodeAffinity"},
	}
}

func (nodeAffinityFilter) applies(d *demand) bool {
	return d.profile.hasAdded || len(d.nodeSelector) > 0 || d.hasTerms
}

// judge requires every label of the node selector, one matching term if there are required affinity terms, and one
// matching term of the profile's added affinity.
func (nodeAffinityFilter) judge(c *state, d *demand, r row) bool {
	return addedAllows(c, d.profile, r) && affinityAllows(c, d.class, r)
}

func (nodeAffinityFilter) final(*state, *demand, row) bool { return true }

func addedAllows(c *state, p *profile, r row) bool {
	return !p.hasAdded || c.someMatches(&p.added, r)
}

// affinityAllows leaves out the profile's added affinity: spread constraints use the pod's own affinity only.
func affinityAllows(c *state, k *class, r row) bool {
	return selector.HasAll(c.labels[r], k.nodeSelector) && (!k.hasTerms || c.someMatches(&k.nodeTerms, r))
}

// someMatches reports whether one of terms matches the node of row r.
func (c *state) someMatches(terms *selector.Terms, r row) bool {
	return c.intern.MatchSome(terms, c.name[r], c.labels[r])
}

// anyMatches reports whether one of terms matches the node of row r.
func (c *state) anyMatches(terms []selector.Term, r row) bool {
	return c.intern.MatchAny(terms, c.name[r], c.labels[r])
}

func (c *state) termMatches(t *selector.Term, r row) bool {
	return c.intern.Match(t, c.name[r], c.labels[r])
}

func (nodeAffinityFilter) explain(c *state, d *demand, r row, reasons []string) []string {
	if !addedAllows(c, d.profile, r) {
		return append(reasons, "node(s) didn't match scheduler-enforced node affinity")
	}
	return append(reasons, ReasonNodeAffinity)
}

func (nodeAffinityFilter) narrow(c *state, d *demand, m rows.Mask) {
	if p := d.profile; p.hasAdded {
		c.scratch = encode.String(append(c.scratch[:0], keyAdded), p.Name)
		c.narrowBy(m, c.scratch, func(r row) bool { return addedAllows(c, p, r) })
	}
	if k := d.class; len(k.nodeSelector) > 0 || k.hasTerms {
		c.scratch = append(append(c.scratch[:0], keyAffinity), k.affinityKey...)
		c.narrowBy(m, c.scratch, func(r row) bool { return affinityAllows(c, k, r) })
	}
}
