package rows

// Amounts has a number for each row. The zero value has zero for every row. If few rows have another number, it takes
// memory for these rows only. So a cluster of n nodes, each with a resource of its own, needs n numbers, and not n
// times n.
//
// At is called for each row in each decision. So the usual case, a resource that many rows have, is a slice.
type Amounts struct {
	Dense bool // it is always a slice: for resources that every decision reads for every row

	dense  []int64       // by row; zero beyond the end; nil while sparse is in use
	sparse map[Row]int64 // rows whose number is not zero; nil while dense is in use
	some   int           // how many rows have a number that is not zero
	above  Row           // above every row that has had such a number since sparse is in use
}

// These say when Amounts changes between slice and map. Chosen: a number takes 8 bytes in the slice and about 30 in the
// map. Between the two shares, the form stays as it is, so that a row that comes and goes does not change it again and
// again. With rowsFew rows or fewer, the slice is small in any case.
const (
	rowsFew     = 64
	sparseShare = 8 // it becomes a map if fewer than one in so many rows has a number
	denseShare  = 4 // it becomes a slice if at least one in so many rows has a number
)

// At returns the number of row r.
func (a *Amounts) At(r Row) int64 {
	if int(r) < len(a.dense) {
		return a.dense[r]
	}
	return a.few(r)
}

func (a *Amounts) few(r Row) int64 {
	if len(a.sparse) == 0 {
		return 0
	}
	return a.sparse[r]
}

// Set sets the number of row r.
func (a *Amounts) Set(r Row, value int64) {
	was := a.At(r)
	if was == value {
		return
	}
	if was == 0 {
		a.some++
	} else if value == 0 {
		a.some--
	}
	switch {
	case a.some == 0 && !a.Dense:
		*a = Amounts{}
	case a.sparse != nil:
		a.setFew(r, value)
	case int(r) < len(a.dense):
		a.dense[r] = value
		if a.areFew(len(a.dense) / 2) {
			a.thin()
		}
	case a.areFew(int(r) + 1):
		a.thin()
		a.setFew(r, value)
	default:
		a.grow(int(r) + 1)
		a.dense[r] = value
	}
}

// areFew reports whether a map is better than a slice of so many rows.
func (a *Amounts) areFew(rows int) bool {
	return !a.Dense && rows > rowsFew && a.some*sparseShare < rows
}

// Free gives memory back if no row has a number.
func (a *Amounts) Free() {
	if a.some == 0 {
		*a = Amounts{Dense: a.Dense}
	}
}

// Rows returns how many rows have a number that is not zero.
func (a *Amounts) Rows() int { return a.some }

// Few calls see with each row whose number is not zero, in no order, and returns true. If these rows are too many, it
// returns false instead.
func (a *Amounts) Few(see func(Row, int64)) bool {
	if a.sparse == nil {
		return a.some == 0
	}
	for r, value := range a.sparse {
		see(r, value)
	}
	return true
}

// setFew sets a number in the map. When many rows have one, it replaces the map by a slice.
func (a *Amounts) setFew(r Row, value int64) {
	if value == 0 {
		delete(a.sparse, r)
		return
	}
	a.sparse[r] = value
	a.above = max(a.above, r+1)
	if a.some*denseShare < int(a.above) {
		return
	}
	few := a.sparse
	*a = Amounts{Dense: a.Dense, some: a.some}
	for r, value := range few {
		a.grow(int(r) + 1)
		a.dense[r] = value
	}
}

// thin replaces the slice by a map.
func (a *Amounts) thin() {
	a.sparse = map[Row]int64{}
	for r, value := range a.dense {
		if value != 0 {
			a.sparse[Row(r)] = value
			a.above = Row(r) + 1
		}
	}
	a.dense = nil
}

func (a *Amounts) grow(to int) {
	if to > len(a.dense) {
		a.dense = append(a.dense, make([]int64, to-len(a.dense))...)
	}
}
