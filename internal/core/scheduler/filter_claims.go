package scheduler

import (
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/rows"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/volumes"
)

// A claimsFilter rejects pods because of their claims, on every node alike. problem returns why no node can take the
// pod; empty: some may. If the pod's affinity terms contradict each other, that reason comes first.
type claimsFilter struct {
	ruling
	problem func(a *volumes.Needs) string
}

func (f claimsFilter) about() ruling {
	about := f.ruling
	about.ends = byVolumes
	about.reads = podFields{"Namespace", "Mounts", "ID", "Name"}
	about.alike = true
	return about
}

func (f claimsFilter) rejects(d *demand) bool {
	return d.volumes != nil && !d.conflict && f.problem(d.volumes) != ""
}

func (claimsFilter) applies(d *demand) bool { return d.volumes != nil }

func (f claimsFilter) judge(_ *state, d *demand, _ row) bool { return !f.rejects(d) }

func (f claimsFilter) explain(_ *state, d *demand, _ row, reasons []string) []string {
	return append(reasons, f.problem(d.volumes))
}

func (claimsFilter) final(*state, *demand, row) bool { return true }

func (f claimsFilter) narrow(_ *state, d *demand, m rows.Mask) { m.Unless(f.rejects(d)) }

// claimsProblem returns why no node can take the pod because of its claims; empty: some may.
func (d *demand) claimsProblem() string {
	if d.conflict || d.volumes == nil {
		return ""
	}
	for _, f := range d.profile.filters {
		if of, is := f.filterRule.(claimsFilter); is {
			if why := of.problem(d.volumes); why != "" {
				return why
			}
		}
	}
	return ""
}
