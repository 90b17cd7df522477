package rows

import "math/bits"

// A Mask is a set of rows, or of other small numbers, one bit each. Numbers beyond its end are not in the set.
type Mask []uint64

// Has reports whether r is in the set.
func (m Mask) Has(r Row) bool {
	return int(r)>>6 < len(m) && m[r>>6]&(1<<(uint(r)&63)) != 0
}

// Set adds r. The mask must be long enough.
func (m Mask) Set(r Row) { m[r>>6] |= 1 << (uint(r) & 63) }

// Clear removes r.
func (m Mask) Clear(r Row) {
	if int(r)>>6 < len(m) {
		m[r>>6] &^= 1 << (uint(r) & 63)
	}
}

// With adds r and returns the mask, which is a longer one if necessary.
func (m Mask) With(r Row) Mask {
	for int(r)>>6 >= len(m) {
		m = append(m, 0)
	}
	m.Set(r)
	return m
}

// Put adds r or removes it.
func (m Mask) Put(r Row, in bool) Mask {
	if in {
		return m.With(r)
	}
	m.Clear(r)
	return m
}

// Only removes from m the rows that are not in o.
func (m Mask) Only(o Mask) {
	n := min(len(m), len(o))
	for i, w := range o[:n] {
		m[i] &= w
	}
	clear(m[n:])
}

// Less removes from m the rows that are in o.
func (m Mask) Less(o Mask) {
	n := min(len(m), len(o))
	for i, w := range o[:n] {
		m[i] &^= w
	}
}

// Add adds to m the rows that are in o. m must not be shorter than o.
func (m Mask) Add(o Mask) {
	for i, w := range o {
		m[i] |= w
	}
}

// Count returns how many rows are in m.
func (m Mask) Count() (n int) {
	for _, w := range m {
		n += bits.OnesCount64(w)
	}
	return n
}

// None reports whether m is empty.
func (m Mask) None() bool {
	for _, w := range m {
		if w != 0 {
			return false
		}
	}
	return true
}

// Meets reports whether some row is in both.
func (m Mask) Meets(o Mask) bool {
	for i, w := range m[:min(len(m), len(o))] {
		if w&o[i] != 0 {
			return true
		}
	}
	return false
}

// Within reports whether every row in m is in o.
func (m Mask) Within(o Mask) bool {
	for i, w := range m {
		if w != 0 && (i >= len(o) || w&^o[i] != 0) {
			return false
		}
	}
	return true
}

// Each calls see for the rows in m, in ascending order. see may remove the row that it is called with.
func (m Mask) Each(see func(Row)) {
	for i, w := range m {
		for ; w != 0; w &= w - 1 {
			see(Row(i<<6 | bits.TrailingZeros64(w)))
		}
	}
}

// Both calls see for the rows that are in m and in o, in ascending order.
func (m Mask) Both(o Mask, see func(Row)) {
	for i, w := range m[:min(len(m), len(o))] {
		for w &= o[i]; w != 0; w &= w - 1 {
			see(Row(i<<6 | bits.TrailingZeros64(w)))
		}
	}
}

// CopyOf copies m into the memory of into, and returns the copy.
func (m Mask) CopyOf(into Mask) Mask { return append(into[:0], m...) }

// Unless empties m if rejected is true: a filter that does not depend on the node rejected the pod.
func (m Mask) Unless(rejected bool) {
	if rejected {
		clear(m)
	}
}
