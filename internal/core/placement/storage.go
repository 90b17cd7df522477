package placement

import (
	"cmp"
	"maps"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/placement/selector"
)

// storage is what the cluster knows of claims and volumes. Facts are never changed in place: a change is another
// pointer, so that who kept some can tell whether they still hold.
//
// A fact may be assumed: as it will be when what was decided is written. Rules see it; truth keeps what the API says.
type storage struct {
	version uint64 // grows with every change

	claims  map[claimKey]*claimState
	volumes map[string]*volume
	stocks  map[string]*stock // by class: the volumes that a claim may get
	classes map[string]*storageClass
	drivers map[string]bool // CSI drivers that there are
	// opted: drivers that publish capacities, and want them looked at.
	opted           map[string]bool
	capacities      map[string]map[claimKey]*capacity // by class, then by namespace and name
	capacityVersion map[string]uint64                 // by class: grows with every change of its capacities
	boundTo         map[string]map[*claimState]bool   // by volume: claims that name it
	attachedTo      map[string]Attachment             // by name
	attaching       map[string]map[string]bool        // by volume: names of attachments
	plans           map[PodID]*VolumePlan             // of assumed pods
	// The truth about assumed facts.
	trueClaims  map[claimKey]*Claim
	trueVolumes map[string]*volume
}

type claimKey struct{ namespace, name string }

// claimState is a claim, seen or not, with the pods that use it.
type claimState struct {
	key  claimKey
	seen *Claim // nil: the API does not show it
	// users counts mentions by counted pods, other than by generic ephemeral volumes; lifted, those of pods that are
	// taken off or put on a row for a moment.
	users, lifted int32
	on            map[row]int32 // mentions of all kinds
	attached      Attached      // what counts towards limits where it is used
}

// volume is a Volume, compiled.
type volume struct {
	Volume
	affinity, moved volumeTerms
	zones           []zoneLabel
}

// volumeTerms say where a volume can be reached. Unlike those of a pod they look at labels only.
type volumeTerms struct {
	terms []selector.Term
	bound bool // false: anywhere
	// hosts: the volume can be reached only from nodes with one of these values of kubernetes.io/hostname; nil: not
	// known.
	hosts []int32
}

type storageClass struct {
	StorageClass
	topologies []selector.Term
}

type capacity struct {
	Capacity
	nodes selector.Term
}

func newStorage() storage {
	return storage{
		claims: map[claimKey]*claimState{}, volumes: map[string]*volume{}, stocks: map[string]*stock{}, classes: map[string]*storageClass{},
		drivers: map[string]bool{}, opted: map[string]bool{}, capacities: map[string]map[claimKey]*capacity{}, capacityVersion: map[string]uint64{}, boundTo: map[string]map[*claimState]bool{},
		attachedTo: map[string]Attachment{}, attaching: map[string]map[string]bool{}, plans: map[PodID]*VolumePlan{}, trueClaims: map[claimKey]*Claim{}, trueVolumes: map[string]*volume{},
	}
}

// claimAt returns the state of a claim, a new one if there is none.
func (s *storage) claimAt(key claimKey) *claimState {
	k := s.claims[key]
	if k == nil {
		k = &claimState{key: key, on: map[row]int32{}}
		s.claims[key] = k
	}
	return k
}

// drop forgets a claim that is neither seen nor used.
func (s *storage) drop(k *claimState) {
	if k.seen == nil && k.users == 0 && k.lifted == 0 && len(k.on) == 0 {
		delete(s.claims, k.key)
	}
}

// setClaim replaces what is known of a claim; nil: it is gone. The rows on which it is used are noted as changed if it
// counts otherwise there.
func (c *cluster) setClaim(key claimKey, to *Claim) {
	s := &c.storage
	s.version++
	k := s.claimAt(key)
	if k.seen != nil && k.seen.Volume != "" {
		delete(s.boundTo[k.seen.Volume], k)
		if len(s.boundTo[k.seen.Volume]) == 0 {
			delete(s.boundTo, k.seen.Volume)
		}
	}
	k.seen = to
	if to != nil && to.Volume != "" {
		if s.boundTo[to.Volume] == nil {
			s.boundTo[to.Volume] = map[*claimState]bool{}
		}
		s.boundTo[to.Volume][k] = true
	}
	c.reattach(k)
	s.drop(k)
}

// setVolume replaces what is known of a volume; nil: it is gone.
func (c *cluster) setVolume(name string, to *volume) {
	s := &c.storage
	s.version++
	if old := s.volumes[name]; old != nil {
		s.stockOf(old.Class).remove(old)
		delete(s.volumes, name)
	}
	if to != nil {
		s.volumes[name] = to
		s.stockOf(to.Class).add(to)
	}
	for k := range s.boundTo[name] {
		c.reattach(k)
	}
	for attachment := range s.attaching[name] {
		c.recount(c.rowOf(s.attachedTo[attachment].Node))
	}
}

// recount notes that other volumes count on row r than before.
func (c *cluster) recount(r row) {
	c.touch(r)
	c.waits.turned(r)
}

func (c *cluster) compileVolume(v Volume) *volume {
	return &volume{Volume: v, affinity: c.compileVolumeTerms(v.Affinity), moved: c.compileVolumeTerms(v.Moved), zones: c.compileZones(v.Labels)}
}

func (c *cluster) compileVolumeTerms(terms *[]NodeTerm) (out volumeTerms) {
	if terms == nil {
		return out
	}
	out.bound = true
	pinned := true
	for i := range *terms {
		t := c.intern.Compile((*terms)[i])
		t.Names = nil // nodes have labels here, and no names
		hosts := []int32(nil)
		for j := range t.Labels {
			if t.Labels[j].Key == c.hostKey && t.Labels[j].Op == In {
				hosts = t.Labels[j].Values
			}
		}
		pinned = pinned && hosts != nil
		out.hosts = append(out.hosts, hosts...)
		out.terms = append(out.terms, t)
	}
	if !pinned {
		out.hosts = nil
	}
	slices.Sort(out.hosts)
	out.hosts = slices.Compact(out.hosts)
	return out
}

// setClass replaces what is known of a storage class; nil: it is gone.
func (c *cluster) setClass(name string, to *StorageClass) {
	s := &c.storage
	s.version++
	delete(s.classes, name)
	if to != nil {
		k := &storageClass{StorageClass: *to}
		if to.Topologies != nil {
			for _, t := range *to.Topologies {
				k.topologies = append(k.topologies, c.intern.Compile(t))
			}
		}
		s.classes[name] = k
	}
	for _, k := range s.claims {
		if k.seen != nil && k.seen.Class == name {
			c.reattach(k)
		}
	}
}

// setCapacity replaces a capacity; larger reports whether a volume may now be made that could not before.
func (c *cluster) setCapacity(key claimKey, class string, to *Capacity) (larger bool) {
	s := &c.storage
	s.version++
	s.capacityVersion[class]++
	old := s.capacities[class][key]
	if to == nil {
		delete(s.capacities[class], key)
		if len(s.capacities[class]) == 0 {
			delete(s.capacities, class)
		}
		c.capacityWent(class, old)
		return false
	}
	c.capacityWent(class, old)
	if s.capacities[class] == nil {
		s.capacities[class] = map[claimKey]*capacity{}
	}
	k := &capacity{Capacity: *to}
	if to.Nodes != nil {
		k.nodes = c.intern.Compile(NodeTerm{Labels: to.Nodes.Requirements})
		k.nodes.Never = to.Nodes.Nothing
	}
	s.capacities[class][key] = k
	c.capacityCame(class, k)
	return to.Sized && (old == nil || !old.Sized || to.Size > old.Size)
}

// capacityClass finds the class of a capacity that is known.
func (s *storage) capacityClass(key claimKey) (string, bool) {
	for _, class := range slices.Sorted(maps.Keys(s.capacities)) {
		if s.capacities[class][key] != nil {
			return class, true
		}
	}
	return "", false
}

// A stock holds the volumes of one class that claims may get: those kept for one claim, and the free ones, by the host
// from which alone they can be reached, each list from the smallest on.
type stock struct {
	version  uint64
	kept     map[claimKey][]*volume
	byHost   map[int32][]*volume
	anywhere []*volume
}

func (s *storage) stockOf(class string) *stock {
	p := s.stocks[class]
	if p == nil {
		p = &stock{kept: map[claimKey][]*volume{}, byHost: map[int32][]*volume{}}
		s.stocks[class] = p
	}
	return p
}

func smallestFirst(a, b *volume) int {
	return cmp.Or(cmp.Compare(a.Capacity, b.Capacity), cmp.Compare(a.Name, b.Name))
}

func (p *stock) add(v *volume) {
	p.version++
	insert := func(list []*volume) []*volume {
		i, _ := slices.BinarySearchFunc(list, v, smallestFirst)
		return slices.Insert(list, i, v)
	}
	switch {
	case v.Claimed:
		key := claimKey{v.ClaimSpace, v.ClaimName}
		p.kept[key] = insert(p.kept[key])
	case !v.Available || v.Deleting:
	case v.affinity.hosts != nil:
		for _, h := range v.affinity.hosts {
			p.byHost[h] = insert(p.byHost[h])
		}
	default:
		p.anywhere = insert(p.anywhere)
	}
}

func (p *stock) remove(v *volume) {
	p.version++
	key := claimKey{v.ClaimSpace, v.ClaimName}
	if p.kept[key] = without(p.kept[key], v); len(p.kept[key]) == 0 {
		delete(p.kept, key)
	}
	for _, h := range v.affinity.hosts {
		if p.byHost[h] = without(p.byHost[h], v); len(p.byHost[h]) == 0 {
			delete(p.byHost, h)
		}
	}
	p.anywhere = without(p.anywhere, v)
}
