package placement

import "maps"

// shrunkAfter is how many entries of a map have to go before it is looked at. Chosen: less would be to move what takes
// no room.
const shrunkAfter = 4096

// shrunk is called after an entry of m was deleted, and returns m or, if more than twice as many went as are left, a
// map of the size of these: a map never gives room back. gone counts for it.
func shrunk[K comparable, V any](m map[K]V, gone *int) map[K]V {
	if *gone++; *gone < max(shrunkAfter, 2*len(m)) {
		return m
	}
	*gone = 0
	fresh := make(map[K]V, len(m))
	maps.Copy(fresh, m)
	return fresh
}
