// Package shrink keeps the memory of maps and lists in proportion to what is in them.
//
// A Go map never gives memory back, however many entries are deleted. Code that deletes from a map that may have been
// large passes it to Map after each deletion, with a counter for that map, and continues with the map that Map returns.
// The cost is one copy of the remaining entries each time that more than twice as many were deleted.
package shrink

import (
	"maps"
	"slices"
)

// shrunkAfter is how many entries must be deleted from a map before it is copied. Chosen: copying a smaller map would
// save too little memory.
const shrunkAfter = 4096

// Map is called after an entry of m was deleted. It returns m or, if more than twice as many entries were deleted as
// are left, a copy with the size of what is left. gone is the counter of deletions; only Map changes it.
func Map[K comparable, V any](m map[K]V, gone *int) map[K]V {
	if *gone++; *gone < max(shrunkAfter, 2*len(m)) {
		return m
	}
	*gone = 0
	fresh := make(map[K]V, len(m))
	maps.Copy(fresh, m)
	return fresh
}

// Without removes x from list in place. The others keep their order.
func Without[T comparable](list []T, x T) []T {
	return slices.DeleteFunc(list, func(y T) bool { return y == x })
}

// OldHalf deletes the half of m that was used longest ago (and one more). used returns when an entry was last used.
func OldHalf[K comparable, V any](m map[K]V, used func(V) uint64) {
	uses := make([]uint64, 0, len(m))
	for _, x := range m {
		uses = append(uses, used(x))
	}
	slices.Sort(uses)
	for key, x := range m {
		if used(x) <= uses[len(uses)/2] {
			delete(m, key)
		}
	}
}
