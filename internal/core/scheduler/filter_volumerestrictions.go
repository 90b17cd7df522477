package scheduler

import "github.com/plimsoll-dev/plimsoll/internal/core/scheduler/rows"

const reasonOncePod = "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already " +
	"in-use by another pod"

type diskFilter struct{}

func (diskFilter) about() ruling {
	return ruling{
		rule:   RuleVolumeRestrictions,
		plugin: "VolumeRestrictions",
		ends:   byRoom,
		reads:  podFields{"Mounts"},
		alike:  true,
	}
}

func (diskFilter) applies(d *demand) bool { return len(d.mounts.Disks) > 0 }

// judge requires that no pod on the node uses a disk that this pod names, except if both only read it and its kind
// allows that.
func (diskFilter) judge(c *state, d *demand, r row) bool {
	s := c.storage.On(r)
	if len(d.mounts.Disks) == 0 || s == nil {
		return true
	}
	for _, want := range d.mounts.Disks {
		for _, have := range s.Disks {
			if want.Conflicts(have) {
				return false
			}
		}
	}
	return true
}

func (diskFilter) explain(_ *state, _ *demand, _ row, reasons []string) []string {
	return append(reasons, "node(s) had no available disk")
}

func (diskFilter) final(*state, *demand, row) bool { return false }

func (f diskFilter) narrow(c *state, d *demand, m rows.Mask) {
	if len(d.mounts.Disks) > 0 {
		c.narrowAmong(f.judge, d, m, c.marks.disks)
	}
}

type oncePodFilter struct{}

func (oncePodFilter) about() ruling {
	return ruling{
		rule:   RuleVolumeRestrictions,
		plugin: "VolumeRestrictions",
		ends:   byVolumes,
		reads:  podFields{"Namespace", "Mounts"},
		alike:  true,
	}
}

func (oncePodFilter) applies(d *demand) bool { return d.volumes != nil }

// judge requires that no other pod, on any node, uses a claim of the pod that one pod at a time may use.
func (oncePodFilter) judge(_ *state, d *demand, _ row) bool { return !d.claimsTaken() }

func (oncePodFilter) explain(_ *state, _ *demand, _ row, reasons []string) []string {
	return append(reasons, reasonOncePod)
}

func (oncePodFilter) final(*state, *demand, row) bool { return false }

func (d *demand) claimsTaken() bool { return d.volumes.Taken(len(d.mounts.Disks) > 0) }

// key: the answer is the same for all rows.
func (oncePodFilter) key(_ *state, _ *demand, _ row, key []int32) []int32 { return key }

func (oncePodFilter) narrow(_ *state, d *demand, m rows.Mask) { m.Unless(d.claimsTaken()) }
