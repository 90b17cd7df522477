package placement

import "github.com/plimsoll-dev/plimsoll/internal/core/unit"

// What the Placer is told of storage. Each fact wakes the waiting pods that it lets fit.

// ClaimSeen folds in a PersistentVolumeClaim. If we had assumed a change of it, this is the truth again.
func (p *Placer) ClaimSeen(now unit.Instant, claim Claim) {
	key := claimKey{claim.Namespace, claim.Name}
	s := &p.cluster.storage
	if t := s.trueClaims[key]; t != nil {
		if t.Version == claim.Version {
			return // told again
		}
		delete(s.trueClaims, key)
	}
	p.cluster.setClaim(key, &claim)
	p.cluster.waits.claimTurned(key)
}

// ClaimGone folds in that one was deleted.
func (p *Placer) ClaimGone(now unit.Instant, namespace, name string) {
	key := claimKey{namespace, name}
	delete(p.cluster.storage.trueClaims, key)
	p.cluster.setClaim(key, nil)
}

// VolumeSeen folds in a PersistentVolume. If we had assumed a change of it, this is the truth again.
func (p *Placer) VolumeSeen(now unit.Instant, of Volume) {
	s := &p.cluster.storage
	if t := s.trueVolumes[of.Name]; t != nil {
		if t.Version == of.Version {
			return // told again
		}
		delete(s.trueVolumes, of.Name)
	}
	v := p.cluster.compileVolume(of)
	p.cluster.setVolume(of.Name, v)
	p.cluster.volumeTurned(v)
}

// VolumeGone folds in that one was deleted.
func (p *Placer) VolumeGone(now unit.Instant, name string) {
	delete(p.cluster.storage.trueVolumes, name)
	p.cluster.setVolume(name, nil)
}

// StorageClassSeen folds in a StorageClass.
func (p *Placer) StorageClassSeen(now unit.Instant, k StorageClass) {
	p.cluster.setClass(k.Name, &k)
	p.cluster.waits.classTurned(k.Name)
}

// StorageClassGone folds in that one was deleted.
func (p *Placer) StorageClassGone(now unit.Instant, name string) {
	p.cluster.setClass(name, nil)
}

// DriverSeen folds in a CSIDriver. capacities: it publishes how much room it has, and wants that to be looked at.
func (p *Placer) DriverSeen(now unit.Instant, name string, capacities bool) {
	p.setDriver(now, name, true, capacities)
}

// setDriver folds in whether there is a driver, and whether its capacities are to be looked at. Pods are woken when
// less is asked.
func (p *Placer) setDriver(now unit.Instant, name string, there, capacities bool) {
	s := &p.cluster.storage
	wasThere, opted := s.drivers[name], s.opted[name]
	if wasThere == there && opted == capacities {
		return
	}
	s.version++
	delete(s.drivers, name)
	if there {
		s.drivers[name] = true
	}
	delete(s.opted, name)
	if capacities {
		s.opted[name] = true
	}
	if wasThere && !there || opted && !capacities {
		p.cluster.driverTurned(name)
	}
}

// DriverGone folds in that one was deleted.
func (p *Placer) DriverGone(now unit.Instant, name string) { p.setDriver(now, name, false, false) }

// CapacitySeen folds in a CSIStorageCapacity.
func (p *Placer) CapacitySeen(now unit.Instant, k Capacity) {
	key := claimKey{k.Namespace, k.Name}
	if class, known := p.cluster.storage.capacityClass(key); known && class != k.Class {
		p.cluster.setCapacity(key, class, nil)
	}
	if p.cluster.setCapacity(key, k.Class, &k) {
		p.cluster.waits.classTurned(k.Class)
	}
}

// CapacityGone folds in that one was deleted.
func (p *Placer) CapacityGone(_ unit.Instant, namespace, name string) {
	key := claimKey{namespace, name}
	if class, known := p.cluster.storage.capacityClass(key); known {
		p.cluster.setCapacity(key, class, nil)
	}
}

// NodeStorageSeen folds in a CSINode.
func (p *Placer) NodeStorageSeen(now unit.Instant, n NodeStorage) {
	p.cluster.setNodeStorage(n.Node, &n)
}

// NodeStorageGone folds in that one was deleted.
func (p *Placer) NodeStorageGone(now unit.Instant, node string) {
	p.cluster.setNodeStorage(node, nil)
}

// AttachmentSeen folds in a VolumeAttachment.
func (p *Placer) AttachmentSeen(now unit.Instant, a Attachment) {
	if p.cluster.storage.attachedTo[a.Name] != a {
		p.cluster.setAttachment(a.Name, &a)
	}
}

// AttachmentGone folds in that one has ended.
func (p *Placer) AttachmentGone(now unit.Instant, name string) {
	p.cluster.setAttachment(name, nil)
}
