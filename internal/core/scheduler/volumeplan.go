package scheduler

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/volumes"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// volumeTimeout is how long volumes may take to be bound once that was asked for. Upstream's default of
// bindTimeoutSeconds; raised, a slow provisioner is waited for, and a pod whose volume never comes is tried elsewhere
// later.
const volumeTimeout = 600 * time.Second

// A VolumePlan is what must be written before a pod with unbound claims is bound. The shell writes all of it, says so
// with VolumesWritten, and hears from VolumesSettled when the volumes are bound, or why they will not be.
type VolumePlan struct {
	volumes.Plan

	decision Decision
	since    unit.Instant // when it was made
	timeout  time.Duration
	written  bool
	deadline unit.Instant
}

// planVolumes says what is to be done for d on row r; nil: nothing.
func (c *cluster) planVolumes(d *demand, r row) *VolumePlan {
	if d.volumes == nil || len(d.volumes.Chosen)+len(d.volumes.Open) == 0 || d.profile.Skip["VolumeBinding"] {
		return nil
	}
	p := &VolumePlan{timeout: cmp.Or(d.profile.VolumeTimeout, volumeTimeout)}
	c.storage.Bind(d.volumes, c.place(r), &p.Plan)
	return p
}

// assumeVolumes lets everybody see what a plan will write. What the API says later is the truth again.
func (c *cluster) assumeVolumes(id PodID, p *VolumePlan) {
	c.plans[id] = p
	c.storage.Assume(&p.Plan)
}

// revertVolumes ends a plan: what of it is still assumed is as the API says again. It returns what was reverted.
func (c *cluster) revertVolumes(id PodID) ([]*volumes.KnownVolume, []volumes.ClaimKey) {
	p := c.plans[id]
	if p == nil {
		return nil, nil
	}
	delete(c.plans, id)
	return c.storage.Revert(&p.Plan)
}

// VolumesSettled is what became of the volumes of a placed pod: bound, or Why not.
type VolumesSettled struct {
	Decision Decision
	Since    unit.Instant // when the pod was placed
	Why      string       // empty: all are bound, and the pod can be
}

// VolumesWritten folds in that everything in the plan of a placed pod was written. From now on the volumes have a time
// to be bound in: Profile.VolumeTimeout.
func (p *Placer) VolumesWritten(now unit.Instant, id PodID) {
	if plan := p.cluster.plans[id]; plan != nil {
		plan.written, plan.deadline = true, now.Add(plan.timeout)
		p.plansChecked = 0
	}
}

// VolumesSettled returns the plans that have come to an end since the last call, each once, in the order of pods' ids.
// Ask after every fact, and at Wake. The pod of one that failed is to be reported with BindRefused.
func (p *Placer) VolumesSettled(now unit.Instant) (out []VolumesSettled) {
	c := p.cluster
	version := c.storage.Version() + 1
	if len(c.plans) == 0 || p.plansChecked == version && (p.plansDue.IsZero() || now < p.plansDue) {
		return nil
	}
	p.plansChecked, p.plansDue = version, 0
	for _, id := range slices.Sorted(maps.Keys(c.plans)) {
		plan := c.plans[id]
		if !plan.written {
			continue
		}
		done, why := c.checkPlan(plan)
		if !done && why == "" && now >= plan.deadline {
			why = "context deadline exceeded"
		}
		switch {
		case done || why != "":
			plan.written = false // said
			out = append(out, VolumesSettled{plan.decision, plan.since, why})
		case p.plansDue.IsZero() || plan.deadline < p.plansDue:
			p.plansDue = plan.deadline
		}
	}
	return out
}

// checkPlan reports whether everything in a plan is bound, by what the API says; why: it will not be, in upstream's
// words.
func (c *cluster) checkPlan(p *VolumePlan) (done bool, why string) {
	r, ok := c.rows[p.decision.Node]
	if !ok || !c.seen[r] {
		return false, fmt.Sprintf("failed to get node %q: node %q not found", p.decision.Node, p.decision.Node)
	}
	return c.storage.Check(&p.Plan, c.place(r))
}
