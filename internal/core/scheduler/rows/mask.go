package rows

import "math/bits"

// A Mask is a set of rows, or of other small numbers, one bit each. Those beyond its end are not in it.
type Mask []uint64

func (m Mask) Has(r Row) bool {
	return int(r)>>6 < len(m) && m[r>>6]&(1<<(uint(r)&63)) != 0
}

// Set puts r in; the mask must be long enough.
func (m Mask) Set(r Row) { m[r>>6] |= 1 << (uint(r) & 63) }

func (m Mask) Clear(r Row) {
	if int(r)>>6 < len(m) {
		m[r>>6] &^= 1 << (uint(r) & 63)
	}
}

// With puts r in, in a longer mask if need be.
func (m Mask) With(r Row) Mask {
	for int(r)>>6 >= len(m) {
		m = append(m, 0)
	}
	m.Set(r)
	return m
}

// Put puts r in or takes it out.
func (m Mask) Put(r Row, in bool) Mask {
	if in {
		return m.With(r)
	}
	m.Clear(r)
	return m
}

// Only leaves in m what is in o, too.
func (m Mask) Only(o Mask) {
	n := min(len(m), len(o))
	for i, w := range o[:n] {
		m[i] &= w
	}
	clear(m[n:])
}

// Less takes out of m what is in o.
func (m Mask) Less(o Mask) {
	n := min(len(m), len(o))
	for i, w := range o[:n] {
		m[i] &^= w
	}
}

// Add puts into m what is in o; m must not be shorter.
func (m Mask) Add(o Mask) {
	for i, w := range o {
		m[i] |= w
	}
}

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

// Meets reports whether a row is in both.
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

// Each calls see for the rows in m, in order. see may take the row out.
func (m Mask) Each(see func(Row)) {
	for i, w := range m {
		for ; w != 0; w &= w - 1 {
			see(Row(i<<6 | bits.TrailingZeros64(w)))
		}
	}
}

// Both calls see for the rows that are in m and in o.
func (m Mask) Both(o Mask, see func(Row)) {
	for i, w := range m[:min(len(m), len(o))] {
		for w &= o[i]; w != 0; w &= w - 1 {
			see(Row(i<<6 | bits.TrailingZeros64(w)))
		}
	}
}

// CopyOf makes into a copy of m, and returns it.
func (m Mask) CopyOf(into Mask) Mask { return append(into[:0], m...) }

// Unless empties m if a rule that does not look at rows rejects d.
func (m Mask) Unless(rejected bool) {
	if rejected {
		clear(m)
	}
}
