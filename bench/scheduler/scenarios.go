package main

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// scenario is a cluster, with pods on it, and the pods that come.
type scenario struct {
	name    string
	nodes   int
	perNode int // pods that are there

	upstreamPods, ourPods int     // how many come in a round; 0: upstream has no such thing
	bar                   float64 // how many times less CPU than upstream ours is to need; without upstream, pods a second

	old    func(*corev1.Pod) // makes a pod that is there what it is
	change func(*corev1.Pod) // likewise, one that comes

	numa bool // the nodes' agents report their NUMA nodes
}

// scenarios are those of the project's table; the bars are its own.
func scenarios() []scenario {
	none := func(*corev1.Pod) {}
	full := func(p *corev1.Pod) { request(p, "7900m") }
	return []scenario{
		{"basic", 5000, 10, 2000, 20000, 50, none, none, false},
		{"basic", 50000, 1, 400, 20000, 200, none, none, false},
		{"hard zone spread", 5000, 10, 300, 20000, 200, none, func(p *corev1.Pod) { spread(p, corev1.DoNotSchedule, zone) }, false},
		{"soft spread", 5000, 10, 300, 20000, 200, none, func(p *corev1.Pod) { spread(p, corev1.ScheduleAnyway, zone, hostname) }, false},
		{"required zone affinity", 5000, 10, 100, 20000, 500, web, func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{term(zone)}}}
		}, false},
		{"required host anti-affinity", 5000, 10, 200, 3000, 200, none, func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{term(hostname)}}}
		}, false},
		{"preemptor, all nodes full", 5000, 4, 200, 2000, 50, full, func(p *corev1.Pod) {
			high := int32(100)
			p.Spec.Priority = &high
			request(p, "4")
		}, false},
		{"fits nowhere", 5000, 4, 200, 20000, 500, full, func(p *corev1.Pod) { request(p, "4") }, false},
		{"NUMA single-numa-node", 5000, 2, 0, 20000, 5000, func(p *corev1.Pod) { pin(p, 2) }, func(p *corev1.Pod) { pin(p, 1<<(len(p.Name)%3)) }, true},
	}
}

const (
	hostname = "kubernetes.io/hostname"
	zone     = "topology.kubernetes.io/zone"
)

func web(p *corev1.Pod) { p.Labels = map[string]string{"app": "web"} }

func term(key string) corev1.PodAffinityTerm {
	return corev1.PodAffinityTerm{LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}, TopologyKey: key}
}

func spread(p *corev1.Pod, when corev1.UnsatisfiableConstraintAction, keys ...string) {
	for _, key := range keys {
		p.Spec.TopologySpreadConstraints = append(p.Spec.TopologySpreadConstraints, corev1.TopologySpreadConstraint{
			MaxSkew: 5, TopologyKey: key, WhenUnsatisfiable: when, LabelSelector: term(key).LabelSelector,
		})
	}
}

func request(p *corev1.Pod, cpu string) {
	p.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse(cpu)
}

// node has 32 CPUs, 256 GiB and one of three zones.
func (s *scenario) node(i int) *corev1.Node {
	name := fmt.Sprintf("node-%05d", i)
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{hostname: name, zone: fmt.Sprint("zone-", i%3), "kubernetes.io/os": "linux"}},
		Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("32"), corev1.ResourceMemory: resource.MustParse("256Gi"), corev1.ResourcePods: resource.MustParse("110"),
			corev1.ResourceEphemeralStorage: resource.MustParse("100Gi"),
		}},
	}
}

func (s *scenario) pod(name string) *corev1.Pod {
	zero := int32(0)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{"app": "old"}},
		Spec: corev1.PodSpec{SchedulerName: corev1.DefaultSchedulerName, Priority: &zero, Containers: []corev1.Container{{
			Name: "c", Image: "registry.example/app:1", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("100Mi"),
			}},
		}}},
	}
}

// existing is the k-th pod on node i.
func (s *scenario) existing(i, k int) *corev1.Pod {
	p := s.pod(fmt.Sprintf("old-%d-%d", i, k))
	s.old(p)
	p.Spec.NodeName = fmt.Sprintf("node-%05d", i)
	started := metav1.Unix(int64(1700000000+i*10+k), 0)
	p.Status.StartTime = &started
	return p
}

// coming is the i-th pod to be placed.
func (s *scenario) coming(i int) *corev1.Pod {
	p := s.pod(fmt.Sprint("new-", i))
	web(p)
	s.change(p)
	return p
}
