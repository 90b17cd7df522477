package volumes

import (
	"cmp"
	"slices"
	"strings"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/selector"
	"github.com/plimsoll-dev/plimsoll/internal/core/wellknown"
)

// PodMounts is what a pod mounts, as far as filters use it.
type PodMounts struct {
	Mounts []Mount
	Disks  []*Disk // those in Mounts
	// Namespace is the pod's if one of Mounts is a claim, else empty. Pod and PodName are the pod's UID and name if one
	// of Mounts is a claim that the pod must own, else empty. So pods that differ only in these have equal PodMounts if
	// no mount depends on them.
	Namespace, Pod, PodName string
}

// PodMountsOf returns the PodMounts of a pod with these mounts.
func PodMountsOf(mounts []Mount, namespace, pod, name string) (w PodMounts) {
	w.Mounts = mounts
	for i := range mounts {
		m := &mounts[i]
		if m.Disk != nil {
			w.Disks = append(w.Disks, m.Disk)
		}
		if m.Claim != "" {
			w.Namespace = namespace
		}
		if m.Own {
			w.Pod, w.PodName = pod, name
		}
	}
	return w
}

func (w *PodMounts) key(m *Mount) ClaimKey { return ClaimKey{Namespace: w.Namespace, Name: m.Claim} }

// EachClaim calls see for the claim of each mount that has one.
func (w *PodMounts) EachClaim(see func(ClaimKey)) {
	for i := range w.Mounts {
		if m := &w.Mounts[i]; m.Claim != "" {
			see(w.key(m))
		}
	}
}

// Needs is what the mounts of a pod need, given the claims and volumes as they are now. Filters about volumes read
// it.
type Needs struct {
	inputs []any // the facts from which it was computed, as pointers and versions

	Claims []*ClaimState // the claims that exist, without duplicates
	class  []*KnownClass // of each claim; nil if it is not known

	// These say why no node can take the pod, in upstream's words, one per filter; empty: no objection.
	MissingClaim  string // VolumeRestrictions: a claim that it looks up does not exist
	UnusableClaim string // VolumeBinding: a claim cannot be used in its present state
	// VolumeZone: a claim has no volume whose zone could be read, and the scheduler does not choose its volume
	UnknownZone string

	Once     []*ClaimState // claims that one pod at a time may use (ReadWriteOncePod)
	Attached []Attached    // what the pod attaches to a node, without duplicates
	Bound    []BoundVolume
	Chosen   []Provision // unbound claims for which a node was selected already
	Open     []Provision // unbound claims, smallest first, to be bound to an existing volume or provisioned
	Zones    []ZoneLabel // of the volumes of bound claims
	OfAgent  []string    // what a node's agent must be able to do to mount the bound volumes, as codes

	immediate bool // a claim is unbound, and its volume is not chosen by the scheduler
}

// BoundVolume is the volume of a bound claim.
type BoundVolume struct {
	Name   string
	Volume *KnownVolume // nil: no volume has this name
}

// Provision is a claim that waits for its first consumer.
type Provision struct {
	Claim *Claim
	Class *KnownClass
	Stock *Stock // the existing volumes that it may get
	// OfAgent is what a node's agent must be able to do to mount a volume that is provisioned for it, as codes.
	OfAgent []string
}

// Inputs appends every fact on which the Needs of w depend.
func (s *Store) Inputs(w *PodMounts, inputs []any) []any {
	for i := range w.Mounts {
		if w.Mounts[i].Claim == "" {
			continue
		}
		claim := s.claims[w.key(&w.Mounts[i])]
		if claim == nil || claim.Seen == nil {
			inputs = append(inputs, nil)
			continue
		}
		class := s.classes[claim.Seen.Class]
		inputs = append(inputs, claim.Seen, class, s.volumes[claim.Seen.Volume], claim.attached)
		if claim.Seen.Volume == "" && class != nil {
			inputs = append(inputs, s.stockOf(class.Name).version, s.drivers[class.Provisioner], s.opted[class.Provisioner],
				s.capacityVersion[class.Name])
		}
	}
	return inputs
}

// BasedOn reports whether a was computed from these facts.
func (a *Needs) BasedOn(inputs []any) bool { return a != nil && slices.Equal(inputs, a.inputs) }

// NeedsOf computes the Needs of w. inputs are the facts from Inputs; the result keeps a copy of them.
func (s *Store) NeedsOf(w *PodMounts, inputs []any) *Needs {
	a := &Needs{inputs: slices.Clone(inputs)}
	for i := range w.Mounts {
		m := &w.Mounts[i]
		if m.Claim == "" {
			a.attach(m.Attached)
			continue
		}
		claim := s.claims[w.key(m)]
		if claim == nil || claim.Seen == nil {
			a.setMissing(m)
			continue
		}
		if slices.Contains(a.Claims, claim) {
			continue // two mounts of the pod name the same claim
		}
		seen := claim.Seen
		class := s.classes[seen.Class]
		if seen.Class == "" {
			class = nil
		}
		a.Claims, a.class = append(a.Claims, claim), append(a.class, class)
		a.attach(claim.attached)
		if seen.OncePod && !m.Own && !slices.Contains(a.Once, claim) {
			a.Once = append(a.Once, claim)
		}
		a.classify(s, w, m, seen, class)
		if !m.Own {
			a.addZones(s, seen, class)
		}
	}
	if a.immediate {
		a.setUnusable("pod has unbound immediate PersistentVolumeClaims")
	}
	slices.SortStableFunc(a.Open, func(x, y Provision) int { return cmp.Compare(x.Claim.Size, y.Claim.Size) })
	return a
}

func (a *Needs) attach(x Attached) {
	if x.Driver != "" && x.Handle != "" && !slices.Contains(a.Attached, x) {
		a.Attached = append(a.Attached, x)
	}
}

func (a *Needs) setMissing(m *Mount) {
	absent := `persistentvolumeclaim "` + m.Claim + `" not found`
	if m.Own {
		a.setUnusable(`waiting for ephemeral volume controller to create the persistentvolumeclaim "` + m.Claim + `"`)
		return
	}
	if a.MissingClaim == "" {
		a.MissingClaim = absent
	}
	a.setUnusable(absent)
	a.setUnknownZone(absent)
}

// setUnusable and setUnknownZone keep only the first reason.
func (a *Needs) setUnusable(why string) {
	if a.UnusableClaim == "" {
		a.UnusableClaim = why
	}
}

func (a *Needs) setUnknownZone(why string) {
	if a.UnknownZone == "" {
		a.UnknownZone = why
	}
}

// classify records what a claim means for VolumeBinding: it is bound, it is to be bound when the pod is placed, or it
// is the reason why no node can take the pod.
func (a *Needs) classify(s *Store, w *PodMounts, m *Mount, seen *Claim, class *KnownClass) {
	switch {
	case seen.Lost:
		a.setUnusable(`persistentvolumeclaim "` + seen.Name + `" bound to non-existent persistentvolume "` +
			seen.Volume + `"`)
	case seen.Deleting:
		a.setUnusable(`persistentvolumeclaim "` + seen.Name + `" is being deleted`)
	case m.Own && seen.Controller != w.Pod:
		a.setUnusable("PVC " + seen.Namespace + "/" + seen.Name + " was not created for pod " +
			seen.Namespace + "/" + w.PodName + " (pod is not owner)")
	case seen.Volume != "" && seen.Bound:
		v := s.volumes[seen.Volume]
		a.Bound = append(a.Bound, BoundVolume{Name: seen.Volume, Volume: v})
		if v != nil {
			a.OfAgent = append(a.OfAgent, v.NeedsOfAgent...)
		}
	case seen.Volume != "" || class == nil || !class.Waits:
		a.immediate = true
	case seen.Selected:
		a.Chosen = append(a.Chosen, s.provisionOf(seen, class))
	default:
		a.Open = append(a.Open, s.provisionOf(seen, class))
	}
}

func (s *Store) provisionOf(claim *Claim, class *KnownClass) Provision {
	p := Provision{Claim: claim, Class: class, Stock: s.stockOf(class.Name), OfAgent: class.NeedsOfAgent}
	if s.drivers[class.Provisioner] {
		p.OfAgent = []string{wellknown.LacksCSI}
	}
	return p
}

// addZones finds what VolumeZone compares: the zones in the labels of the volume.
func (a *Needs) addZones(s *Store, seen *Claim, class *KnownClass) {
	if seen.Volume != "" {
		if v := s.volumes[seen.Volume]; v != nil {
			a.Zones = append(a.Zones, v.zones...)
		} else {
			a.setUnknownZone(`persistentvolume "` + seen.Volume + `" not found`)
		}
		return
	}
	switch {
	case seen.Class == "":
		a.setUnknownZone("PersistentVolumeClaim had no pv name and storageClass name")
	case class == nil:
		a.setUnknownZone(`storageclass.storage.k8s.io "` + seen.Class + `" not found`)
	case class.Unset:
		a.setUnknownZone(`VolumeBindingMode not set for StorageClass "` + seen.Class + `"`)
	case !class.Waits:
		a.setUnknownZone("PersistentVolume had no name")
	}
}

// Taken reports whether another pod, on any node, uses a claim that one pod at a time may use. disks says that the pod
// names disks itself. Two details are as upstream. A claim that several pods use counts as used by one, so that the
// eviction of any of them frees it. Pods that are added or removed in a trial count only if the claim has other users,
// or if disks is true.
func (a *Needs) Taken(disks bool) bool {
	if a == nil || len(a.Once) == 0 {
		return false
	}
	used, inTrial := int32(0), int32(0)
	for _, claim := range a.Once {
		used += min(claim.Users, 1)
		inTrial += claim.InTrial
	}
	return used+inTrial > 0 && (used > 0 || disks)
}

// UsesOnce reports whether the pod uses this claim, and one pod at a time may use it.
func (a *Needs) UsesOnce(key ClaimKey) bool {
	return slices.ContainsFunc(a.Once, func(k *ClaimState) bool { return k.Key == key })
}

// MayGet reports whether an unbound claim of the pod could be bound to v.
func (a *Needs) MayGet(v *KnownVolume) bool {
	for i, claim := range a.Claims {
		k := claim.Seen
		if k != nil && k.Volume == "" && a.class[i] != nil && a.class[i].Name == v.Class && v.suits(k) && v.offers(k) {
			return true
		}
	}
	return false
}

// EachString calls see for the number of every string that a uses; see selector.Interner.
func (a *Needs) EachString(see func(...int32)) {
	eachZoneString(a.Zones, see)
	for _, b := range a.Bound {
		b.Volume.eachString(see)
	}
	for _, list := range [...][]Provision{a.Chosen, a.Open} {
		for i := range list {
			selector.EachString(list[i].Class.Topologies, see)
		}
	}
}

// ZoneLabel is a label of a volume with the zones or regions in which the volume is.
type ZoneLabel struct {
	key, newKey int32 // newKey is the present name of a deprecated key
	values      []int32
}

// zoneKeys are the label keys that VolumeZone reads, each with its present name.
var zoneKeys = [...][2]string{
	{wellknown.LabelZoneBeta, wellknown.LabelZone},
	{wellknown.LabelRegionBeta, wellknown.LabelRegion},
	{wellknown.LabelZone, wellknown.LabelZone},
	{wellknown.LabelRegion, wellknown.LabelRegion},
}

// compileZones reads the zones of a volume from its labels. A list that contains an empty name is ignored.
func (s *Store) compileZones(labels []selector.Label) (out []ZoneLabel) {
	for _, key := range zoneKeys {
		text, ok := selector.ValueOf(labels, key[0])
		if !ok {
			continue
		}
		z := ZoneLabel{key: s.in.ID(key[0]), newKey: s.in.ID(key[1])}
		for name := range strings.SplitSeq(text, "__") {
			if name = strings.TrimSpace(name); name == "" {
				z.values = nil
				break
			}
			z.values = append(z.values, s.in.ID(name))
		}
		if z.values != nil {
			out = append(out, z)
		}
	}
	return out
}

// InZones reports whether a node with these labels is in a zone and a region of each bound volume, by the volume's
// labels. A node without any of these labels satisfies all.
func (s *Store) InZones(a *Needs, labels []selector.LabelID) bool {
	placed := false
	for _, key := range s.zoneKeys {
		_, has := selector.NumberOf(labels, key)
		placed = placed || has
	}
	if !placed {
		return true
	}
	for i := range a.Zones {
		z := &a.Zones[i]
		value, ok := selector.NumberOf(labels, z.key)
		if !ok {
			value, ok = selector.NumberOf(labels, z.newKey)
		}
		if !ok || !slices.Contains(z.values, value) {
			return false
		}
	}
	return true
}

func eachZoneString(list []ZoneLabel, see func(...int32)) {
	for i := range list {
		see(list[i].key, list[i].newKey)
		see(list[i].values...)
	}
}
