package volumes

import "github.com/plimsoll-dev/plimsoll/internal/core/scheduler/rows"

// OnRow is what volumes mean to one row.
type OnRow struct {
	Disks    []*Disk // that counted pods name themselves
	attached map[Attached]int32
	drivers  map[string]int32 // how many different volumes each driver has attached for counted pods

	node        *NodeStorage
	attachments map[string]Attachment // by name
}

// attachment is an Attachment, with the row of its node.
type attachment struct {
	Attachment
	row rows.Row
}

// AddRow makes a place for one more row.
func (s *Store) AddRow() { s.rows.AddRow() }

// ClearRow forgets what was said of a row that is given back.
func (s *Store) ClearRow(r rows.Row) { s.rows.ClearRow(r) }

// On returns what volumes mean to row r; nil: nothing.
func (s *Store) On(r rows.Row) *OnRow { return s.rows[r] }

// Idle reports whether row r, without pods, need not be kept for its volumes.
func (s *Store) Idle(r rows.Row) bool {
	x := s.rows[r]
	return x == nil || x.node == nil && len(x.attachments) == 0
}

// Limited reports whether drivers attach so many volumes only.
func (x *OnRow) Limited() bool { return x != nil && x.node != nil && len(x.node.Limits) > 0 }

// at returns what volumes mean to row r, to be written to.
func (s *Store) at(r rows.Row) *OnRow {
	if s.rows[r] == nil {
		s.rows[r] = &OnRow{attached: map[Attached]int32{}, drivers: map[string]int32{}, attachments: map[string]Attachment{}}
	}
	return s.rows[r]
}

// Tidy forgets row r if volumes mean nothing to it any more. It is called when a pod has left, and not while one is
// only tried without: that comes back.
func (s *Store) Tidy(r rows.Row) {
	if x := s.rows[r]; x != nil && x.node == nil && len(x.Disks)+len(x.attached)+len(x.drivers)+len(x.attachments) == 0 {
		s.rows[r] = nil
	}
}

// attach counts a volume once more (sign 1) or once less.
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

// Mount counts what the volumes of one pod take from row r, once more (sign 1) or once less.
func (s *Store) Mount(r rows.Row, w *Wants, sign int32) {
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
			s.drop(claim)
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

// Use counts the mentions of claims by a pod that comes (sign 1) or goes; lifted: for a moment.
func (s *Store) Use(w *Wants, sign int32, lifted bool) {
	for i := range w.Mounts {
		m := &w.Mounts[i]
		if m.Claim == "" || m.Own {
			continue
		}
		claim := s.claimAt(w.key(m))
		if lifted {
			claim.Lifted += sign
		} else {
			claim.Users += sign
		}
		s.drop(claim)
	}
}

// reattach finds out what a claim attaches, and corrects the rows on which it is used.
func (s *Store) reattach(k *ClaimState) {
	now := s.attachedBy(k)
	if now == k.attached {
		return
	}
	for r := range k.on {
		x := s.at(r)
		x.attach(k.attached, -1)
		x.attach(now, 1)
		s.turned(r)
	}
	k.attached = now
}

// attachedBy is what counts towards limits where a claim is used: its volume or, as long as it has none, something of
// its own for the driver that will attach it.
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

// SetNodeStorage replaces what drivers say of the node of row r; nil: nothing.
func (s *Store) SetNodeStorage(r rows.Row, to *NodeStorage) {
	s.version++
	s.at(r).node = to
	s.Tidy(r)
	s.turned(r)
}

// Attachment returns the attachment of a name as it was last told.
func (s *Store) Attachment(name string) Attachment { return s.attachments[name].Attachment }

// Attach notes an attachment to row r.
func (s *Store) Attach(a Attachment, r rows.Row) {
	s.version++
	s.at(r).attachments[a.Name] = a
	s.attachments[a.Name] = attachment{Attachment: a, row: r}
	if s.attaching[a.Volume] == nil {
		s.attaching[a.Volume] = map[string]bool{}
	}
	s.attaching[a.Volume][a.Name] = true
}

// Detach notes that an attachment has ended, and returns its row; None: there was none.
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
	s.Tidy(old.row)
	s.turned(old.row)
	return old.row
}

// TooMany reports whether row r would have more volumes attached than a driver says it can, with those in added that
// are not there yet. A volume that several pods use counts once; one that no pod uses any longer counts as long as it
// is still attached.
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

// Exceeds reports whether so many volumes of a driver, none of them there yet, would be too many for row r.
func (s *Store) Exceeds(r rows.Row, driver string, more int64) bool {
	x := s.rows[r]
	if x == nil || x.node == nil {
		return false
	}
	limit, limited := x.node.Limits[driver]
	return limited && s.attachedTo(x, driver)+more > limit
}

// EachDriver calls see for each driver in list, with how many of its volumes are in it.
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

// leftAttached counts the volumes that driver has attached to a row although no pod there uses them.
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
