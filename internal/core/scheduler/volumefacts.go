package scheduler

import (
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/volumes"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// This file has the Placer's methods for facts about storage. Each fact notifies the waiting pods that may fit because
// of it.

// ClaimSeen records a PersistentVolumeClaim. It replaces an assumed change of it.
func (p *Placer) ClaimSeen(_ unit.Instant, claim Claim) {
	if p.cluster.storage.ClaimSeen(&claim) {
		p.cluster.waits.claimChanged(volumes.ClaimKey{Namespace: claim.Namespace, Name: claim.Name})
	}
}

// ClaimGone records that a claim was deleted.
func (p *Placer) ClaimGone(_ unit.Instant, namespace, name string) {
	p.cluster.storage.ClaimGone(volumes.ClaimKey{Namespace: namespace, Name: name})
}

// VolumeSeen records a PersistentVolume. It replaces an assumed change of it.
func (p *Placer) VolumeSeen(_ unit.Instant, of Volume) {
	was := p.cluster.storage.Volume(of.Name)
	if v := p.cluster.storage.VolumeSeen(of); v != nil {
		p.cluster.volumeChanged(v)
		p.cluster.reservationEnded(was)
	}
}

// VolumeGone records that a volume was deleted.
func (p *Placer) VolumeGone(_ unit.Instant, name string) {
	was := p.cluster.storage.Volume(name)
	p.cluster.storage.VolumeGone(name)
	p.cluster.reservationEnded(was)
}

// StorageClassSeen records a StorageClass.
func (p *Placer) StorageClassSeen(_ unit.Instant, k StorageClass) {
	p.cluster.storage.SetClass(k.Name, &k)
	p.cluster.waits.classChanged(k.Name)
}

// StorageClassGone records that a storage class was deleted.
func (p *Placer) StorageClassGone(_ unit.Instant, name string) { p.cluster.storage.SetClass(name, nil) }

// DriverSeen records a CSIDriver. capacities says that it publishes storage capacities that must be checked.
func (p *Placer) DriverSeen(_ unit.Instant, name string, capacities bool) {
	p.setDriver(name, true, capacities)
}

// DriverGone records that a CSI driver was deleted.
func (p *Placer) DriverGone(_ unit.Instant, name string) { p.setDriver(name, false, false) }

func (p *Placer) setDriver(name string, there, capacities bool) {
	if less := p.cluster.storage.SetDriver(name, there, capacities); less {
		p.cluster.driverRelaxed(name)
	}
}

// CapacitySeen records a CSIStorageCapacity.
func (p *Placer) CapacitySeen(_ unit.Instant, k Capacity) {
	key := volumes.ClaimKey{Namespace: k.Namespace, Name: k.Name}
	if class, known := p.cluster.storage.CapacityClass(key); known && class != k.Class {
		p.cluster.setCapacity(key, class, nil)
	}
	if p.cluster.setCapacity(key, k.Class, &k) {
		p.cluster.waits.classChanged(k.Class)
	}
}

// CapacityGone records that a capacity was deleted.
func (p *Placer) CapacityGone(_ unit.Instant, namespace, name string) {
	key := volumes.ClaimKey{Namespace: namespace, Name: name}
	if class, known := p.cluster.storage.CapacityClass(key); known {
		p.cluster.setCapacity(key, class, nil)
	}
}

// setCapacity replaces a capacity of a class. larger reports whether a volume may now be provisioned that could not be
// before.
func (c *cluster) setCapacity(key volumes.ClaimKey, class string, to *Capacity) (larger bool) {
	was, is, larger := c.storage.SetCapacity(key, class, to)
	c.capacityWent(class, was)
	c.capacityCame(class, is)
	return larger
}

// NodeStorageSeen records a CSINode.
func (p *Placer) NodeStorageSeen(_ unit.Instant, n NodeStorage) { p.setNodeStorage(n.Node, &n) }

// NodeStorageGone records that a CSINode was deleted.
func (p *Placer) NodeStorageGone(_ unit.Instant, node string) { p.setNodeStorage(node, nil) }

func (p *Placer) setNodeStorage(node string, to *NodeStorage) {
	r := p.cluster.rowOf(node)
	p.cluster.storage.SetNodeStorage(r, to)
	p.cluster.dropRowIfEmpty(r)
}

// AttachmentSeen records a VolumeAttachment.
func (p *Placer) AttachmentSeen(now unit.Instant, a Attachment) {
	if p.cluster.storage.Attachment(a.Name) == a {
		return
	}
	p.AttachmentGone(now, a.Name)
	if a.Node != "" {
		r := p.cluster.rowOf(a.Node)
		p.cluster.storage.Attach(a, r)
		p.cluster.rowChanged(r)
	}
}

// AttachmentGone records that a VolumeAttachment was deleted.
func (p *Placer) AttachmentGone(_ unit.Instant, name string) {
	if r := p.cluster.storage.Detach(name); r != noRow {
		p.cluster.dropRowIfEmpty(r)
	}
}

// volumesChanged records that other volumes count on row r than before.
func (c *cluster) volumesChanged(r row) {
	c.rowChanged(r)
	c.waits.nodeChanged(r)
}

// readVolumes brings d.volumes up to date. If it changes, the tables of d are dropped.
func (c *cluster) readVolumes(d *demand) {
	if d.volumesSeen == c.storage.Version()+1 {
		return
	}
	d.volumesSeen = c.storage.Version() + 1
	inputs := c.storage.Inputs(&d.mounts, c.inputs[:0])
	c.inputs = inputs
	if d.volumes.BasedOn(inputs) {
		return
	}
	c.dropTables(d)
	d.volumes = c.storage.NeedsOf(&d.mounts, inputs)
	clear(inputs)
}
