package scheduler

import (
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/census"
)

// demands are those that there are, of all classes. One lives as long as its class and an identity that has used it;
// of many, those that were used longest ago are dropped. A demand with pods that wait is never dropped: the one who
// keeps these says so.
type demands struct {
	all    map[*demand]bool
	stamps uint64
	most   int // beyond it, some are dropped
	waits  func(*demand) bool
}

// kept is what is kept with an identity.
type kept struct {
	spreading defaultSpread // see defaultsOf
	demands   []*demand     // that it has used
	budgets   selectedBy    // by their selections
}

func keptWith(who *census.Identity) *kept {
	if who.Keeps == nil {
		who.Keeps = &kept{}
	}
	return who.Keeps.(*kept)
}

// demandsMax is how many demands are kept for the next pod like those before. Chosen: more kinds than come in turn;
// each takes one to two kilobytes, and some microseconds to be made anew.
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

// use notes that an identity uses d.
func (x *demands) use(d *demand, who *census.Identity) {
	x.stamps++
	d.stamp = x.stamps
	k := keptWith(who)
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

// forget drops the demands that nobody but who has used.
func (x *demands) forget(c *cluster, who *census.Identity) {
	for _, d := range keptWith(who).demands {
		if d.identities--; d.identities == 0 && !d.dropped && !x.waits(d) {
			c.dropDemand(d)
		}
	}
	keptWith(who).demands = nil
}
