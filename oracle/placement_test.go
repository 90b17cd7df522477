// Package oracle holds our decisions against upstream's own code, on random input. Upstream is the judge here and a
// library nowhere else.
package oracle

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/nodeaffinity"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/nodeports"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/noderesources"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/nodeunschedulable"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/tainttoleration"

	"github.com/plimsoll-dev/plimsoll/internal/core/placement"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// judge is upstream's filters and scores, in upstream's order.
type judge struct {
	filters []fwk.FilterPlugin
	scores  []weighted
}

type weighted struct {
	plugin fwk.ScorePlugin
	weight int64
}

func newJudge(t *testing.T) judge {
	ctx, fts := context.Background(), feature.NewSchedulerFeaturesFromGates(utilfeature.DefaultFeatureGate)
	fts.EnableDRAExtendedResource = false // needs a cluster of device classes, and we have no such rule
	must := func(p fwk.Plugin, err error) fwk.Plugin {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	unschedulable := must(nodeunschedulable.New(ctx, nil, nil, fts))
	taints := must(tainttoleration.New(ctx, nil, nil, fts))
	affinity := must(nodeaffinity.New(ctx, &config.NodeAffinityArgs{}, nil, fts))
	ports := must(nodeports.New(ctx, nil, nil, fts))
	fit := must(noderesources.NewFit(ctx, &config.NodeResourcesFitArgs{ScoringStrategy: &config.ScoringStrategy{
		Type: config.LeastAllocated, Resources: []config.ResourceSpec{{Name: "cpu", Weight: 1}, {Name: "memory", Weight: 1}},
	}}, nil, fts))
	return judge{
		filters: []fwk.FilterPlugin{unschedulable.(fwk.FilterPlugin), taints.(fwk.FilterPlugin), affinity.(fwk.FilterPlugin), ports.(fwk.FilterPlugin), fit.(fwk.FilterPlugin)},
		scores:  []weighted{{taints.(fwk.ScorePlugin), 3}, {affinity.(fwk.ScorePlugin), 2}, {fit.(fwk.ScorePlugin), 1}},
	}
}

// verdict is what the judge says of one pod.
type verdict struct {
	reasons map[string][]string // of each node that is not feasible
	totals  map[string]int64    // of each node that is
}

func (j judge) judge(t *testing.T, pod *corev1.Pod, infos []fwk.NodeInfo) verdict {
	ctx, state := context.Background(), framework.NewCycleState()
	v := verdict{map[string][]string{}, map[string]int64{}}
	var only *fwk.PreFilterResult
	skip := map[string]bool{}
	for _, f := range j.filters {
		pre, ok := f.(fwk.PreFilterPlugin)
		if !ok {
			continue
		}
		result, status := pre.PreFilter(ctx, state, pod, infos)
		switch {
		case status.IsSkip():
			skip[f.Name()] = true
		case !status.IsSuccess():
			for _, n := range infos {
				v.reasons[n.Node().Name] = status.Reasons()
			}
			return v
		case result != nil && !result.AllNodes():
			only = result
		}
	}
	var feasible []fwk.NodeInfo
	for _, n := range infos {
		name := n.Node().Name
		if only != nil && !only.NodeNames.Has(name) {
			v.reasons[name] = []string{"node(s) didn't satisfy plugin(s) [NodeAffinity]"}
			continue
		}
		ok := true
		for _, f := range j.filters {
			if skip[f.Name()] {
				continue
			}
			if status := f.Filter(ctx, state, pod, n); !status.IsSuccess() {
				v.reasons[name], ok = status.Reasons(), false
				break
			}
		}
		if ok {
			feasible = append(feasible, n)
			v.totals[name] = 0
		}
	}
	for _, s := range j.scores {
		if pre, ok := s.plugin.(fwk.PreScorePlugin); ok && pre.PreScore(ctx, state, pod, feasible).IsSkip() {
			continue
		}
		var list fwk.NodeScoreList
		for _, n := range feasible {
			score, status := s.plugin.Score(ctx, state, pod, n)
			if !status.IsSuccess() {
				t.Fatal(status)
			}
			list = append(list, fwk.NodeScore{Name: n.Node().Name, Score: score})
		}
		if e := s.plugin.ScoreExtensions(); e != nil {
			e.NormalizeScore(ctx, state, pod, list)
		}
		for _, x := range list {
			v.totals[x.Name] += s.weight * x.Score
		}
	}
	return v
}

// TestFeasibilityAndScores draws random clusters and pods. Every node must be feasible for us exactly when it is for
// upstream, with the same reasons, and our choice must be among upstream's best, with upstream's total.
func TestFeasibilityAndScores(t *testing.T) {
	j := newJudge(t)
	clusters, pairs, placed := 20000, 0, 0
	if testing.Short() {
		clusters = 1000
	}
	for seed := range uint64(clusters) {
		r := random{rand.New(rand.NewPCG(seed, 36))}
		placer := placement.New(placement.Options{Seed: seed})
		var infos []fwk.NodeInfo
		for i := range 1 + r.IntN(8) {
			node := r.node(i)
			info := framework.NewNodeInfo()
			info.SetNode(node)
			placer.NodeSeen(1, kube.PlacementNode(node))
			for k := range r.IntN(4) {
				pod := r.pod(fmt.Sprintf("bound-%d-%d", i, k))
				pod.Spec.NodeName = node.Name
				info.AddPod(pod)
				placer.PodSeen(1, kube.PlacementPod(pod))
			}
			infos = append(infos, info)
		}
		for k := range 5 {
			pod := r.pod(fmt.Sprint("pending-", k))
			ours, theirs := kube.PlacementPod(pod), j.judge(t, pod, infos)
			for _, v := range placer.Verdicts(ours) {
				pairs++
				want := slices.Clone(theirs.reasons[v.Node])
				got := slices.Clone(v.Reasons)
				slices.Sort(want) // upstream walks a map of extended resources
				slices.Sort(got)
				if !slices.Equal(got, want) {
					t.Fatalf("seed %d: pod %s on %s: ours %q, upstream %q\npod %+v", seed, pod.Name, v.Node, got, want, pod.Spec)
				}
			}
			placer.PodSeen(2, ours)
			d, ok := placer.Next(2)
			placer.PodGone(3, ours.ID)
			if !ok || (d.Failure == nil) != (len(theirs.totals) > 0) || d.Feasible != len(theirs.totals) {
				t.Fatalf("seed %d: pod %s: decision %+v, upstream %+v", seed, pod.Name, d, theirs)
			}
			if d.Failure != nil || d.Feasible == 1 {
				continue
			}
			placed++
			if best := slices.Max(slices.Collect(maps.Values(theirs.totals))); theirs.totals[d.Node] != best || d.Score != best {
				t.Fatalf("seed %d: pod %s: ours %s with %d, upstream %v\npod %+v\nours %+v", seed, pod.Name, d.Node, d.Score, theirs.totals, pod.Spec, ours)
			}
		}
	}
	t.Logf("%d clusters, %d pairs of pod and node, %d choices among several: no difference", clusters, pairs, placed)
}

// random draws from small alphabets, so that things meet.
type random struct{ *rand.Rand }

func (r random) of(s ...string) string { return s[r.IntN(len(s))] }

func (r random) chance(n int) bool { return r.IntN(n) == 0 }

func (r random) node(i int) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i), Labels: map[string]string{"kubernetes.io/hostname": fmt.Sprint("n", i)}}}
	for _, key := range []string{"zone", "disk", "gen"} {
		if r.chance(2) {
			n.Labels[key] = r.of("a", "b", "1", "7", "12")
		}
	}
	n.Spec.Unschedulable = r.chance(8)
	for r.chance(3) {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: r.of("k", "l", "node.kubernetes.io/unschedulable"), Value: r.of("", "v"), Effect: corev1.TaintEffect(r.of("NoSchedule", "PreferNoSchedule", "NoExecute"))})
	}
	n.Status.Allocatable = corev1.ResourceList{
		"cpu": resource.MustParse(r.of("0", "1", "1500m", "4", "16")), "memory": resource.MustParse(r.of("1Gi", "2000M", "8Gi")),
		"pods": resource.MustParse(r.of("2", "10", "110")), "ephemeral-storage": resource.MustParse(r.of("1Gi", "10Gi")),
	}
	if r.chance(3) {
		n.Status.Allocatable["example.com/gpu"] = resource.MustParse(r.of("0", "1", "4"))
	}
	if r.chance(3) {
		n.Status.Allocatable["hugepages-2Mi"] = resource.MustParse(r.of("0", "64Mi"))
	}
	return n
}

func (r random) requests() corev1.ResourceList {
	list := corev1.ResourceList{}
	for _, x := range []struct {
		name    corev1.ResourceName
		oneIn   int
		amounts []string
	}{
		{"cpu", 2, []string{"0", "100m", "700m", "3"}}, {"memory", 2, []string{"0", "100Mi", "900Mi", "1500M"}},
		{"ephemeral-storage", 4, []string{"1Gi", "3Gi"}}, {"example.com/gpu", 4, []string{"1", "2"}}, {"hugepages-2Mi", 4, []string{"4Mi", "128Mi"}},
	} {
		if r.chance(x.oneIn) {
			list[x.name] = resource.MustParse(r.of(x.amounts...))
		}
	}
	return list
}

func (r random) container(name string) corev1.Container {
	c := corev1.Container{Name: name, Resources: corev1.ResourceRequirements{Requests: r.requests()}}
	for r.chance(5) {
		c.Ports = append(c.Ports, corev1.ContainerPort{HostPort: int32(r.IntN(3)), HostIP: r.of("", "0.0.0.0", "10.0.0.1", "10.0.0.2"), Protocol: corev1.Protocol(r.of("", "TCP", "UDP"))})
	}
	return c
}

func (r random) pod(name string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: name, UID: types.UID(name)}}
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
		p.Spec.Resources = &corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse(r.of("1", "2"))}}
		if r.chance(2) {
			p.Spec.Resources.Requests["memory"] = resource.MustParse("1Gi")
		}
	}
	for r.chance(3) {
		p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{
			Key: r.of("k", "l", "node.kubernetes.io/unschedulable", ""), Operator: corev1.TolerationOperator(r.of("", "Equal", "Exists", "Gt")),
			Value: r.of("", "v"), Effect: corev1.TaintEffect(r.of("", "NoSchedule", "PreferNoSchedule", "NoExecute")),
		})
	}
	if r.chance(5) {
		p.Spec.NodeSelector = map[string]string{r.of("zone", "disk"): r.of("a", "b")}
	}
	if r.chance(3) {
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: r.affinity()}
	}
	return p
}

func (r random) affinity() *corev1.NodeAffinity {
	a := &corev1.NodeAffinity{}
	if r.chance(2) {
		a.RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{}
		for range r.IntN(3) {
			a.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms = append(a.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms, r.term(true))
		}
	}
	for range r.IntN(3) {
		a.PreferredDuringSchedulingIgnoredDuringExecution = append(a.PreferredDuringSchedulingIgnoredDuringExecution, corev1.PreferredSchedulingTerm{Weight: int32(r.IntN(100)), Preference: r.term(false)})
	}
	return a
}

// term may be broken in ways that the API lets through only in required terms of old objects.
func (r random) term(broken bool) corev1.NodeSelectorTerm {
	var t corev1.NodeSelectorTerm
	for range r.IntN(3) {
		q := corev1.NodeSelectorRequirement{Key: r.of("zone", "disk", "gen", "none"), Operator: corev1.NodeSelectorOperator(r.of("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"))}
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
			q := corev1.NodeSelectorRequirement{Key: "metadata.name", Operator: corev1.NodeSelectorOperator(r.of("In", "In", "NotIn")), Values: []string{fmt.Sprint("n", r.IntN(4))}}
			if broken && r.chance(8) {
				q.Values = append(q.Values, "n1")
			}
			t.MatchFields = append(t.MatchFields, q)
		}
	}
	return t
}
