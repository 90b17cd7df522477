package placement

import (
	"cmp"
	"slices"
	"strings"

	"github.com/plimsoll-dev/plimsoll/internal/core/placement/selector"
)

// A volumeAsk is what the volumes of a demand come down to as claims and volumes are now: the plain form of what rules
// about volumes read. It is made anew when one of inputs is another.
type volumeAsk struct {
	inputs []any // the facts that it was made of, as pointers and versions
	claims []*claimState
	class  []*storageClass // of each claim; nil: none known

	// Why no node can take the pod, in upstream's words, by the rule that says so; empty: it does not.
	unknown string // a claim that VolumeRestrictions looks up is not there
	useless string // VolumeBinding: a claim cannot be used as it is
	astray  string // VolumeZone: a claim has no volume to look at, and will get none from us

	once     []*claimState // claims for one pod at a time
	attached []Attached    // what the pod adds to a node's volumes, each once
	bound    []boundVolume
	chosen   []provision // unbound, for which a node was selected already
	open     []provision // unbound, from the smallest on: to be bound to a volume that there is, or provisioned
	zones    []zoneLabel
	ofAgent  []string // codes of what bound volumes need of a node's agent

	immediate bool // a claim waits for a volume that is not ours to choose
}

type boundVolume struct {
	name   string
	volume *volume // nil: there is none of that name
}

// provision is a claim that waits for its first consumer.
type provision struct {
	claim *Claim
	class *storageClass
	stock *stock
	// ofAgent are codes of what a volume that is made for it needs of a node's agent.
	ofAgent []string
}

// readVolumes finds out what the volumes of d come down to. Tables that were built on another answer are void.
func (c *cluster) readVolumes(d *demand) {
	if d.volumesSeen == c.storage.version+1 {
		return
	}
	d.volumesSeen = c.storage.version + 1
	inputs := c.volumeInputs(d.class, c.inputs[:0])
	c.inputs = inputs
	if d.volumes != nil && slices.Equal(inputs, d.volumes.inputs) {
		return
	}
	c.dropTables(d)
	d.volumes = c.volumeAsk(d.class)
	d.volumes.inputs = slices.Clone(inputs)
	clear(inputs)
}

// volumeInputs lists every fact that volumeAsk looks at.
func (c *cluster) volumeInputs(k *class, inputs []any) []any {
	s := &c.storage
	for i := range k.mounts {
		if k.mounts[i].Claim == "" {
			continue
		}
		claim := s.claims[claimKey{k.namespace, k.mounts[i].Claim}]
		if claim == nil || claim.seen == nil {
			inputs = append(inputs, nil)
			continue
		}
		class := s.classes[claim.seen.Class]
		inputs = append(inputs, claim.seen, class, s.volumes[claim.seen.Volume], claim.attached)
		if claim.seen.Volume == "" && class != nil {
			inputs = append(inputs, s.stockOf(class.Name).version, s.drivers[class.Provisioner], s.opted[class.Provisioner], s.capacityVersion[class.Name])
		}
	}
	return inputs
}

func (c *cluster) volumeAsk(k *class) *volumeAsk {
	a := &volumeAsk{}
	for i := range k.mounts {
		m := &k.mounts[i]
		if m.Claim == "" {
			a.attach(m.Attached)
			continue
		}
		key := claimKey{k.namespace, m.Claim}
		claim := c.storage.claims[key]
		if claim == nil || claim.seen == nil {
			a.isMissing(m)
			continue
		}
		if slices.Contains(a.claims, claim) {
			continue // two volumes of the pod, one claim
		}
		seen := claim.seen
		class := c.storage.classes[seen.Class]
		if seen.Class == "" {
			class = nil
		}
		a.claims, a.class = append(a.claims, claim), append(a.class, class)
		a.attach(claim.attached)
		if seen.OncePod && !m.Own && !slices.Contains(a.once, claim) {
			a.once = append(a.once, claim)
		}
		a.sort(c, k, m, seen, class)
		if !m.Own {
			a.locate(c, seen, class)
		}
	}
	if a.immediate {
		a.findUseless("pod has unbound immediate PersistentVolumeClaims")
	}
	slices.SortStableFunc(a.open, func(x, y provision) int { return cmp.Compare(x.claim.Size, y.claim.Size) })
	return a
}

func (a *volumeAsk) attach(x Attached) {
	if x.Driver != "" && x.Handle != "" && !slices.Contains(a.attached, x) {
		a.attached = append(a.attached, x)
	}
}

func (a *volumeAsk) isMissing(m *Mount) {
	absent := `persistentvolumeclaim "` + m.Claim + `" not found`
	if m.Own {
		a.findUseless(`waiting for ephemeral volume controller to create the persistentvolumeclaim "` + m.Claim + `"`)
		return
	}
	if a.unknown == "" {
		a.unknown = absent
	}
	a.findUseless(absent)
	a.findAstray(absent)
}

// findUseless and findAstray keep the first reason.
func (a *volumeAsk) findUseless(why string) {
	if a.useless == "" {
		a.useless = why
	}
}

func (a *volumeAsk) findAstray(why string) {
	if a.astray == "" {
		a.astray = why
	}
}

// sort puts a claim where VolumeBinding looks for it: bound, to be bound when the pod is placed, or a reason to wait.
func (a *volumeAsk) sort(c *cluster, k *class, m *Mount, seen *Claim, class *storageClass) {
	switch {
	case seen.Lost:
		a.findUseless(`persistentvolumeclaim "` + seen.Name + `" bound to non-existent persistentvolume "` + seen.Volume + `"`)
	case seen.Deleting:
		a.findUseless(`persistentvolumeclaim "` + seen.Name + `" is being deleted`)
	case m.Own && seen.Controller != k.podID:
		a.findUseless("PVC " + seen.Namespace + "/" + seen.Name + " was not created for pod " + seen.Namespace + "/" + k.podName + " (pod is not owner)")
	case seen.Volume != "" && seen.Bound:
		v := c.storage.volumes[seen.Volume]
		a.bound = append(a.bound, boundVolume{seen.Volume, v})
		if v != nil {
			a.ofAgent = append(a.ofAgent, v.NeedsOfAgent...)
		}
	case seen.Volume != "" || class == nil || !class.Waits:
		a.immediate = true
	case seen.Selected:
		a.chosen = append(a.chosen, c.provisionOf(seen, class))
	default:
		a.open = append(a.open, c.provisionOf(seen, class))
	}
}

func (c *cluster) provisionOf(claim *Claim, class *storageClass) provision {
	p := provision{claim: claim, class: class, stock: c.storage.stockOf(class.Name), ofAgent: class.NeedsOfAgent}
	if c.storage.drivers[class.Provisioner] {
		p.ofAgent = []string{AgentCSI}
	}
	return p
}

// locate finds what VolumeZone looks at: the zones in the labels of the volume.
func (a *volumeAsk) locate(c *cluster, seen *Claim, class *storageClass) {
	if seen.Volume != "" {
		if v := c.storage.volumes[seen.Volume]; v != nil {
			a.zones = append(a.zones, v.zones...)
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

// whole is why no node at all can take the pod; empty: some may.
func (d *demand) whole() string {
	if d.conflict || d.volumes == nil {
		return ""
	}
	for _, f := range d.profile.filters {
		if f.whole != nil {
			if why := f.whole(d.volumes); why != "" {
				return why
			}
		}
	}
	return ""
}

// zoneLabel is a label that says in which of some zones or regions a volume is.
type zoneLabel struct {
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
func (c *cluster) compileZones(labels []Label) (out []zoneLabel) {
	for _, key := range zoneKeys {
		text, ok := selector.ValueOf(labels, key[0])
		if !ok {
			continue
		}
		z := zoneLabel{key: c.intern.ID(key[0]), newKey: c.intern.ID(key[1])}
		for name := range strings.SplitSeq(text, "__") {
			if name = strings.TrimSpace(name); name == "" {
				z.values = nil
				break
			}
			z.values = append(z.values, c.intern.ID(name))
		}
		if z.values != nil {
			out = append(out, z)
		}
	}
	return out
}
