// Package volumes has the facts about claims, volumes, storage classes and CSI drivers, and decides what they mean for
// one pod on one node.
//
// # Model
//
// A Store has the facts as the API shows them, and which pods mount what on which row. Needs say what the claims of a
// pod need at present: why no node can take the pod, or what each claim must get. Bind decides for one node whether the
// claims can get that, and what must be written before the pod is bound: a Plan.
//
// A plan can be assumed: then all decisions see the facts as they will be when the plan is written. The store keeps the
// facts as the API has them, and returns to these if the plan fails.
//
// # Invariants
//
//   - A fact is never changed in place. A change replaces the pointer, so a result computed from facts can be checked
//     by comparing pointers.
//   - Counts by row (attached volumes, disks in use, uses of claims) always equal a fresh count over the pods on rows.
//   - The store keeps nothing about a claim that neither exists nor is used.
package volumes

import (
	"maps"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/rows"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/selector"
	"github.com/plimsoll-dev/plimsoll/internal/core/wellknown"
)

// Store has the facts about claims and volumes. It is a rows.Table: it grows with the rows of nodes. It changes only by
// its methods; one goroutine may use it.
type Store struct {
	version uint64 // grows with each change of a fact
	in      *selector.Interner
	changed func(rows.Row) // called when other volumes count on a row; see NewStore
	hostKey int32          // the label kubernetes.io/hostname
	// zoneKeys are the label keys that VolumeZone reads.
	zoneKeys []int32

	claims  map[ClaimKey]*ClaimState
	volumes map[string]*KnownVolume // by name
	stocks  map[string]*Stock       // by class: the volumes that a claim may get
	classes map[string]*KnownClass  // by name
	drivers map[string]bool         // the CSI drivers that exist
	// opted has the drivers that publish capacities and want them checked.
	opted           map[string]bool
	capacities      map[string]map[ClaimKey]*KnownCapacity // by class, then by namespace and name
	capacityVersion map[string]uint64                      // by class with capacities: the version of the last change
	boundTo         map[string]map[*ClaimState]bool        // by volume: the claims that name it
	attachments     map[string]attachment                  // by name
	attaching       map[string]map[string]bool             // by volume: names of attachments
	// The facts as the API has them, for claims and volumes about which something else is assumed.
	apiClaims  map[ClaimKey]*Claim
	apiVolumes map[string]*KnownVolume

	rows rows.Column[*OnRow]
}

// ClaimKey identifies a claim, or another object in a namespace.
type ClaimKey struct{ Namespace, Name string }

// ClaimState is a claim that exists or is used by pods, or both.
type ClaimState struct {
	Key  ClaimKey
	Seen *Claim // nil: the claim does not exist
	// Users counts the uses by pods on rows, except those by generic ephemeral volumes. InTrial is by how much that
	// differs during a trial, and zero otherwise.
	Users, InTrial int32
	on             map[rows.Row]int32 // uses of all kinds, by row
	attached       Attached           // what counts toward limits where the claim is used
}

// KnownVolume is a compiled Volume.
type KnownVolume struct {
	Volume
	From      Reach // compiled Affinity
	MovedFrom Reach // compiled Moved
	zones     []ZoneLabel
}

// Reach says from which nodes a volume is accessible. Its terms, unlike those of a pod, match labels only.
type Reach struct {
	Terms   []selector.Term
	Limited bool // false: from anywhere
	// Hosts: accessible only from nodes with one of these values of kubernetes.io/hostname; nil: not limited in this
	// way.
	Hosts []int32
}

// KnownClass is a compiled StorageClass.
type KnownClass struct {
	StorageClass
	Topologies []selector.Term
	anywhere   bool // volumes can be provisioned anywhere: Topologies has no meaning
}

// Limits reports whether the class has allowed topologies.
func (k *KnownClass) Limits() bool { return !k.anywhere }

// Provisions reports whether volumes of the class are provisioned at all.
func (k *KnownClass) Provisions() bool { return k.Provisioner != "" && k.Provisioner != NoProvisioner }

// KnownCapacity is a compiled Capacity.
type KnownCapacity struct {
	Capacity
	Selects selector.Term // selects nodes by labels; a capacity without Nodes is for no node
}

// NewStore returns an empty store. The store calls changed with each row on which other volumes count than before,
// unless the reason is a pod that came or left.
func NewStore(in *selector.Interner, changed func(rows.Row)) *Store {
	s := &Store{
		in:              in,
		hostKey:         in.ID(wellknown.LabelHostname),
		changed:         changed,
		claims:          map[ClaimKey]*ClaimState{},
		volumes:         map[string]*KnownVolume{},
		stocks:          map[string]*Stock{},
		classes:         map[string]*KnownClass{},
		drivers:         map[string]bool{},
		opted:           map[string]bool{},
		capacities:      map[string]map[ClaimKey]*KnownCapacity{},
		capacityVersion: map[string]uint64{},
		boundTo:         map[string]map[*ClaimState]bool{},
		attachments:     map[string]attachment{},
		attaching:       map[string]map[string]bool{},
		apiClaims:       map[ClaimKey]*Claim{},
		apiVolumes:      map[string]*KnownVolume{},
	}
	for _, key := range zoneKeys {
		s.zoneKeys = append(s.zoneKeys, in.ID(key[0]))
	}
	return s
}

// Version grows with every change of a fact.
func (s *Store) Version() uint64 { return s.version }

// Volume returns a volume, with assumed changes; nil: none has this name.
func (s *Store) Volume(name string) *KnownVolume { return s.volumes[name] }

// Classes calls see for each class.
func (s *Store) Classes(see func(*KnownClass)) {
	for _, k := range s.classes {
		see(k)
	}
}

// ClaimsOf calls see for each claim that names a volume.
func (s *Store) ClaimsOf(volume string, see func(*ClaimState)) {
	for k := range s.boundTo[volume] {
		see(k)
	}
}

// Capacities returns the capacities of a class.
func (s *Store) Capacities(class string) map[ClaimKey]*KnownCapacity { return s.capacities[class] }

// PublishesCapacity reports whether a driver publishes capacities that must be checked.
func (s *Store) PublishesCapacity(driver string) bool { return s.opted[driver] }

// claimAt returns the state of a claim, and creates it if necessary.
func (s *Store) claimAt(key ClaimKey) *ClaimState {
	k := s.claims[key]
	if k == nil {
		k = &ClaimState{Key: key, on: map[rows.Row]int32{}}
		s.claims[key] = k
	}
	return k
}

// dropIfUnused drops a claim that neither exists nor is used.
func (s *Store) dropIfUnused(k *ClaimState) {
	if k.Seen == nil && k.Users == 0 && k.InTrial == 0 && len(k.on) == 0 {
		delete(s.claims, k.Key)
	}
}

// ClaimSeen records a claim as the API has it. This ends an assumed change of the claim. changed is false if this
// version was recorded before.
func (s *Store) ClaimSeen(claim *Claim) (changed bool) {
	key := ClaimKey{Namespace: claim.Namespace, Name: claim.Name}
	if t := s.apiClaims[key]; t != nil {
		if t.Version == claim.Version {
			return false
		}
		delete(s.apiClaims, key)
	}
	s.setClaim(key, claim)
	return true
}

// ClaimGone records that a claim was deleted.
func (s *Store) ClaimGone(key ClaimKey) {
	delete(s.apiClaims, key)
	s.setClaim(key, nil)
}

// setClaim replaces a claim; nil: it does not exist.
func (s *Store) setClaim(key ClaimKey, to *Claim) {
	s.version++
	k := s.claimAt(key)
	if k.Seen != nil && k.Seen.Volume != "" {
		delete(s.boundTo[k.Seen.Volume], k)
		if len(s.boundTo[k.Seen.Volume]) == 0 {
			delete(s.boundTo, k.Seen.Volume)
		}
	}
	k.Seen = to
	if to != nil && to.Volume != "" {
		if s.boundTo[to.Volume] == nil {
			s.boundTo[to.Volume] = map[*ClaimState]bool{}
		}
		s.boundTo[to.Volume][k] = true
	}
	s.reattach(k)
	s.dropIfUnused(k)
}

// VolumeSeen records a volume as the API has it. This ends an assumed change of the volume. It returns nil if this
// version was recorded before.
func (s *Store) VolumeSeen(of Volume) *KnownVolume {
	if t := s.apiVolumes[of.Name]; t != nil {
		if t.Version == of.Version {
			return nil
		}
		delete(s.apiVolumes, of.Name)
	}
	v := &KnownVolume{
		Volume:    of,
		From:      s.compileReach(of.Affinity),
		MovedFrom: s.compileReach(of.Moved),
		zones:     s.compileZones(of.Labels),
	}
	s.setVolume(of.Name, v)
	return v
}

// VolumeGone records that a volume was deleted.
func (s *Store) VolumeGone(name string) {
	delete(s.apiVolumes, name)
	s.setVolume(name, nil)
}

// setVolume replaces a volume; nil: it does not exist.
func (s *Store) setVolume(name string, to *KnownVolume) {
	s.version++
	if old := s.volumes[name]; old != nil {
		if p := s.stocks[old.Class]; p != nil && p.remove(old, s.version) {
			delete(s.stocks, old.Class)
		}
		delete(s.volumes, name)
	}
	if to != nil {
		s.volumes[name] = to
		if p := s.stockFor(to.Class); p.add(to, s.version) {
			delete(s.stocks, to.Class)
		}
	}
	for k := range s.boundTo[name] {
		s.reattach(k)
	}
	for name := range s.attaching[name] {
		s.changed(s.attachments[name].row)
	}
}

func (s *Store) compileReach(terms *[]selector.NodeTerm) (out Reach) {
	if terms == nil {
		return out
	}
	out.Limited = true
	byHost := true // every term requires one of some host names
	for i := range *terms {
		t := s.in.Compile((*terms)[i])
		t.Names = nil // the node affinity of volumes matches labels only
		hosts := []int32(nil)
		for j := range t.Labels {
			if t.Labels[j].Key == s.hostKey && t.Labels[j].Op == selector.In {
				hosts = t.Labels[j].Values
			}
		}
		byHost = byHost && hosts != nil
		out.Hosts = append(out.Hosts, hosts...)
		out.Terms = append(out.Terms, t)
	}
	if !byHost {
		out.Hosts = nil
	}
	slices.Sort(out.Hosts)
	out.Hosts = slices.Compact(out.Hosts)
	return out
}

// SetClass replaces a storage class; nil: it does not exist.
func (s *Store) SetClass(name string, to *StorageClass) {
	s.version++
	delete(s.classes, name)
	if to != nil {
		k := &KnownClass{StorageClass: *to, anywhere: to.Topologies == nil}
		if to.Topologies != nil {
			for _, t := range *to.Topologies {
				k.Topologies = append(k.Topologies, s.in.Compile(t))
			}
		}
		s.classes[name] = k
	}
	for _, k := range s.claims {
		if k.Seen != nil && k.Seen.Class == name {
			s.reattach(k)
		}
	}
}

// SetDriver records whether a driver exists, and whether its capacities must be checked. less says that fewer
// conditions than before apply to volumes that the driver provisions.
func (s *Store) SetDriver(name string, there, capacities bool) (less bool) {
	wasThere, opted := s.drivers[name], s.opted[name]
	if wasThere == there && opted == capacities {
		return false
	}
	s.version++
	put(s.drivers, name, there)
	put(s.opted, name, capacities)
	return wasThere && !there || opted && !capacities
}

func put(set map[string]bool, name string, in bool) {
	delete(set, name)
	if in {
		set[name] = true
	}
}

// SetCapacity replaces a capacity of a class; nil: it does not exist. It returns the old and the new capacity,
// compiled. larger says that a volume may now be provisioned that could not be before.
func (s *Store) SetCapacity(key ClaimKey, class string, to *Capacity) (was, is *KnownCapacity, larger bool) {
	s.version++
	s.capacityVersion[class] = s.version
	was = s.capacities[class][key]
	if to == nil {
		delete(s.capacities[class], key)
		if len(s.capacities[class]) == 0 {
			delete(s.capacities, class)
			delete(s.capacityVersion, class)
		}
		return was, nil, false
	}
	if s.capacities[class] == nil {
		s.capacities[class] = map[ClaimKey]*KnownCapacity{}
	}
	is = &KnownCapacity{Capacity: *to}
	if to.Nodes != nil {
		is.Selects = s.in.Compile(selector.NodeTerm{Labels: to.Nodes.Requirements})
		is.Selects.Never = to.Nodes.Nothing
	}
	s.capacities[class][key] = is
	return was, is, to.Sized && (was == nil || !was.Sized || to.Size > was.Size)
}

// CapacityClass returns the class of a known capacity.
func (s *Store) CapacityClass(key ClaimKey) (class string, known bool) {
	for _, class := range slices.Sorted(maps.Keys(s.capacities)) {
		if s.capacities[class][key] != nil {
			return class, true
		}
	}
	return "", false
}

// EachString calls see for the number of every string that facts use; see selector.Interner.
func (s *Store) EachString(see func(...int32)) {
	see(s.hostKey)
	see(s.zoneKeys...)
	for _, list := range [...]map[string]*KnownVolume{s.volumes, s.apiVolumes} {
		for _, v := range list {
			v.eachString(see)
		}
	}
	for _, k := range s.classes {
		selector.EachString(k.Topologies, see)
	}
	for _, list := range s.capacities {
		for _, k := range list {
			k.Selects.EachString(see)
		}
	}
}

func (v *KnownVolume) eachString(see func(...int32)) {
	if v == nil {
		return
	}
	for _, t := range [...]*Reach{&v.From, &v.MovedFrom} {
		selector.EachString(t.Terms, see)
		see(t.Hosts...)
	}
	eachZoneString(v.zones, see)
}
