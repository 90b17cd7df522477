package placement

import (
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/placement/encode"
)

// passesFeatures demands every node feature that the pod cannot do without.
func passesFeatures(c *cluster, d *demand, r row) bool {
	for _, f := range d.features {
		if _, has := slices.BinarySearch(c.features[r], f); !has {
			return false
		}
	}
	return true
}

// keyFeatures: it judges after rules that look around, so its answer is part of what tells rows apart.
func keyFeatures(c *cluster, d *demand, r row, key []int32) []int32 {
	if len(d.features) == 0 {
		return key
	}
	if passesFeatures(c, d, r) {
		return append(key, 1)
	}
	return append(key, 0)
}

func narrowFeatures(c *cluster, d *demand, m mask) {
	if k := d.class; len(k.features) > 0 {
		c.scratch = encode.Strings(append(c.scratch[:0], asksFeatures), k.features)
		c.narrowBy(m, c.scratch, func(r row) bool { return passesFeatures(c, &demand{class: k}, r) })
	}
}
