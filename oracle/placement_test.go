package oracle

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/kube/schedulerconfig"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

var clustersFlag = flag.Int("placement.clusters", 4000, "how many random clusters TestPlacement draws")

// TestPlacement compares random clusters and pods. Every node must be feasible for us exactly if it is for upstream. A
// rejection must have the same reasons, and the same answer to whether preemption could help. Every plugin must have
// the same raw and normalized scores. Our choice must be among upstream's best, with upstream's total. If a pod fits
// nowhere, every node must have the same victims, and our choice must rank as high as upstream's.
func TestPlacement(t *testing.T) {
	compareUnder(t, "", *clustersFlag, false)
}

// TestVolumes is TestPlacement with claims, volumes and disks.
func TestVolumes(t *testing.T) {
	compareUnder(t, "", *clustersFlag, true)
}

const configHead = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"

// compareUnder generates clusters and compares with a configuration file that both sides read.
func compareUnder(t *testing.T, file string, clusters int, volumes bool) {
	t.Helper()
	file = configHead + file
	c, _, err := schedulerconfig.Parse([]byte(file))
	if err != nil {
		t.Fatal(err)
	}
	j := newJudge(t, file)
	var n counts
	for seed := range uint64(clusters) {
		comparePlacement(t, j, c.Profiles[0], seed, volumes, &n)
	}
	t.Logf("%d clusters, %d pairs of pod and node, %d scores, %d choices among several, %d preemptions on %d nodes: no "+
		"difference", clusters, n.pairs, n.scores, n.choices, n.preemptions, n.bids)
}

// TestProfiles compares with configurations that change what plugins do.
func TestProfiles(t *testing.T) {
	for name, file := range map[string]string{
		"most allocated": `
profiles:
- plugins: {multiPoint: {enabled: [{name: NodeResourcesFit, weight: 5}, {name: ImageLocality, weight: 3}]}}
  pluginConfig:
  - {name: NodeResourcesFit, args: {ignoredResourceGroups: [example.com], scoringStrategy: {type: MostAllocated, resources: [{name: cpu, weight: 3}, {name: memory}, {name: example.com/gpu, weight: 2}, {name: ephemeral-storage}]}}}
  - {name: NodeResourcesBalancedAllocation, args: {resources: [{name: cpu}, {name: memory}, {name: ephemeral-storage}, {name: example.com/gpu}]}}
`,
		"requested to capacity ratio": `
profiles:
- pluginConfig:
  - name: NodeResourcesFit
    args:
      ignoredResources: [example.com/gpu]
      scoringStrategy:
        type: RequestedToCapacityRatio
        resources: [{name: cpu, weight: 3}, {name: hugepages-2Mi}]
        requestedToCapacityRatio: {shape: [{utilization: 10, score: 2}, {utilization: 50, score: 0}, {utilization: 90, score: 10}]}
`,
		"affinity": `
profiles:
- plugins: {multiPoint: {disabled: [{name: NodePorts}, {name: PodTopologySpread}]}}
  pluginConfig:
  - {name: InterPodAffinity, args: {hardPodAffinityWeight: 30, ignorePreferredTermsOfExistingPods: true}}
  - name: NodeAffinity
    args:
      addedAffinity:
        requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: zone, operator: NotIn, values: [a]}]}]}
        preferredDuringSchedulingIgnoredDuringExecution: [{weight: 7, preference: {matchExpressions: [{key: disk, operator: Exists}]}}]
`,
		"default spread": `
profiles:
- pluginConfig:
  - name: PodTopologySpread
    args:
      defaultingType: List
      defaultConstraints:
      - {maxSkew: 1, topologyKey: topology.kubernetes.io/zone, whenUnsatisfiable: DoNotSchedule}
      - {maxSkew: 2, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: ScheduleAnyway}
      - {maxSkew: 1, topologyKey: disk, whenUnsatisfiable: ScheduleAnyway}
`,
	} {
		t.Run(name, func(t *testing.T) { compareUnder(t, file, *clustersFlag/8, false) })
	}
}

type counts struct{ pairs, scores, choices, preemptions, bids int }

func comparePlacement(t *testing.T, j *judge, profile scheduler.Profile, seed uint64, volumes bool, n *counts) {
	t.Helper()
	r := random{rand.New(rand.NewPCG(seed, 36))}
	placer := scheduler.New(scheduler.Options{Seed: seed, Profiles: []scheduler.Profile{profile}})
	c := r.cluster(seed)
	if volumes {
		c.stores = r.stores(c)
		for _, p := range slices.Concat(c.bound, c.nominated) {
			r.mount(p, c.stores)
		}
	}
	dbg = c
	tell(placer, c)
	j.see(t, c)
	for k := range 5 {
		nominate(placer, c)
		pod := r.pod(fmt.Sprint("pending-", k))
		pod.Status.StartTime = nil
		if len(c.nominated) > 0 {
			narrow(pod)
		}
		if volumes {
			plain(r, pod)
			r.mount(pod, c.stores)
			tellStores(placer, c.stores)
			j.seeStores(t, c.stores)
		}
		theirs, ours := j.judge(t, pod), translate.SchedulerPod(pod)
		for _, v := range placer.Verdicts(ours) {
			n.pairs++
			// upstream iterates over a map of extended resources
			want, got := slices.Sorted(slices.Values(theirs.reasons[v.Node])), slices.Sorted(slices.Values(v.Reasons))
			if !slices.Equal(got, want) || v.Final != theirs.final[v.Node] {
				t.Fatalf("seed %d: pod %s on %s: ours %q final %v, upstream %q final %v\npod %+v", seed, pod.Name, v.Node, got,
					v.Final, want, theirs.final[v.Node], pod.Spec)
			}
		}
		for _, s := range placer.Scores(ours) {
			compareScores(t, j, seed, pod, s, theirs.scores[s.Node], n)
		}
		compareChoice(t, placer, seed, ours, theirs, n)
		if len(theirs.totals) == 0 && !miscounts(c, pod) {
			nominate(placer, c)
			comparePreemption(t, j, placer, seed, pod, theirs, n)
		}
	}
}

func compareScores(t *testing.T, j *judge, seed uint64, pod *corev1.Pod, ours scheduler.NodeScore,
	theirs map[string]score, n *counts) {
	for _, s := range j.scores {
		n.scores++
		got, want := ours.Plugins[s.plugin.Name()], theirs[s.plugin.Name()]
		if got.Normalized != want.normalized || got.Raw != want.raw && got.Raw != -1 { // -1: not scored
			t.Fatalf("seed %d: pod %s on %s: %s: ours %+v, upstream %+v\npod %+v", seed, pod.Name, ours.Node, s.plugin.Name(),
				got, want, pod.Spec)
		}
	}
}

// compareChoice asks twice: the second answer comes from tables if the cluster is large enough.
func compareChoice(t *testing.T, placer *scheduler.Placer, seed uint64, ours scheduler.Pod, theirs verdict, n *counts) {
	id := ours.ID
	defer func() { placer.PodGone(3, id) }()
	for range 2 {
		placer.PodSeen(2, ours)
		d, ok := placer.Next(2)
		placer.PodGone(3, ours.ID)
		if !ok || (d.Failure == nil) != (len(theirs.totals) > 0) || d.Feasible != len(theirs.totals) {
			t.Fatalf("seed %d: pod %s: decision %+v, upstream %+v", seed, ours.Name, d, theirs)
		}
		if d.Failure != nil || d.Feasible == 1 {
			continue
		}
		n.choices++
		if best := slices.Max(slices.Collect(maps.Values(theirs.totals))); theirs.totals[d.Node] != best || d.Score != best {
			t.Fatalf("seed %d: pod %s: ours %s with %d, upstream %v\nours %+v", seed, ours.Name, d.Node, d.Score, theirs.totals,
				ours)
		}
	}
}

// plain removes most other requirements from a pod, so that those about volumes decide.
func plain(r random, pod *corev1.Pod) {
	if r.chance(4) {
		return
	}
	pod.Spec = corev1.PodSpec{Priority: pod.Spec.Priority, Containers: []corev1.Container{{Name: "c", Image: "a"}},
		Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}}}
}

// narrow replaces empty selectors of spread constraints: for them, upstream counts only nominated pods (README.md).
func narrow(pod *corev1.Pod) {
	for i := range pod.Spec.TopologySpreadConstraints {
		if s := pod.Spec.TopologySpreadConstraints[i].LabelSelector; s != nil && len(s.MatchLabels)+
			len(s.MatchExpressions) == 0 {
			s.MatchLabels = map[string]string{"app": "web"}
		}
	}
}

// miscounts reports whether upstream would subtract a terminating pod from the count of a spread constraint, in which
// the pod was never counted (README.md).
func miscounts(c *cluster, pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.TopologySpreadConstraints,
		func(s corev1.TopologySpreadConstraint) bool { return s.WhenUnsatisfiable == corev1.DoNotSchedule }) &&
		slices.ContainsFunc(c.bound, func(p *corev1.Pod) bool { return p.DeletionTimestamp != nil })
}

// comparePreemption compares victims node by node, then the rank of the node that each side chooses.
func comparePreemption(t *testing.T, j *judge, placer *scheduler.Placer, seed uint64, pod *corev1.Pod, theirs verdict,
	n *counts) {
	ctx := context.Background()
	potential, err := theirs.status.NodesForStatusCode(j.world.NodeInfos(), fwk.Unschedulable)
	if err != nil {
		t.Fatal(err)
	}
	budgets, err := j.factory.Policy().V1().PodDisruptionBudgets().Lister().List(everything)
	if err != nil {
		t.Fatal(err)
	}
	ours := placer.Evictions(translate.SchedulerPod(pod))
	if len(potential) == 0 {
		if len(ours) > 0 {
			t.Fatalf("seed %d: pod %s: ours evicts %+v, upstream no pod", seed, pod.Name, ours)
		}
		return
	}
	candidates, _, err := j.preempts.Evaluator.DryRunPreemption(ctx, theirs.state, pod, potential, budgets, 0,
		int32(len(potential)+1))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	for _, c := range candidates {
		var names []string
		for _, p := range c.Victims().Pods {
			names = append(names, p.Name)
		}
		want[c.Name()] = fmt.Sprint(c.Victims().NumPDBViolations, " ", names)
	}
	got := map[string]string{}
	for _, e := range ours {
		var names []string
		for _, v := range e.Victims {
			names = append(names, v.Name)
		}
		got[e.Node] = fmt.Sprint(e.Violations, " ", names)
	}
	if !maps.Equal(got, want) {
		if c := dbg; c != nil && c.stores != nil {
			for _, p := range slices.Concat(c.bound, c.nominated) {
				t.Logf("%s prio %d on %s nominated %s ns %s vols %v", p.Name, *p.Spec.Priority, p.Spec.NodeName,
					p.Status.NominatedNodeName, p.Namespace, p.Spec.Volumes)
			}
			t.Logf("%s in %s; %v", pod.Name, pod.Namespace, placer.Verdicts(translate.SchedulerPod(pod)))
		}
		t.Fatalf("seed %d: pod %s (priority %d): victims: ours %v, upstream %v\npod %+v", seed, pod.Name, *pod.Spec.Priority,
			got, want, pod.Spec)
	}
	n.bids += len(want)
	if len(want) == 0 {
		return
	}
	n.preemptions++
	chosen := j.preempts.Evaluator.SelectCandidate(ctx, candidates)
	placer.PodSeen(4, translate.SchedulerPod(pod))
	d, ok := placer.Next(20e9)
	placer.PodGone(21e9, scheduler.PodID(pod.UID))
	if !ok || d.Preemption == nil {
		t.Fatalf("seed %d: pod %s: decision %+v, upstream evicts %s on %s", seed, pod.Name, d, want[chosen.Name()],
			chosen.Name())
	}
	if d.Preemption.Node != chosen.Name() && rank(candidates, d.Preemption.Node) != rank(candidates, chosen.Name()) {
		t.Fatalf("seed %d: pod %s: ours evicts on %s, upstream on %s: %v", seed, pod.Name, d.Preemption.Node, chosen.Name(),
			want)
	}
}

func tell(placer *scheduler.Placer, c *cluster) {
	for _, n := range c.namespaces {
		placer.NamespaceSeen(1, n.Name, translate.SchedulerLabels(n.Labels))
	}
	for _, s := range c.services {
		g, _ := translate.SchedulerGroup(s)
		placer.GroupSeen(1, g)
	}
	for _, b := range c.budgets {
		placer.BudgetSeen(1, translate.SchedulerBudget(b))
	}
	for _, n := range c.nodes {
		placer.NodeSeen(1, translate.SchedulerNode(n))
	}
	if c.stores != nil {
		tellStores(placer, c.stores)
	}
	for _, p := range c.bound {
		placer.PodSeen(1, translate.SchedulerPod(p))
	}
	nominate(placer, c)
}

// nominate passes the nominated pods to the Placer again, because preemption on their node ends their nomination.
func nominate(placer *scheduler.Placer, c *cluster) {
	for _, p := range c.nominated {
		gated := p.DeepCopy()
		gated.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "g"}} // so that Next does not place it
		placer.PodGone(1, scheduler.PodID(p.UID))
		placer.PodSeen(1, translate.SchedulerPod(gated))
	}
}

var dbg *cluster
