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

// volumeTimeout is how long volumes may take to be bound after the plan was written. It is upstream's default of
// bindTimeoutSeconds. A higher value gives a slow provisioner more time, but a pod whose volume never comes is tried
// elsewhere later.
const volumeTimeout = 600 * time.Second

// A VolumePlan is what must be written before a pod with unbound claims is bound. The shell writes all of it and calls
// VolumesWritten. VolumeOutcomes returns it when the volumes are bound, or with the reason why they will not be.
type VolumePlan struct {
	volumes.Plan

	decision Decision     // the decision that made it
	since    unit.Instant // when it was made
	// timeout is Profile.VolumeTimeout or its default.
	timeout  time.Duration
	written  bool         // the shell has written all of it, and VolumeOutcomes has not returned it yet
	deadline unit.Instant // when all volumes must be bound; valid if written
}

// planVolumes returns what must be written for d on row r; nil: nothing.
func (c *cluster) planVolumes(d *demand, r row) *VolumePlan {
	if d.volumes == nil || len(d.volumes.Chosen)+len(d.volumes.Open) == 0 || d.profile.Skip["VolumeBinding"] {
		return nil
	}
	p := &VolumePlan{timeout: cmp.Or(d.profile.VolumeTimeout, volumeTimeout)}
	c.storage.Bind(d.volumes, c.place(r), &p.Plan)
	return p
}

// assumeVolumes makes what a plan will write visible to all decisions. Later facts from the API replace it.
func (c *cluster) assumeVolumes(id PodID, p *VolumePlan) {
	c.plans[id] = p
	c.storage.Assume(&p.Plan)
}

// revertVolumes ends a plan: what is still assumed is reverted to the facts from the API. It returns what it reverted.
func (c *cluster) revertVolumes(id PodID) ([]*volumes.KnownVolume, []volumes.ClaimKey) {
	p := c.plans[id]
	if p == nil {
		return nil, nil
	}
	delete(c.plans, id)
	return c.storage.Revert(&p.Plan)
}

// VolumeOutcome is the outcome of a VolumePlan: the volumes are bound, or Why they are not.
type VolumeOutcome struct {
	Decision Decision
	Since    unit.Instant // when the pod was placed
	Why      string       // empty: all are bound, so the pod can be bound
}

// VolumesWritten records that everything in the plan of a placed pod was written. From now on, Profile.VolumeTimeout
// limits the time until the volumes are bound.
func (p *Placer) VolumesWritten(now unit.Instant, id PodID) {
	if plan := p.cluster.plans[id]; plan != nil {
		plan.written, plan.deadline = true, now.Add(plan.timeout)
		p.plansChecked = 0
	}
}

// VolumeOutcomes returns the plans that have ended since the last call, each once, sorted by pod ID. Call it after
// every fact, and at Wake. If a plan failed, report its pod with BindRefused.
func (p *Placer) VolumeOutcomes(now unit.Instant) (out []VolumeOutcome) {
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
			plan.written = false // returned once only
			out = append(out, VolumeOutcome{Decision: plan.decision, Since: plan.since, Why: why})
		case p.plansDue.IsZero() || plan.deadline < p.plansDue:
			p.plansDue = plan.deadline
		}
	}
	return out
}

// checkPlan reports whether everything in a plan is bound, as the API has it. why says, in upstream's words, why it
// will never be.
func (c *cluster) checkPlan(p *VolumePlan) (done bool, why string) {
	r, ok := c.rows[p.decision.Node]
	if !ok || !c.seen[r] {
		return false, fmt.Sprintf("failed to get node %q: node %q not found", p.decision.Node, p.decision.Node)
	}
	return c.storage.Check(&p.Plan, c.place(r))
}
