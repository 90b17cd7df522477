package volumes

import (
	"cmp"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/shrink"
)

// A Stock has the volumes of one class that a claim may get: those reserved for one claim, those accessible from some
// hosts only, and all others. Each list is sorted, the smallest first.
type Stock struct {
	version  uint64                      // the store's version at the last change; 0: it never had a volume
	reserved map[ClaimKey][]*KnownVolume // reserved for a claim
	byHost   map[int32][]*KnownVolume    // by the number of the value of kubernetes.io/hostname
	anywhere []*KnownVolume
}

// stockOf returns the stock of a class. If there are no volumes, it returns an empty stock that the store does not
// keep.
func (s *Store) stockOf(class string) *Stock {
	if p := s.stocks[class]; p != nil {
		return p
	}
	return &Stock{}
}

// stockFor returns the stock of a class, and creates it if necessary.
func (s *Store) stockFor(class string) *Stock {
	p := s.stocks[class]
	if p == nil {
		p = &Stock{reserved: map[ClaimKey][]*KnownVolume{}, byHost: map[int32][]*KnownVolume{}}
		s.stocks[class] = p
	}
	return p
}

// AnywhereFor reports whether a claim may get a volume that is not limited to some hosts.
func (p *Stock) AnywhereFor(claim *Claim) bool {
	return len(p.reserved[ClaimKey{Namespace: claim.Namespace, Name: claim.Name}])+len(p.anywhere) > 0
}

// EachHost calls see for each value of kubernetes.io/hostname to which some volume is limited.
func (p *Stock) EachHost(see func(host int32)) {
	for host := range p.byHost {
		see(host)
	}
}

func smallestFirst(a, b *KnownVolume) int {
	return cmp.Or(cmp.Compare(a.Capacity, b.Capacity), cmp.Compare(a.Name, b.Name))
}

func (p *Stock) empty() bool { return len(p.reserved)+len(p.byHost)+len(p.anywhere) == 0 }

// add adds v if a claim may get it, and reports whether the stock is empty.
func (p *Stock) add(v *KnownVolume, version uint64) (empty bool) {
	p.version = version
	insert := func(list []*KnownVolume) []*KnownVolume {
		i, _ := slices.BinarySearchFunc(list, v, smallestFirst)
		return slices.Insert(list, i, v)
	}
	switch {
	case v.Claimed:
		key := ClaimKey{Namespace: v.ClaimNamespace, Name: v.ClaimName}
		p.reserved[key] = insert(p.reserved[key])
	case !v.Available || v.Deleting:
	case v.From.Hosts != nil:
		for _, h := range v.From.Hosts {
			p.byHost[h] = insert(p.byHost[h])
		}
	default:
		p.anywhere = insert(p.anywhere)
	}
	return p.empty()
}

// remove removes v, and reports whether the stock is empty.
func (p *Stock) remove(v *KnownVolume, version uint64) (empty bool) {
	p.version = version
	key := ClaimKey{Namespace: v.ClaimNamespace, Name: v.ClaimName}
	takeOut(p.reserved, key, v)
	for _, h := range v.From.Hosts {
		takeOut(p.byHost, h, v)
	}
	p.anywhere = shrink.Without(p.anywhere, v)
	return p.empty()
}

func takeOut[K comparable](lists map[K][]*KnownVolume, key K, v *KnownVolume) {
	if lists[key] = shrink.Without(lists[key], v); len(lists[key]) == 0 {
		delete(lists, key)
	}
}
