package scheduler

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// BenchmarkPlace measures a pod: added, placed, seen bound. bench/scheduler compares with upstream.
func BenchmarkPlace(b *testing.B) {
	web := LabelSelector{Requirements: []Requirement{{Key: "app", Op: In, Values: []string{"web"}}}}
	term := func(key string) PodTerm {
		return PodTerm{
			Selector:          web,
			Namespaces:        []string{"d"},
			NamespaceSelector: LabelSelector{Nothing: true},
			TopologyKey:       key,
		}
	}
	spread := func(hard bool, keys ...string) (out []SpreadConstraint) {
		for _, k := range keys {
			out = append(out, SpreadConstraint{MaxSkew: 5, TopologyKey: k, Hard: hard, Selector: web, MinDomains: 1})
		}
		return out
	}
	for _, c := range []struct {
		name   string
		nodes  int
		change func(*Pod)
	}{
		{"basic", 5000, func(*Pod) {}},
		{"basic", 50000, func(*Pod) {}},
		{"hard-zone-spread", 5000, func(p *Pod) { p.Spread = spread(true, "zone") }},
		{"soft-spread", 5000, func(p *Pod) { p.Spread = spread(false, "zone", hostKey) }},
		{"zone-affinity", 5000, func(p *Pod) { p.Affinity = []PodTerm{term("zone")} }},
		{"host-anti-affinity", 5000, func(p *Pod) { p.AntiAffinity = []PodTerm{term(hostKey)} }},
		{"preferred-host-affinity", 5000, func(p *Pod) { p.PreferredAffinity = []WeightedPodTerm{{10, term(hostKey)}} }},
		{"class-of-its-own", 5000, func(p *Pod) { p.Requests = append(p.Requests, Amount{"example.com/" + p.Name, 0}) }},
		{"daemon", 5000, func(p *Pod) {
			p.NodeAffinity = &[]NodeTerm{
				{Names: []Requirement{{Key: "metadata.name", Op: In, Values: []string{"node-" + p.Name[1:]}}}},
			}
		}},
		{"fits-nowhere", 5000, func(p *Pod) { p.Requests = []Amount{{CPU, 60000}} }},
		{"preemptor", 5000, func(p *Pod) { p.Priority, p.Requests = 10, []Amount{{CPU, 63000}} }},
	} {
		b.Run(fmt.Sprintf("%s/%d", c.name, c.nodes), func(b *testing.B) {
			benchPlace(b, c.nodes, c.change, c.name == "host-anti-affinity")
		})
	}
}

// benchPlace places one pod after the other on nodes. If a pod leaves once it is placed, the nodes do not fill up.
func benchPlace(b *testing.B, nodes int, change func(*Pod), leaves bool) {
	b.Helper()
	p, made := benchCluster(nodes), 0
	pod := func() Pod {
		made++
		x := benchPod("p" + strconv.Itoa(made))
		change(&x)
		return x
	}
	anchor := pod() // keeps the class from being deleted
	anchor.Node = "node-1"
	p.PodSeen(1, anchor)
	for range 3 { // the first calls are not the steady state
		x := pod()
		p.PodSeen(2, x)
		p.Next(2)
		p.PodGone(2, x.ID)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		x := pod()
		p.PodSeen(2, x)
		d, _ := p.Next(2)
		if d.Node != "" {
			x.Node = d.Node
			p.PodSeen(2, x)
		}
		if leaves {
			p.PodGone(2, x.ID)
		}
		if d.Preemption != nil {
			p.PodGone(2, x.ID)
		}
	}
}

func benchPod(id string) Pod {
	return Pod{ID: PodID(id), Name: id, Namespace: "d", Labels: []Label{{Key: "app", Value: "web"}},
		Requests:     []Amount{{CPU, 100}, {Memory, 100 << 20}},
		IncomingLoad: Load{100, 100 << 20}, PlacedLoad: Load{100, 100 << 20}}
}

// benchCluster has ten pods on each node. No term of a later pod selects them.
func benchCluster(nodes int) *Placer {
	p := New(Options{})
	for i := range nodes {
		name := "node-" + strconv.Itoa(i)
		p.NodeSeen(1, Node{Name: name, PodsMax: 1 << 40, Labels: []Label{{Key: hostKey, Value: name},
			{Key: "zone", Value: strconv.Itoa(i % 3)}},
			Allocatable: []Amount{{CPU, 64000}, {Memory, int64(256 * unit.GiB)}}})
		for k := range 10 {
			x := benchPod(fmt.Sprintf("old-%d-%d", i, k))
			x.Labels, x.Node = []Label{{Key: "app", Value: "old"}}, name
			p.PodSeen(1, x)
		}
	}
	// a pod that matches an affinity
	x := benchPod("first")
	x.Node = "node-0"
	p.PodSeen(1, x)
	return p
}
