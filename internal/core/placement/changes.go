package placement

// A changeLog tells who keeps results by row which rows have changed since it looked last.
type changeLog struct {
	rows  []row
	start int   // of rows[0], counted from the first change ever
	last  []int // by row: its latest change
}

// changesMax is how many changes are kept. Chosen: tables that fall further behind are built anew, which costs about
// as much as catching up on that many rows; 4 bytes each.
const changesMax = 1 << 16

// AddRow makes a place for one more row.
func (l *changeLog) AddRow() { l.last = append(l.last, -1) }

// ClearRow changes nothing: that a row was given back is to be seen, too.
func (l *changeLog) ClearRow(row) {}

func (l *changeLog) end() int { return l.start + len(l.rows) }

func (l *changeLog) add(r row) {
	if len(l.rows) == changesMax {
		n := copy(l.rows, l.rows[changesMax/2:])
		l.rows, l.start = l.rows[:n], l.start+changesMax/2
	}
	l.last[r] = l.end()
	l.rows = append(l.rows, r)
}

// since calls see for each row that changed at or after a position, once, and returns the position to go on from.
// ok is false if too much has happened since: every row may have changed.
func (l *changeLog) since(position int, see func(row)) (next int, ok bool) {
	if position < l.start {
		return l.end(), false
	}
	for i := position; i < l.end(); i++ {
		if r := l.rows[i-l.start]; l.last[r] == i {
			see(r)
		}
	}
	return l.end(), true
}
