package volumes

import "github.com/plimsoll-dev/plimsoll/internal/core/scheduler/rows"

// OnRow is what is recorded about volumes on one row.
type OnRow struct {
	Disks    []*Disk            // those that pods on the row name themselves
	attached map[Attached]int32 // how many pods or claims on the row attach each volume
	drivers  map[string]int32   // how many different volumes pods on the row use, by driver

	node        *NodeStorage          // nil: not known
	attachments map[string]Attachment // by name
}

// attachment is an Attachment, with the row of its node.
type attachment struct {
	Attachment
	row rows.Row
}

// AddRow makes room for one more row.
func (s *Store) AddRow() { s.rows.AddRow() }

// ClearRow drops what is recorded about row r. It is called when the node of r is gone.
func (s *Store) ClearRow(r rows.Row) { s.rows.ClearRow(r) }

// On returns what is recorded about volumes on row r; nil: nothing.
func (s *Store) On(r rows.Row) *OnRow { return s.rows[r] }

// Idle reports whether a row r without pods need not be kept because of its volumes.
func (s *Store) Idle(r rows.Row) bool {
	x := s.rows[r]
	return x == nil || x.node == nil && len(x.attachments) == 0
}

// Limited reports whether some driver limits the number of volumes on the node.
func (x *OnRow) Limited() bool { return x != nil && x.node != nil && len(x.node.Limits) > 0 }

// at returns the record of row r, and creates it if necessary.
func (s *Store) at(r rows.Row) *OnRow {
	if s.rows[r] == nil {
		s.rows[r] = &OnRow{attached: map[Attached]int32{}, drivers: map[string]int32{}, attachments: map[string]Attachment{}}
	}
	return s.rows[r]
}

// DropIfEmpty drops the record of row r if it is empty. It is called when a pod has left, not when a pod is removed for
// a trial only.
func (s *Store) DropIfEmpty(r rows.Row) {
	if x := s.rows[r]; x != nil && x.node == nil && len(x.Disks)+len(x.attached)+len(x.drivers)+len(x.attachments) == 0 {
		s.rows[r] = nil
	}
}

// attach counts one use of a volume more (sign 1) or less (sign -1).
func (x *OnRow) attach(a Attached, sign int32) {
	if a.Driver == "" || a.Handle == "" {
		return
	}
	was := x.attached[a]
	x.attached[a] += sign
	switch {
	case was == 0:
		x.drivers[a.Driver]++
	case x.attached[a] == 0:
		delete(x.attached, a)
		if x.drivers[a.Driver]--; x.drivers[a.Driver] == 0 {
			delete(x.drivers, a.Driver)
		}
	}
}

// Mount adds (sign 1) or subtracts (sign -1) what the volumes of one pod use on row r.
func (s *Store) Mount(r rows.Row, w *PodMounts, sign int32) {
	for i := range w.Mounts {
		m := &w.Mounts[i]
		x := s.at(r)
		if m.Claim != "" {
			claim := s.claimAt(w.key(m))
			was := claim.on[r]
			if claim.on[r] += sign; claim.on[r] == 0 {
				delete(claim.on, r)
			}
			if was == 0 || claim.on[r] == 0 {
				x.attach(claim.attached, sign)
			}
			s.dropIfUnused(claim)
		}
		if m.Disk != nil && sign > 0 {
			x.Disks = append(x.Disks, m.Disk)
		} else if m.Disk != nil {
			x.Disks = removeOne(x.Disks, m.Disk)
		}
		x.attach(m.Attached, sign)
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

// Use adds (sign 1) or subtracts (sign -1) a pod as a user of its claims. inTrial says that it is added or removed for
// a trial only.
func (s *Store) Use(w *PodMounts, sign int32, inTrial bool) {
	for i := range w.Mounts {
		m := &w.Mounts[i]
		if m.Claim == "" || m.Own {
			continue
		}
		claim := s.claimAt(w.key(m))
		if inTrial {
			claim.InTrial += sign
		} else {
			claim.Users += sign
		}
		s.dropIfUnused(claim)
	}
}

// reattach updates what a claim attaches, and the rows where the claim is used.
func (s *Store) reattach(k *ClaimState) {
	now := s.attachedBy(k)
	if now == k.attached {
		return
	}
	for r := range k.on {
		x := s.at(r)
		x.attach(k.attached, -1)
		x.attach(now, 1)
		s.changed(r)
	}
	k.attached = now
}

// attachedBy returns what counts toward limits where a claim is used: its volume or, while it has none, a placeholder
// with the driver that will attach the volume.
func (s *Store) attachedBy(k *ClaimState) Attached {
	if k.Seen == nil {
		return Attached{}
	}
	if v := s.volumes[k.Seen.Volume]; v != nil && k.Seen.Volume != "" {
		return v.Attached
	}
	if class := s.classes[k.Seen.Class]; class != nil && k.Seen.Class != "" && class.Driver != "" {
		// no handle begins with a zero byte
		return Attached{Driver: class.Driver, Handle: "\x00" + k.Key.Namespace + "/" + k.Key.Name}
	}
	return Attached{}
}

// SetNodeStorage replaces what the CSINode of row r says; nil: the node has no CSINode.
func (s *Store) SetNodeStorage(r rows.Row, to *NodeStorage) {
	s.version++
	s.at(r).node = to
	s.DropIfEmpty(r)
	s.changed(r)
}

// Attachment returns the last state of the attachment with this name.
func (s *Store) Attachment(name string) Attachment { return s.attachments[name].Attachment }

// Attach records an attachment to row r.
func (s *Store) Attach(a Attachment, r rows.Row) {
	s.version++
	s.at(r).attachments[a.Name] = a
	s.attachments[a.Name] = attachment{Attachment: a, row: r}
	if s.attaching[a.Volume] == nil {
		s.attaching[a.Volume] = map[string]bool{}
	}
	s.attaching[a.Volume][a.Name] = true
}

// Detach records that an attachment has ended, and returns its row; None: there was none.
func (s *Store) Detach(name string) rows.Row {
	s.version++
	old, known := s.attachments[name]
	if !known {
		return rows.None
	}
	delete(s.at(old.row).attachments, name)
	delete(s.attachments, name)
	if delete(s.attaching[old.Volume], name); len(s.attaching[old.Volume]) == 0 {
		delete(s.attaching, old.Volume)
	}
	s.DropIfEmpty(old.row)
	s.changed(old.row)
	return old.row
}

// TooMany reports whether row r would exceed the volume limit of a driver, with the volumes in added that are not
// attached yet. A volume that several pods use counts once. A volume that no pod uses any more counts until it is
// detached.
func (s *Store) TooMany(r rows.Row, added []Attached) bool {
	x := s.rows[r]
	if !x.Limited() {
		return false
	}
	for i, a := range added {
		limit, limited := x.node.Limits[a.Driver]
		if !limited || driverAmong(added[:i], a.Driver) {
			continue
		}
		more := int64(0)
		for _, b := range added[i:] {
			if b.Driver == a.Driver && x.attached[b] == 0 {
				more++
			}
		}
		if more > 0 && s.attachedTo(x, a.Driver)+more > limit {
			return true
		}
	}
	return false
}

// Exceeds reports whether row r would exceed the limit of a driver with this many volumes more.
func (s *Store) Exceeds(r rows.Row, driver string, more int64) bool {
	x := s.rows[r]
	if x == nil || x.node == nil {
		return false
	}
	limit, limited := x.node.Limits[driver]
	return limited && s.attachedTo(x, driver)+more > limit
}

// EachDriver calls see for each driver in list, with the number of its volumes in list.
func EachDriver(list []Attached, see func(driver string, volumes int64)) {
	for i, a := range list {
		if driverAmong(list[:i], a.Driver) {
			continue
		}
		n := int64(0)
		for _, b := range list[i:] {
			if b.Driver == a.Driver {
				n++
			}
		}
		see(a.Driver, n)
	}
}

func driverAmong(list []Attached, driver string) bool {
	for i := range list {
		if list[i].Driver == driver {
			return true
		}
	}
	return false
}

func (s *Store) attachedTo(x *OnRow, driver string) int64 {
	return int64(x.drivers[driver]) + int64(s.leftAttached(x, driver))
}

// leftAttached counts the volumes that a driver has still attached to a row although no pod there uses them.
func (s *Store) leftAttached(x *OnRow, driver string) int {
	var left map[Attached]bool
	for _, attachment := range x.attachments {
		if attachment.Driver != driver {
			continue
		}
		v := s.volumes[attachment.Volume]
		if v == nil || !v.CSI {
			continue
		}
		if a := (Attached{Driver: driver, Handle: v.Attached.Handle}); x.attached[a] == 0 {
			if left == nil {
				left = map[Attached]bool{}
			}
			left[a] = true
		}
	}
	return len(left)
}
