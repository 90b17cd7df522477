package placement

import "math/bits"

// A mask is a set of rows, one bit each. Rows beyond its end are not in it.
type mask []uint64

func (m mask) has(r row) bool {
	return int(r)>>6 < len(m) && m[r>>6]&(1<<(uint(r)&63)) != 0
}

// set puts r in; the mask must be long enough.
func (m mask) set(r row) { m[r>>6] |= 1 << (uint(r) & 63) }

func (m mask) clear(r row) {
	if int(r)>>6 < len(m) {
		m[r>>6] &^= 1 << (uint(r) & 63)
	}
}

// with puts r in, in a longer mask if need be.
func (m mask) with(r row) mask {
	for int(r)>>6 >= len(m) {
		m = append(m, 0)
	}
	m.set(r)
	return m
}

// put puts r in or takes it out.
func (m mask) put(r row, in bool) mask {
	if in {
		return m.with(r)
	}
	m.clear(r)
	return m
}

// only leaves in m what is in o, too.
func (m mask) only(o mask) {
	n := min(len(m), len(o))
	for i, w := range o[:n] {
		m[i] &= w
	}
	clear(m[n:])
}

// less takes out of m what is in o.
func (m mask) less(o mask) {
	n := min(len(m), len(o))
	for i, w := range o[:n] {
		m[i] &^= w
	}
}

// add puts into m what is in o; m must not be shorter.
func (m mask) add(o mask) {
	for i, w := range o {
		m[i] |= w
	}
}

func (m mask) count() (n int) {
	for _, w := range m {
		n += bits.OnesCount64(w)
	}
	return n
}

// none reports whether m is empty.
func (m mask) none() bool {
	for _, w := range m {
		if w != 0 {
			return false
		}
	}
	return true
}

// meets reports whether a row is in both.
func (m mask) meets(o mask) bool {
	for i, w := range m[:min(len(m), len(o))] {
		if w&o[i] != 0 {
			return true
		}
	}
	return false
}

// within reports whether every row in m is in o.
func (m mask) within(o mask) bool {
	for i, w := range m {
		if w != 0 && (i >= len(o) || w&^o[i] != 0) {
			return false
		}
	}
	return true
}

// each calls see for the rows in m, in order. see may take the row out.
func (m mask) each(see func(row)) {
	for i, w := range m {
		for ; w != 0; w &= w - 1 {
			see(row(i<<6 | bits.TrailingZeros64(w)))
		}
	}
}

// both calls see for the rows that are in m and in o.
func (m mask) both(o mask, see func(row)) {
	for i, w := range m[:min(len(m), len(o))] {
		for w &= o[i]; w != 0; w &= w - 1 {
			see(row(i<<6 | bits.TrailingZeros64(w)))
		}
	}
}

// copyOf makes into a copy of m, and returns it.
func (m mask) copyOf(into mask) mask { return append(into[:0], m...) }
