package remedy

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
)

// seeds is how many random clusters a test has: `go test ./internal/core/scheduler/remedy -seeds 20000` is the long
// form.
var seeds = flag.Int("seeds", 400, "number of random clusters")

// randomFacts returns a small cluster in which most waiting pods fit nowhere.
func randomFacts(rng *rand.Rand) *facts {
	f := &facts{}
	one := func(of ...string) string { return of[rng.IntN(len(of))] }
	for i := range 1 + rng.IntN(5) {
		f.nodes = append(f.nodes, randomNode(rng, fmt.Sprintf("n%d", i), one))
	}
	for i := range rng.IntN(12) {
		p := randomPod(rng, fmt.Sprintf("placed%d", i), one)
		p.Node = f.nodes[rng.IntN(len(f.nodes))].Name
		p.Gates = nil
		f.pods = append(f.pods, p)
	}
	if rng.IntN(4) == 0 {
		p := randomPod(rng, "nominated", one)
		p.Nominated = f.nodes[rng.IntN(len(f.nodes))].Name
		p.Gates = nil
		f.pods = append(f.pods, p)
	}
	for _, app := range []string{"web", "db"} {
		if rng.IntN(2) == 0 {
			f.budgets = append(f.budgets, scheduler.Budget{
				Namespace: "default",
				Name:      app,
				Selector:  oneApp(app),
				Allowed:   int32(rng.IntN(2)),
			})
		}
	}
	for i := range 3 {
		f.waiting = append(f.waiting, randomPod(rng, fmt.Sprintf("waiting%d", i), one))
	}
	return f
}

func randomNode(rng *rand.Rand, name string, one func(...string) string) scheduler.Node {
	n := scheduler.Node{
		Name:          name,
		PodsMax:       int64(1 + rng.IntN(6)),
		Unschedulable: rng.IntN(6) == 0,
		Labels: []scheduler.Label{
			{Key: "kubernetes.io/hostname", Value: name},
			{Key: "zone", Value: one("a", "b")},
		},
		Allocatable: []scheduler.Amount{
			{Resource: scheduler.CPU, Value: int64(1+rng.IntN(4)) * 1000},
			{Resource: scheduler.Memory, Value: int64(1+rng.IntN(4)) * 1000},
		},
	}
	if rng.IntN(3) == 0 {
		n.Labels = append(n.Labels, scheduler.Label{Key: "disk", Value: one("ssd", "hdd")})
	}
	if rng.IntN(4) == 0 {
		n.Labels = append(n.Labels, scheduler.Label{Key: "cores", Value: one("4", "64", "many")})
	}
	if rng.IntN(3) == 0 {
		n.Allocatable = append(n.Allocatable, scheduler.Amount{Resource: "example.com/gpu", Value: int64(rng.IntN(3))})
	}
	for _, t := range []scheduler.Taint{
		{Key: "team", Value: "blue", Effect: scheduler.NoSchedule},
		{Key: "node.kubernetes.io/disk-pressure", Effect: scheduler.NoSchedule},
		{Key: "drain", Effect: scheduler.NoExecute},
		{Key: "soft", Effect: scheduler.PreferNoSchedule},
	} {
		if rng.IntN(6) == 0 {
			n.Taints = append(n.Taints, t)
		}
	}
	return n
}

func randomPod(rng *rand.Rand, name string, one func(...string) string) scheduler.Pod {
	p := scheduler.Pod{
		ID:            scheduler.PodID(name),
		Namespace:     "default",
		Name:          name,
		Priority:      int32(rng.IntN(3)),
		NeverPreempts: rng.IntN(5) == 0,
		Labels:        []scheduler.Label{{Key: "app", Value: one("web", "db")}},
		Requests: []scheduler.Amount{
			{Resource: scheduler.CPU, Value: int64(rng.IntN(6)) * 500},
			{Resource: scheduler.Memory, Value: int64(rng.IntN(6)) * 500},
		},
	}
	some := func() bool { return rng.IntN(6) == 0 }
	if some() {
		p.Gates = []string{"g"}
	}
	if some() {
		p.Requests = append(p.Requests, scheduler.Amount{Resource: "example.com/gpu", Value: int64(1 + rng.IntN(2))})
	}
	if some() {
		p.Tolerations = []scheduler.Toleration{{Key: "team", Exists: true}}
	}
	if some() {
		p.NodeSelector = append(p.NodeSelector, scheduler.Label{Key: "disk", Value: one("ssd", "nvme")})
	}
	if some() {
		p.NodeSelector = append(p.NodeSelector, scheduler.Label{Key: "pool", Value: "a"})
	}
	switch rng.IntN(12) {
	case 0:
		p.NodeAffinity = &[]scheduler.NodeTerm{
			{Labels: []scheduler.Requirement{
				{Key: "cores", Op: scheduler.Gt, Bound: 16},
				{Key: "disk", Op: scheduler.Exists},
			}},
			{Labels: []scheduler.Requirement{{Key: "cores", Op: scheduler.Lt, Bound: 2}}},
		}
	case 1:
		p.NodeAffinity = &[]scheduler.NodeTerm{{Labels: []scheduler.Requirement{
			{Key: "disk", Op: scheduler.NotIn, Values: []string{"ssd", "hdd"}},
			{Key: "cores", Op: scheduler.DoesNotExist},
			{Key: "pool", Op: scheduler.In, Values: []string{"b", "a"}},
		}}}
	case 2:
		named := scheduler.Requirement{Key: "metadata.name", Op: scheduler.In, Values: []string{one("n0", "n9")}}
		p.NodeAffinity = &[]scheduler.NodeTerm{{Names: []scheduler.Requirement{named}}}
	}
	for _, port := range []int32{80, 81} {
		if some() {
			p.Ports = append(p.Ports, scheduler.HostPort{IP: scheduler.AnyIP, Protocol: "TCP", Port: port})
		}
	}
	key := func() string { return one("kubernetes.io/hostname", "zone", "disk") }
	for rng.IntN(4) == 0 {
		p.Spread = append(p.Spread, scheduler.SpreadConstraint{
			MaxSkew:     1,
			TopologyKey: key(),
			Hard:        rng.IntN(3) != 0,
			Selector:    oneApp(one("web", "db")),
			MinDomains:  1 + int32(rng.IntN(2)),
			HonorTaints: rng.IntN(2) == 0,
		})
	}
	for rng.IntN(6) == 0 {
		p.Affinity = append(p.Affinity, podTerm(key(), one("web", "db", "none")))
	}
	for rng.IntN(6) == 0 {
		p.AntiAffinity = append(p.AntiAffinity, podTerm(key(), one("web", "db")))
	}
	return p
}

// TestRemediesLetPodsIn asks about random pods in random clusters. Each remedy is proven once more, in a new Placer
// with the changes among its facts, which decides as the scheduler does. Without any one of its changes, or with a
// request that is lowered by one less, the pod must not fit on the node. The world must be as it was. Every side and
// every kind of change must have been proposed.
func TestRemediesLetPodsIn(t *testing.T) {
	met := map[string]int{}
	for seed := range uint64(*seeds) {
		f := randomFacts(rand.New(rand.NewPCG(seed, 1)))
		w := f.world()
		for i := range f.waiting {
			pod := f.waiting[i]
			before, _, _ := w.placer.Judge(pod, bounded)
			a := w.Ask(pod)
			if after, _, _ := w.placer.Judge(pod, bounded); !reflect.DeepEqual(before, after) {
				t.Fatalf("seed %d: %s: the question has changed the world: %v, then %v", seed, pod.Name, before, after)
			}
			checkReasons(t, seed, before, &a)
			for j := range a.Remedies {
				r := &a.Remedies[j]
				met[string(r.Of)]++
				for _, c := range r.Changes {
					met[string(c.Kind)]++
				}
				if problem := f.disprove(&pod, r); problem != "" {
					t.Fatalf("seed %d: %s: %s\n%s", seed, pod.Name, problem, show(a))
				}
			}
		}
	}
	for _, want := range []Side{OfPod, OfNode, OfNewNode, OfPreemption, OfPriority, OfBudget} {
		if met[string(want)] == 0 {
			t.Errorf("no remedy of side %q was proposed: %v", want, met)
		}
	}
	for _, want := range []Kind{RemoveGate, LowerRequest, Tolerate, DropSelector, DropNodeAffinity, SoftenSpread,
		DropAffinity,
		DropAntiAffinity, DropPort, RaisePriority, AllowPreemption, Uncordon, RemoveTaint, EndCondition, SetLabel,
		RemoveLabel,
		FreeResource, GrowNode, AddNode, AllowDisruptions} {
		if met[string(want)] == 0 {
			t.Errorf("no change %s was proposed: %v", want, met)
		}
	}
}

// checkReasons compares the counts of an answer with the verdicts.
func checkReasons(t *testing.T, seed uint64, all []scheduler.Verdict, a *Answer) {
	t.Helper()
	counted, rejected := 0, 0
	for _, v := range all {
		if v.Plugin != "" {
			rejected++
		}
		counted += len(v.Reasons)
	}
	for _, r := range a.Reasons {
		counted -= len(r.Nodes)
		if a.Failure != nil && a.Failure.Whole == "" && a.Failure.Reasons[r.Text] < len(r.Nodes) {
			t.Fatalf("seed %d: %s: %d nodes, failure says %v", seed, r.Text, len(r.Nodes), a.Failure.Reasons)
		}
	}
	if counted != 0 || len(a.Feasible) != len(all)-rejected || (a.Failure == nil) != (len(a.Feasible) > 0) {
		t.Fatalf("seed %d: answer %s does not count what the verdicts are: %v", seed, show(*a), all)
	}
}

// disprove returns what is wrong with a remedy; empty: nothing.
func (f *facts) disprove(pod *scheduler.Pod, r *Remedy) string {
	preempts := r.Of == OfPreemption || r.Of == OfPriority || r.Of == OfBudget
	p := f.placer(r, r.Changes)
	changed := ChangePod(*pod, r.Changes)
	if len(changed.Gates) > 0 {
		return fmt.Sprintf("%s: it keeps its gates", r.Of)
	}
	nominated := slices.ContainsFunc(f.pods, func(p scheduler.Pod) bool { return p.Nominated != "" })
	if !nominated { // else the nominated pod would be placed first
		p.PodSeen(2, changed)
		d, ok := p.Next(3)
		switch {
		case !ok || d.Pod.ID != pod.ID:
			return fmt.Sprintf("%s: the pod is not tried: %+v", r.Of, d)
		case preempts && (d.Preemption == nil || d.Preemption.Node != r.Node || d.Preemption.Violations != r.Violations ||
			!reflect.DeepEqual(d.Preemption.Victims, r.Victims)):
			return fmt.Sprintf("%s: want a preemption on %s of %v, got %+v (%v)", r.Of, r.Node, r.Victims, d.Preemption,
				d.Failure)
		case !preempts && d.Node == "":
			return fmt.Sprintf("%s: with the changes: %v", r.Of, d.Failure)
		}
		p = f.placer(r, r.Changes)
	}
	if preempts {
		return ""
	}
	if v, known := p.VerdictOn(changed, r.Node); !known || v.Plugin != "" {
		return fmt.Sprintf("%s: with the changes: %s: %v", r.Of, r.Node, v)
	}
	if r.Of == OfPod {
		fits := 0
		for _, v := range p.Verdicts(changed) {
			if v.Plugin == "" {
				fits++
			}
		}
		if fits != r.Fits {
			return fmt.Sprintf("it fits on %d nodes, not %d", fits, r.Fits)
		}
	}
	for i, c := range r.Changes {
		if c.Kind == RemoveGate || c.Kind == AddNode {
			continue
		}
		less := slices.Delete(slices.Clone(r.Changes), i, i+1)
		if f.fits(pod, r, less) {
			return fmt.Sprintf("%s: %s is not needed", r.Of, showChange(&c))
		}
		switch c.Kind {
		case LowerRequest:
			c.To++
		case FreeResource, GrowNode:
			c.To--
		default:
			continue
		}
		if f.fits(pod, r, append(less, c)) {
			return fmt.Sprintf("%s: %s would suffice", r.Of, showChange(&c))
		}
	}
	return ""
}

// fits reports whether the node of r takes the pod with changes.
func (f *facts) fits(pod *scheduler.Pod, r *Remedy, changes []Change) bool {
	v, known := f.placer(r, changes).VerdictOn(ChangePod(*pod, changes), r.Node)
	return known && v.Plugin == ""
}

// TestTheSmallestIsFound compares the search with its plain form, which tries every node in full: the first of the
// cheapest by the bound of the first rule, then by name.
func TestTheSmallestIsFound(t *testing.T) {
	found := 0
	for seed := range uint64(*seeds) {
		f := randomFacts(rand.New(rand.NewPCG(seed, 2)))
		w := f.world()
		for i := range f.waiting {
			pod := &f.waiting[i]
			all, rejections, failure := w.placer.Judge(*pod, bounded)
			if failure == nil {
				continue
			}
			for side, c := range map[Side]struct {
				got   *Remedy
				bound bound
				try   try
			}{
				OfPod:  {got: w.changedPod(pod, all, rejections), bound: podBound, try: w.tryPod(pod)},
				OfNode: {got: w.changedNode(pod, all, rejections), bound: nodeBound, try: w.tryNode(pod)},
			} {
				want := plainCheapest(all, c.bound, c.try)
				if c.got != nil {
					c.got.Of, c.got.Fits = "", 0
				}
				if !reflect.DeepEqual(c.got, want) {
					t.Fatalf("seed %d: %s: %s: got %+v, want %+v", seed, pod.Name, side, c.got, want)
				}
				if want != nil {
					found++
				}
			}
		}
	}
	if found < *seeds {
		t.Errorf("only %d remedies were compared", found)
	}
}

// plainCheapest tries every node in full.
func plainCheapest(all []scheduler.Verdict, bound bound, try try) (best *Remedy) {
	order := make([]int, len(all))
	for i := range order {
		order[i] = i
	}
	first := func(i int) cost { least, _ := bound(all[i].Rule, all[i].Short); return least }
	slices.SortStableFunc(order, func(a, b int) int { return first(a).compare(first(b)) })
	for _, i := range order {
		made, sum := try(&all[i], func(cost) bool { return true })
		if len(made) > 0 && (best == nil || sum.compare(best.cost) < 0) {
			best = &Remedy{Node: all[i].Node, Changes: made, cost: sum}
		}
	}
	return best
}

// showGroup prints an answer without the nodes of preemptions: which of several equally cheap ones is chosen depends on
// the pod's UID.
func showGroup(a Answer) string {
	a.Remedies = slices.Clone(a.Remedies)
	for i := range a.Remedies {
		if r := &a.Remedies[i]; r.Victims != nil {
			r.Node, r.Victims = "", make([]scheduler.Victim, len(r.Victims))
		}
	}
	return show(a)
}

// TestGroupsAreOfOneAnswer: every pod of a group has the answer of the group when it is asked about alone, and no two
// groups have the same one.
func TestGroupsAreOfOneAnswer(t *testing.T) {
	joined := 0
	for seed := range uint64(*seeds / 4) {
		rng := rand.New(rand.NewPCG(seed, 3))
		f := randomFacts(rng)
		for i := range 12 { // of few templates, so that pods are alike
			p := f.waiting[i%3]
			p.Name = fmt.Sprintf("%s-%d", p.Name, i)
			p.ID = scheduler.PodID(p.Name)
			f.waiting = append(f.waiting, p)
		}
		w, seen, pods := f.world(), map[string]bool{}, 0
		for _, g := range w.Groups(f.waiting) {
			text := showGroup(g.Answer)
			if whole := show(g.Answer); seen[whole] {
				t.Fatalf("seed %d: two groups have the answer %s", seed, whole)
			}
			seen[show(g.Answer)] = true
			for _, p := range g.Pods {
				if alone := showGroup(w.Ask(p)); alone != text {
					t.Fatalf("seed %d: %s is in the group of %s, alone it is %s", seed, p.Name, text, alone)
				}
			}
			if pods += len(g.Pods); len(g.Pods) > 4 {
				joined++
			}
		}
		if pods != len(f.waiting) {
			t.Fatalf("seed %d: %d pods in groups, of %d", seed, pods, len(f.waiting))
		}
	}
	if joined == 0 {
		t.Error("no group has pods of two templates")
	}
}

// TestMissesOn compares the misses of one node with the verdicts about it.
func TestMissesOn(t *testing.T) {
	for seed := range uint64(*seeds / 4) {
		f := randomFacts(rand.New(rand.NewPCG(seed, 4)))
		w := f.world()
		for _, n := range f.nodes {
			misses, takes := w.MissesOn(n.Name, f.waiting)
			var got, want []string
			for _, m := range misses {
				for _, p := range m.Pods {
					got = append(got, p.Name+" "+m.Text)
				}
			}
			for _, p := range takes {
				got = append(got, p.Name+" fits")
			}
			for _, p := range f.waiting {
				v, _ := w.placer.VerdictOn(p, n.Name)
				for _, text := range v.Reasons {
					want = append(want, p.Name+" "+text)
				}
				if v.Plugin == "" {
					want = append(want, p.Name+" fits")
				}
			}
			slices.Sort(got)
			slices.Sort(want)
			if !slices.Equal(got, want) {
				t.Fatalf("seed %d: %s: got %s, want %s", seed, n.Name, strings.Join(got, "; "), strings.Join(want, "; "))
			}
		}
	}
}
