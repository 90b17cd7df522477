package placement

import "github.com/plimsoll-dev/plimsoll/internal/core/placement/encode"

// passesVolumeLimits demands that no driver has to attach more volumes to the node than it says it can. A volume that
// several pods use counts once; one that no pod uses any longer counts as long as it is still attached.
//
// As upstream has it, a volume that is still attached and that the pod is going to use counts twice, unless another pod
// on the node uses it.
func passesVolumeLimits(c *cluster, d *demand, r row) bool {
	if d.volumes == nil || len(d.volumes.attached) == 0 {
		return true
	}
	s := c.stored[r]
	if s == nil || s.node == nil || len(s.node.Limits) == 0 {
		return true
	}
	for i, a := range d.volumes.attached {
		limit, limited := s.node.Limits[a.Driver]
		if !limited || driverAmong(d.volumes.attached[:i], a.Driver) {
			continue
		}
		added := int64(0)
		for _, b := range d.volumes.attached[i:] {
			if b.Driver == a.Driver && s.attached[b] == 0 {
				added++
			}
		}
		if added > 0 && int64(s.drivers[a.Driver])+int64(c.leftAttached(s, a.Driver))+added > limit {
			return false
		}
	}
	return true
}

func driverAmong(list []Attached, driver string) bool {
	for i := range list {
		if list[i].Driver == driver {
			return true
		}
	}
	return false
}

// leftAttached counts the volumes that driver has attached to a row although no pod there uses them.
func (c *cluster) leftAttached(s *rowStorage, driver string) int {
	var left map[Attached]bool
	for _, x := range s.attachments {
		if x.Driver != driver {
			continue
		}
		v := c.storage.volumes[x.Volume]
		if v == nil || !v.CSI {
			continue
		}
		if a := (Attached{driver, v.Attached.Handle}); s.attached[a] == 0 {
			if left == nil {
				left = map[Attached]bool{}
			}
			left[a] = true
		}
	}
	return len(left)
}

func keyVolumeLimits(c *cluster, d *demand, r row, key []int32) []int32 {
	if d.volumes == nil || len(d.volumes.attached) == 0 {
		return key
	}
	return append(key, verdictKey(passesVolumeLimits(c, d, r)))
}

// verdictKey tells rows apart by what a rule says of them.
func verdictKey(passes bool) int32 {
	if passes {
		return 1
	}
	return 0
}

// narrowVolumeLimits asks about the rows only on which so many more volumes might be too many.
func narrowVolumeLimits(c *cluster, d *demand, m mask) {
	if d.volumes == nil || len(d.volumes.attached) == 0 || !m.meets(c.marks.limited) {
		return
	}
	near := c.emptyMask(len(m))
	for i, a := range d.volumes.attached {
		if driverAmong(d.volumes.attached[:i], a.Driver) {
			continue
		}
		more, driver := int64(0), a.Driver
		for _, b := range d.volumes.attached[i:] {
			if b.Driver == driver {
				more++
			}
		}
		c.scratch = encode.Number(encode.String(append(c.scratch[:0], asksLimits), driver), more)
		full := c.atomOf(&c.changes, m, c.scratch, func(r row) bool { return c.exceeds(r, driver, more) })
		if full == nil {
			near.add(c.marks.limited)
			continue
		}
		near.add(full.rows)
	}
	c.narrowAmong(passesVolumeLimits, d, m, near)
}

// exceeds reports whether so many volumes of a driver, none of them there yet, would be too many for row r.
func (c *cluster) exceeds(r row, driver string, more int64) bool {
	s := c.stored[r]
	if s == nil || s.node == nil {
		return false
	}
	limit, limited := s.node.Limits[driver]
	return limited && int64(s.drivers[driver])+int64(c.leftAttached(s, driver))+more > limit
}
