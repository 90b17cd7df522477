package main

import (
	"context"

	"github.com/plimsoll-dev/plimsoll/internal/core/placement"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/kube/topology"
)

type ours struct {
	placer *placement.Placer
	now    unit.Instant
}

func newOurs(s *scenario) side {
	o := &ours{placer: placement.New(placement.Options{Seed: 1}), now: 1}
	var reports topology.Decoder
	for i := range s.nodes {
		if s.numa {
			o.placer.ReportSeen(o.now, s.node(i).Name, s.report(i, &reports))
		}
		o.placer.NodeSeen(o.now, kube.PlacementNode(s.node(i)))
		for k := range s.perNode {
			o.placer.PodSeen(o.now, kube.PlacementPod(s.existing(i, k)))
		}
	}
	return o
}

func (o *ours) add(s *scenario, first, n int) {
	for i := range n {
		o.placer.PodSeen(o.now, kube.PlacementPod(s.coming(first+i)))
	}
}

// place does all that the shell asks of the mind for one pod: the decision, the bind's success, and the watch that confirms it.
func (o *ours) place(context.Context) bool {
	o.now++
	d, ok := o.placer.Next(o.now)
	if !ok || d.Node == "" {
		return false
	}
	o.placer.Bound(o.now, d.Pod, placement.BindDone)
	d.Pod.Node = d.Node
	o.placer.PodSeen(o.now, d.Pod)
	return true
}

func (o *ours) wait()  {}
func (o *ours) close() { o.placer = nil }
