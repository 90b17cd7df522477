package main

import (
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// perDecision is how much time passes, for the Placer, per decision: the time of a bind if the API server processes a
// thousand per second. So back-offs and searches happen as often as there.
const perDecision = unit.Instant(time.Millisecond)

type ours struct {
	placer *scheduler.Placer
	now    unit.Instant
}

func newOurs() *ours { return &ours{placer: scheduler.New(scheduler.Options{Seed: 1}), now: 1} }

// seen translates an object, as the shell does outside the scheduling loop. The returned function passes it to the
// Placer.
func (o *ours) seen(object any) func() {
	p := o.placer
	switch v := object.(type) {
	case *corev1.Node:
		return tell(o, translate.SchedulerNode(v), p.NodeSeen)
	case *corev1.Pod:
		return tell(o, translate.SchedulerPod(v), p.PodSeen)
	case *corev1.Service, *corev1.ReplicationController, *appsv1.ReplicaSet, *appsv1.StatefulSet:
		g, _ := translate.SchedulerGroup(v)
		return tell(o, g, p.GroupSeen)
	case *policyv1.PodDisruptionBudget:
		return tell(o, translate.SchedulerBudget(v), p.BudgetSeen)
	case *corev1.PersistentVolumeClaim:
		return tell(o, translate.SchedulerClaim(v), p.ClaimSeen)
	case *corev1.PersistentVolume:
		return tell(o, translate.SchedulerVolume(v), p.VolumeSeen)
	case *storagev1.StorageClass:
		return tell(o, translate.SchedulerStorageClass(v), p.StorageClassSeen)
	case *storagev1.CSINode:
		return tell(o, translate.SchedulerNodeStorage(v), p.NodeStorageSeen)
	case *storagev1.CSIStorageCapacity:
		return tell(o, translate.SchedulerCapacity(v), p.CapacitySeen)
	case *storagev1.CSIDriver:
		return func() { p.DriverSeen(o.now, v.Name, translate.PublishesCapacities(v)) }
	case agentReport:
		return func() { p.ReportSeen(o.now, v.node, v.state) }
	}
	panic(fmt.Sprintf("an object of type %T: not known", object))
}

// agentReport is an agent's report of its NUMA nodes. Upstream has no equivalent.
type agentReport struct {
	node  string
	state *numa.State
}

func tell[F any](o *ours, fact F, seen func(unit.Instant, F)) func() {
	return func() { seen(o.now, fact) }
}

func (o *ours) gone(object any) func() {
	p := o.placer
	switch v := object.(type) {
	case *corev1.Node:
		return func() { p.NodeGone(o.now, v.Name) }
	case *corev1.Pod:
		return func() { p.PodGone(o.now, scheduler.PodID(v.UID)) }
	case *corev1.Service, *appsv1.ReplicaSet, *appsv1.StatefulSet:
		g, _ := translate.SchedulerGroup(v)
		return func() { p.GroupGone(o.now, g) }
	case *policyv1.PodDisruptionBudget:
		return func() { p.BudgetGone(o.now, v.Namespace, v.Name) }
	case *corev1.PersistentVolumeClaim:
		return func() { p.ClaimGone(o.now, v.Namespace, v.Name) }
	case *corev1.PersistentVolume:
		return func() { p.VolumeGone(o.now, v.Name) }
	}
	panic(fmt.Sprintf("an object of type %T: not known", object))
}

func (o *ours) loaded(int, int) {}
func (o *ours) heard()          {}

// decisionsMax limits how many other pods may be tried before the pod that came last.
const decisionsMax = 5000

// place does what the shell does until the pod is decided: decisions, successful binds, and the watch that confirms
// them.
func (o *ours) place(_ context.Context, pod *corev1.Pod) bool {
	id := scheduler.PodID(pod.UID)
	for range decisionsMax {
		o.now += perDecision
		d, ok := o.placer.Next(o.now)
		if !ok {
			return false
		}
		if d.Flushed {
			panic(fmt.Sprintf("pod %s had been forgotten", d.Pod.Name))
		}
		if d.Node != "" {
			if d.Volumes != nil {
				o.placer.VolumesWritten(o.now, d.Pod.ID)
			}
			o.placer.Bound(o.now, d.Pod, scheduler.BindDone)
			d.Pod.Node = d.Node
			o.placer.PodSeen(o.now, d.Pod)
		}
		if d.Pod.ID == id {
			return d.Node != ""
		}
	}
	panic(fmt.Sprintf("pod %s: not decided within %d decisions", pod.Name, decisionsMax))
}

func (o *ours) wait()  {}
func (o *ours) close() { o.placer = nil }
