// Package fairqueue decides which waiter is next when waiters of several groups wait for the same few places: pods of
// several namespaces that wait to be started.
//
// # Model
//
// A Line has one queue for each group, and the groups take turns: Next returns the first waiter of the group that has
// waited longest for its turn. Within a group waiters are served in the order of arrival. A new group has its turn
// after all groups that wait already, so it waits for one waiter of each, however many waiters they have.
//
// # What it does not do
//
// Groups have no weights. A Line does not count the places: the caller asks for Next when one becomes free. A user who
// can create groups gets more turns by creating more of them.
package fairqueue

import "slices"

// Line holds the waiters by group. The zero Line is empty. It is for one goroutine at a time.
type Line[W comparable] struct {
	groups []*group[W] // groups with at least one waiter, the one whose turn is next first
}

type group[W comparable] struct {
	name    string
	waiting []W
}

// Join puts w at the end of its group's queue.
func (l *Line[W]) Join(name string, w W) {
	g := l.group(name)
	g.waiting = append(g.waiting, w)
}

// Rejoin puts w, which gave its place back before it was finished, at the front of its group's queue.
func (l *Line[W]) Rejoin(name string, w W) {
	g := l.group(name)
	g.waiting = slices.Insert(g.waiting, 0, w)
}

// Leave removes w from its group's queue, and reports whether it was there.
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

// Next removes and returns the next waiter, and passes the turn to the next group. ok is false if nothing waits.
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

// Others reports whether a waiter of another group waits.
func (l *Line[W]) Others(name string) bool {
	return len(l.groups) > 1 || len(l.groups) == 1 && l.groups[0].name != name
}

func (l *Line[W]) at(name string) int {
	return slices.IndexFunc(l.groups, func(g *group[W]) bool { return g.name == name })
}

// group returns the group of that name. If there is none, it appends a new one, whose turn comes last.
func (l *Line[W]) group(name string) *group[W] {
	if at := l.at(name); at >= 0 {
		return l.groups[at]
	}
	g := &group[W]{name: name}
	l.groups = append(l.groups, g)
	return g
}
