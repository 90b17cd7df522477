// Package trace records what a scheduler.Placer was told and what it answered, and tells another Placer the same.
//
// # Model
//
// A Recorder is a Placer whose methods hand each call that may change it to a function, as a Fact: plain data, which
// can be written to a file. Apply makes the same call of another Placer. A Placer is deterministic: told the same Facts
// in the same order from the beginning, with the same Options, it makes the same decisions. So a decision that differs
// is an error in one of the two: in what keeps masks, tables and counters up to date, or in a newer program.
//
// # Invariants
//
//   - Every exported method of a Placer is recorded, or changes nothing (a test compares the lists).
//   - Without a function, a Recorder is as fast as its Placer.
//
// # What it does not do
//
// It keeps nothing, and compares nothing but decisions (Decided). Reports of NUMA nodes are recorded by the name of
// their node only, because a numa.State is not plain data: whoever records must keep the report itself, and sets Report
// before Apply.
package trace

import (
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// A Call names a method of a Placer.
type Call string

// A Fact is one call. Only what the method takes is set.
type Fact struct {
	Call Call         `json:"call"`
	Now  unit.Instant `json:"now"`

	Pod        *scheduler.Pod            `json:"pod,omitempty"`
	ID         scheduler.PodID           `json:"id,omitempty"`
	Outcome    scheduler.Outcome         `json:"outcome,omitempty"`
	Namespace  string                    `json:"namespace,omitempty"`
	Name       string                    `json:"name,omitempty"`
	Labels     []scheduler.Label         `json:"labels,omitempty"`
	Capacities bool                      `json:"capacities,omitempty"`
	Node       *scheduler.Node           `json:"node,omitempty"`
	Group      *scheduler.Group          `json:"group,omitempty"`
	Budget     *scheduler.Budget         `json:"budget,omitempty"`
	Claim      *scheduler.Claim          `json:"claim,omitempty"`
	Volume     *scheduler.Volume         `json:"volume,omitempty"`
	Class      *scheduler.StorageClass   `json:"class,omitempty"`
	Capacity   *scheduler.Capacity       `json:"capacity,omitempty"`
	Storage    *scheduler.NodeStorage    `json:"storage,omitempty"`
	Attachment *scheduler.Attachment     `json:"attachment,omitempty"`
	Answer     *scheduler.ExtenderAnswer `json:"answer,omitempty"`
	Evictions  []scheduler.Preemption    `json:"evictions,omitempty"`
	Report     *numa.State               `json:"-"` // of ReportSeen; nil: none, or it was not kept

	// Decided is what Next answered; nil: no pod was ready.
	Decided *Decided `json:"decided,omitempty"`
}

// Decided is what a Placer decided about one pod, as plain data.
type Decided struct {
	Namespace  string                 `json:"namespace"`
	Name       string                 `json:"name"`
	ID         scheduler.PodID        `json:"id"`
	Attempt    int                    `json:"attempt"`
	Node       string                 `json:"node,omitempty"`
	Score      int64                  `json:"score,omitempty"`
	Feasible   int                    `json:"feasible,omitempty"`
	Volumes    int                    `json:"volumes,omitempty"` // how many claims must be bound or provisioned first
	Why        string                 `json:"why,omitempty"`     // why it fits nowhere
	Preemption *scheduler.Preemption  `json:"preemption,omitempty"`
	Nominated  string                 `json:"nominated,omitempty"`
	Asked      []string               `json:"asked,omitempty"`      // nodes about which extenders are asked
	Candidates []scheduler.Preemption `json:"candidates,omitempty"` // preemptions about which they are asked
}

func decidedOf(d *scheduler.Decision) *Decided {
	out := &Decided{
		Namespace:  d.Pod.Namespace,
		Name:       d.Pod.Name,
		ID:         d.Pod.ID,
		Attempt:    d.Attempt,
		Node:       d.Node,
		Score:      d.Score,
		Feasible:   d.Feasible,
		Preemption: d.Preemption,
		Nominated:  d.Nominated,
		Asked:      d.ExtenderNodes,
		Candidates: d.ExtenderCandidates,
	}
	if d.Volumes != nil {
		out.Volumes = len(d.Volumes.Bind) + len(d.Volumes.Provision)
	}
	if d.Failure != nil {
		out.Why = d.Failure.String()
	}
	return out
}

// Same reports whether two answers of Next are the same. Either may be nil.
func (d *Decided) Same(e *Decided) bool {
	if d == nil || e == nil {
		return d == e
	}
	sameEvictions := func(a, b scheduler.Preemption) bool {
		return a.Node == b.Node && a.Violations == b.Violations && slices.Equal(a.Victims, b.Victims)
	}
	if (d.Preemption == nil) != (e.Preemption == nil) ||
		d.Preemption != nil && !sameEvictions(*d.Preemption, *e.Preemption) {
		return false
	}
	return d.ID == e.ID && d.Attempt == e.Attempt && d.Node == e.Node && d.Score == e.Score && d.Feasible == e.Feasible &&
		d.Volumes == e.Volumes && d.Why == e.Why && d.Nominated == e.Nominated && slices.Equal(d.Asked, e.Asked) &&
		slices.EqualFunc(d.Candidates, e.Candidates, sameEvictions)
}

// Recorder is a Placer that hands each call which may change it to Record, before the call; a Fact of Next is handed
// over after it, with the answer.
type Recorder struct {
	*scheduler.Placer
	Record func(Fact) // nil: nothing is recorded
}

func (r *Recorder) note(f Fact) {
	if r.Record != nil {
		r.Record(f)
	}
}

// Apply makes the call of f. Of Next, it returns the answer.
func (f *Fact) Apply(p *scheduler.Placer) *Decided {
	if call, known := calls[f.Call]; known {
		call(p, f)
	}
	if f.Call != callNext {
		return nil
	}
	d, ok := p.Next(f.Now)
	if !ok {
		return nil
	}
	return decidedOf(&d)
}

// Known reports whether f names a call, and has what the call takes.
func (f *Fact) Known() bool {
	if _, known := calls[f.Call]; !known && f.Call != callNext {
		return false
	}
	needs := map[Call]bool{
		"NodeSeen": f.Node != nil, "PodSeen": f.Pod != nil, "Bound": f.Pod != nil, "GroupSeen": f.Group != nil,
		"GroupGone": f.Group != nil, "BudgetSeen": f.Budget != nil, "ClaimSeen": f.Claim != nil,
		"VolumeSeen": f.Volume != nil, "StorageClassSeen": f.Class != nil, "CapacitySeen": f.Capacity != nil,
		"NodeStorageSeen": f.Storage != nil, "AttachmentSeen": f.Attachment != nil,
		"ExtendersAnswered": f.Answer != nil,
	}
	has, asked := needs[f.Call]
	return !asked || has
}

// whole returns terms that keep the difference between no requirement and one that nothing meets, when they are written
// as JSON and read again: a pointer to an empty list, not to nil.
func whole(terms *[]scheduler.NodeTerm) *[]scheduler.NodeTerm {
	if terms == nil || *terms != nil {
		return terms
	}
	return &[]scheduler.NodeTerm{}
}
