package volumes

import (
	"cmp"
	"slices"
	"strings"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/selector"
)

// Wants is what a pod mounts, as far as a rule looks at it.
type Wants struct {
	Mounts []Mount
	Disks  []*Disk // those in Mounts
	// Namespace of the pod, where a claim is among Mounts; Pod and PodName, its UID and name, where a claim must be the
	// pod's own: pods are the same else.
	Namespace, Pod, PodName string
}

// WantsOf returns what a pod with mounts wants.
func WantsOf(mounts []Mount, namespace, pod, name string) (w Wants) {
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

func (w *Wants) key(m *Mount) ClaimKey { return ClaimKey{Namespace: w.Namespace, Name: m.Claim} }

// EachClaim calls see for each mention of a claim.
func (w *Wants) EachClaim(see func(ClaimKey)) {
	for i := range w.Mounts {
		if m := &w.Mounts[i]; m.Claim != "" {
			see(w.key(m))
		}
	}
}

// An Ask is what the mounts of a pod come down to as claims and volumes are now: the plain form of what rules about
// volumes read.
type Ask struct {
	inputs []any // the facts that it was made of, as pointers and versions

	Claims []*ClaimState
	class  []*KnownClass // of each claim; nil: none known

	// Why no node can take the pod, in upstream's words, by the rule that says so; empty: it does not.
	Unknown string // a claim that VolumeRestrictions looks up is not there
	Useless string // VolumeBinding: a claim cannot be used as it is
	Astray  string // VolumeZone: a claim has no volume to look at, and will get none from us

	Once     []*ClaimState // claims for one pod at a time
	Attached []Attached    // what the pod adds to a node's volumes, each once
	Bound    []BoundVolume
	Chosen   []Provision // unbound, for which a node was selected already
	Open     []Provision // unbound, from the smallest on: to be bound to a volume that there is, or provisioned
	Zones    []ZoneLabel
	OfAgent  []string // codes of what bound volumes need of a node's agent

	immediate bool // a claim waits for a volume that is not ours to choose
}

// BoundVolume is the volume of a claim that is bound.
type BoundVolume struct {
	Name   string
	Volume *KnownVolume // nil: there is none of that name
}

// Provision is a claim that waits for its first consumer.
type Provision struct {
	Claim *Claim
	Class *KnownClass
	Stock *Stock
	// OfAgent are codes of what a volume that is made for it needs of a node's agent.
	OfAgent []string
}

// Inputs appends every fact that an Ask for w rests on.
func (s *Store) Inputs(w *Wants, inputs []any) []any {
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

// RestsOn reports whether a was made of these facts.
func (a *Ask) RestsOn(inputs []any) bool { return a != nil && slices.Equal(inputs, a.inputs) }

// Ask finds out what w comes down to. inputs are those facts; it keeps a copy.
func (s *Store) Ask(w *Wants, inputs []any) *Ask {
	a := &Ask{inputs: slices.Clone(inputs)}
	for i := range w.Mounts {
		m := &w.Mounts[i]
		if m.Claim == "" {
			a.attach(m.Attached)
			continue
		}
		claim := s.claims[w.key(m)]
		if claim == nil || claim.Seen == nil {
			a.isMissing(m)
			continue
		}
		if slices.Contains(a.Claims, claim) {
			continue // two volumes of the pod, one claim
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
		a.sort(s, w, m, seen, class)
		if !m.Own {
			a.locate(s, seen, class)
		}
	}
	if a.immediate {
		a.findUseless("pod has unbound immediate PersistentVolumeClaims")
	}
	slices.SortStableFunc(a.Open, func(x, y Provision) int { return cmp.Compare(x.Claim.Size, y.Claim.Size) })
	return a
}

func (a *Ask) attach(x Attached) {
	if x.Driver != "" && x.Handle != "" && !slices.Contains(a.Attached, x) {
		a.Attached = append(a.Attached, x)
	}
}

func (a *Ask) isMissing(m *Mount) {
	absent := `persistentvolumeclaim "` + m.Claim + `" not found`
	if m.Own {
		a.findUseless(`waiting for ephemeral volume controller to create the persistentvolumeclaim "` + m.Claim + `"`)
		return
	}
	if a.Unknown == "" {
		a.Unknown = absent
	}
	a.findUseless(absent)
	a.findAstray(absent)
}

// findUseless and findAstray keep the first reason.
func (a *Ask) findUseless(why string) {
	if a.Useless == "" {
		a.Useless = why
	}
}

func (a *Ask) findAstray(why string) {
	if a.Astray == "" {
		a.Astray = why
	}
}

// sort puts a claim where VolumeBinding looks for it: bound, to be bound when the pod is placed, or a reason to wait.
func (a *Ask) sort(s *Store, w *Wants, m *Mount, seen *Claim, class *KnownClass) {
	switch {
	case seen.Lost:
		a.findUseless(`persistentvolumeclaim "` + seen.Name + `" bound to non-existent persistentvolume "` + seen.Volume + `"`)
	case seen.Deleting:
		a.findUseless(`persistentvolumeclaim "` + seen.Name + `" is being deleted`)
	case m.Own && seen.Controller != w.Pod:
		a.findUseless("PVC " + seen.Namespace + "/" + seen.Name + " was not created for pod " + seen.Namespace + "/" + w.PodName + " (pod is not owner)")
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
		p.OfAgent = []string{AgentCSI}
	}
	return p
}

// locate finds what VolumeZone looks at: the zones in the labels of the volume.
func (a *Ask) locate(s *Store, seen *Claim, class *KnownClass) {
	if seen.Volume != "" {
		if v := s.volumes[seen.Volume]; v != nil {
			a.Zones = append(a.Zones, v.zones...)
		} else {
			a.findAstray(`persistentvolume "` + seen.Volume + `" not found`)
		}
		return
	}
	switch {
	case seen.Class == "":
		a.findAstray("PersistentVolumeClaim had no pv name and storageClass name")
	case class == nil:
		a.findAstray(`storageclass.storage.k8s.io "` + seen.Class + `" not found`)
	case class.Unset:
		a.findAstray(`VolumeBindingMode not set for StorageClass "` + seen.Class + `"`)
	case !class.Waits:
		a.findAstray("PersistentVolume had no name")
	}
}

// Taken reports whether another pod, on any node, uses a claim that is for one pod at a time. disks: the pod names
// disks itself. A claim that several pods use counts as used by one, so that the eviction of any of them frees it; and
// pods that count for a moment only are looked at only if the claim is in use besides, or with disks. Both are as
// upstream has them.
func (a *Ask) Taken(disks bool) bool {
	if a == nil || len(a.Once) == 0 {
		return false
	}
	used, lifted := int32(0), int32(0)
	for _, claim := range a.Once {
		used += min(claim.Users, 1)
		lifted += claim.Lifted
	}
	return used+lifted > 0 && (used > 0 || disks)
}

// MayGet reports whether an unbound claim of the pod could choose v.
func (a *Ask) MayGet(v *KnownVolume) bool {
	for i, claim := range a.Claims {
		k := claim.Seen
		if k != nil && k.Volume == "" && a.class[i] != nil && a.class[i].Name == v.Class && v.suits(k) && v.offers(k) {
			return true
		}
	}
	return false
}

// EachString calls see for the number of every string that a uses; see selector.Interner.
func (a *Ask) EachString(see func(...int32)) {
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

// ZoneLabel is a label that says in which of some zones or regions a volume is.
type ZoneLabel struct {
	key, newKey int32 // newKey is the present name of a key of old
	values      []int32
}

// The keys that VolumeZone looks at, and the present names of the first two.
var zoneKeys = [...][2]string{
	{"failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone"},
	{"failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region"},
	{"topology.kubernetes.io/zone", "topology.kubernetes.io/zone"},
	{"topology.kubernetes.io/region", "topology.kubernetes.io/region"},
}

// compileZones reads the zones of a volume. A list with an empty name in it is no list, and says nothing.
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

// InZones reports whether a node with labels is in a zone and a region of each bound volume, as the volume's labels
// have them. A node without any such label is anywhere.
func (s *Store) InZones(a *Ask, labels []selector.LabelID) bool {
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
