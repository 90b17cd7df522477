package main

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// scenario is a cluster with pods on it, and the pods that come.
type scenario struct {
	name    string
	nodes   int
	perNode int // pods on each node at the start

	upstreamPods, ourPods int // how many come in a round; 0: not measured, or upstream has no equivalent

	// Bars. Zero: none.
	times float64       // our CPU time must be less than upstream's by this factor; without upstream: pods per second
	most  time.Duration // limit of our CPU time per pod
	base  string        // the limit is twice our time in this scenario, or most, whichever is more

	old    func(i, k int, p *corev1.Pod) // sets up the k-th pod on node i; nil: nothing to do
	change func(i int, p *corev1.Pod)    // the same for the i-th pod that comes

	dress  func(i int, n *corev1.Node) // the same for node i
	world  func() []any                // objects other than nodes and pods
	more   []*corev1.Pod               // additional pods at the start
	before func(i int) []change        // what changes right before the i-th pod comes

	waiting int                      // how many pods wait all the time
	waits   func(i int) *corev1.Pod  // the i-th waiting pod
	comes   func(i int) *corev1.Pod  // replaces change: the i-th pod that comes
	makes   func(i int) *corev1.Node // replaces dress: node i
	begin   func(s *scenario)        // resets what has a state, for each side
	numa    bool                     // the nodes' agents report their NUMA nodes
}

// published are the scenarios of the project's first table, with pods of one kind. The bars are from there, too.
func published() []scenario {
	full := func(_, _ int, p *corev1.Pod) { request(p, "7900m") }
	oldWeb := func(_, _ int, p *corev1.Pod) { web(p) }
	return []scenario{
		{name: "basic", nodes: 5000, perNode: 10, upstreamPods: 2000, ourPods: 20000, times: 50},
		{name: "basic", nodes: 50000, perNode: 1, upstreamPods: 400, ourPods: 20000, times: 200},
		{name: "hard zone spread", nodes: 5000, perNode: 10, upstreamPods: 300, ourPods: 20000, times: 200,
			change: func(_ int, p *corev1.Pod) { spread(p, corev1.DoNotSchedule, zone) }},
		{name: "soft spread", nodes: 5000, perNode: 10, upstreamPods: 300, ourPods: 20000, times: 200,
			change: func(_ int, p *corev1.Pod) { spread(p, corev1.ScheduleAnyway, zone, hostname) }},
		{name: "required zone affinity", nodes: 5000, perNode: 10, upstreamPods: 100, ourPods: 20000, times: 500, old: oldWeb,
			change: func(_ int, p *corev1.Pod) {
				p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{
					RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{term(zone)}}}
			}},
		{name: "required host anti-affinity", nodes: 5000, perNode: 10, upstreamPods: 200, ourPods: 3000, times: 200,
			change: func(_ int, p *corev1.Pod) {
				p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
					RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{term(hostname)}}}
			}},
		{name: "preemptor, all nodes full", nodes: 5000, perNode: 4, upstreamPods: 200, ourPods: 2000, times: 50, old: full,
			change: func(_ int, p *corev1.Pod) { preemptor(p) }},
		{name: "fits nowhere", nodes: 5000, perNode: 4, upstreamPods: 200, ourPods: 20000, times: 500, old: full,
			change: func(_ int, p *corev1.Pod) { request(p, "4") }},
		{name: "NUMA single-numa-node", nodes: 5000, perNode: 2, ourPods: 20000, times: 5000, numa: true,
			old:    func(_, _ int, p *corev1.Pod) { pin(p, 2) },
			change: func(i int, p *corev1.Pod) { pin(p, 1<<(len(p.Name)%3)) }},
	}
}

const (
	hostname = corev1.LabelHostname
	zone     = corev1.LabelTopologyZone
)

func web(p *corev1.Pod) { p.Labels = map[string]string{"app": "web"} }

// preemptor gives a pod the highest priority, and more CPUs than a full node has free.
func preemptor(p *corev1.Pod) {
	high := int32(100)
	p.Spec.Priority = &high
	request(p, "4")
}

// term selects the pods of "web".
func term(key string) corev1.PodAffinityTerm { return termFor(key, map[string]string{"app": "web"}) }

func termFor(key string, labels map[string]string) corev1.PodAffinityTerm {
	return corev1.PodAffinityTerm{LabelSelector: &metav1.LabelSelector{MatchLabels: labels}, TopologyKey: key}
}

func spread(p *corev1.Pod, when corev1.UnsatisfiableConstraintAction, keys ...string) {
	for _, key := range keys {
		p.Spec.TopologySpreadConstraints = append(p.Spec.TopologySpreadConstraints, corev1.TopologySpreadConstraint{
			MaxSkew: 5, TopologyKey: key, WhenUnsatisfiable: when, LabelSelector: &metav1.LabelSelector{MatchLabels: p.Labels},
		})
	}
}

func request(p *corev1.Pod, cpu string) {
	p.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse(cpu)
}

func nodeName(i int) string { return fmt.Sprintf("node-%05d", i) }

// node is a node with 32 CPUs, 256 GiB and one of three zones, unless the scenario changes it.
func (s *scenario) node(i int) *corev1.Node {
	if s.makes != nil {
		return s.makes(i)
	}
	name := nodeName(i)
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			hostname: name, zone: fmt.Sprint("zone-", i%3), corev1.LabelOSStable: "linux",
		}},
		Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
			corev1.ResourceCPU:              resource.MustParse("32"),
			corev1.ResourceMemory:           resource.MustParse("256Gi"),
			corev1.ResourcePods:             resource.MustParse("110"),
			corev1.ResourceEphemeralStorage: resource.MustParse("100Gi"),
		}},
	}
	if s.dress != nil {
		s.dress(i, n)
	}
	return n
}

// podNamed is a pod that requests a tenth of a CPU and 100 MiB.
func podNamed(name string) *corev1.Pod {
	zero := int32(0)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name),
			Labels: map[string]string{"app": "old"}},
		Spec: corev1.PodSpec{SchedulerName: corev1.DefaultSchedulerName, Priority: &zero, Containers: []corev1.Container{{
			Name: "c", Image: "registry.example/app:1", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("100Mi"),
			}},
		}}},
	}
}

// existing is the k-th pod on node i.
func (s *scenario) existing(i, k int) *corev1.Pod {
	p := podNamed(fmt.Sprintf("old-%d-%d", i, k))
	if s.old != nil {
		s.old(i, k, p)
	}
	p.Spec.NodeName = nodeName(i)
	started := metav1.Unix(int64(1700000000+i*10+k), 0)
	p.Status.StartTime = &started
	return p
}

// coming is the i-th pod to be placed.
func (s *scenario) coming(i int) *corev1.Pod {
	if s.comes != nil {
		return s.comes(i)
	}
	p := podNamed(fmt.Sprint("new-", i))
	web(p)
	if s.change != nil {
		s.change(i, p)
	}
	return p
}
