package placement

import (
	"slices"
	"strconv"
)

// passesNodeAffinity demands every label of the node selector and, if there are required affinity terms, one that
// matches; and one of those that the profile adds.
func passesNodeAffinity(c *cluster, d *demand, r row) bool {
	return addedAllows(c, d.profile, r) && affinityAllows(c, d.class, r)
}

func addedAllows(c *cluster, p *profile, r row) bool { return !p.hasAdded || c.anyMatches(p.added, r) }

// affinityAllows leaves out what the profile adds: spread constraints go by the pod's own words.
func affinityAllows(c *cluster, k *class, r row) bool {
	for _, want := range k.nodeSelector {
		if value, ok := c.label(r, want.key); !ok || value != want.value {
			return false
		}
	}
	return !k.hasTerms || c.anyMatches(k.nodeTerms, r)
}

func (c *cluster) anyMatches(terms []compiledTerm, r row) bool {
	for i := range terms {
		if c.termMatches(&terms[i], r) {
			return true
		}
	}
	return false
}

func explainNodeAffinity(c *cluster, d *demand, r row, reasons []string) []string {
	if !addedAllows(c, d.profile, r) {
		return append(reasons, "node(s) didn't match scheduler-enforced node affinity")
	}
	return append(reasons, "node(s) didn't match Pod's node affinity/selector")
}

func (c *cluster) termMatches(t *compiledTerm, r row) bool {
	if t.never {
		return false
	}
	for i := range t.labels {
		if !c.requirementMatches(&t.labels[i], r) {
			return false
		}
	}
	for _, q := range t.names {
		if slices.Contains(q.Values, c.name[r]) != (q.Op == In) {
			return false
		}
	}
	return true
}

func (c *cluster) requirementMatches(q *compiledRequirement, r row) bool {
	value, ok := c.label(r, q.key)
	switch q.op {
	case Exists:
		return ok
	case DoesNotExist:
		return !ok
	case In:
		return ok && slices.Contains(q.values, value)
	case NotIn:
		return !ok || !slices.Contains(q.values, value) // a node without the label is not in any set
	}
	if !ok {
		return false
	}
	n, err := strconv.ParseInt(c.intern.text(value), 10, 64)
	if err != nil {
		return false
	}
	if q.op == Gt {
		return n > q.bound
	}
	return n < q.bound
}

func narrowNodeAffinity(c *cluster, d *demand, m mask) {
	if p := d.profile; p.hasAdded {
		c.scratch = appendString(append(c.scratch[:0], asksAdded), p.Name)
		c.narrowBy(m, c.scratch, func(r row) bool { return addedAllows(c, p, r) })
	}
	if k := d.class; len(k.nodeSelector) > 0 || k.hasTerms {
		c.scratch = append(append(c.scratch[:0], asksAffinity), k.affinityKey...)
		c.narrowBy(m, c.scratch, func(r row) bool { return affinityAllows(c, k, r) })
	}
}
