// Package fairqueue decides which waiter is next when waiters of several groups wait for the same few places: pods of
// several namespaces that wait to be started.
//
// # Model
//
// A Queue has one queue for each group, and the groups take turns: Next returns the first waiter of the group that has
// waited longest for its turn. Within a group waiters are served in the order of arrival. A new group has its turn
// after all groups that wait already, so it waits for one waiter of each, however many waiters they have.
//
// # What it does not do
//
// Groups have no weights. A Queue does not count the places: the caller asks for Next when one becomes free. A user who
// can create groups gets more turns by creating more of them.
package fairqueue

import "slices"

// Queue holds the waiters by group. The zero Queue is empty. It is for one goroutine at a time.
type Queue[W comparable] struct {
	groups []*group[W] // groups with at least one waiter, the one whose turn is next first
}

type group[W comparable] struct {
	name    string
	waiting []W
}

// Join puts w at the end of its group's queue.
func (q *Queue[W]) Join(name string, w W) {
	g := q.group(name)
	g.waiting = append(g.waiting, w)
}

// Rejoin puts w, which gave its place back before it was finished, at the front of its group's queue.
func (q *Queue[W]) Rejoin(name string, w W) {
	g := q.group(name)
	g.waiting = slices.Insert(g.waiting, 0, w)
}

// Leave removes w from its group's queue, and reports whether it was there.
func (q *Queue[W]) Leave(name string, w W) bool {
	at := q.at(name)
	if at < 0 {
		return false
	}
	g := q.groups[at]
	i := slices.Index(g.waiting, w)
	if i < 0 {
		return false
	}
	g.waiting = slices.Delete(g.waiting, i, i+1)
	if len(g.waiting) == 0 {
		q.groups = slices.Delete(q.groups, at, at+1)
	}
	return true
}

// Next removes and returns the next waiter, and passes the turn to the next group. ok is false if nothing waits.
func (q *Queue[W]) Next() (next W, ok bool) {
	if len(q.groups) == 0 {
		return next, false
	}
	g := q.groups[0]
	q.groups = slices.Delete(q.groups, 0, 1)
	next = g.waiting[0]
	g.waiting = slices.Delete(g.waiting, 0, 1)
	if len(g.waiting) > 0 {
		q.groups = append(q.groups, g)
	}
	return next, true
}

// Empty reports whether nothing waits.
func (q *Queue[W]) Empty() bool { return len(q.groups) == 0 }

// Others reports whether a waiter of another group waits.
func (q *Queue[W]) Others(name string) bool {
	return len(q.groups) > 1 || len(q.groups) == 1 && q.groups[0].name != name
}

func (q *Queue[W]) at(name string) int {
	return slices.IndexFunc(q.groups, func(g *group[W]) bool { return g.name == name })
}

// group returns the group of that name. If there is none, it appends a new one, whose turn comes last.
func (q *Queue[W]) group(name string) *group[W] {
	if at := q.at(name); at >= 0 {
		return q.groups[at]
	}
	g := &group[W]{name: name}
	q.groups = append(q.groups, g)
	return g
}
