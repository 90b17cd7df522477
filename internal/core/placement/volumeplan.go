package placement

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// volumeTimeout is how long volumes may take to be bound once that was asked for. Upstream's default of bindTimeoutSeconds;
// raised, a slow provisioner is waited for, and a pod whose volume never comes is tried elsewhere later.
const volumeTimeout = 600 * time.Second

// A VolumePlan is what must be written before a pod with unbound claims is bound. The shell writes all of it, says so with
// VolumesWritten, and hears from VolumesSettled when the volumes are bound, or why they will not be.
type VolumePlan struct {
	Bind      []VolumeBind
	Provision []VolumeProvision

	decision Decision
	since    unit.Instant // when it was made
	timeout  time.Duration
	written  bool
	deadline unit.Instant
}

// VolumeBind keeps a volume for a claim. Version is the one decided on: the write must fail on any other.
type VolumeBind struct {
	Volume, Version                 string
	ClaimSpace, ClaimName, ClaimUID string
	ByController                    bool // the binding is ours: to be marked so
	Done                            bool // it says so already: nothing is to be written
}

// VolumeProvision asks for a volume for a claim that Node can reach.
type VolumeProvision struct {
	Namespace, Name, Version string
	Node                     string
	Done                     bool
}

func (p *VolumePlan) bind(v *volume, claim *Claim) {
	if p == nil {
		return
	}
	ours := v.Claimed && v.ClaimSpace == claim.Namespace && v.ClaimName == claim.Name
	p.Bind = append(p.Bind, VolumeBind{
		Volume: v.Name, Version: v.Version, ClaimSpace: claim.Namespace, ClaimName: claim.Name, ClaimUID: claim.UID,
		ByController: !ours, Done: ours && v.ClaimUID == claim.UID,
	})
}

func (p *VolumePlan) provision(claim *Claim, node string) {
	if p == nil {
		return
	}
	p.Provision = append(p.Provision, VolumeProvision{
		Namespace: claim.Namespace, Name: claim.Name, Version: claim.Version, Node: node, Done: claim.Selected && claim.Node == node,
	})
}

// planVolumes says what is to be done for d on row r; nil: nothing.
func (c *cluster) planVolumes(d *demand, r row) *VolumePlan {
	if d.volumes == nil || len(d.volumes.chosen)+len(d.volumes.open) == 0 || d.profile.Skip["VolumeBinding"] {
		return nil
	}
	p := &VolumePlan{timeout: cmp.Or(d.profile.VolumeTimeout, volumeTimeout)}
	c.bindVolumes(d.volumes, r, p)
	return p
}

// assumeVolumes lets everybody see what a plan will write. What the API says later is the truth again.
func (c *cluster) assumeVolumes(id PodID, p *VolumePlan) {
	s := &c.storage
	s.plans[id] = p
	for i := range p.Bind {
		b := &p.Bind[i]
		v := s.volumes[b.Volume]
		if b.Done || v == nil {
			continue
		}
		after := *v
		after.Claimed, after.ClaimSpace, after.ClaimName, after.ClaimUID = true, b.ClaimSpace, b.ClaimName, b.ClaimUID
		c.setVolume(b.Volume, &after)
		s.trueVolumes[b.Volume] = v
	}
	for i := range p.Provision {
		q := &p.Provision[i]
		k := s.claims[claimKey{q.Namespace, q.Name}]
		if q.Done || k == nil || k.seen == nil {
			continue
		}
		before, after := k.seen, *k.seen
		after.Selected, after.Node = true, q.Node
		c.setClaim(k.key, &after)
		s.trueClaims[k.key] = before
	}
}

// revertVolumes ends a plan: what of it is still assumed is as the API says again. It returns what was reverted.
func (c *cluster) revertVolumes(id PodID) (volumes []*volume, claims []claimKey) {
	s := &c.storage
	p := s.plans[id]
	if p == nil {
		return nil, nil
	}
	delete(s.plans, id)
	for i := range p.Bind {
		if v := s.trueVolumes[p.Bind[i].Volume]; v != nil && v.Version == p.Bind[i].Version {
			delete(s.trueVolumes, v.Name)
			c.setVolume(v.Name, v)
			volumes = append(volumes, v)
		}
	}
	for i := range p.Provision {
		key := claimKey{p.Provision[i].Namespace, p.Provision[i].Name}
		if k := s.trueClaims[key]; k != nil && k.Version == p.Provision[i].Version {
			delete(s.trueClaims, key)
			c.setClaim(key, k)
			claims = append(claims, key)
		}
	}
	return volumes, claims
}

// trueVolume and trueClaim are what the API says, whatever is assumed.
func (s *storage) trueVolume(name string) *volume {
	if v := s.trueVolumes[name]; v != nil {
		return v
	}
	return s.volumes[name]
}

func (s *storage) trueClaim(key claimKey) *Claim {
	if k := s.trueClaims[key]; k != nil {
		return k
	}
	if k := s.claims[key]; k != nil {
		return k.seen
	}
	return nil
}

// VolumesSettled is what became of the volumes of a placed pod: bound, or Why not.
type VolumesSettled struct {
	Decision Decision
	Since    unit.Instant // when the pod was placed
	Why      string       // empty: all are bound, and the pod can be
}

// VolumesWritten folds in that everything in the plan of a placed pod was written. From now on the volumes have a time to be
// bound in: Profile.VolumeTimeout.
func (p *Placer) VolumesWritten(now unit.Instant, id PodID) {
	if plan := p.cluster.storage.plans[id]; plan != nil {
		plan.written, plan.deadline = true, now.Add(plan.timeout)
		p.plansChecked = 0
	}
}

// VolumesSettled returns the plans that have come to an end since the last call, each once, in the order of pods' ids. Ask
// after every fact, and at Wake. The pod of one that failed is to be reported with BindRefused.
func (p *Placer) VolumesSettled(now unit.Instant) (out []VolumesSettled) {
	s := &p.cluster.storage
	if len(s.plans) == 0 || p.plansChecked == s.version+1 && (p.plansDue.IsZero() || now < p.plansDue) {
		return nil
	}
	p.plansChecked, p.plansDue = s.version+1, 0
	for _, id := range slices.Sorted(maps.Keys(s.plans)) {
		plan := s.plans[id]
		if !plan.written {
			continue
		}
		done, why := p.cluster.checkPlan(plan)
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

// checkPlan reports whether everything in a plan is bound, by what the API says; why: it will not be, in upstream's words.
func (c *cluster) checkPlan(p *VolumePlan) (done bool, why string) {
	s := &c.storage
	r, ok := c.rows[p.decision.Node]
	if !ok || !c.seen[r] {
		return false, fmt.Sprintf("failed to get node %q: node %q not found", p.decision.Node, p.decision.Node)
	}
	for i := range p.Bind {
		b := &p.Bind[i]
		key := claimKey{b.ClaimSpace, b.ClaimName}
		v, claim := s.trueVolume(b.Volume), s.trueClaim(key)
		switch {
		case v == nil:
			return false, fmt.Sprintf("failed to check binding: persistentvolume %q not found", b.Volume)
		case claim == nil:
			return false, fmt.Sprintf("failed to check binding: persistentvolumeclaim %q not found", b.ClaimSpace+"/"+b.ClaimName)
		case !b.Done && v.Version == b.Version:
			return false, "" // what we wrote has not come back yet
		case !c.reaches(v, r):
			return false, fmt.Sprintf("pv %q node affinity doesn't match node %q: no matching NodeSelectorTerms", v.Name, c.name[r])
		case v.ClaimUID == "":
			return false, fmt.Sprintf("ClaimRef got reset for pv %q", v.Name)
		case claim.Volume == "" || !claim.Bound:
			return false, ""
		}
	}
	for i := range p.Provision {
		q := &p.Provision[i]
		claim := s.trueClaim(claimKey{q.Namespace, q.Name})
		switch {
		case claim == nil:
			return false, fmt.Sprintf("failed to check provisioning pvc: persistentvolumeclaim %q not found", q.Namespace+"/"+q.Name)
		case !q.Done && claim.Version == q.Version:
			return false, ""
		case !claim.Selected || claim.Node != q.Node:
			return false, fmt.Sprintf("provisioning failed for PVC %q", q.Name) // the provisioner gives the claim back
		case claim.Volume == "":
			return false, ""
		}
		v := s.trueVolume(claim.Volume)
		switch {
		case v == nil:
			return false, "" // its own event is on the way
		case !c.reaches(v, r):
			return false, fmt.Sprintf("pv %q node affinity doesn't match node %q: no matching NodeSelectorTerms", v.Name, c.name[r])
		case !claim.Bound:
			return false, ""
		}
	}
	return true, ""
}
