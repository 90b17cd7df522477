package main

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/kube/topology"
)

// side is one scheduler with a cluster in its memory.
type side interface {
	// seen prepares, outside the measured time, what the side does when a watch shows the object, new or changed. The
	// returned function does it.
	seen(object any) func()
	// gone is the same for an object that was deleted.
	gone(object any) func()
	// loaded returns when the side has processed everything that it has seen.
	loaded(nodes, pods int)
	// heard waits until the side has processed what it was shown.
	heard()
	// place runs the side until the pod, which it has seen, got a node or was found to fit nowhere, and reports whether
	// it got one.
	place(ctx context.Context, pod *corev1.Pod) bool
	// wait returns when nothing that place has started is running, and the side has processed every bind.
	wait()
	close()
}

// sample is what one side needed for the pods of one round.
type sample struct {
	Wall, CPU  time.Duration // per pod
	P50, P99   time.Duration
	Allocs, KB float64 // per pod
	Pods       int     // that were attempted
	Placed     int
}

// step is what happens before a pod is placed, in order, and the pod.
type step struct {
	before []func()
	pod    *corev1.Pod
}

// steps prepares the steps of pods first to first+n-1 for one side. ahead is what must happen before all of them:
// claims and volumes, which come by other watches and might otherwise arrive after their pods.
func (s *scenario) steps(x side, first, n int) (ahead []func(), out []step) {
	out = make([]step, n)
	for k := range out {
		i := first + k
		if s.before != nil {
			for _, o := range s.before(i) {
				switch o.object.(type) {
				case *corev1.PersistentVolume, *corev1.PersistentVolumeClaim:
					ahead = append(ahead, o.ready(x))
				default:
					out[k].before = append(out[k].before, o.ready(x))
				}
			}
		}
		out[k].pod = s.coming(i)
		out[k].before = append(out[k].before, x.seen(out[k].pod))
	}
	return ahead, out
}

// A change is an object as a watch shows it. Deleted says that it was deleted.
type change struct {
	object  any
	deleted bool
}

func (c change) ready(x side) func() {
	if c.deleted {
		return x.gone(c.object)
	}
	return x.seen(c.object)
}

// load gives a side the cluster of a scenario, and the waiting pods. When it returns, each of these was tried.
func (s *scenario) load(ctx context.Context, x side) {
	var reports topology.Decoder
	for i := range s.nodes {
		if s.numa {
			x.seen(s.report(i, &reports))()
		}
		x.seen(s.node(i))()
	}
	if s.world != nil {
		for _, object := range s.world() {
			x.seen(object)()
		}
	}
	pods := 0
	for i := range s.nodes {
		for k := range s.perNode {
			x.seen(s.existing(i, k))()
			pods++
		}
	}
	for _, pod := range s.more {
		x.seen(pod)()
		pods++
	}
	x.loaded(s.nodes, pods)
	x.heard()
	if s.waits != nil {
		for i := range s.waiting {
			pod := s.waits(i)
			x.seen(pod)()
			x.place(ctx, pod)
		}
	}
	x.wait()
}
