package placement

import (
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// TestServiceWakes: the default spread constraints of a profile are hard, and count the pods of a service. When it
// selects others, a pod that waits for them is asked again.
func TestServiceWakes(t *testing.T) {
	profile := DefaultProfile()
	profile.DefaultSpread = []SpreadConstraint{{MaxSkew: 1, TopologyKey: "zone", Hard: true, MinDomains: 1}}
	p, now := New(Options{Profiles: []Profile{profile}}), unit.Instant(time.Hour)
	for _, zone := range []string{"a", "b"} {
		p.NodeSeen(now, Node{Name: zone, PodsMax: 10, Labels: []Label{{Key: "zone", Value: zone}}, Unschedulable: zone == "b"})
	}
	service := func(app string) Group {
		selector := LabelSelector{Requirements: []Requirement{{Key: "app", Op: In, Values: []string{app}}}}
		return Group{Kind: KindService, Namespace: "d", Name: "web", Selector: selector}
	}
	p.GroupSeen(now, service("web"))
	p.PodSeen(now, Pod{ID: "first", Namespace: "d", Name: "first", Node: "a", Labels: []Label{{Key: "app", Value: "web"}}})
	p.PodSeen(now, Pod{ID: "second", Namespace: "d", Name: "second", Labels: []Label{{Key: "app", Value: "web"}}})
	if d, ok := p.Next(now); !ok || d.Failure == nil {
		t.Fatalf("the second pod of the service: %+v", d)
	}
	p.GroupSeen(now, service("web"))
	if d, ok := p.Next(now); ok {
		t.Fatalf("a service that is told again has woken a pod: %+v", d)
	}
	p.GroupSeen(now, service("other"))
	if d, ok := p.Next(now); !ok || d.Node != "a" {
		t.Fatalf("the service selects other pods: %+v, want a place on a", d)
	}
}
