package scheduler

import "github.com/plimsoll-dev/plimsoll/internal/core/scheduler/rows"

type volumeZoneFilter struct{}

func (volumeZoneFilter) about() ruling {
	return ruling{
		rule:   RuleVolumeZone,
		plugin: "VolumeZone",
		ends:   byNode | byVolumes,
		reads:  podFields{"Namespace", "Mounts"},
		alike:  true,
	}
}

func (volumeZoneFilter) applies(d *demand) bool { return d.volumes != nil && len(d.volumes.Zones) > 0 }

// judge requires that the node is in a zone and a region of each bound volume, by the volume's labels. A node without
// any such label satisfies all.
func (volumeZoneFilter) judge(c *state, d *demand, r row) bool {
	return d.volumes == nil || len(d.volumes.Zones) == 0 || c.storage.InZones(d.volumes, c.labels[r])
}

func (volumeZoneFilter) explain(_ *state, _ *demand, _ row, reasons []string) []string {
	return append(reasons, "node(s) had no available volume zone")
}

func (volumeZoneFilter) final(*state, *demand, row) bool { return true }

func (f volumeZoneFilter) key(c *state, d *demand, r row, key []int32) []int32 {
	if d.volumes == nil || len(d.volumes.Zones) == 0 {
		return key
	}
	return append(key, verdictKey(f.judge(c, d, r)))
}

func (f volumeZoneFilter) narrow(c *state, d *demand, m rows.Mask) {
	if d.volumes != nil && len(d.volumes.Zones) > 0 {
		c.narrowAmong(f.judge, d, m, m)
	}
}
