package remedy

import "cmp"

// cost says how large a list of changes is. Costs are compared by the fields in this order. No field is negative, so a
// part of a list never costs more than the list.
type cost struct {
	rules  int   // how many times a rule rejected the pod
	weight int   // the sum of weightOf
	share  int64 // the sum, over requests that are lowered and room that is made, of its share in the request, in ppm
}

func (a cost) plus(b cost) cost {
	return cost{rules: a.rules + b.rules, weight: a.weight + b.weight, share: a.share + b.share}
}

// compare is called for thousands of nodes, and mostly the first field or the second decides.
func (a cost) compare(b cost) int {
	if a.rules != b.rules {
		return cmp.Compare(a.rules, b.rules)
	}
	if a.weight != b.weight {
		return cmp.Compare(a.weight, b.weight)
	}
	return cmp.Compare(a.share, b.share)
}

// million is the whole of a share.
const million = 1_000_000

// weights order changes that concern as many rules. Chosen: what changes only how much comes before what changes what
// is allowed; then what gives up a wish of the pod's author; last what only a larger machine or the end of a failure
// brings. Only the order of sums matters.
var weights = map[Kind]int{
	LowerRequest:     1,
	SoftenSpread:     2,
	Tolerate:         3,
	DropSelector:     4,
	DropPort:         4,
	DropAntiAffinity: 4,
	DropNodeAffinity: 5,
	DropAffinity:     5,

	Uncordon:     1,
	FreeResource: 2,
	RemoveTaint:  2,
	SetLabel:     3,
	RemoveLabel:  3,
	GrowNode:     6,
	EndCondition: 8,
	AddNode:      7,
}

// Weights of special cases: a request that is dropped as a whole, and tolerating a failure of the node.
const (
	weightDropRequest       = 6
	weightTolerateCondition = 9
)

func weightOf(c *Change) int {
	switch {
	case c.Kind == LowerRequest && c.To == 0:
		return weightDropRequest
	case c.Kind == Tolerate && isCondition(c.Taint):
		return weightTolerateCondition
	}
	return weights[c.Kind]
}

// shareOf returns how large the change of an amount is, compared with what is asked for.
func shareOf(c *Change) int64 {
	switch {
	case c.Kind == LowerRequest && c.From > 0:
		return ppm(c.From-c.To, c.From)
	case (c.Kind == FreeResource || c.Kind == GrowNode) && c.To > 0:
		return ppm(c.To-c.From, c.To)
	}
	return 0
}

// ppm returns part/whole in millionths. Amounts go up to 2^52, so the part is scaled as a float.
func ppm(part, whole int64) int64 { return int64(float64(part) / float64(whole) * million) }

// costOf returns the cost of the changes that one rejection needs.
func costOf(changes []Change) cost {
	sum := cost{rules: 1}
	for i := range changes {
		sum.add(&changes[i])
	}
	return sum
}

// add adds what one change costs for the same rejection.
func (a *cost) add(c *Change) {
	a.weight += weightOf(c)
	a.share += shareOf(c)
}
