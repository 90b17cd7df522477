package fleet

import (
	"context"
	"errors"
	"log/slog"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/fault"
	"github.com/plimsoll-dev/plimsoll/internal/core/heartbeat"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// pick returns the nodes that orders select in the current state. The error names every order that selects none.
func (f *fleet) pick(orders ...fault.Order) (picked []int, err error) {
	now := f.clock.Now()
	all := make([]fault.Candidate, len(f.nodes))
	for i, h := range f.nodes {
		all[i] = fault.Candidate{Name: h.name, Zone: h.zone, Faulty: h.fault.Kind(now) != ""}
	}
	var problems []error
	for _, o := range orders {
		var problem error
		if picked, problem = o.Pick(f.o.Seed, all); problem != nil {
			problems = append(problems, problem)
		}
	}
	return picked, errors.Join(problems...)
}

// execute executes an order and returns its nodes.
func (f *fleet) execute(ctx context.Context, o fault.Order) ([]string, error) {
	picked, err := f.pick(o)
	if err != nil {
		return nil, err
	}
	names := make([]string, len(picked))
	for i, n := range picked {
		h := f.nodes[n]
		names[i] = h.name
		h.fault = o.Begin(f.clock.Now(), fault.Chance(f.o.Seed, h.name))
		h.changes = f.clock.Now()
		f.step(ctx, h)
	}
	slog.Info("fault", "order", o.String(), "nodes", len(picked))
	return names, nil
}

// followScript executes the orders of the script that are due, and returns when the next one is.
func (f *fleet) followScript(ctx context.Context) (next unit.Instant) {
	for len(f.script) > 0 && !f.scriptFrom.IsZero() {
		at := f.scriptFrom.Add(f.script[0].At)
		if at > f.clock.Now() {
			return at
		}
		o := f.script[0]
		f.script = f.script[1:]
		if _, err := f.execute(ctx, o); err != nil {
			slog.Error("fault", "order", o.String(), "err", err) // unexpected, since names were checked before the start
		}
	}
	return 0
}

// applyFault updates the effect of h's fault, and returns the facts for its Beat: the new ones and, after a silence,
// those that were kept.
func (f *fleet) applyFault(now unit.Instant, h *hollow, seen []heartbeat.Fact) []heartbeat.Fact {
	if h.changes.IsZero() || now < h.changes {
		return seen
	}
	before := *h.effect.Load()
	e, next := h.fault.Now(now)
	h.changes = next
	if e == before {
		return seen
	}
	h.effect.Store(&e)
	if before.Silent && !e.Silent {
		seen, h.missed = append(h.missed, seen...), nil
	}
	if before.NotReady != e.NotReady {
		seen = append(seen, heartbeat.Fact{Kind: heartbeat.Stale})
	}
	if isStopped(before) && !isStopped(e) {
		f.returned[h.name] = true
	}
	return seen
}

// resumePods continues with the pods of nodes that have just returned.
func (f *fleet) resumePods() {
	if len(f.returned) > 0 {
		f.actors.resume(f.returned)
		clear(f.returned)
	}
}

// keep keeps facts for the return of a silent node: results of requests that were in flight, and each hint once.
func (h *hollow) keep(seen []heartbeat.Fact) {
	for _, s := range seen {
		if !slices.Contains(h.missed, s) {
			h.missed = append(h.missed, s)
		}
	}
}
