// Package rows has what is known by node: each node has a row, a small number, and what is known of it lies in columns
// indexed by row. Rows of nodes that are gone are reused, so that a row is no name of a node.
package rows

// Row is the index of a node in columns.
type Row int32

// None is no row.
const None Row = -1

// A Table grows with the number of rows.
type Table interface {
	// AddRow makes a place for one more row.
	AddRow()
	// ClearRow makes the place of r what it is in a new row: r is given back.
	ClearRow(r Row)
}

// A Column has one value for each row, the zero value in a new one.
type Column[T any] []T

// AddRow makes a place for one more row.
func (x *Column[T]) AddRow() {
	var none T
	*x = append(*x, none)
}

// ClearRow makes the value of r the zero value.
func (x *Column[T]) ClearRow(r Row) {
	var none T
	(*x)[r] = none
}
