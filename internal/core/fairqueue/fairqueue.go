// Package fairqueue decides who is next where several groups wait for the same few places: pods of namespaces for their
// start.
//
// # Model
//
// A Line has one line for each group, and the groups take turns: Next is the first of the group whose turn has been
// waited for longest. Within a group whoever came first goes first. A group that comes anew has its turn after those
// that wait already, so that it waits for one of each of them, however many they are.
//
// # What it does not do
//
// It knows no weights, and not who has a place now: whoever gives one back asks for Next. Whoever can make groups gets
// more turns by making more of them.
package fairqueue

import "slices"

// Line is who waits, by group. The zero Line is empty. It is for one goroutine at a time.
type Line[W comparable] struct {
	groups []*group[W] // those of which somebody waits, by their turn
}

type group[W comparable] struct {
	name    string
	waiting []W
}

// Join puts w at the end of its group's line.
func (l *Line[W]) Join(name string, w W) {
	g := l.group(name)
	g.waiting = append(g.waiting, w)
}

// Rejoin puts w, who gave its place back before it had done all it came for, before the others of its group.
func (l *Line[W]) Rejoin(name string, w W) {
	g := l.group(name)
	g.waiting = slices.Insert(g.waiting, 0, w)
}

// Leave takes w out of its group's line, and reports whether it was there.
func (l *Line[W]) Leave(name string, w W) bool {
	at := l.at(name)
	if at < 0 {
		return false
	}
	g := l.groups[at]
	i := slices.Index(g.waiting, w)
	if i < 0 {
		return false
	}
	g.waiting = slices.Delete(g.waiting, i, i+1)
	if len(g.waiting) == 0 {
		l.groups = slices.Delete(l.groups, at, at+1)
	}
	return true
}

// Next takes out who is next, and gives the turn to the next group; false: nobody waits.
func (l *Line[W]) Next() (next W, ok bool) {
	if len(l.groups) == 0 {
		return next, false
	}
	g := l.groups[0]
	l.groups = slices.Delete(l.groups, 0, 1)
	next = g.waiting[0]
	g.waiting = slices.Delete(g.waiting, 0, 1)
	if len(g.waiting) > 0 {
		l.groups = append(l.groups, g)
	}
	return next, true
}

// Others reports whether anybody of another group waits.
func (l *Line[W]) Others(name string) bool {
	return len(l.groups) > 1 || len(l.groups) == 1 && l.groups[0].name != name
}

func (l *Line[W]) at(name string) int {
	return slices.IndexFunc(l.groups, func(g *group[W]) bool { return g.name == name })
}

// group is the group of that name, the last one if nobody of it waited.
func (l *Line[W]) group(name string) *group[W] {
	if at := l.at(name); at >= 0 {
		return l.groups[at]
	}
	g := &group[W]{name: name}
	l.groups = append(l.groups, g)
	return g
}
