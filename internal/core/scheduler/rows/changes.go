package rows

// A ChangeLog tells who keeps results by row which rows have changed since it looked last.
type ChangeLog struct {
	rows  []Row
	start int   // of rows[0], counted from the first change ever
	last  []int // by row: its latest change
}

// changesMax is how many changes are kept. Chosen: tables that fall further behind are built anew, which costs about
// as much as catching up on that many rows; 4 bytes each.
const changesMax = 1 << 16

// AddRow makes a place for one more row.
func (l *ChangeLog) AddRow() { l.last = append(l.last, -1) }

// ClearRow changes nothing: that a row was given back is to be seen, too.
func (l *ChangeLog) ClearRow(Row) {}

func (l *ChangeLog) End() int { return l.start + len(l.rows) }

func (l *ChangeLog) Add(r Row) {
	if len(l.rows) == changesMax {
		n := copy(l.rows, l.rows[changesMax/2:])
		l.rows, l.start = l.rows[:n], l.start+changesMax/2
	}
	l.last[r] = l.End()
	l.rows = append(l.rows, r)
}

// Since calls see for each row that changed at or after a position, once, and returns the position to go on from.
// ok is false if too much has happened since: every row may have changed.
func (l *ChangeLog) Since(position int, see func(Row)) (next int, ok bool) {
	if position < l.start {
		return l.End(), false
	}
	for i := position; i < l.End(); i++ {
		if r := l.rows[i-l.start]; l.last[r] == i {
			see(r)
		}
	}
	return l.End(), true
}
