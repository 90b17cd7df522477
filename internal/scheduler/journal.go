package scheduler

import (
	"fmt"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	corescheduler "github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/trace"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/journal"
)

// This file records decisions in the journal. Nothing here waits.

// placer is a Placer, or one that hands over what it is told.
type placer interface {
	AttachmentGone(now unit.Instant, name string)
	AttachmentSeen(now unit.Instant, a corescheduler.Attachment)
	Bound(now unit.Instant, pod corescheduler.Pod, o corescheduler.Outcome)
	BudgetGone(now unit.Instant, namespace, name string)
	BudgetSeen(now unit.Instant, b corescheduler.Budget)
	CapacityGone(now unit.Instant, namespace, name string)
	CapacitySeen(now unit.Instant, k corescheduler.Capacity)
	ClaimGone(now unit.Instant, namespace, name string)
	ClaimSeen(now unit.Instant, claim corescheduler.Claim)
	DriverGone(now unit.Instant, name string)
	DriverSeen(now unit.Instant, name string, capacities bool)
	EvictionFailed(now unit.Instant, id corescheduler.PodID)
	ExtendersAnswered(now unit.Instant, id corescheduler.PodID, o corescheduler.ExtenderAnswer)
	ExtendersFailed(now unit.Instant, id corescheduler.PodID)
	GroupGone(now unit.Instant, g corescheduler.Group)
	GroupSeen(now unit.Instant, g corescheduler.Group)
	NameVictims(pod corescheduler.PodID, wanted []corescheduler.Preemption) error
	NamespaceGone(now unit.Instant, name string)
	NamespaceSeen(now unit.Instant, name string, labels []corescheduler.Label)
	Next(now unit.Instant) (corescheduler.Decision, bool)
	NodeGone(now unit.Instant, name string)
	NodeSeen(now unit.Instant, n corescheduler.Node)
	NodeStorageGone(now unit.Instant, node string)
	NodeStorageSeen(now unit.Instant, n corescheduler.NodeStorage)
	Pending() map[string]int
	PodGone(now unit.Instant, id corescheduler.PodID)
	PodSeen(now unit.Instant, pod corescheduler.Pod)
	PreemptionAnswered(now unit.Instant, id corescheduler.PodID, left []corescheduler.Preemption)
	ReportGone(now unit.Instant, node string)
	ReportSeen(now unit.Instant, node string, report *numa.State)
	RoomFor(pod *corescheduler.Pod, node string, out []corescheduler.ResourceRoom) []corescheduler.ResourceRoom
	Sizes() (nodes, pods, assumed int)
	StorageClassGone(now unit.Instant, name string)
	StorageClassSeen(now unit.Instant, k corescheduler.StorageClass)
	VolumeGone(now unit.Instant, name string)
	VolumeOutcomes(now unit.Instant) []corescheduler.VolumeOutcome
	VolumeSeen(now unit.Instant, of corescheduler.Volume)
	VolumesWritten(now unit.Instant, id corescheduler.PodID)
	Wake() unit.Instant
}

// keepFacts begins to keep what the placer is told, if that is wanted. It is called before the first fact.
func (m *loop) keepFacts() (err error) {
	if m.o.FactsFile == "" {
		return nil
	}
	of := m.o.placerOptions()
	m.factsKept, err = journal.NewFacts(m.o.FactsFile, journal.Beginning{Options: of, Version: m.o.Version})
	if err != nil {
		return fmt.Errorf("keep facts: %w", err)
	}
	m.placer = &trace.Recorder{Placer: corescheduler.New(of), Record: func(f trace.Fact) {
		told := journal.Told{Fact: f}
		if f.Report != nil {
			told.Object = m.report
		}
		m.factsKept.Note(told)
	}}
	return nil
}

func podOf(p *corescheduler.Pod) journal.Pod {
	return journal.Pod{Namespace: p.Namespace, Name: p.Name, UID: string(p.ID)}
}

// tryOf describes a try that began at a moment and took some time.
func (m *loop) tryOf(d *corescheduler.Decision, began unit.Instant, took time.Duration) journal.Try {
	nodes, _, _ := m.placer.Sizes()
	return journal.Try{
		Attempt:  d.Attempt,
		Waited:   began.Add(took).Sub(d.Came),
		Took:     took,
		Priority: d.Pod.Priority,
		Profile:  d.Pod.Profile,
		Nodes:    nodes,
	}
}

// placedNote is a placement with all that it refers to, so that it is allocated at once.
type placedNote struct {
	journal.Placement
	pod  [1]journal.Pod
	room [4]journal.Room // enough for cpu, memory, another resource, and places for pods
}

// notePlaced records that a pod gets a node.
func (m *loop) notePlaced(d *corescheduler.Decision, began unit.Instant, took time.Duration) {
	if m.o.Journal == nil {
		return
	}
	out := &placedNote{Placement: journal.Placement{
		Try:      m.tryOf(d, began, took),
		Node:     d.Node,
		Feasible: d.Feasible,
		Score:    d.Score,
		Berth:    journal.BerthOf(d.Berth),
		Late:     d.Flushed,
	}}
	if d.Volumes != nil {
		out.Volumes = len(d.Volumes.Bind) + len(d.Volumes.Provision)
	}
	m.room = m.placer.RoomFor(&d.Pod, d.Node, m.room[:0])
	out.Room = out.room[:0]
	for i, r := range m.room {
		requested := int64(1) // the last one: places for pods
		if i < len(d.Pod.Requests) {
			requested = d.Pod.Requests[i].Value
		}
		out.Room = append(out.Room, journal.Room{
			Resource:    r.Resource,
			Requested:   requested,
			Free:        r.Allocatable - r.Requested + requested, // the pod counts already
			Allocatable: r.Allocatable,
		})
	}
	out.pod[0] = podOf(&d.Pod)
	m.o.Journal.Note(journal.Note{
		Time:   time.Now(),
		Kind:   journal.Placed,
		Node:   d.Node,
		Pods:   out.pod[:],
		Detail: &out.Placement,
	})
}

// noteUnschedulable records that a pod fits nowhere, and whom it preempts.
func (m *loop) noteUnschedulable(d *corescheduler.Decision, why string, began unit.Instant, took time.Duration) {
	if m.o.Journal == nil {
		return
	}
	out := &journal.Refusal{
		Try:     m.tryOf(d, began, took),
		Reasons: d.Failure.Reasons,
		Plugins: d.Failure.Rejected.Plugins(),
		Why:     truncate(why, conditionMax),
		Node:    d.Nominated,
	}
	for _, q := range d.Pod.Requests {
		out.Requests = append(out.Requests, journal.Room{Resource: q.Resource, Requested: q.Value})
	}
	pods := []journal.Pod{podOf(&d.Pod)}
	if p := d.Preemption; p != nil {
		out.Node, out.Violations = p.Node, p.Violations
		for i := range p.Victims {
			v := &p.Victims[i]
			out.Victims = append(out.Victims, journal.Victim{
				Namespace: v.Namespace,
				Name:      v.Name,
				UID:       string(v.ID),
				Withdrawn: v.Assumed,
			})
			pods = append(pods, journal.Pod{Namespace: v.Namespace, Name: v.Name, UID: string(v.ID)})
		}
	}
	m.o.Journal.Note(journal.Note{
		Time:   time.Now(),
		Kind:   journal.Unschedulable,
		Node:   out.Node,
		Pods:   pods,
		Detail: out,
	})
}

// noteFailed records that a decision about a pod could not be carried out. Any goroutine may call it.
func (m *loop) noteFailed(p *corescheduler.Pod, what, node string, err error) {
	if m.o.Journal == nil {
		return
	}
	m.o.Journal.Note(journal.Note{
		Time:   time.Now(),
		Kind:   journal.Failed,
		Node:   node,
		Pods:   []journal.Pod{podOf(p)},
		Detail: &journal.Failure{What: what, Node: node, Error: truncate(err.Error(), messageMax)},
	})
}
