package placement

// passesDisks demands that no pod on the node uses a disk that this one names, unless both only read it and its kind
// allows that.
func passesDisks(c *cluster, d *demand, r row) bool {
	s := c.storage.On(r)
	if len(d.wants.Disks) == 0 || s == nil {
		return true
	}
	for _, want := range d.wants.Disks {
		for _, have := range s.Disks {
			if want.Conflicts(have) {
				return false
			}
		}
	}
	return true
}

// passesOncePod demands that nobody, on any node, uses a claim of the pod that is for one pod at a time.
func passesOncePod(_ *cluster, d *demand, _ row) bool { return !d.claimsTaken() }

func (d *demand) claimsTaken() bool { return d.volumes.Taken(len(d.wants.Disks) > 0) }

// keyOncePod: the answer is the same for all rows.
func keyOncePod(_ *cluster, _ *demand, _ row, key []int32) []int32 { return key }

func narrowDisks(c *cluster, d *demand, m mask) {
	if len(d.wants.Disks) > 0 {
		c.narrowAmong(passesDisks, d, m, c.marks.disks)
	}
}

func narrowOncePod(_ *cluster, d *demand, m mask) { m.unless(d.claimsTaken()) }
