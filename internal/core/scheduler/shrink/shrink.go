// Package shrink takes things out of maps and lists, so that what is kept follows what there is.
//
// A map of Go's never gives room back, however much is deleted from it: who deletes from one that may have been large
// passes it to Map after each deletion, with a counter of its own, and goes on with the map that it returns. The cost
// is one copy of what is left for each time that more than twice as much has gone.
package shrink

import (
	"maps"
	"slices"
)

// shrunkAfter is how many entries of a map have to go before it is looked at. Chosen: less would be to move what takes
// no room.
const shrunkAfter = 4096

// Map is called after an entry of m was deleted, and returns m or, if more than twice as many went as are left, a
// map of the size of these: a map never gives room back. gone counts for it.
func Map[K comparable, V any](m map[K]V, gone *int) map[K]V {
	if *gone++; *gone < max(shrunkAfter, 2*len(m)) {
		return m
	}
	*gone = 0
	fresh := make(map[K]V, len(m))
	maps.Copy(fresh, m)
	return fresh
}

// Without removes x from list; the order of the others is kept.
func Without[T comparable](list []T, x T) []T {
	return slices.DeleteFunc(list, func(y T) bool { return y == x })
}

// OldHalf deletes from m the half that was used longest ago, by what used says of it, and one more.
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
