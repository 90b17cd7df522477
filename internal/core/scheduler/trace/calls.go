package trace

import (
	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

const callNext Call = "Next"

// calls make the call of a Fact, except Next.
var calls = map[Call]func(*scheduler.Placer, *Fact){
	"NodeSeen":           func(p *scheduler.Placer, f *Fact) { p.NodeSeen(f.Now, *f.Node) },
	"NodeGone":           func(p *scheduler.Placer, f *Fact) { p.NodeGone(f.Now, f.Name) },
	"NamespaceSeen":      func(p *scheduler.Placer, f *Fact) { p.NamespaceSeen(f.Now, f.Name, f.Labels) },
	"NamespaceGone":      func(p *scheduler.Placer, f *Fact) { p.NamespaceGone(f.Now, f.Name) },
	"GroupSeen":          func(p *scheduler.Placer, f *Fact) { p.GroupSeen(f.Now, *f.Group) },
	"GroupGone":          func(p *scheduler.Placer, f *Fact) { p.GroupGone(f.Now, *f.Group) },
	"BudgetSeen":         func(p *scheduler.Placer, f *Fact) { p.BudgetSeen(f.Now, *f.Budget) },
	"BudgetGone":         func(p *scheduler.Placer, f *Fact) { p.BudgetGone(f.Now, f.Namespace, f.Name) },
	"PodGone":            func(p *scheduler.Placer, f *Fact) { p.PodGone(f.Now, f.ID) },
	"Bound":              func(p *scheduler.Placer, f *Fact) { p.Bound(f.Now, *f.Pod, f.Outcome) },
	"Retry":              func(p *scheduler.Placer, f *Fact) { p.Retry(f.Now, f.ID) },
	"EvictionFailed":     func(p *scheduler.Placer, f *Fact) { p.EvictionFailed(f.Now, f.ID) },
	"ExtendersAnswered":  func(p *scheduler.Placer, f *Fact) { p.ExtendersAnswered(f.Now, f.ID, *f.Answer) },
	"ExtendersFailed":    func(p *scheduler.Placer, f *Fact) { p.ExtendersFailed(f.Now, f.ID) },
	"PreemptionAnswered": func(p *scheduler.Placer, f *Fact) { p.PreemptionAnswered(f.Now, f.ID, f.Evictions) },
	"ClaimSeen":          func(p *scheduler.Placer, f *Fact) { p.ClaimSeen(f.Now, *f.Claim) },
	"ClaimGone":          func(p *scheduler.Placer, f *Fact) { p.ClaimGone(f.Now, f.Namespace, f.Name) },
	"VolumeGone":         func(p *scheduler.Placer, f *Fact) { p.VolumeGone(f.Now, f.Name) },
	"StorageClassGone":   func(p *scheduler.Placer, f *Fact) { p.StorageClassGone(f.Now, f.Name) },
	"DriverSeen":         func(p *scheduler.Placer, f *Fact) { p.DriverSeen(f.Now, f.Name, f.Capacities) },
	"DriverGone":         func(p *scheduler.Placer, f *Fact) { p.DriverGone(f.Now, f.Name) },
	"CapacitySeen":       func(p *scheduler.Placer, f *Fact) { p.CapacitySeen(f.Now, *f.Capacity) },
	"CapacityGone":       func(p *scheduler.Placer, f *Fact) { p.CapacityGone(f.Now, f.Namespace, f.Name) },
	"NodeStorageSeen":    func(p *scheduler.Placer, f *Fact) { p.NodeStorageSeen(f.Now, *f.Storage) },
	"NodeStorageGone":    func(p *scheduler.Placer, f *Fact) { p.NodeStorageGone(f.Now, f.Name) },
	"AttachmentSeen":     func(p *scheduler.Placer, f *Fact) { p.AttachmentSeen(f.Now, *f.Attachment) },
	"AttachmentGone":     func(p *scheduler.Placer, f *Fact) { p.AttachmentGone(f.Now, f.Name) },
	"VolumesWritten":     func(p *scheduler.Placer, f *Fact) { p.VolumesWritten(f.Now, f.ID) },
	"ReportGone":         func(p *scheduler.Placer, f *Fact) { p.ReportGone(f.Now, f.Name) },
	"PodSeen":            func(p *scheduler.Placer, f *Fact) { p.PodSeen(f.Now, *f.Pod) },
	"VolumeSeen":         func(p *scheduler.Placer, f *Fact) { p.VolumeSeen(f.Now, *f.Volume) },
	"StorageClassSeen":   func(p *scheduler.Placer, f *Fact) { p.StorageClassSeen(f.Now, *f.Class) },
	"ReportSeen":         func(p *scheduler.Placer, f *Fact) { p.ReportSeen(f.Now, f.Name, f.Report) },
	"VolumeOutcomes":     func(p *scheduler.Placer, f *Fact) { p.VolumeOutcomes(f.Now) },
	"Pending":            func(p *scheduler.Placer, _ *Fact) { p.Pending() },
}

// NodeSeen records the call.
func (r *Recorder) NodeSeen(now unit.Instant, n scheduler.Node) {
	r.note(Fact{Call: "NodeSeen", Now: now, Node: &n})
	r.Placer.NodeSeen(now, n)
}

// NodeGone records the call.
func (r *Recorder) NodeGone(now unit.Instant, name string) {
	r.note(Fact{Call: "NodeGone", Now: now, Name: name})
	r.Placer.NodeGone(now, name)
}

// NamespaceSeen records the call.
func (r *Recorder) NamespaceSeen(now unit.Instant, name string, labels []scheduler.Label) {
	r.note(Fact{Call: "NamespaceSeen", Now: now, Name: name, Labels: labels})
	r.Placer.NamespaceSeen(now, name, labels)
}

// NamespaceGone records the call.
func (r *Recorder) NamespaceGone(now unit.Instant, name string) {
	r.note(Fact{Call: "NamespaceGone", Now: now, Name: name})
	r.Placer.NamespaceGone(now, name)
}

// GroupSeen records the call.
func (r *Recorder) GroupSeen(now unit.Instant, g scheduler.Group) {
	r.note(Fact{Call: "GroupSeen", Now: now, Group: &g})
	r.Placer.GroupSeen(now, g)
}

// GroupGone records the call.
func (r *Recorder) GroupGone(now unit.Instant, g scheduler.Group) {
	r.note(Fact{Call: "GroupGone", Now: now, Group: &g})
	r.Placer.GroupGone(now, g)
}

// BudgetSeen records the call.
func (r *Recorder) BudgetSeen(now unit.Instant, b scheduler.Budget) {
	r.note(Fact{Call: "BudgetSeen", Now: now, Budget: &b})
	r.Placer.BudgetSeen(now, b)
}

// BudgetGone records the call.
func (r *Recorder) BudgetGone(now unit.Instant, namespace, name string) {
	r.note(Fact{Call: "BudgetGone", Now: now, Namespace: namespace, Name: name})
	r.Placer.BudgetGone(now, namespace, name)
}

// PodGone records the call.
func (r *Recorder) PodGone(now unit.Instant, id scheduler.PodID) {
	r.note(Fact{Call: "PodGone", Now: now, ID: id})
	r.Placer.PodGone(now, id)
}

// Bound records the call.
func (r *Recorder) Bound(now unit.Instant, pod scheduler.Pod, o scheduler.Outcome) {
	r.note(Fact{Call: "Bound", Now: now, Pod: wholePod(&pod), Outcome: o})
	r.Placer.Bound(now, pod, o)
}

// Retry records the call.
func (r *Recorder) Retry(now unit.Instant, id scheduler.PodID) {
	r.note(Fact{Call: "Retry", Now: now, ID: id})
	r.Placer.Retry(now, id)
}

// EvictionFailed records the call.
func (r *Recorder) EvictionFailed(now unit.Instant, id scheduler.PodID) {
	r.note(Fact{Call: "EvictionFailed", Now: now, ID: id})
	r.Placer.EvictionFailed(now, id)
}

// ExtendersAnswered records the call.
func (r *Recorder) ExtendersAnswered(now unit.Instant, id scheduler.PodID, o scheduler.ExtenderAnswer) {
	r.note(Fact{Call: "ExtendersAnswered", Now: now, ID: id, Answer: &o})
	r.Placer.ExtendersAnswered(now, id, o)
}

// ExtendersFailed records the call.
func (r *Recorder) ExtendersFailed(now unit.Instant, id scheduler.PodID) {
	r.note(Fact{Call: "ExtendersFailed", Now: now, ID: id})
	r.Placer.ExtendersFailed(now, id)
}

// PreemptionAnswered records the call.
func (r *Recorder) PreemptionAnswered(now unit.Instant, id scheduler.PodID, left []scheduler.Preemption) {
	r.note(Fact{Call: "PreemptionAnswered", Now: now, ID: id, Evictions: left})
	r.Placer.PreemptionAnswered(now, id, left)
}

// ClaimSeen records the call.
func (r *Recorder) ClaimSeen(now unit.Instant, claim scheduler.Claim) {
	r.note(Fact{Call: "ClaimSeen", Now: now, Claim: &claim})
	r.Placer.ClaimSeen(now, claim)
}

// ClaimGone records the call.
func (r *Recorder) ClaimGone(now unit.Instant, namespace, name string) {
	r.note(Fact{Call: "ClaimGone", Now: now, Namespace: namespace, Name: name})
	r.Placer.ClaimGone(now, namespace, name)
}

// VolumeGone records the call.
func (r *Recorder) VolumeGone(now unit.Instant, name string) {
	r.note(Fact{Call: "VolumeGone", Now: now, Name: name})
	r.Placer.VolumeGone(now, name)
}

// StorageClassGone records the call.
func (r *Recorder) StorageClassGone(now unit.Instant, name string) {
	r.note(Fact{Call: "StorageClassGone", Now: now, Name: name})
	r.Placer.StorageClassGone(now, name)
}

// DriverSeen records the call.
func (r *Recorder) DriverSeen(now unit.Instant, name string, capacities bool) {
	r.note(Fact{Call: "DriverSeen", Now: now, Name: name, Capacities: capacities})
	r.Placer.DriverSeen(now, name, capacities)
}

// DriverGone records the call.
func (r *Recorder) DriverGone(now unit.Instant, name string) {
	r.note(Fact{Call: "DriverGone", Now: now, Name: name})
	r.Placer.DriverGone(now, name)
}

// CapacitySeen records the call.
func (r *Recorder) CapacitySeen(now unit.Instant, k scheduler.Capacity) {
	r.note(Fact{Call: "CapacitySeen", Now: now, Capacity: &k})
	r.Placer.CapacitySeen(now, k)
}

// CapacityGone records the call.
func (r *Recorder) CapacityGone(now unit.Instant, namespace, name string) {
	r.note(Fact{Call: "CapacityGone", Now: now, Namespace: namespace, Name: name})
	r.Placer.CapacityGone(now, namespace, name)
}

// NodeStorageSeen records the call.
func (r *Recorder) NodeStorageSeen(now unit.Instant, n scheduler.NodeStorage) {
	r.note(Fact{Call: "NodeStorageSeen", Now: now, Storage: &n})
	r.Placer.NodeStorageSeen(now, n)
}

// NodeStorageGone records the call.
func (r *Recorder) NodeStorageGone(now unit.Instant, node string) {
	r.note(Fact{Call: "NodeStorageGone", Now: now, Name: node})
	r.Placer.NodeStorageGone(now, node)
}

// AttachmentSeen records the call.
func (r *Recorder) AttachmentSeen(now unit.Instant, a scheduler.Attachment) {
	r.note(Fact{Call: "AttachmentSeen", Now: now, Attachment: &a})
	r.Placer.AttachmentSeen(now, a)
}

// AttachmentGone records the call.
func (r *Recorder) AttachmentGone(now unit.Instant, name string) {
	r.note(Fact{Call: "AttachmentGone", Now: now, Name: name})
	r.Placer.AttachmentGone(now, name)
}

// VolumesWritten records the call.
func (r *Recorder) VolumesWritten(now unit.Instant, id scheduler.PodID) {
	r.note(Fact{Call: "VolumesWritten", Now: now, ID: id})
	r.Placer.VolumesWritten(now, id)
}

// ReportGone records the call.
func (r *Recorder) ReportGone(now unit.Instant, node string) {
	r.note(Fact{Call: "ReportGone", Now: now, Name: node})
	r.Placer.ReportGone(now, node)
}

// PodSeen records the call.
func (r *Recorder) PodSeen(now unit.Instant, pod scheduler.Pod) {
	r.note(Fact{Call: "PodSeen", Now: now, Pod: wholePod(&pod)})
	r.Placer.PodSeen(now, pod)
}

// VolumeSeen records the call.
func (r *Recorder) VolumeSeen(now unit.Instant, of scheduler.Volume) {
	of.Affinity, of.Moved = whole(of.Affinity), whole(of.Moved)
	r.note(Fact{Call: "VolumeSeen", Now: now, Volume: &of})
	r.Placer.VolumeSeen(now, of)
}

// StorageClassSeen records the call.
func (r *Recorder) StorageClassSeen(now unit.Instant, k scheduler.StorageClass) {
	k.Topologies = whole(k.Topologies)
	r.note(Fact{Call: "StorageClassSeen", Now: now, Class: &k})
	r.Placer.StorageClassSeen(now, k)
}

// ReportSeen records the call. The report is in the Fact only until it is written.
func (r *Recorder) ReportSeen(now unit.Instant, node string, report *numa.State) {
	r.note(Fact{Call: "ReportSeen", Now: now, Name: node, Report: report})
	r.Placer.ReportSeen(now, node, report)
}

// VolumeOutcomes records the call.
func (r *Recorder) VolumeOutcomes(now unit.Instant) []scheduler.VolumeOutcome {
	out := r.Placer.VolumeOutcomes(now)
	if len(out) > 0 { // else it changes nothing
		r.note(Fact{Call: "VolumeOutcomes", Now: now})
	}
	return out
}

// Pending records the call: it evaluates waiting pods.
func (r *Recorder) Pending() map[string]int {
	r.note(Fact{Call: "Pending"})
	return r.Placer.Pending()
}

// Next records the call, with its answer.
func (r *Recorder) Next(now unit.Instant) (scheduler.Decision, bool) {
	d, ok := r.Placer.Next(now)
	if r.Record != nil {
		f := Fact{Call: callNext, Now: now}
		if ok {
			f.Decided = decidedOf(&d)
		}
		r.Record(f)
	}
	return d, ok
}

// wholePod returns a pod that is the same after it was written and read.
func wholePod(p *scheduler.Pod) *scheduler.Pod {
	if p.NodeAffinity == nil || *p.NodeAffinity != nil {
		return p
	}
	copied := *p
	copied.NodeAffinity = whole(p.NodeAffinity)
	return &copied
}
