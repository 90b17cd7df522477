package scheduler

import (
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/census"
)

// demands are all demands, of all classes. A demand exists as long as its class and an identity that has used it. If
// there are too many, those used longest ago are dropped. A demand with waiting pods is never dropped.
type demands struct {
	all    map[*demand]bool
	stamps uint64             // counts uses, to order them
	most   int                // how many there may be before some are dropped
	waits  func(*demand) bool // reports whether a demand has waiting pods
}

// identityData is the scheduler's data of an identity.
type identityData struct {
	spreading defaultSpread // see defaultsOf
	demands   []*demand     // those it has used
	budgets   selectedBy    // the selections of budgets that have its pods
}

func dataOf(who *census.Identity) *identityData {
	if who.Data == nil {
		who.Data = &identityData{}
	}
	return who.Data.(*identityData)
}

// demandsMax is how many demands are kept for later pods. Chosen: pods of so many demands are hardly ever scheduled in
// turn. Each takes one to two kilobytes, and some microseconds to make.
const demandsMax = 8192

func newDemands() demands {
	return demands{all: map[*demand]bool{}, most: demandsMax, waits: func(*demand) bool { return false }}
}

func (x *demands) add(c *cluster, d *demand) {
	if len(x.all) >= x.most {
		x.shrink(c)
	}
	x.all[d] = true
}

// use records that an identity uses d.
func (x *demands) use(d *demand, who *census.Identity) {
	x.stamps++
	d.stamp = x.stamps
	k := dataOf(who)
	if slices.Contains(k.demands, d) {
		return
	}
	k.demands = append(slices.DeleteFunc(k.demands, func(d *demand) bool { return d.dropped }), d)
	d.identities++
}

// shrink drops the half that was used longest ago.
func (x *demands) shrink(c *cluster) {
	stamps := make([]uint64, 0, len(x.all))
	for d := range x.all {
		stamps = append(stamps, d.stamp)
	}
	slices.Sort(stamps)
	for d := range x.all {
		if d.stamp < stamps[len(stamps)/2] && !x.waits(d) {
			c.dropDemand(d)
		}
	}
	x.most = max(demandsMax, len(x.all)+demandsMax/2)
}

// forget drops the demands that only who has used.
func (x *demands) forget(c *cluster, who *census.Identity) {
	for _, d := range dataOf(who).demands {
		if d.identities--; d.identities == 0 && !d.dropped && !x.waits(d) {
			c.dropDemand(d)
		}
	}
	dataOf(who).demands = nil
}
