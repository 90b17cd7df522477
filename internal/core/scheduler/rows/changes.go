package rows

// A ChangeLog lists which rows changed. A cache with one result per row reads what changed since it was last updated.
type ChangeLog struct {
	rows  []Row // the latest changes, in order
	start int   // number of the change in rows[0], counted from the first change ever
	last  []int // by row: the number of its latest change
}

// changesMax is how many changes are kept. Chosen: a cache that is further behind is rebuilt, which costs about as much
// as recomputing that many rows. Each change takes 4 bytes.
const changesMax = 1 << 16

// AddRow makes room for one more row.
func (l *ChangeLog) AddRow() { l.last = append(l.last, -1) }

// ClearRow does nothing: the changes of a freed row must stay in the log.
func (l *ChangeLog) ClearRow(Row) {}

// End returns the number that the next change gets.
func (l *ChangeLog) End() int { return l.start + len(l.rows) }

// Add records that row r changed.
func (l *ChangeLog) Add(r Row) {
	if len(l.rows) == changesMax {
		n := copy(l.rows, l.rows[changesMax/2:])
		l.rows, l.start = l.rows[:n], l.start+changesMax/2
	}
	l.last[r] = l.End()
	l.rows = append(l.rows, r)
}

// Since calls see once for each row that changed at or after a position, and returns the position to continue from. ok
// is false if changes since position were dropped: then every row may have changed.
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
