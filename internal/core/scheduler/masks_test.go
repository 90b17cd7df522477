package scheduler

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// sameChoice compares the choice by masks with that of the plain form.
func (h *history) sameChoice(d *demand, id PodID, plain, byMasks choice) {
	h.t.Helper()
	if plain.row != byMasks.row || plain.score != byMasks.score || plain.feasible != byMasks.feasible {
		h.t.Fatalf("pod %s: plain %+v %v, masks %+v %v", id, plain, plain.failure, byMasks, byMasks.failure)
	}
	if plain.failure == nil {
		return
	}
	a, b := plain.failure, byMasks.failure
	if a.Nodes != b.Nodes || a.Whole != b.Whole || a.Rejected != b.Rejected || !maps.Equal(a.Reasons, b.Reasons) {
		h.t.Fatalf("pod %s: plain %+v, masks %+v", id, *a, *b)
	}
}

// TestMasksAgree runs random histories with everything that rules read, and compares choices by masks with the plain
// form for every waiting pod and for new pods. It must meet failures, ties, and choices by each scorer.
func TestMasksAgree(t *testing.T) {
	seen := comparisons{met: map[string]int{}}
	for i, seed := range seedsFrom(t, 7000, 24) {
		h := newHistory(t, seed)
		h.names = []int{8, 40, 150}[i%3]
		h.stores = i%4 == 3
		if i%5 == 4 {
			odd := oddProfile(uint64(i))
			h.placer, h.overcommits = New(Options{Seed: seed, Profiles: []Profile{odd}}), odd.Skip["NodeResourcesFit"]
		}
		c := h.placer.cluster
		for range h.names {
			h.meetNode()
		}
		for step := range 120 {
			switch {
			case step%4 == 0:
				h.meetNode()
			case step%4 == 1:
				p := h.randomPod()
				decoratePod(h.rng, &p)
				h.pods[p.ID] = p
				h.placer.PodSeen(h.now, p)
			default:
				h.step()
			}
			if step%20 == 0 {
				h.seekAll()
				h.checkWaiting()
			}
			for range 3 {
				p := h.randomPod()
				decoratePod(h.rng, &p)
				h.compareMasks(p, &seen)
			}
			for _, e := range h.placer.tryable() {
				if id := e.pod.ID; c.nominations[id] == nil {
					h.compareMasks(e.pod, &seen)
				}
			}
		}
	}
	if seen.chosen < fewer(1000) || seen.failed < fewer(500) {
		t.Errorf("%d chosen, %d failed: too few for a test", seen.chosen, seen.failed)
	}
	for i := range filters {
		if f := &filters[i]; seen.rejected&f.rule == 0 && !rare[f.rule] {
			t.Errorf("%s (filter %d) rejected no node: set what it reads in decorateNode or decoratePod", f.plugin, i)
		}
	}
	for _, s := range allScorers(nil) {
		if seen.met[s.plugin] == 0 {
			t.Errorf("%s scored all nodes alike: set what it reads in decorateNode or decoratePod", s.plugin)
		}
	}
}

// comparisons counts what was compared, so that the test fails if that is too little.
type comparisons struct {
	chosen, failed int            // pods that were placed, and that fit nowhere
	rejected       RuleSet        // filters that rejected a node
	met            map[string]int // how often each scorer distinguished nodes, by plugin
}

// compareMasks compares the choice by masks for a pod with the plain form.
func (h *history) compareMasks(p Pod, seen *comparisons) {
	c := h.placer.cluster
	c.ask(&p, func(d *demand) {
		h.checkApplies(d)
		h.checkFinal(d, p.ID)
		plain := c.choosePlain(d, p.ID)
		h.sameChoice(d, p.ID, plain, c.chooseByMasks(d, p.ID))
		if plain.failure != nil {
			seen.failed++
			seen.rejected |= plain.failure.Rejected
		} else {
			seen.chosen++
			c.countScorers(d, seen.met)
		}
	})
}

// checkApplies checks that a rule that does not apply to a demand rejects no node.
func (h *history) checkApplies(d *demand) {
	c := h.placer.cluster
	for i := range filters {
		f := &filters[i]
		for r := row(0); !f.applies(d) && r < c.End(); r++ {
			if c.seen[r] && !f.judge(&c.state, d, r) {
				h.t.Fatalf("%s (filter %d) rejects %s although it does not apply to the pod", f.plugin, i, c.name[r])
			}
		}
	}
}

// checkFinal checks that a final rejection is not changed by evicting all pods of the row, whatever their priority:
// rows of a busy history seldom have pods of lower priority. There is one exception, as upstream: if all pods that
// match an affinity are on one node and may be evicted, the pod may be the first of its group, whatever
// podAffinityFilter.final returns.
func (h *history) checkFinal(d *demand, self PodID) {
	c := h.placer.cluster
	for r := row(0); r < c.End(); r++ {
		if !c.seen[r] || len(c.podsOn[r]) == 0 || len(c.nominated[r]) > 0 {
			continue
		}
		if f := c.firstRejecting(d.profile.filters, d, r); f != nil && f.rule != RulePodAffinity && f.final(&c.state, d, r) {
			t := &c.evicting
			t.begin(&c.state, d)
			for _, on := range c.podsOn[r] {
				t.count(on, -1)
			}
			if f.judge(&c.state, d, r) {
				h.t.Errorf("pod %s: %s rejects %s and says that this is final, but would not without the pods there", self,
					f.plugin, c.name[r])
			}
			t.end()
		}
	}
}

// rare are rules that random histories seldom meet. They have scenarios of their own.
var rare = map[RuleSet]bool{RuleSupported: true, RuleVolumeLimits: true}

// countScorers counts the scorers that distinguished the rows among which choosePlain has just chosen.
func (c *cluster) countScorers(d *demand, met map[string]int) {
	rows, alike := c.plain.rows, c.plain.alike
	for i := range d.profile.scorers {
		s := &d.profile.scorers[i]
		if len(rows) < 2 || !s.applies(d) {
			continue
		}
		raw := c.rawScores(s, d, rows, alike, nil)
		if slices.Min(raw) != slices.Max(raw) {
			met[s.plugin]++
		}
	}
}

// meetNode adds or changes a random node.
func (h *history) meetNode() {
	n := h.randomNode()
	decorateNode(h.rng, &n)
	h.nodes[n.Name] = n
	h.placer.NodeSeen(h.now, n)
}

// decorateNode adds what scorers and rarer rules read.
func decorateNode(rng *rand.Rand, n *Node) {
	n.PodsMax += 4
	if rng.IntN(3) > 0 {
		n.Allocatable = []Amount{{CPU, int64(1+rng.IntN(3)) * 4000}, {Memory, int64(1+rng.IntN(3)) * 4000}}
	}
	if rng.IntN(8) > 0 {
		n.Labels = append(n.Labels, Label{Key: "rack", Value: fmt.Sprint(rng.IntN(70))})
	}
	if rng.IntN(3) == 0 {
		n.Labels = append(n.Labels, Label{Key: "region", Value: fmt.Sprint(rng.IntN(2))})
	}
	for i := range n.Labels {
		if n.Labels[i].Key == hostKey && rng.IntN(6) == 0 {
			n.Labels[i].Value = "twin"
		}
	}
	for i := range 3 {
		if rng.IntN(4) == 0 {
			n.Taints = append(n.Taints, Taint{Key: "soft" + fmt.Sprint(i), Value: "", Effect: PreferNoSchedule})
		}
		if rng.IntN(3) == 0 {
			n.Images = append(n.Images, Image{[]string{"image" + fmt.Sprint(i)}, int64(i+1) * 100 << 20})
		}
	}
	if rng.IntN(2) == 0 {
		n.Features = []string{"f"}
	}
	if rng.IntN(6) == 0 {
		n.AgentLacks = []string{"x"}
	}
}

func decoratePod(rng *rand.Rand, p *Pod) {
	if rng.IntN(2) == 0 {
		p.Requests = []Amount{{CPU, int64(rng.IntN(12) * 250)}, {Memory, int64(rng.IntN(12) * 250)}}
	}
	term := func() NodeTerm {
		key := []string{"zone", "disk", "region", hostKey, "rack"}[rng.IntN(5)]
		return NodeTerm{
			Labels: []Requirement{
				{Key: key, Op: []Operator{In, NotIn, Exists}[rng.IntN(3)], Values: []string{"a", "ssd", "1", "n3"}},
			},
		}
	}
	for rng.IntN(3) == 0 {
		p.Preferred = append(p.Preferred, WeightedTerm{Weight: int64(1 + rng.IntN(50)), Term: term()})
	}
	if rng.IntN(6) == 0 {
		p.NodeAffinity = &[]NodeTerm{term(), term()}
	}
	if rng.IntN(8) == 0 { // enough of them that an index is used
		var terms []NodeTerm
		for i := range 30 {
			both := term()
			both.Labels = append(both.Labels, Requirement{
				Key:    hostKey,
				Op:     In,
				Values: []string{fmt.Sprint("n", i), "n" + fmt.Sprint(rng.IntN(40))},
			})
			p.Preferred = append(p.Preferred, WeightedTerm{Weight: int64(1 + i), Term: both})
			terms = append(terms, both)
		}
		if rng.IntN(3) == 0 {
			p.NodeAffinity = &terms
		}
	}
	if rng.IntN(16) == 0 {
		p.Requests = append(p.Requests, Amount{"example.com/" + fmt.Sprint(rng.IntN(3)), 1})
	}
	if rng.IntN(12) == 0 {
		p.NodeAffinity = &[]NodeTerm{{Names: []Requirement{{Key: "metadata.name", Op: In, Values: []string{"n1", "n2"}}}}}
	}
	if rng.IntN(4) == 0 {
		p.Tolerations = append(p.Tolerations, Toleration{Key: "soft1", Exists: true})
	}
	for i := range 3 {
		if rng.IntN(4) == 0 {
			p.Images, p.Containers = append(p.Images, "image"+fmt.Sprint(i)), p.Containers+1
		}
	}
	if rng.IntN(8) == 0 {
		p.Features = []string{"f"}
	}
	if rng.IntN(8) == 0 {
		p.NeedsOfAgent = []string{"x"}
	}
	decorateAround(rng, p)
	if rng.IntN(2) == 0 {
		p.IncomingLoad = Load{unit.MilliCPU(rng.IntN(12) * 250), unit.Bytes(rng.IntN(12) * 250)}
	}
}

// decorateAround adds what scorers read of the pods around a node.
func decorateAround(rng *rand.Rand, p *Pod) {
	app := LabelSelector{Requirements: []Requirement{{Key: "app", Op: In, Values: []string{"web", "db"}[rng.IntN(2):]}}}
	key := func() string { return []string{"rack", "region", "zone", hostKey, "nobody/has"}[rng.IntN(5)] }
	if rng.IntN(3) == 0 {
		p.Spread = append(p.Spread, SpreadConstraint{
			MaxSkew:     1 + int32(rng.IntN(3)),
			TopologyKey: key(),
			Selector:    app,
			MinDomains:  1,
		})
	}
	if rng.IntN(3) == 0 {
		t := PodTerm{
			Selector:          app,
			Namespaces:        []string{p.Namespace},
			NamespaceSelector: LabelSelector{Nothing: true},
			TopologyKey:       key(),
		}
		p.PreferredAffinity = append(p.PreferredAffinity, WeightedPodTerm{int64(rng.IntN(100)), t})
	}
}

// oddProfile differs from the default where masks have special cases.
func oddProfile(seed uint64) Profile {
	p := DefaultProfile()
	p.Weights["NodeResourcesFit"] = int64(1 + seed*3) // with some seeds, a sum of scores needs more than one byte
	p.Strategy.Type = []string{MostAllocated, LeastAllocated}[seed%2]
	if seed%3 == 0 {
		p.Skip = map[string]bool{"NodeResourcesFit": true}
	}
	p.AddedAffinity = &[]NodeTerm{{Labels: []Requirement{{Key: "zone", Op: NotIn, Values: []string{"b"}}}}}
	p.AddedPreferred = []WeightedTerm{{Weight: 7, Term: NodeTerm{Labels: []Requirement{{Key: "disk", Op: Exists}}}}}
	return p
}
