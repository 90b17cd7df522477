package scheduler

// treap orders the rows of many groups, each a tree of its own: by local score, the largest first, then by place on the
// ring. A row is in one tree at most, so that the links of all trees fit in two slices by row and nothing is allocated. The
// priorities that keep trees shallow come from the ring too: a set of rows has one shape, whatever its history.
type treap struct{ left, right []int32 }

// nobody is the empty tree.
const nobody = -1

func newTreap(rows int) treap {
	t := treap{make([]int32, rows), make([]int32, rows)}
	for i := range t.left {
		t.left[i], t.right[i] = nobody, nobody
	}
	return t
}

func (t *treap) addRow() { t.left, t.right = append(t.left, nobody), append(t.right, nobody) }

// before reports whether (score, place) comes before row y.
func before(score int32, place uint64, id, y int32, local []int32, ring []uint64) bool {
	if score != local[y] {
		return score > local[y]
	}
	if place != ring[y] {
		return place < ring[y]
	}
	return id < y
}

func priority(x int32, ring []uint64) uint64 { return mix(ring[x] + uint64(x)) }

// insert adds x and returns the new root.
func (t *treap) insert(root, x int32, local []int32, ring []uint64) int32 {
	at := &root
	mine := priority(x, ring)
	for *at != nobody && priority(*at, ring) >= mine {
		if y := *at; before(local[x], ring[x], x, y, local, ring) {
			at = &t.left[y]
		} else {
			at = &t.right[y]
		}
	}
	below := *at
	*at = x
	t.split(below, x, local, ring)
	return root
}

// split hangs what comes before x in tree y to the left of x, the rest to the right.
func (t *treap) split(y, x int32, local []int32, ring []uint64) {
	low, high := &t.left[x], &t.right[x]
	for y != nobody {
		if before(local[x], ring[x], x, y, local, ring) {
			*high, high = y, &t.left[y]
			y = t.left[y]
		} else {
			*low, low = y, &t.right[y]
			y = t.right[y]
		}
	}
	*low, *high = nobody, nobody
}

// remove takes x, which must be in the tree with the score it was inserted with, out and returns the new root.
func (t *treap) remove(root, x int32, local []int32, ring []uint64) int32 {
	at := &root
	for *at != x {
		if y := *at; before(local[x], ring[x], x, y, local, ring) {
			at = &t.left[y]
		} else {
			at = &t.right[y]
		}
	}
	a, b := t.left[x], t.right[x]
	for a != nobody && b != nobody {
		if priority(a, ring) >= priority(b, ring) {
			*at, at = a, &t.right[a]
			a = t.right[a]
		} else {
			*at, at = b, &t.left[b]
			b = t.left[b]
		}
	}
	if a == nobody {
		a = b
	}
	*at = a
	t.left[x], t.right[x] = nobody, nobody
	return root
}

// first is the row with the largest score.
func (t *treap) first(root int32) int32 {
	for t.left[root] != nobody {
		root = t.left[root]
	}
	return root
}

// from is the first row with the given score at or after place on the ring, going round.
func (t *treap) from(root, score int32, place uint64, local []int32, ring []uint64) row {
	found := int32(nobody)
	for y := root; y != nobody; {
		if before(score, place, nobody, y, local, ring) { // or equal: no row has the id nobody
			found, y = y, t.left[y]
		} else {
			y = t.right[y]
		}
	}
	if found == nobody || local[found] != score {
		found = t.first(root) // the scores at the front are the largest: those asked for
	}
	return row(found)
}
