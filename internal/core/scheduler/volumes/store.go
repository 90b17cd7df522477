// Package volumes knows claims, volumes and storage classes, what drivers say of nodes, and what all that comes down to
// for one pod on one node.
//
// # Model
//
// A Store is told facts, as the API shows them, and which pods mount what where. What the claims of a pod come down to
// as things are is an Ask: why no node can take it, or what each must have. Bind then says of one node whether it has
// that, and what must be written before the pod is bound: a Plan.
//
// A fact may be assumed: as it will be when a plan is written. Everybody sees it so; the truth is kept beside it, and
// is the fact again when the plan has come to nothing.
//
// # Invariants
//
//   - Facts are never changed in place: a change is another pointer, so that who kept some can tell whether they still
//     hold.
//   - What is counted by row (volumes attached, disks in use, claims mentioned) equals what a fresh count over the
//     counted pods would give.
//   - Nothing is kept of a claim that is neither seen nor mentioned.
package volumes

import (
	"maps"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/rows"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/selector"
)

// Store is what is known of claims and volumes. Its rows grow as those of the nodes do: it is a rows.Table.
type Store struct {
	version uint64
	in      *selector.Interner
	turned  func(rows.Row)
	hostKey int32 // the label kubernetes.io/hostname
	// zoneKeys are the labels that VolumeZone looks at.
	zoneKeys []int32

	claims  map[ClaimKey]*ClaimState
	volumes map[string]*KnownVolume
	stocks  map[string]*Stock // by class: the volumes that a claim may get
	classes map[string]*KnownClass
	drivers map[string]bool // CSI drivers that there are
	// opted: drivers that publish capacities, and want them looked at.
	opted           map[string]bool
	capacities      map[string]map[ClaimKey]*KnownCapacity // by class, then by namespace and name
	capacityVersion map[string]uint64                      // by class with capacities: version when they changed last
	boundTo         map[string]map[*ClaimState]bool        // by volume: claims that name it
	attachments     map[string]attachment                  // by name
	attaching       map[string]map[string]bool             // by volume: names of attachments
	// The truth about assumed facts.
	trueClaims  map[ClaimKey]*Claim
	trueVolumes map[string]*KnownVolume

	rows rows.Column[*OnRow]
}

// ClaimKey names a claim, or anything else that has a namespace.
type ClaimKey struct{ Namespace, Name string }

// ClaimState is a claim, seen or not, with the pods that use it.
type ClaimState struct {
	Key  ClaimKey
	Seen *Claim // nil: the API does not show it
	// Users counts mentions by counted pods, other than by generic ephemeral volumes; Lifted, those of pods that are
	// taken off or put on a row for a moment.
	Users, Lifted int32
	on            map[rows.Row]int32 // mentions of all kinds
	attached      Attached           // what counts towards limits where it is used
}

// KnownVolume is a Volume, compiled.
type KnownVolume struct {
	Volume
	From, MovedFrom Reach
	zones           []ZoneLabel
}

// Reach says from where a volume can be reached. Its terms, unlike those of a pod, look at labels only.
type Reach struct {
	Terms   []selector.Term
	Limited bool // false: from anywhere
	// Hosts: only from nodes with one of these values of kubernetes.io/hostname; nil: not known.
	Hosts []int32
}

// KnownClass is a StorageClass, compiled.
type KnownClass struct {
	StorageClass
	Topologies []selector.Term
	anywhere   bool
}

// Limits reports whether volumes of the class can be made in some places only.
func (k *KnownClass) Limits() bool { return !k.anywhere }

// Provisions reports whether volumes of the class are made at all.
func (k *KnownClass) Provisions() bool { return k.Provisioner != "" && k.Provisioner != NoProvisioner }

// KnownCapacity is a Capacity, compiled.
type KnownCapacity struct {
	Capacity
	Selects selector.Term // which nodes, by labels; a capacity without Nodes is about none
}

// NewStore returns a store that knows nothing. turned is called with each row on which other volumes count than before,
// for another reason than that a pod has come or gone.
func NewStore(in *selector.Interner, turned func(rows.Row)) *Store {
	s := &Store{
		in:              in,
		hostKey:         in.ID("kubernetes.io/hostname"),
		turned:          turned,
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
		trueClaims:      map[ClaimKey]*Claim{},
		trueVolumes:     map[string]*KnownVolume{},
	}
	for _, key := range zoneKeys {
		s.zoneKeys = append(s.zoneKeys, in.ID(key[0]))
	}
	return s
}

// Version grows with every change of a fact.
func (s *Store) Version() uint64 { return s.version }

// Volume returns a volume as it is, or is assumed to be; nil: there is none of that name.
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

// Measures reports whether a driver publishes capacities that are to be looked at.
func (s *Store) Measures(driver string) bool { return s.opted[driver] }

// claimAt returns the state of a claim, a new one if there is none.
func (s *Store) claimAt(key ClaimKey) *ClaimState {
	k := s.claims[key]
	if k == nil {
		k = &ClaimState{Key: key, on: map[rows.Row]int32{}}
		s.claims[key] = k
	}
	return k
}

// drop forgets a claim that is neither seen nor used.
func (s *Store) drop(k *ClaimState) {
	if k.Seen == nil && k.Users == 0 && k.Lifted == 0 && len(k.on) == 0 {
		delete(s.claims, k.Key)
	}
}

// ClaimSeen folds in a claim. If a change of it had been assumed, this is the truth again. changed is false if it was
// told before.
func (s *Store) ClaimSeen(claim *Claim) (changed bool) {
	key := ClaimKey{Namespace: claim.Namespace, Name: claim.Name}
	if t := s.trueClaims[key]; t != nil {
		if t.Version == claim.Version {
			return false
		}
		delete(s.trueClaims, key)
	}
	s.setClaim(key, claim)
	return true
}

// ClaimGone folds in that a claim was deleted.
func (s *Store) ClaimGone(key ClaimKey) {
	delete(s.trueClaims, key)
	s.setClaim(key, nil)
}

// setClaim replaces what is known of a claim; nil: it is gone.
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
	s.drop(k)
}

// VolumeSeen folds in a volume. If a change of it had been assumed, this is the truth again. It returns nil if it was
// told before.
func (s *Store) VolumeSeen(of Volume) *KnownVolume {
	if t := s.trueVolumes[of.Name]; t != nil {
		if t.Version == of.Version {
			return nil
		}
		delete(s.trueVolumes, of.Name)
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

// VolumeGone folds in that a volume was deleted.
func (s *Store) VolumeGone(name string) {
	delete(s.trueVolumes, name)
	s.setVolume(name, nil)
}

// setVolume replaces what is known of a volume; nil: it is gone.
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
		s.turned(s.attachments[name].row)
	}
}

func (s *Store) compileReach(terms *[]selector.NodeTerm) (out Reach) {
	if terms == nil {
		return out
	}
	out.Limited = true
	pinned := true
	for i := range *terms {
		t := s.in.Compile((*terms)[i])
		t.Names = nil // nodes have labels here, and no names
		hosts := []int32(nil)
		for j := range t.Labels {
			if t.Labels[j].Key == s.hostKey && t.Labels[j].Op == selector.In {
				hosts = t.Labels[j].Values
			}
		}
		pinned = pinned && hosts != nil
		out.Hosts = append(out.Hosts, hosts...)
		out.Terms = append(out.Terms, t)
	}
	if !pinned {
		out.Hosts = nil
	}
	slices.Sort(out.Hosts)
	out.Hosts = slices.Compact(out.Hosts)
	return out
}

// SetClass replaces what is known of a storage class; nil: it is gone.
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

// SetDriver folds in whether there is a driver, and whether its capacities are to be looked at. less: less is asked of
// what it makes than before.
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

// SetCapacity replaces a capacity of a class; nil: it is gone. It returns what there was and what there is, compiled.
// larger reports whether a volume may now be made that could not before.
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

// CapacityClass finds the class of a capacity that is known.
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
	for _, list := range [...]map[string]*KnownVolume{s.volumes, s.trueVolumes} {
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
