package scheduler

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/core/wellknown"
)

// roomy reports whether pods fit on n together, as far as the resources matter that last requests.
func roomy(n Node, pods []Pod, last Pod) bool {
	taken, have := map[string]int64{}, map[string]int64{}
	for _, p := range pods {
		for _, a := range p.Requests {
			taken[a.Resource] += a.Value
		}
	}
	for _, a := range n.Allocatable {
		have[a.Resource] = a.Value
	}
	for _, a := range last.Requests {
		if a.Value > 0 && taken[a.Resource] > have[a.Resource] {
			return false
		}
	}
	return int64(len(pods)) <= n.PodsMax
}

func (h *history) randomNode() Node {
	n := Node{
		Name:          fmt.Sprintf("n%d", h.rng.IntN(h.names)),
		PodsMax:       int64(h.rng.IntN(6)),
		Unschedulable: h.rng.IntN(5) == 0,
	}
	if h.stores && h.rng.IntN(4) == 0 {
		n.AgentLacks = []string{wellknown.LacksCSI, "volumes.nfs"}[h.rng.IntN(2):]
	}
	n.Allocatable = []Amount{{CPU, int64(h.rng.IntN(4) * 500)}, {Memory, int64(h.rng.IntN(4) * 500)}}
	if h.rng.IntN(3) == 0 {
		n.Allocatable = append(n.Allocatable, Amount{"example.com/gpu", int64(h.rng.IntN(3))})
	}
	if h.rng.IntN(3) == 0 {
		n.Taints = []Taint{{Key: "t", Value: "", Effect: NoSchedule}}
	}
	if h.rng.IntN(2) == 0 {
		n.Labels = []Label{{Key: "disk", Value: []string{"ssd", "hdd"}[h.rng.IntN(2)]}}
	}
	if h.rng.IntN(8) != 0 {
		n.Labels = append(n.Labels, Label{Key: hostKey, Value: n.Name}, Label{
			Key:   "zone",
			Value: []string{"a", "b", "c"}[h.rng.IntN(3)],
		})
	}
	return n
}

func (h *history) randomPod() Pod {
	h.made++
	p := Pod{
		ID:           PodID(fmt.Sprintf("p%d", h.made)),
		Priority:     int32(h.rng.IntN(3)),
		IncomingLoad: Load{100, 200},
		PlacedLoad:   Load{unit.MilliCPU(h.rng.IntN(200)), 200},
	}
	p.Requests = []Amount{{CPU, int64(h.rng.IntN(4) * 250)}, {Memory, int64(h.rng.IntN(4) * 250)}}
	switch h.rng.IntN(8) {
	case 0:
		p.Tolerations = []Toleration{{Key: "t", Exists: true}}
	case 1:
		p.NodeSelector = []Label{{Key: "disk", Value: "ssd"}}
	case 2:
		p.Ports = []HostPort{{AnyIP, "TCP", 80}}
	case 3:
		p.Requests = append(p.Requests, Amount{"example.com/gpu", 1})
	case 4:
		p.Gates = []string{"g"}
	}
	if h.rng.IntN(3) == 0 {
		p.NUMA = pinned(1 + h.rng.IntN(3))
	}
	p.Name, p.Namespace = string(p.ID), []string{"x", "y"}[h.rng.IntN(2)]
	if h.stores {
		h.randomMounts(&p)
	}
	if h.rng.IntN(4) != 0 {
		p.Labels = []Label{{Key: "app", Value: []string{"web", "db"}[h.rng.IntN(2)]}}
	}
	key := func() string { return []string{hostKey, "zone", "disk"}[h.rng.IntN(3)] }
	app := func() LabelSelector {
		s := LabelSelector{}
		if h.rng.IntN(8) != 0 {
			s.Requirements = []Requirement{{Key: "app", Op: In, Values: []string{[]string{"web", "db"}[h.rng.IntN(2)]}}}
		}
		return s
	}
	term := func() PodTerm {
		t := PodTerm{
			Selector:          app(),
			Namespaces:        []string{p.Namespace},
			NamespaceSelector: LabelSelector{Nothing: true},
			TopologyKey:       key(),
		}
		if h.rng.IntN(4) == 0 {
			t.Namespaces, t.NamespaceSelector = nil, LabelSelector{Requirements: []Requirement{{Key: "team", Op: In,
				Values: []string{"red"}}}}
		}
		return t
	}
	for h.rng.IntN(3) == 0 {
		p.Spread = append(p.Spread, SpreadConstraint{MaxSkew: 1 + int32(h.rng.IntN(2)), TopologyKey: key(),
			Hard: h.rng.IntN(2) == 0, Selector: app(),
			MinDomains: 1 + int32(h.rng.IntN(2)), IgnoreAffinity: h.rng.IntN(4) == 0, HonorTaints: h.rng.IntN(3) == 0})
	}
	switch h.rng.IntN(9) {
	case 0:
		p.Affinity = append(p.Affinity, term())
	case 1:
		p.AntiAffinity = append(p.AntiAffinity, term())
	case 2:
		p.PreferredAffinity = append(p.PreferredAffinity, WeightedPodTerm{int64(1 + h.rng.IntN(100)), term()})
	case 3:
		p.PreferredAntiAffinity = append(p.PreferredAntiAffinity, WeightedPodTerm{int64(1 + h.rng.IntN(100)), term()})
	case 4:
		p.Affinity, p.PreferredAffinity = append(p.Affinity, term(), term()), []WeightedPodTerm{{5, term()}}
	}
	return p
}

// pick draws a key; the order of the draw is that of the sorted keys, so that a seed gives one history.
func pick[K ~string, V any](rng *rand.Rand, m map[K]V) (K, bool) {
	if len(m) == 0 {
		return "", false
	}
	return slices.Sorted(maps.Keys(m))[rng.IntN(len(m))], true
}
