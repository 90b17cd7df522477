package volumes

import (
	"fmt"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/rows"
)

// CountedPod is a pod on a row.
type CountedPod struct {
	Mounts *PodMounts
	Row    rows.Row
}

// Audit compares the counts with a fresh count over the given pods and all volumes, and the assumed facts with the
// given plans, and returns the differences. It is for tests: it visits everything.
func (s *Store) Audit(pods []CountedPod, plans []*Plan) (wrong []string) {
	differs := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	users, on := map[ClaimKey]int32{}, map[ClaimKey]map[rows.Row]int32{}
	for _, p := range pods {
		p.Mounts.EachClaim(func(key ClaimKey) {
			if on[key] == nil {
				on[key] = map[rows.Row]int32{}
			}
			on[key][p.Row]++
		})
		for i := range p.Mounts.Mounts {
			if m := &p.Mounts.Mounts[i]; m.Claim != "" && !m.Own {
				users[p.Mounts.key(m)]++
			}
		}
	}
	for key, k := range s.claims {
		if k.Users != users[key] || k.InTrial != 0 {
			differs("claim %v has %d users and %d in trials, want %d and 0", key, k.Users, k.InTrial, users[key])
		}
		for r, n := range k.on {
			if n != on[key][r] {
				differs("claim %v is used %d times on row %d, want %d", key, n, r, on[key][r])
			}
		}
		if k.Seen == nil && len(k.on) == 0 {
			differs("claim %v is kept, but does not exist and is not used", key)
		}
	}
	for class, p := range s.stocks {
		if p.empty() {
			differs("the stock of class %s is kept, but is empty", class)
		}
		if got, want := p.size(), s.free(class); got != want {
			differs("class %s has %d volumes in stock, want %d", class, got, want)
		}
	}
	return append(wrong, s.auditAssumed(plans)...)
}

func (s *Store) auditAssumed(plans []*Plan) (wrong []string) {
	planned := map[any]bool{}
	for _, p := range plans {
		for i := range p.Bind {
			planned[p.Bind[i].Volume] = true
		}
		for i := range p.Provision {
			planned[p.Provision[i].key()] = true
		}
	}
	for name := range s.apiVolumes {
		if !planned[name] {
			wrong = append(wrong, fmt.Sprintf("a change of volume %s is assumed, but in no plan", name))
		}
	}
	for key := range s.apiClaims {
		if !planned[key] {
			wrong = append(wrong, fmt.Sprintf("a change of claim %v is assumed, but in no plan", key))
		}
	}
	return wrong
}

// size returns how many volumes a stock has.
func (p *Stock) size() int {
	different := map[*KnownVolume]bool{}
	for _, list := range p.reserved {
		for _, v := range list {
			different[v] = true
		}
	}
	for _, list := range p.byHost {
		for _, v := range list {
			different[v] = true
		}
	}
	for _, v := range p.anywhere {
		different[v] = true
	}
	return len(different)
}

// free returns how many volumes of a class a claim may get.
func (s *Store) free(class string) (n int) {
	for _, v := range s.volumes {
		if v.Class == class && (v.Claimed || v.Available && !v.Deleting) {
			n++
		}
	}
	return n
}

// CopyTo writes all facts to another store, assumed ones as if they were true. rowOf returns the row of a node in the
// other store. It is for tests.
func (s *Store) CopyTo(to *Store, rowOf func(rows.Row) rows.Row) {
	for name, k := range s.classes {
		to.SetClass(name, &k.StorageClass)
	}
	for name, v := range s.volumes {
		to.setVolume(name, v)
	}
	for key, k := range s.claims {
		if k.Seen != nil {
			to.setClaim(key, k.Seen)
		}
	}
	for r, x := range s.rows {
		if x == nil {
			continue
		}
		if x.node != nil {
			to.SetNodeStorage(rowOf(rows.Row(r)), x.node)
		}
		for _, a := range x.attachments {
			to.Attach(a, rowOf(rows.Row(r)))
		}
	}
}

// Describe returns the facts about volumes on row r as text; empty: there are none. Of the attachments that no pod
// uses, it counts those of driver.
func (s *Store) Describe(r rows.Row, driver string) string {
	x := s.rows[r]
	if x == nil || len(x.Disks)+len(x.drivers)+s.leftAttached(x, driver) == 0 {
		return ""
	}
	return fmt.Sprint(" disks ", len(x.Disks), " volumes ", x.drivers, " and ", s.leftAttached(x, driver))
}

// Sizes returns how many of everything there are. It is for tests.
func (s *Store) Sizes() string {
	onRows := 0
	for _, x := range s.rows {
		if x != nil {
			onRows++
		}
	}
	return fmt.Sprint(len(s.claims), len(s.volumes), len(s.stocks), len(s.classes), len(s.drivers), len(s.opted),
		len(s.capacities), len(s.capacityVersion), len(s.boundTo), len(s.attachments), len(s.attaching),
		len(s.apiClaims), len(s.apiVolumes), onRows)
}
