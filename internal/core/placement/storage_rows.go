package placement

// rowStorage is what volumes mean to one row; nil where there are none.
type rowStorage struct {
	disks    []*Disk // that counted pods name themselves
	attached map[Attached]int32
	drivers  map[string]int32 // how many different volumes each driver has attached for counted pods

	node        *NodeStorage
	attachments map[string]Attachment // by name
}

// storageAt returns the storage of row r to be written to.
func (c *cluster) storageAt(r row) *rowStorage {
	if c.stored[r] == nil {
		c.stored[r] = &rowStorage{attached: map[Attached]int32{}, drivers: map[string]int32{}, attachments: map[string]Attachment{}}
	}
	return c.stored[r]
}

// attach counts a volume once more (sign 1) or once less.
func (s *rowStorage) attach(a Attached, sign int32) {
	if a.Driver == "" || a.Handle == "" {
		return
	}
	was := s.attached[a]
	s.attached[a] += sign
	switch {
	case was == 0:
		s.drivers[a.Driver]++
	case s.attached[a] == 0:
		delete(s.attached, a)
		if s.drivers[a.Driver]--; s.drivers[a.Driver] == 0 {
			delete(s.drivers, a.Driver)
		}
	}
}

// mount counts what the volumes of one pod of class k take from row r.
func (c *cluster) mount(r row, k *class, sign int32) {
	for i := range k.mounts {
		m := &k.mounts[i]
		s := c.storageAt(r)
		if m.Claim != "" {
			claim := c.storage.claimAt(claimKey{k.namespace, m.Claim})
			was := claim.on[r]
			if claim.on[r] += sign; claim.on[r] == 0 {
				delete(claim.on, r)
			}
			if was == 0 || claim.on[r] == 0 {
				s.attach(claim.attached, sign)
			}
			c.storage.drop(claim)
		}
		if m.Disk != nil && sign > 0 {
			s.disks = append(s.disks, m.Disk)
		} else if m.Disk != nil {
			s.disks = removeOne(s.disks, m.Disk)
		}
		s.attach(m.Attached, sign)
	}
}

func removeOne(disks []*Disk, d *Disk) []*Disk {
	for i := range disks {
		if disks[i] == d {
			last := len(disks) - 1
			disks[i], disks[last] = disks[last], nil
			return disks[:last]
		}
	}
	return disks
}

// use counts the mentions of claims by a pod of class k that comes or goes; by a lifted one, for a moment.
func (c *cluster) use(k *class, sign int32, lifted bool) {
	for i := range k.mounts {
		m := &k.mounts[i]
		if m.Claim == "" || m.Own {
			continue
		}
		claim := c.storage.claimAt(claimKey{k.namespace, m.Claim})
		if lifted {
			claim.lifted += sign
		} else {
			claim.users += sign
		}
		c.storage.drop(claim)
	}
}

// reattach finds out what a claim attaches, and corrects the rows on which it is used.
func (c *cluster) reattach(k *claimState) {
	now := c.storage.attachedBy(k)
	if now == k.attached {
		return
	}
	for r := range k.on {
		s := c.storageAt(r)
		s.attach(k.attached, -1)
		s.attach(now, 1)
		c.recount(r)
	}
	k.attached = now
}

// attachedBy is what counts towards limits where a claim is used: its volume or, as long as it has none, something of its own
// for the driver that will attach it.
func (s *storage) attachedBy(k *claimState) Attached {
	if k.seen == nil {
		return Attached{}
	}
	if v := s.volumes[k.seen.Volume]; v != nil && k.seen.Volume != "" {
		return v.Attached
	}
	if class := s.classes[k.seen.Class]; class != nil && k.seen.Class != "" && class.Driver != "" {
		return Attached{class.Driver, "\x00" + k.key.namespace + "/" + k.key.name} // no handle begins with a zero byte
	}
	return Attached{}
}

// setNodeStorage replaces what drivers say of a node; nil: nothing.
func (c *cluster) setNodeStorage(node string, to *NodeStorage) {
	r := c.rowOf(node)
	c.storage.version++
	c.storageAt(r).node = to
	c.recount(r)
	c.release(r)
}

// setAttachment notes an attachment; nil: it has ended.
func (c *cluster) setAttachment(name string, to *Attachment) {
	s := &c.storage
	s.version++
	if old, known := s.attachedTo[name]; known {
		r := c.rowOf(old.Node)
		delete(c.storageAt(r).attachments, name)
		delete(s.attachedTo, name)
		if delete(s.attaching[old.Volume], name); len(s.attaching[old.Volume]) == 0 {
			delete(s.attaching, old.Volume)
		}
		c.recount(r)
		c.release(r)
	}
	if to != nil && to.Node != "" {
		r := c.rowOf(to.Node)
		c.storageAt(r).attachments[name] = *to
		s.attachedTo[name] = *to
		if s.attaching[to.Volume] == nil {
			s.attaching[to.Volume] = map[string]bool{}
		}
		s.attaching[to.Volume][name] = true
		c.touch(r)
	}
}

// idle reports whether a row without pods need not be kept for its storage.
func (s *rowStorage) idle() bool { return s == nil || s.node == nil && len(s.attachments) == 0 }
