package scheduler

import (
	"slices"
	"strings"
)

// namedRow is a present node.
type namedRow struct {
	name string
	row  row
}

// nameOrder is the present nodes in the order of names. Only questions need it, so it is brought up to date when it is
// read.
type nameOrder struct {
	all  []namedRow
	late []string // names of nodes that have come or gone since; they may do both
	lost bool     // there were too many of these: all must be made again
}

// lateMax is how many changes are made one by one. Chosen: each costs a search and a move of half of all names, so that
// a hundred cost about as much as sorting a few thousand names.
const lateMax = 100

// changed records that a node has come or gone.
func (o *nameOrder) changed(name string) {
	if o.lost {
		return
	}
	if len(o.late) == lateMax {
		*o = nameOrder{lost: true}
		return
	}
	o.late = append(o.late, name)
}

func (o *nameOrder) current(n *nodes) []namedRow {
	if o.lost {
		*o = nameOrder{all: make([]namedRow, 0, n.seenCount)}
		for name, r := range n.rows {
			if n.seen[r] {
				o.all = append(o.all, namedRow{name, r})
			}
		}
		slices.SortFunc(o.all, func(a, b namedRow) int { return strings.Compare(a.name, b.name) })
	}
	for _, name := range o.late {
		i, listed := slices.BinarySearchFunc(o.all, name, func(x namedRow, name string) int {
			return strings.Compare(x.name, name)
		})
		r, known := n.rows[name]
		switch present := known && n.seen[r]; {
		case present && listed:
			o.all[i].row = r
		case present:
			o.all = slices.Insert(o.all, i, namedRow{name, r})
		case listed:
			o.all = slices.Delete(o.all, i, i+1)
		}
	}
	o.late = o.late[:0]
	return o.all
}
