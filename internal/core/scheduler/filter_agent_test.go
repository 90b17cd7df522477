package scheduler

import (
	"strings"
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/volumes"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/core/wellknown"
)

// TestAgentLacks checks that a pod goes to no node whose agent would hold it, and is tried again when the agent has
// what the pod needs.
func TestAgentLacks(t *testing.T) {
	p := New(Options{})
	ours := Node{Name: "ours", PodsMax: 9, AgentLacks: []string{"user-namespaces", "resource-claims"}}
	p.NodeSeen(1, ours)
	p.NodeSeen(1, Node{Name: "theirs", PodsMax: 9})
	judge := func(pod Pod) (reason string) {
		for _, v := range p.Verdicts(pod) {
			if v.Node == "theirs" && v.Plugin != "" {
				t.Errorf("%s is kept off a node whose agent says nothing: %v", pod.ID, v)
			}
			if v.Node == "ours" && v.Plugin != "" {
				reason = strings.Join(v.Reasons, "; ")
				if !v.Final {
					t.Error("evicting pods would help")
				}
			}
		}
		return reason
	}
	needs := Pod{ID: "needs", NeedsOfAgent: []string{"image-volumes", "user-namespaces"}}
	if got, want := judge(needs), "node(s) had an agent that would hold the pod: it has no user-namespaces"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := judge(Pod{ID: "plain"}); got != "" {
		t.Errorf("a plain pod: %q", got)
	}
	if got := judge(Pod{ID: "other", NeedsOfAgent: []string{"image-volumes"}}); got != "" {
		t.Errorf("a pod that needs something else: %q", got)
	}
	p.NodeGone(2, "theirs")
	p.PodSeen(2, needs)
	if d, ok := p.Next(2); !ok || d.Node != "" {
		t.Errorf("placed: %+v, %v", d, ok)
	}
	ours.AgentLacks = nil
	later := unit.Instant(0).Add(time.Minute)
	p.NodeSeen(later, ours)
	if d, ok := p.Next(later); !ok || d.Node != "ours" {
		t.Errorf("the agent has it now, and the pod is not tried again: %+v, %v", d, ok)
	}
}

// TestAgentLacksVolumes checks that a pod goes to no node whose agent cannot mount the volumes of its claims, bound or
// yet to be chosen or provisioned, goes to other nodes, and is tried again when that changes.
func TestAgentLacksVolumes(t *testing.T) {
	const bound = "node(s) had an agent that would hold the pod: it has no " + wellknown.LacksCSI
	const made = "node(s) had an agent that would hold the pod: it does not mount volumes of the storage class's provisioner"
	const none = "node(s) didn't find available persistent volumes to bind"
	later := unit.Instant(0).Add(time.Minute)
	claim := func(p *Placer, now unit.Instant, volume string) {
		p.ClaimSeen(now, Claim{Namespace: "x", Name: "c", UID: "c", Version: "1", Class: "k", Volume: volume, Bound: volume != ""})
	}
	class := func(p *Placer, provisioner string, needs ...string) {
		p.StorageClassSeen(1, StorageClass{Name: "k", Provisioner: provisioner, Waits: true, NeedsOfAgent: needs})
	}
	csi := Volume{Name: "csi", Class: "k", Version: "1", Available: true, CSI: true, Attached: Attached{Driver: "d", Handle: "h"}, NeedsOfAgent: []string{wellknown.LacksCSI}}
	local := Volume{Name: "local", Class: "k", Version: "1", Available: true}
	equipped := func(p *Placer) { p.NodeSeen(later, Node{Name: "ours", PodsMax: 9}) }
	for name, s := range map[string]struct {
		facts func(*Placer)
		why   string // the node is rejected; empty: it is not
		helps func(*Placer)
	}{
		"bound": {func(p *Placer) { class(p, volumes.NoProvisioner); p.VolumeSeen(1, csi); claim(p, 1, "csi") }, bound, equipped},
		"bound to another later": {func(p *Placer) {
			class(p, volumes.NoProvisioner)
			p.VolumeSeen(1, csi)
			p.VolumeSeen(1, local)
			claim(p, 1, "csi")
		}, bound,
			func(p *Placer) { claim(p, later, "local") }},
		"bound, and its volume is another": {func(p *Placer) { class(p, volumes.NoProvisioner); p.VolumeSeen(1, csi); claim(p, 1, "csi") }, bound,
			func(p *Placer) { p.VolumeSeen(later, Volume{Name: "csi", Class: "k", Version: "2"}) }},
		"bound to what it mounts": {func(p *Placer) { class(p, volumes.NoProvisioner); p.VolumeSeen(1, local); claim(p, 1, "local") }, "", nil},
		"to be found": {func(p *Placer) { class(p, volumes.NoProvisioner); p.VolumeSeen(1, csi); claim(p, 1, "") }, none,
			func(p *Placer) { p.VolumeSeen(later, local) }},
		"kept for it": {func(p *Placer) {
			class(p, volumes.NoProvisioner)
			kept := csi
			kept.Claimed, kept.ClaimNamespace, kept.ClaimName = true, "x", "c"
			p.VolumeSeen(1, kept)
			claim(p, 1, "")
		}, none, equipped},
		"another is found": {func(p *Placer) {
			class(p, volumes.NoProvisioner)
			p.VolumeSeen(1, csi)
			p.VolumeSeen(1, local)
			claim(p, 1, "")
		}, "", nil},
		"to be made by a driver":    {func(p *Placer) { class(p, "d"); p.DriverSeen(1, "d", false); claim(p, 1, "") }, made, equipped},
		"the driver goes":           {func(p *Placer) { class(p, "d"); p.DriverSeen(1, "d", false); claim(p, 1, "") }, made, func(p *Placer) { p.DriverGone(later, "d") }},
		"to be made by who is none": {func(p *Placer) { class(p, "rancher.io/local-path"); claim(p, 1, "") }, "", nil},
		"to be made in a kind":      {func(p *Placer) { class(p, "kubernetes.io/aws-ebs", wellknown.LacksCSI); claim(p, 1, "") }, made, equipped},
	} {
		t.Run(name, func(t *testing.T) {
			p := New(Options{})
			p.NodeSeen(1, Node{Name: "ours", PodsMax: 9, AgentLacks: []string{"resource-claims", wellknown.LacksCSI}})
			p.NodeSeen(1, Node{Name: "theirs", PodsMax: 9})
			s.facts(p)
			pod := Pod{ID: "p", Namespace: "x", Name: "p", Mounts: []Mount{{Claim: "c"}}}
			for _, v := range p.Verdicts(pod) {
				want := map[string]string{"ours": s.why}[v.Node]
				if got := strings.Join(v.Reasons, "; "); got != want {
					t.Errorf("%s: %q, want %q", v.Node, got, want)
				}
			}
			p.NodeGone(1, "theirs")
			p.PodSeen(1, pod)
			if d, ok := p.Next(1); !ok || (d.Node == "ours") != (s.why == "") {
				t.Fatalf("placed on %q: %v", d.Node, d.Failure)
			}
			if s.helps == nil {
				return
			}
			s.helps(p)
			if d, ok := p.Next(later); !ok || d.Node != "ours" {
				t.Errorf("it could be placed now, and is not tried again: %+v, %v", d.Failure, ok)
			}
		})
	}
}
