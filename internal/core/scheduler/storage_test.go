package scheduler

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/volumes"
	"github.com/plimsoll-dev/plimsoll/internal/core/wellknown"
)

// TestStorageHistories is TestHistories and TestTablesAgree with claims, volumes, classes, drivers and disks that are
// added, changed and deleted, and with volume plans that are written, fail, succeed or time out.
func TestStorageHistories(t *testing.T) {
	seeds := []uint64{780128} // once, the kept reason of a failed preemption was used after the pod's volumes had changed
	seeds = append(seeds, seedsFrom(t, 2000, 60)...)
	for i, seed := range seeds {
		h := newHistory(t, seed)
		h.stores = true
		for range 200 {
			h.step()
			h.check()
			if i%3 == 0 {
				h.checkTables()
			}
			if t.Failed() {
				t.Fatalf("seed %d", seed)
			}
		}
	}
}

// happenStorage makes one random change to storage.
func (h *history) happenStorage() {
	c, p := h.placer.cluster, h.placer
	switch h.rng.IntN(12) {
	case 0:
		k := StorageClass{Name: h.one("local", "csi", "now"), Driver: "d"}
		k.Waits = k.Name != "now"
		k.Provisioner = map[string]string{"local": volumes.NoProvisioner, "csi": "d", "now": "d"}[k.Name]
		if k.Name == "csi" && h.rng.IntN(2) == 0 {
			k.Topologies = &[]NodeTerm{{Labels: []Requirement{{Key: "zone", Op: In, Values: []string{"a", "b"}}}}}
		}
		if h.rng.IntN(6) == 0 {
			p.StorageClassGone(h.now, k.Name)
		} else {
			p.StorageClassSeen(h.now, k)
		}
	case 1, 2, 3:
		h.changeVolume()
	case 4, 5, 6:
		h.changeClaim()
	case 7:
		n := NodeStorage{Node: fmt.Sprintf("n%d", h.rng.IntN(h.names)), Limits: map[string]int64{"d": int64(h.rng.IntN(3))}}
		if h.rng.IntN(3) == 0 {
			p.NodeStorageGone(h.now, n.Node)
		} else {
			p.NodeStorageSeen(h.now, n)
		}
	case 8:
		a := Attachment{
			Name:   h.one("a0", "a1", "a2"),
			Node:   fmt.Sprintf("n%d", h.rng.IntN(h.names)),
			Driver: "d",
			Volume: h.volumeName(),
		}
		if h.rng.IntN(2) == 0 {
			p.AttachmentGone(h.now, a.Name)
		} else {
			p.AttachmentSeen(h.now, a)
		}
	case 9:
		if h.rng.IntN(3) == 0 {
			p.DriverGone(h.now, "d")
		} else {
			p.DriverSeen(h.now, "d", h.rng.IntN(2) == 0)
		}
	case 10:
		k := Capacity{
			Namespace: "x",
			Name:      h.one("k0", "k1"),
			Class:     h.one("csi", "csi", "local"),
			Size:      int64(h.rng.IntN(5)),
			Sized:     h.rng.IntN(5) != 0,
		}
		k.Nodes = &LabelSelector{Requirements: []Requirement{{Key: "zone", Op: In, Values: []string{h.one("a", "b", "c")}}}}
		if h.rng.IntN(4) == 0 {
			p.CapacityGone(h.now, k.Namespace, k.Name)
		} else {
			p.CapacitySeen(h.now, k)
		}
	default:
		h.landVolumes(c)
	}
	for _, s := range p.VolumeOutcomes(h.now) {
		if s.Why == "" {
			h.flight[s.Decision.Pod.ID] = s.Decision.Node
		} else {
			p.Bound(h.now, s.Decision.Pod, BindRefused)
		}
	}
}

func (h *history) one(s ...string) string { return s[h.rng.IntN(len(s))] }

func (h *history) volumeName() string { return fmt.Sprintf("v%d", h.rng.IntN(6)) }

func (h *history) version() string {
	h.made++
	return strconv.Itoa(h.made)
}

func (h *history) changeVolume() {
	v := Volume{
		Name:      h.volumeName(),
		Version:   h.version(),
		Class:     h.one("local", "local", "csi", "now"),
		Available: h.rng.IntN(5) != 0,
	}
	v.Capacity = int64(v.Name[1] - '0')
	v.Modes = []string{"rwo"}
	if h.rng.IntN(3) != 0 {
		v.Affinity = &[]NodeTerm{
			{Labels: []Requirement{{Key: h.one(hostKey, "zone"), Op: In, Values: []string{h.one("n0", "n1", "a", "b"), "n2"}}}},
		}
	}
	if h.rng.IntN(3) == 0 {
		v.CSI = true
		v.Attached = Attached{Driver: "d", Handle: h.one("h0", "h1", "h2", "h3")}
		v.NeedsOfAgent = []string{wellknown.LacksCSI}
	} else if h.rng.IntN(4) == 0 {
		v.NeedsOfAgent = []string{"volumes.nfs"}
	}
	if h.rng.IntN(3) == 0 {
		v.Labels = []Label{{Key: "topology.kubernetes.io/zone", Value: h.one("a", "b", "a__b")}}
	}
	if h.rng.IntN(4) == 0 {
		v.Claimed, v.ClaimNamespace, v.ClaimName, v.ClaimUID = true, h.one("x", "y"), h.one("c0", "c1", "c2"), ""
	}
	if h.rng.IntN(6) == 0 {
		h.placer.VolumeGone(h.now, v.Name)
	} else {
		h.placer.VolumeSeen(h.now, v)
	}
}

func (h *history) changeClaim() {
	k := Claim{
		Namespace: h.one("x", "y"),
		Name:      fmt.Sprintf("c%d", h.rng.IntN(6)),
		Version:   h.version(),
		Class:     h.one("local", "csi", "now"),
		Modes:     []string{"rwo"},
	}
	k.UID, k.Size, k.Sized = k.Namespace+k.Name, int64(h.rng.IntN(5)), true
	k.OncePod = k.Name == "c0" || k.Name == "c1"
	switch h.rng.IntN(8) {
	case 0, 1:
		k.Volume, k.Bound = h.volumeName(), true
	case 2:
		k.Selected, k.Node = true, fmt.Sprintf("n%d", h.rng.IntN(h.names))
	case 3:
		k.Deleting = h.rng.IntN(2) == 0
	}
	if h.rng.IntN(8) == 0 {
		h.placer.ClaimGone(h.now, k.Namespace, k.Name)
	} else {
		h.placer.ClaimSeen(h.now, k)
	}
}

// landVolumes continues a volume plan: the write fails or succeeds, or the volumes are bound.
func (h *history) landVolumes(c *cluster) {
	id, ok := pick(h.rng, c.plans)
	if !ok {
		return
	}
	plan := c.plans[id]
	switch h.rng.IntN(5) {
	case 0:
		if !plan.written {
			h.placer.Bound(h.now, plan.decision.Pod, BindRefused)
		}
		return
	case 1:
		h.now = h.now.Add(time.Hour)
		return
	}
	for _, b := range plan.Bind {
		if v := c.storage.APIVolume(b.Volume); v != nil && v.Version == b.Version {
			after := v.Volume
			after.Version = h.version()
			after.Claimed = true
			after.ClaimNamespace = b.ClaimNamespace
			after.ClaimName = b.ClaimName
			after.ClaimUID = b.ClaimUID
			h.placer.VolumeSeen(h.now, after)
		}
		if k := c.storage.APIClaim(volumes.ClaimKey{Namespace: b.ClaimNamespace, Name: b.ClaimName}); k != nil {
			after := *k
			after.Version, after.Volume, after.Bound = h.version(), b.Volume, true
			h.placer.ClaimSeen(h.now, after)
		}
	}
	for _, q := range plan.Provision {
		if k := c.storage.APIClaim(volumes.ClaimKey{Namespace: q.Namespace, Name: q.Name}); k != nil {
			after := *k
			after.Version, after.Selected, after.Node = h.version(), h.rng.IntN(6) != 0, q.Node
			if after.Selected && h.rng.IntN(2) == 0 {
				after.Volume, after.Bound = h.volumeName(), true
			}
			h.placer.ClaimSeen(h.now, after)
		}
	}
	if !plan.written {
		h.placer.VolumesWritten(h.now, id)
	}
}

func (h *history) randomMounts(p *Pod) {
	for h.rng.IntN(3) != 0 {
		switch h.rng.IntN(6) {
		case 0:
			p.Mounts = append(p.Mounts, Mount{Disk: &Disk{Kind: "gce", ID: h.one("a", "b"), ReadOnly: h.rng.IntN(2) == 0}})
		case 1:
			p.Mounts = append(p.Mounts, Mount{Attached: Attached{Driver: "d", Handle: h.one("h0", "h1")}})
		default:
			p.Mounts = append(p.Mounts, Mount{Claim: fmt.Sprintf("c%d", h.rng.IntN(6))})
		}
	}
}

// copyStorage copies the facts about storage in c to a fresh cluster, with assumptions.
func copyStorage(c, fresh *cluster) {
	c.storage.CopyTo(fresh.storage, func(r row) row { return fresh.rowOf(c.name[r]) })
}

// checkStorage compares the uses of claims with a count over all pods, stocks with the volumes, and assumptions with
// the plans.
func (h *history) checkStorage() {
	c := h.placer.cluster
	var pods []volumes.CountedPod
	for _, p := range c.pods {
		pods = append(pods, volumes.CountedPod{Mounts: &p.class.mounts, Row: p.Row})
	}
	var plans []*volumes.Plan
	for _, p := range c.plans {
		plans = append(plans, &p.Plan)
	}
	for _, wrong := range c.storage.Audit(pods, plans) {
		h.t.Error(wrong)
	}
}
