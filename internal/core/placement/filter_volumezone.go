package placement

// passesVolumeZone demands that the node is in a zone and a region of each bound volume, as the volume's labels have
// them. A node without any such label is anywhere.
func passesVolumeZone(c *cluster, d *demand, r row) bool {
	return d.volumes == nil || len(d.volumes.Zones) == 0 || c.storage.InZones(d.volumes, c.labels[r])
}

func keyVolumeZone(c *cluster, d *demand, r row, key []int32) []int32 {
	if d.volumes == nil || len(d.volumes.Zones) == 0 {
		return key
	}
	return append(key, verdictKey(passesVolumeZone(c, d, r)))
}

func narrowVolumeZone(c *cluster, d *demand, m mask) {
	if d.volumes != nil && len(d.volumes.Zones) > 0 {
		c.narrowAmong(passesVolumeZone, d, m, m)
	}
}
