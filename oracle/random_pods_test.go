package oracle

import (
	"fmt"
	"math/rand/v2"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// random generates values from small sets, so that they match each other often.
type random struct{ *rand.Rand }

func (r random) of(s ...string) string { return s[r.IntN(len(s))] }

func (r random) chance(n int) bool { return r.IntN(n) == 0 }

func (r random) node(i int) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i), Labels: map[string]string{}}}
	if !r.chance(8) {
		n.Labels["kubernetes.io/hostname"] = fmt.Sprint("n", i)
	}
	if !r.chance(5) {
		n.Labels["topology.kubernetes.io/zone"] = r.of("z1", "z2", "z3")
	}
	for _, key := range []string{"zone", "disk", "gen"} {
		if r.chance(2) {
			n.Labels[key] = r.of("a", "b", "1", "7", "12")
		}
	}
	n.Spec.Unschedulable = r.chance(8)
	for r.chance(3) {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: r.of("k", "l", "node.kubernetes.io/unschedulable"),
			Value: r.of("", "v"), Effect: corev1.TaintEffect(r.of("NoSchedule", "PreferNoSchedule", "NoExecute"))})
	}
	n.Status.Allocatable = corev1.ResourceList{
		"cpu": resource.MustParse(r.of("0", "1", "1500m", "4", "16")), "memory": resource.MustParse(r.of("1Gi", "2000M",
			"8Gi")),
		"pods": resource.MustParse(r.of("2", "10", "110")), "ephemeral-storage": resource.MustParse(r.of("1Gi", "10Gi")),
	}
	if r.chance(3) {
		n.Status.Allocatable["example.com/gpu"] = resource.MustParse(r.of("0", "1", "4"))
	}
	if r.chance(3) {
		n.Status.Allocatable["hugepages-2Mi"] = resource.MustParse(r.of("0", "64Mi"))
	}
	for r.chance(2) {
		name := r.of("a", "b", "c")
		n.Status.Images = append(n.Status.Images, corev1.ContainerImage{Names: []string{name + ":latest",
			"reg.example:5000/" + name + ":latest"}, SizeBytes: sizes[name]})
	}
	if r.chance(2) {
		n.Status.DeclaredFeatures = []string{"RestartAllContainersOnContainerExits"}
	}
	return n
}

// sizes of images: every node reports the same size, because upstream uses the first one that it gets.
var sizes = map[string]int64{"a": 10 << 20, "b": 700 << 20, "c": 3 << 30}

func (r random) requests() corev1.ResourceList {
	list := corev1.ResourceList{}
	for _, x := range []struct {
		name    corev1.ResourceName
		oneIn   int
		amounts []string
	}{
		{"cpu", 2, []string{"0", "100m", "700m", "3"}}, {"memory", 2, []string{"0", "100Mi", "900Mi", "1500M"}},
		{"ephemeral-storage", 4, []string{"1Gi", "3Gi"}},
		{"example.com/gpu", 4, []string{"1", "2"}},
		{"hugepages-2Mi", 4, []string{"4Mi", "128Mi"}},
	} {
		if r.chance(x.oneIn) {
			list[x.name] = resource.MustParse(r.of(x.amounts...))
		}
	}
	return list
}

func (r random) container(name string) corev1.Container {
	c := corev1.Container{Name: name, Image: r.of("a", "b:latest", "c:1", "reg.example:5000/c"),
		Resources: corev1.ResourceRequirements{Requests: r.requests()}}
	for r.chance(5) {
		c.Ports = append(c.Ports, corev1.ContainerPort{HostPort: int32(r.IntN(3)), HostIP: r.of("", "0.0.0.0", "10.0.0.1",
			"10.0.0.2"), Protocol: corev1.Protocol(r.of("", "TCP", "UDP"))})
	}
	return c
}

func (r random) pod(name string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: r.of("x", "y"), Name: name, UID: types.UID(name),
		Labels: r.labels()}}
	priority := int32(r.IntN(4) * 10)
	p.Spec.Priority = &priority
	started := metav1.NewTime(time.Unix(int64(1700000000+r.IntN(1<<20)), 0))
	p.Status.StartTime = &started
	for i := range 1 + r.IntN(2) {
		p.Spec.Containers = append(p.Spec.Containers, r.container(fmt.Sprint("c", i)))
	}
	always := corev1.ContainerRestartPolicyAlways
	for r.chance(4) {
		c := r.container(fmt.Sprint("i", len(p.Spec.InitContainers)))
		if r.chance(2) {
			c.RestartPolicy = &always
		}
		p.Spec.InitContainers = append(p.Spec.InitContainers, c)
	}
	if r.chance(6) {
		p.Spec.Overhead = corev1.ResourceList{"cpu": resource.MustParse("50m"), "memory": resource.MustParse("30Mi")}
	}
	if r.chance(6) {
		p.Spec.Resources = &corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse(r.of("1",
			"2"))}}
		if r.chance(2) {
			p.Spec.Resources.Requests["memory"] = resource.MustParse("1Gi")
		}
	}
	for r.chance(3) {
		p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{
			Key: r.of("k", "l", "node.kubernetes.io/unschedulable", ""), Operator: corev1.TolerationOperator(r.of("", "Equal",
				"Exists", "Gt")),
			Value: r.of("", "v"), Effect: corev1.TaintEffect(r.of("", "NoSchedule", "PreferNoSchedule", "NoExecute")),
		})
	}
	if r.chance(5) {
		p.Spec.NodeSelector = map[string]string{r.of("zone", "disk"): r.of("a", "b")}
	}
	if r.chance(3) {
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: r.affinity()}
	}
	if r.chance(3) {
		r.around(p)
	}
	for r.chance(3) {
		p.Spec.TopologySpreadConstraints = append(p.Spec.TopologySpreadConstraints, r.spread())
	}
	if r.chance(20) {
		never := corev1.ContainerRestartPolicyNever
		p.Spec.Containers[0].RestartPolicy = &never
		p.Spec.Containers[0].RestartPolicyRules = []corev1.ContainerRestartRule{{
			Action:    corev1.ContainerRestartRuleActionRestartAllContainers,
			ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{Operator: "In", Values: []int32{42}},
		}}
	}
	return p
}

func (r random) affinity() *corev1.NodeAffinity {
	a := &corev1.NodeAffinity{}
	if r.chance(2) {
		required := &corev1.NodeSelector{}
		for range r.IntN(3) {
			required.NodeSelectorTerms = append(required.NodeSelectorTerms, r.term(true))
		}
		a.RequiredDuringSchedulingIgnoredDuringExecution = required
	}
	for range r.IntN(3) {
		a.PreferredDuringSchedulingIgnoredDuringExecution = append(a.PreferredDuringSchedulingIgnoredDuringExecution,
			corev1.PreferredSchedulingTerm{Weight: int32(r.IntN(100)), Preference: r.term(false)})
	}
	return a
}

// term returns a random term. A broken one has errors that the API server accepts only in required terms of old
// objects.
func (r random) term(broken bool) corev1.NodeSelectorTerm {
	var t corev1.NodeSelectorTerm
	for range r.IntN(3) {
		q := corev1.NodeSelectorRequirement{Key: r.of("zone", "disk", "gen", "none"),
			Operator: corev1.NodeSelectorOperator(r.of("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"))}
		switch q.Operator {
		case "In", "NotIn":
			q.Values = []string{r.of("a", "b", "1", "7"), r.of("a", "12")}
		case "Gt", "Lt":
			q.Values = []string{r.of("1", "7", "10")}
			if broken && r.chance(4) {
				q.Values = []string{r.of("x", "1.5", "")}
			}
		}
		if broken && r.chance(12) {
			q.Values = append(q.Values, "no label value!")
		}
		t.MatchExpressions = append(t.MatchExpressions, q)
	}
	if r.chance(4) {
		for range 1 + r.IntN(2) {
			q := corev1.NodeSelectorRequirement{Key: "metadata.name", Operator: corev1.NodeSelectorOperator(r.of("In", "In",
				"NotIn")), Values: []string{fmt.Sprint("n", r.IntN(4))}}
			if broken && r.chance(8) {
				q.Values = append(q.Values, "n1")
			}
			t.MatchFields = append(t.MatchFields, q)
		}
	}
	return t
}

func (r random) labels() map[string]string {
	out := map[string]string{}
	if !r.chance(4) {
		out["app"] = r.of("web", "db")
	}
	if r.chance(2) {
		out["rev"] = r.of("1", "2")
	}
	return out
}

func (r random) selector() *metav1.LabelSelector {
	switch r.IntN(8) {
	case 0:
		return nil
	case 1:
		return &metav1.LabelSelector{}
	case 2:
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: "app", Operator: metav1.LabelSelectorOperator(r.of("In", "NotIn")), Values: []string{"web"}},
			{Key: "rev", Operator: metav1.LabelSelectorOperator(r.of("Exists", "DoesNotExist"))},
		}}
	}
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": r.of("web", "db")}}
}

func (r random) topologyKey() string {
	return r.of("kubernetes.io/hostname", "topology.kubernetes.io/zone", "topology.kubernetes.io/zone", "disk")
}

func (r random) spread() corev1.TopologySpreadConstraint {
	c := corev1.TopologySpreadConstraint{
		MaxSkew: int32(1 + r.IntN(2)), TopologyKey: r.topologyKey(), LabelSelector: r.selector(),
		WhenUnsatisfiable: corev1.UnsatisfiableConstraintAction(r.of("DoNotSchedule", "ScheduleAnyway")),
	}
	if c.WhenUnsatisfiable == corev1.DoNotSchedule && r.chance(3) {
		n := int32(1 + r.IntN(4))
		c.MinDomains = &n
	}
	if r.chance(3) {
		policy := corev1.NodeInclusionPolicy(r.of("Honor", "Ignore"))
		c.NodeAffinityPolicy = &policy
	}
	if r.chance(3) {
		policy := corev1.NodeInclusionPolicy(r.of("Honor", "Ignore"))
		c.NodeTaintsPolicy = &policy
	}
	if r.chance(4) {
		c.MatchLabelKeys = []string{"rev"}
	}
	return c
}

func (r random) podTerm() corev1.PodAffinityTerm {
	t := corev1.PodAffinityTerm{LabelSelector: r.selector(), TopologyKey: r.topologyKey()}
	if r.chance(4) {
		t.Namespaces = []string{r.of("x", "y")}
	}
	switch r.IntN(6) {
	case 0:
		t.NamespaceSelector = &metav1.LabelSelector{}
	case 1:
		t.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": r.of("red", "blue")}}
	}
	return t
}

// around generates terms of inter-pod affinity.
func (r random) around(p *corev1.Pod) {
	if p.Spec.Affinity == nil {
		p.Spec.Affinity = &corev1.Affinity{}
	}
	together, apart := &corev1.PodAffinity{}, &corev1.PodAntiAffinity{}
	p.Spec.Affinity.PodAffinity, p.Spec.Affinity.PodAntiAffinity = together, apart
	for r.chance(4) {
		together.RequiredDuringSchedulingIgnoredDuringExecution = append(
			together.RequiredDuringSchedulingIgnoredDuringExecution, r.podTerm())
	}
	for r.chance(4) {
		apart.RequiredDuringSchedulingIgnoredDuringExecution = append(apart.RequiredDuringSchedulingIgnoredDuringExecution,
			r.podTerm())
	}
	for r.chance(3) {
		together.PreferredDuringSchedulingIgnoredDuringExecution = append(
			together.PreferredDuringSchedulingIgnoredDuringExecution,
			corev1.WeightedPodAffinityTerm{Weight: int32(1 + r.IntN(100)), PodAffinityTerm: r.podTerm()})
	}
	for r.chance(3) {
		apart.PreferredDuringSchedulingIgnoredDuringExecution = append(apart.PreferredDuringSchedulingIgnoredDuringExecution,
			corev1.WeightedPodAffinityTerm{Weight: int32(1 + r.IntN(100)), PodAffinityTerm: r.podTerm()})
	}
}

func (r random) namespaces() []*corev1.Namespace {
	var out []*corev1.Namespace
	for _, name := range []string{"x", "y"} {
		n := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if !r.chance(3) {
			n.Labels = map[string]string{"team": r.of("red", "blue")}
		}
		out = append(out, n)
	}
	return out
}

func (r random) services() []*corev1.Service {
	var out []*corev1.Service
	for i := range r.IntN(3) {
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: r.of("x", "y"), Name: fmt.Sprint("s", i)}}
		if !r.chance(5) {
			s.Spec.Selector = map[string]string{r.of("app", "rev"): r.of("web", "db", "1")}
		}
		out = append(out, s)
	}
	return out
}

func (r random) budgets() []*policyv1.PodDisruptionBudget {
	var out []*policyv1.PodDisruptionBudget
	for i := range r.IntN(3) {
		b := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: r.of("x", "y"), Name: fmt.Sprint("b", i)}}
		one := intstr.FromInt32(1)
		b.Spec.MinAvailable, b.Spec.Selector = &one, r.selector()
		b.Status.DisruptionsAllowed = int32(r.IntN(3))
		if r.chance(4) {
			b.Status.DisruptedPods = map[string]metav1.Time{"bound-0-0": metav1.Now()}
		}
		out = append(out, b)
	}
	return out
}

// cluster generates nodes with pods on them. One in a hundred is large enough for tables.
func (r random) cluster(seed uint64) *cluster {
	c := &cluster{namespaces: r.namespaces(), services: r.services(), budgets: r.budgets()}
	nodes := 1 + r.IntN(8)
	if seed%100 == 99 {
		nodes = 80
	}
	for i := range nodes {
		c.nodes = append(c.nodes, r.node(i))
		taken := map[int32]bool{}
		for k := range r.IntN(4) {
			pod := r.pod(fmt.Sprintf("bound-%d-%d", i, k))
			pod.Spec.NodeName = c.nodes[i].Name
			dropPorts(pod, taken)
			if seed%3 == 0 && r.chance(6) {
				now := metav1.Now()
				pod.DeletionTimestamp = &now
			}
			c.bound = append(c.bound, pod)
		}
		if r.chance(8) {
			pod := r.pod(fmt.Sprint("nominated-", i))
			dropPorts(pod, taken)
			pod.Status.NominatedNodeName = c.nodes[i].Name
			c.nominated = append(c.nominated, pod)
		}
	}
	return c
}

// dropPorts removes host ports that are in use: two pods on a node cannot have the same port, and upstream, which has a
// set of ports, would free the port with either pod.
func dropPorts(pod *corev1.Pod, taken map[int32]bool) {
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			var free []corev1.ContainerPort
			for _, p := range list[i].Ports {
				if !taken[p.HostPort] {
					taken[p.HostPort], free = true, append(free, p)
				}
			}
			list[i].Ports = free
		}
	}
}
