package main

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/bench/shape"
)

// mixOptions are the dimensions of a mixed cluster.
type mixOptions struct {
	nodes, kinds, waiting int
	churn                 float64
}

// mixPodsPerNode is how many pods are on each node at the start, without those of DaemonSets.
const mixPodsPerNode = 4

// mixed is a cluster like a real one: pods of all kinds come and go, and some wait, for each kind of requirement that
// is never met.
func mixed(name string, o mixOptions) scenario {
	s := s0(name, o.nodes)
	s.perNode = 0
	s.upstreamPods = 200
	s.ourPods = 5000
	if o.nodes >= largeNodes {
		s.upstreamPods = 60
	}
	s.waiting, s.waits = o.waiting, func(i int) *corev1.Pod { return waits[i%len(waits)].pod(i) }
	s.begin = func(s *scenario) {
		c := shape.New(shape.Options{Seed: 1, Nodes: o.nodes, Pods: mixPodsPerNode * o.nodes, Kinds: o.kinds, Churn: o.churn})
		nodes := c.Nodes()
		s.makes = func(i int) *corev1.Node { return nodes[i] }
		s.world = c.World
		s.more = c.Pods()
		var next *corev1.Pod
		s.before = func(int) (out []change) {
			var before []shape.Change
			before, next = c.Next()
			for _, b := range before {
				out = append(out, change{b.Object, b.Gone})
			}
			return out
		}
		s.comes = func(int) *corev1.Pod { return next }
	}
	return s
}

// mixCase is the mixed cluster of the table: a thousand kinds; for each kind of waiting pods one percent of the pods on
// nodes, at most 1,000 together; and one change per pod that comes.
func mixCase(nodes int) scenario {
	return mixed("mixed pods on a cluster of a real shape", mixOptions{
		nodes: nodes, kinds: kindsInTurn, waiting: min(waitingPods, mixPodsPerNode*nodes*len(waits)/100), churn: 1,
	})
}

// axes are the dimensions along which a sweep changes the mixed cluster, one at a time. The first value is the one used
// while another dimension changes.
var axes = []struct {
	name   string
	values []float64
	set    func(*mixOptions, float64)
}{
	{"nodes", []float64{1000, 2000, 5000, 10000, 20000, 50000}, func(o *mixOptions, v float64) { o.nodes = int(v) }},
	{"kinds", []float64{10, 100, 1000, 10000}, func(o *mixOptions, v float64) { o.kinds = int(v) }},
	{"waiting pods", []float64{10, 100, 1000, 4000}, func(o *mixOptions, v float64) { o.waiting = int(v) }},
	{"other events per pod", []float64{0.5, 1, 2, 4, 8}, func(o *mixOptions, v float64) { o.churn = v }},
}

// sweepFrom is the cluster from which a sweep changes one dimension.
var sweepFrom = mixOptions{nodes: 5000, kinds: 1000, waiting: 100, churn: 1}

// sweepScenario returns one point of a sweep.
func sweepScenario(axis int, value float64, most int) (scenario, bool) {
	o := sweepFrom
	axes[axis].set(&o, value)
	s := mixed(fmt.Sprintf("%s: %v", axes[axis].name, value), o)
	s.upstreamPods = 0
	return s, o.nodes <= most
}
