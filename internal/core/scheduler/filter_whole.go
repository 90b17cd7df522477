package scheduler

import (
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/rows"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/volumes"
)

// A wholeFilter rejects pods because of their claims, on every node alike. whole returns why no node can take the pod;
// empty: some may. If the pod's affinity terms contradict each other, that reason comes first.
type wholeFilter struct {
	ruling
	whole func(a *volumes.Ask) string
}

func (f wholeFilter) about() ruling {
	about := f.ruling
	about.ends = byVolumes
	about.reads = podFields{"Namespace", "Mounts", "ID", "Name"}
	about.alike = true
	return about
}

func (f wholeFilter) rejects(d *demand) bool {
	return d.volumes != nil && !d.conflict && f.whole(d.volumes) != ""
}

func (wholeFilter) asks(d *demand) bool { return d.volumes != nil }

func (f wholeFilter) judge(_ *state, d *demand, _ row) bool { return !f.rejects(d) }

func (f wholeFilter) explain(_ *state, d *demand, _ row, reasons []string) []string {
	return append(reasons, f.whole(d.volumes))
}

func (wholeFilter) final(*state, *demand, row) bool { return true }

func (f wholeFilter) narrow(_ *state, d *demand, m rows.Mask) { m.Unless(f.rejects(d)) }

// whole returns why no node can take the pod because of its claims; empty: some may.
func (d *demand) whole() string {
	if d.conflict || d.volumes == nil {
		return ""
	}
	for _, f := range d.profile.filters {
		if of, is := f.filterRule.(wholeFilter); is {
			if why := of.whole(d.volumes); why != "" {
				return why
			}
		}
	}
	return ""
}
