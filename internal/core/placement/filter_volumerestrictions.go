package placement

import "slices"

// passesDisks demands that no pod on the node uses a disk that this one names, unless both only read it and its kind
// allows that.
func passesDisks(c *cluster, d *demand, r row) bool {
	if len(d.disks) == 0 || c.stored[r] == nil {
		return true
	}
	for _, want := range d.disks {
		for _, have := range c.stored[r].disks {
			if want.conflicts(have) {
				return false
			}
		}
	}
	return true
}

func (d *Disk) conflicts(other *Disk) bool {
	return d.Kind == other.Kind && d.ID == other.ID && !(d.ReadOnly && other.ReadOnly) &&
		(d.Monitors == nil || slices.ContainsFunc(d.Monitors, func(m string) bool { return slices.Contains(other.Monitors, m) }))
}

// passesOncePod demands that nobody, on any node, uses a claim of the pod that is for one pod at a time.
//
// Two things are left as upstream has them: a claim that several pods use counts as used by one, so that the eviction
// of any of them frees it; and pods that are only nominated are looked at only if the claim is in use besides, or the
// pod names disks itself.
func passesOncePod(_ *cluster, d *demand, _ row) bool { return !d.volumes.taken(d) }

func (a *volumeAsk) taken(d *demand) bool {
	if a == nil || len(a.once) == 0 {
		return false
	}
	used, lifted := int32(0), int32(0)
	for _, claim := range a.once {
		used += min(claim.users, 1)
		lifted += claim.lifted
	}
	return used+lifted > 0 && (used > 0 || len(d.disks) > 0)
}

// keyOncePod: the answer is the same for all rows.
func keyOncePod(_ *cluster, _ *demand, _ row, key []int32) []int32 { return key }

func narrowDisks(c *cluster, d *demand, m mask) {
	if len(d.disks) > 0 {
		c.narrowAmong(passesDisks, d, m, c.marks.disks)
	}
}

func narrowOncePod(_ *cluster, d *demand, m mask) { m.unless(d.volumes.taken(d)) }
