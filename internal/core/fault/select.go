package fault

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Selector says which nodes get an order: Count or Percent of those in Zone and among Nodes. The zero Selector selects
// all.
type Selector struct {
	// Zone and Nodes: a node must match both; empty: any.
	Zone    string
	Nodes   []string
	Count   int // zero: all that match
	Percent int // of those that match, rounded up; zero: all
}

// Candidate is a node that may be picked.
type Candidate struct {
	Name, Zone string
	Faulty     bool // the node has a fault now
}

// Pick returns the indexes of the picked candidates, ordered by name. Return picks only nodes that have a fault. Other
// kinds prefer nodes without one. The seed decides between equal candidates.
func (o Order) Pick(seed uint64, from []Candidate) ([]int, error) {
	if err := o.Select.known(from); err != nil {
		return nil, fmt.Errorf("%s: %w", o, err)
	}
	var picked []int
	for i, c := range from {
		named := len(o.Select.Nodes) == 0 || slices.Contains(o.Select.Nodes, c.Name)
		if named && (o.Select.Zone == "" || c.Zone == o.Select.Zone) && (o.Kind != Return || c.Faulty) {
			picked = append(picked, i)
		}
	}
	byName := func(a, b int) int { return strings.Compare(from[a].Name, from[b].Name) }
	most := o.Select.most(len(picked))
	if most < len(picked) {
		rank := func(i int) uint64 { return Chance(seed, from[i].Name) }
		slices.SortFunc(picked, func(a, b int) int {
			return cmp.Or(wellFirst(from[a].Faulty, from[b].Faulty), cmp.Compare(rank(a), rank(b)), byName(a, b))
		})
		picked = picked[:most]
	}
	slices.SortFunc(picked, byName)
	return picked, nil
}

// known returns an error for a zone or name that no node has: a fault without nodes is a typing error.
func (s Selector) known(all []Candidate) error {
	if s.Zone != "" && !slices.ContainsFunc(all, func(c Candidate) bool { return c.Zone == s.Zone }) {
		var zones []string
		for _, c := range all {
			if !slices.Contains(zones, c.Zone) {
				zones = append(zones, c.Zone)
			}
		}
		slices.Sort(zones)
		return fmt.Errorf("zone %q: no node is in it; zones are %q", s.Zone, zones)
	}
	for _, name := range s.Nodes {
		if !slices.ContainsFunc(all, func(c Candidate) bool { return c.Name == name }) {
			return fmt.Errorf("node %q: there is no such node", name)
		}
	}
	return nil
}

func (s Selector) most(matching int) int {
	switch {
	case s.Count > 0:
		return min(s.Count, matching)
	case s.Percent > 0:
		return (matching*s.Percent + 99) / 100
	}
	return matching
}

func wellFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// Chance derives a number from a seed and a name: FNV-1a over the name, mixed with the seed by splitmix64's finalizer.
// The number of one node does not depend on the other nodes.
func Chance(seed uint64, name string) uint64 {
	h := uint64(14695981039346656037)
	for _, b := range []byte(name) {
		h = (h ^ uint64(b)) * 1099511628211
	}
	z := h + seed*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
