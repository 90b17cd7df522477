// Package heap keeps items in order, the first one at hand, for those who have many things to do and the next one to find:
// nodes by their deadline, probes by their wake-up, pods by their turn.
//
// # Model
//
// A Heap orders items by a function and writes into each item where it stands, so that one can be moved or taken out at
// the cost of a few swaps. An item's place is an int of the item's own: zero while it is in no heap, so that a new item
// needs no preparation. An item with one place is in at most one heap at a time.
//
// # Invariants
//
//   - First is an item that no other comes before. Give items that tie an order too where the choice matters.
//   - What an item is ordered by changes only together with a call of Set for it.
//
// A Heap is for one goroutine at a time, and no sorted list: only its first item has a known place in the order.
package heap

import "container/heap"

// Heap is a set of items with a first one. Make it with New.
type Heap[T any] struct{ tree tree[T] }

// New returns an empty heap. compare orders items, as for slices.SortFunc; place returns where an item keeps its place.
func New[T any](compare func(a, b T) int, place func(T) *int) Heap[T] {
	return Heap[T]{tree[T]{compare: compare, place: place}}
}

// Len is the number of items.
func (h *Heap[T]) Len() int { return len(h.tree.items) }

// First is the item that comes before the others. The heap must not be empty.
func (h *Heap[T]) First() T { return h.tree.items[0] }

// Has says whether x is in the heap (or, by the same place, in another one).
func (h *Heap[T]) Has(x T) bool { return *h.tree.place(x) != 0 }

// Set puts x into the heap, or moves it to where it belongs now.
func (h *Heap[T]) Set(x T) {
	if at := *h.tree.place(x); at != 0 {
		heap.Fix(&h.tree, at-1)
		return
	}
	heap.Push(&h.tree, x)
}

// Remove takes x out of the heap. An item that is not there stays out.
func (h *Heap[T]) Remove(x T) {
	if at := *h.tree.place(x); at != 0 {
		heap.Remove(&h.tree, at-1)
	}
}

// tree is what container/heap works on.
type tree[T any] struct {
	items   []T
	compare func(a, b T) int
	place   func(T) *int // of the item at index i: i+1
}

func (t *tree[T]) Len() int           { return len(t.items) }
func (t *tree[T]) Less(i, j int) bool { return t.compare(t.items[i], t.items[j]) < 0 }
func (t *tree[T]) Swap(i, j int) {
	t.items[i], t.items[j] = t.items[j], t.items[i]
	*t.place(t.items[i]), *t.place(t.items[j]) = i+1, j+1
}

func (t *tree[T]) Push(x any) {
	t.items = append(t.items, x.(T))
	*t.place(x.(T)) = len(t.items)
}

func (t *tree[T]) Pop() any {
	last := len(t.items) - 1
	x := t.items[last]
	clear(t.items[last:])
	t.items = t.items[:last]
	*t.place(x) = 0
	return x
}
