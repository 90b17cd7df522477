package scheduler

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// badPods are pods with as many parts as fit into an object, and their failure messages; "": they are placed.
var badPods = map[string]struct {
	change func(pod *corev1.Pod, parts int)
	told   string
}{
	"labels": {func(pod *corev1.Pod, parts int) {
		pod.Labels = map[string]string{}
		for i := range parts {
			pod.Labels[fmt.Sprint("l", i)] = "x"
		}
	}, ""},
	"terms": {func(pod *corev1.Pod, parts int) {
		var terms []corev1.NodeSelectorTerm
		for i := range parts {
			terms = append(terms, corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
				{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: []string{fmt.Sprint("none-", i)}},
			}})
		}
		pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms},
		}}
	}, "2 node(s) didn't match Pod's node affinity/selector"},
	"ports": {func(pod *corev1.Pod, parts int) {
		for i := range parts {
			port := corev1.ContainerPort{HostPort: int32(1000 + i), ContainerPort: 80, Protocol: corev1.ProtocolTCP}
			pod.Spec.Containers[0].Ports = append(pod.Spec.Containers[0].Ports, port)
		}
	}, ""},
	"resources": {func(pod *corev1.Pod, parts int) {
		for i := range parts {
			name := corev1.ResourceName(fmt.Sprint("example.com/none-", i))
			pod.Spec.Containers[0].Resources.Requests[name] = resource.MustParse("1")
		}
	}, "2 Insufficient example.com/none-0, "},
	"topology keys": {func(pod *corev1.Pod, parts int) {
		for i := range parts {
			pod.Spec.TopologySpreadConstraints = append(pod.Spec.TopologySpreadConstraints, corev1.TopologySpreadConstraint{
				MaxSkew: 1, TopologyKey: fmt.Sprint("none-", i), WhenUnsatisfiable: corev1.DoNotSchedule,
				LabelSelector: &metav1.LabelSelector{},
			})
		}
	}, "2 node(s) didn't match pod topology spread constraints (missing required label)"},
	"partners": {func(pod *corev1.Pod, parts int) {
		var terms []corev1.PodAffinityTerm
		for i := range parts {
			nobody := &metav1.LabelSelector{MatchLabels: map[string]string{fmt.Sprint("l", i): "nobody"}}
			terms = append(terms, corev1.PodAffinityTerm{LabelSelector: nobody, TopologyKey: fmt.Sprint("none-", i)})
		}
		pod.Spec.Affinity = &corev1.Affinity{
			PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms},
		}
	}, "2 node(s) didn't match pod affinity rules"},
}

// TestBadPods: a pod with 10,000 parts is placed, or gets the reason in an Event and a condition of limited length. It
// delays no other pod, and is bound once its owner has corrected it.
func TestBadPods(t *testing.T) {
	const parts = 10000
	for name, bad := range badPods {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t)
				m, recorder, stop := start(c, 16)
				defer stop()
				m.nodeHandler().OnAdd(testNode("a", "4"), true)
				m.nodeHandler().OnAdd(testNode("b", "4"), true)
				m.submit(context.Background(), synced(m))
				pod := testPod("bad", "1")
				bad.change(pod, parts)
				c.add(m, pod)
				ordinary := testPod("ordinary", "1")
				c.add(m, ordinary)
				elapse(10 * time.Second)
				if c.where(ordinary) == "" || (c.where(pod) == "") == (bad.told == "") {
					t.Errorf("the ordinary pod is on %q, the bad one on %q", c.where(ordinary), c.where(pod))
				}
				events := ""
				for len(recorder.Events) > 0 {
					e := <-recorder.Events
					if events += e + "\n"; len(e) > messageMax+len("Warning FailedScheduling ") {
						t.Errorf("an Event of %d bytes", len(e))
					}
				}
				told := strings.Join(c.told(), "\n")
				const bound = conditionMax + 1024 // with the rest of a patch
				if !strings.Contains(events, bad.told) || !strings.Contains(told, bad.told) || len(told) > bound {
					t.Errorf("Events %.2000s, condition of %d bytes: %.1000s", events, len(told), told)
				}
				if bad.told == "" {
					return
				}
				mended := testPod("bad", "1")
				c.set(mended)
				m.podHandler().OnUpdate(pod, mended)
				elapse(time.Minute)
				if c.where(mended) == "" {
					t.Error("it was corrected, but is not bound")
				}
			})
		})
	}
}

// TestFlappingNodes: nodes that change ten times a second for ten minutes, each in a different way, cause no more
// attempts for their pods than the back-off allows. When they are stable, all pods are bound, and each pod was notified
// of the event that let it fit.
func TestFlappingNodes(t *testing.T) {
	for name, flap := range map[string]func(n *corev1.Node){
		"ready": func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule}}
		},
		"cordoned":    func(n *corev1.Node) { n.Spec.Unschedulable = true },
		"labels":      func(n *corev1.Node) { n.Labels = nil },
		"allocatable": func(n *corev1.Node) { n.Status.Allocatable[corev1.ResourceCPU] = resource.MustParse("1") },
		"gone":        nil,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testFlappingNodes(t, flap) })
		})
	}
}

// testFlappingNodes is TestFlappingNodes for nodes that flap changes; nil: they are deleted.
func testFlappingNodes(t *testing.T, flap func(*corev1.Node)) {
	c := newCluster(t)
	m, _, stop := start(c, 16)
	defer stop()
	node := func(i int) *corev1.Node {
		n := testNode(fmt.Sprint("n", i), "3")
		n.Labels = map[string]string{"disk": "ssd"}
		return n
	}
	const nodes, pods = 5, 10 // with 1.5 CPUs each, two fit on a node
	well := func(i int) { m.nodeHandler().OnUpdate(node(i), node(i)) }
	ill := func(i int) {
		if flap == nil {
			m.nodeHandler().OnDelete(node(i))
			return
		}
		n := node(i)
		flap(n)
		m.nodeHandler().OnUpdate(n, n)
	}
	for i := range nodes {
		well(i)
		ill(i)
	}
	m.submit(context.Background(), synced(m))
	c.mu.Lock()
	c.refuses = true
	c.mu.Unlock()
	var all []*corev1.Pod
	for i := range pods {
		pod := testPod(fmt.Sprint("p", i), "1500m")
		pod.Spec.NodeSelector = map[string]string{"disk": "ssd"}
		c.add(m, pod)
		all = append(all, pod)
	}
	const minutes = 10
	for i := range minutes * 600 {
		well(i % nodes)
		elapse(50 * time.Millisecond)
		ill(i % nodes)
		elapse(50 * time.Millisecond)
	}
	c.mu.Lock()
	if most := pods * (minutes*60/10 + 5); c.refused == 0 || c.refused > most {
		t.Errorf("%d binds were tried, want at most %d", c.refused, most)
	}
	c.refuses = false
	c.mu.Unlock()
	for i := range nodes {
		well(i)
	}
	elapse(time.Minute)
	on := map[string]int{}
	for _, pod := range all {
		on[c.where(pod)]++
	}
	for i := range nodes {
		if n := on[fmt.Sprint("n", i)]; n != 2 {
			t.Errorf("%d pods are on n%d, want 2", n, i)
		}
	}
}
