package scheduler

import (
	"strings"
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/volumes"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/core/wellknown"
)

// TestAgentLacks checks that a pod goes to no node whose agent would hold it, and that it is tried again when the agent
// no longer lacks what the pod needs.
func TestAgentLacks(t *testing.T) {
	p := New(Options{})
	ours := Node{Name: "ours", PodsMax: 9, AgentLacks: []string{"user-namespaces", "resource-claims"}}
	p.NodeSeen(1, ours)
	p.NodeSeen(1, Node{Name: "theirs", PodsMax: 9})
	judge := func(pod Pod) (reason string) {
		for _, v := range p.Verdicts(pod) {
			if v.Node == "theirs" && v.Plugin != "" {
				t.Errorf("%s is rejected by a node whose agent reports nothing: %v", pod.ID, v)
			}
			if v.Node == "ours" && v.Plugin != "" {
				reason = strings.Join(v.Reasons, "; ")
				if !v.Final {
					t.Error("the rejection is not final")
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
		t.Errorf("a pod without needs is rejected: %q", got)
	}
	if got := judge(Pod{ID: "other", NeedsOfAgent: []string{"image-volumes"}}); got != "" {
		t.Errorf("a pod that needs something else is rejected: %q", got)
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
		t.Errorf("the agent does not lack it any more, but the pod is not tried again: %+v, %v", d, ok)
	}
}

// What the pods of lackCases are told.
const (
	lackBound = "node(s) had an agent that would hold the pod: it has no " + wellknown.LacksCSI
	lackMade  = "node(s) had an agent that would hold the pod: " +
		"it does not mount volumes of the storage class's provisioner"
	lackNone = "node(s) didn't find available persistent volumes to bind"
)

const lackLater = unit.Instant(time.Minute)

var lackLocal = Volume{Name: "local", Class: "k", Version: "1", Available: true}

func csiVolume() Volume {
	return Volume{
		Name:         "csi",
		Class:        "k",
		Version:      "1",
		Available:    true,
		CSI:          true,
		Attached:     Attached{Driver: "d", Handle: "h"},
		NeedsOfAgent: []string{wellknown.LacksCSI},
	}
}

func lackClaim(p *Placer, now unit.Instant, volume string) {
	p.ClaimSeen(now, Claim{
		Namespace: "x",
		Name:      "c",
		UID:       "c",
		Version:   "1",
		Class:     "k",
		Volume:    volume,
		Bound:     volume != "",
	})
}

func lackClass(p *Placer, provisioner string, needs ...string) {
	p.StorageClassSeen(1, StorageClass{Name: "k", Provisioner: provisioner, Waits: true, NeedsOfAgent: needs})
}

// lackNoMore is the node whose agent lacks nothing any more.
func lackNoMore(p *Placer) { p.NodeSeen(lackLater, Node{Name: "ours", PodsMax: 9}) }

// lackCases are pods with a claim, and a node whose agent does not mount volumes of CSI drivers.
var lackCases = map[string]struct {
	facts func(*Placer)
	why   string // the node is rejected; empty: it is not
	helps func(*Placer)
}{
	"bound": {func(p *Placer) {
		lackClass(p, volumes.NoProvisioner)
		p.VolumeSeen(1, csiVolume())
		lackClaim(p, 1, "csi")
	}, lackBound, lackNoMore},
	"bound to another volume later": {func(p *Placer) {
		lackClass(p, volumes.NoProvisioner)
		p.VolumeSeen(1, csiVolume())
		p.VolumeSeen(1, lackLocal)
		lackClaim(p, 1, "csi")
	}, lackBound,
		func(p *Placer) { lackClaim(p, lackLater, "local") }},
	"bound, and the volume changes": {func(p *Placer) {
		lackClass(p, volumes.NoProvisioner)
		p.VolumeSeen(1, csiVolume())
		lackClaim(p, 1, "csi")
	}, lackBound,
		func(p *Placer) { p.VolumeSeen(lackLater, Volume{Name: "csi", Class: "k", Version: "2"}) }},
	"bound to a volume that it mounts": {func(p *Placer) {
		lackClass(p, volumes.NoProvisioner)
		p.VolumeSeen(1, lackLocal)
		lackClaim(p, 1, "local")
	}, "", nil},
	"to be chosen": {func(p *Placer) {
		lackClass(p, volumes.NoProvisioner)
		p.VolumeSeen(1, csiVolume())
		lackClaim(p, 1, "")
	}, lackNone,
		func(p *Placer) { p.VolumeSeen(lackLater, lackLocal) }},
	"kept for it": {func(p *Placer) {
		lackClass(p, volumes.NoProvisioner)
		kept := csiVolume()
		kept.Claimed, kept.ClaimNamespace, kept.ClaimName = true, "x", "c"
		p.VolumeSeen(1, kept)
		lackClaim(p, 1, "")
	}, lackNone, lackNoMore},
	"another is chosen": {func(p *Placer) {
		lackClass(p, volumes.NoProvisioner)
		p.VolumeSeen(1, csiVolume())
		p.VolumeSeen(1, lackLocal)
		lackClaim(p, 1, "")
	}, "", nil},
	"to be provisioned by a driver": {func(p *Placer) {
		lackClass(p, "d")
		p.DriverSeen(1, "d", false)
		lackClaim(p, 1, "")
	}, lackMade, lackNoMore},
	"the driver is deleted": {func(p *Placer) {
		lackClass(p, "d")
		p.DriverSeen(1, "d", false)
		lackClaim(p, 1, "")
	}, lackMade, func(p *Placer) { p.DriverGone(lackLater, "d") }},
	"to be provisioned by something that is no driver": {func(p *Placer) {
		lackClass(p, "rancher.io/local-path")
		lackClaim(p, 1, "")
	}, "", nil},
	"to be provisioned by an in-tree plugin": {func(p *Placer) {
		lackClass(p, "kubernetes.io/aws-ebs", wellknown.LacksCSI)
		lackClaim(p, 1, "")
	}, lackMade, lackNoMore},
}

// TestAgentLacksVolumes checks that a pod goes to no node whose agent cannot mount the volumes of its claims, bound or
// yet to be chosen or provisioned, that it goes to other nodes, and that it is tried again when that changes.
func TestAgentLacksVolumes(t *testing.T) {
	for name, s := range lackCases {
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
			if d, ok := p.Next(lackLater); !ok || d.Node != "ours" {
				t.Errorf("it could be placed now, but is not tried again: %+v, %v", d.Failure, ok)
			}
		})
	}
}
