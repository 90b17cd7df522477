package scheduler

// treap has one tree for each of many groups of rows. A tree is sorted by local score, the highest first, then by
// tie-breaking order. A row is in at most one tree, so the links of all trees are two slices by row, and nothing is
// allocated. The priorities of treap nodes, which keep trees balanced, are computed from the tie hash: a set of rows
// always gives the same tree, whatever its history.
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

// before reports whether a row with this score, place and id comes before row y.
func before(score int32, place uint64, id, y int32, local []int32, tieHash []uint64) bool {
	if score != local[y] {
		return score > local[y]
	}
	if place != tieHash[y] {
		return place < tieHash[y]
	}
	return id < y
}

func priority(x int32, tieHash []uint64) uint64 { return mix(tieHash[x] + uint64(x)) }

// insert adds x and returns the new root.
func (t *treap) insert(root, x int32, local []int32, tieHash []uint64) int32 {
	at := &root
	own := priority(x, tieHash)
	for *at != nobody && priority(*at, tieHash) >= own {
		if y := *at; before(local[x], tieHash[x], x, y, local, tieHash) {
			at = &t.left[y]
		} else {
			at = &t.right[y]
		}
	}
	below := *at
	*at = x
	t.split(below, x, local, tieHash)
	return root
}

// split makes what comes before x in tree y the left subtree of x, and the rest the right one.
func (t *treap) split(y, x int32, local []int32, tieHash []uint64) {
	low, high := &t.left[x], &t.right[x]
	for y != nobody {
		if before(local[x], tieHash[x], x, y, local, tieHash) {
			*high, high = y, &t.left[y]
			y = t.left[y]
		} else {
			*low, low = y, &t.right[y]
			y = t.right[y]
		}
	}
	*low, *high = nobody, nobody
}

// remove removes x and returns the new root. The score and place of x must be those with which it was inserted.
func (t *treap) remove(root, x int32, local []int32, tieHash []uint64) int32 {
	at := &root
	for *at != x {
		if y := *at; before(local[x], tieHash[x], x, y, local, tieHash) {
			at = &t.left[y]
		} else {
			at = &t.right[y]
		}
	}
	a, b := t.left[x], t.right[x]
	for a != nobody && b != nobody {
		if priority(a, tieHash) >= priority(b, tieHash) {
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

// first returns the row with the highest score.
func (t *treap) first(root int32) int32 {
	for t.left[root] != nobody {
		root = t.left[root]
	}
	return root
}

// from returns the first row with the given score at or after place in the circular order.
func (t *treap) from(root, score int32, place uint64, local []int32, tieHash []uint64) row {
	found := int32(nobody)
	for y := root; y != nobody; {
		if before(score, place, nobody, y, local, tieHash) { // never equal: no row has the id nobody
			found, y = y, t.left[y]
		} else {
			y = t.right[y]
		}
	}
	if found == nobody || local[found] != score {
		found = t.first(root) // score is the highest in the tree, so the first row has it
	}
	return row(found)
}
