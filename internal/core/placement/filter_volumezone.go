package placement

import "slices"

// passesVolumeZone demands that the node is in a zone and a region of each bound volume, as the volume's labels have
// them. A node without any such label is anywhere.
func passesVolumeZone(c *cluster, d *demand, r row) bool {
	if d.volumes == nil || len(d.volumes.zones) == 0 {
		return true
	}
	placed := false
	for _, key := range c.zoneKeys {
		_, has := c.label(r, key)
		placed = placed || has
	}
	if !placed {
		return true
	}
	for i := range d.volumes.zones {
		z := &d.volumes.zones[i]
		value, ok := c.label(r, z.key)
		if !ok {
			value, ok = c.label(r, z.newKey)
		}
		if !ok || !slices.Contains(z.values, value) {
			return false
		}
	}
	return true
}

func keyVolumeZone(c *cluster, d *demand, r row, key []int32) []int32 {
	if d.volumes == nil || len(d.volumes.zones) == 0 {
		return key
	}
	return append(key, verdictKey(passesVolumeZone(c, d, r)))
}

func narrowVolumeZone(c *cluster, d *demand, m mask) {
	if d.volumes != nil && len(d.volumes.zones) > 0 {
		c.narrowAmong(passesVolumeZone, d, m, m)
	}
}
