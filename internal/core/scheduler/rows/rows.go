// Package rows has the storage for facts about nodes. Each node has a row, a small number. A fact about nodes is a
// column, a slice indexed by row. The row of a deleted node is reused, so a row does not identify a node over time.
package rows

// Row is the index of a node in all columns.
type Row int32

// None stands for no row.
const None Row = -1

// A Table has one value per row and grows with the number of rows.
type Table interface {
	// AddRow makes room for one more row.
	AddRow()
	// ClearRow resets the value of r to that of a new row. It is called when the node of r is gone.
	ClearRow(r Row)
}

// A Column has one value for each row. The value of a new row is the zero value.
type Column[T any] []T

// AddRow adds a row with the zero value.
func (x *Column[T]) AddRow() {
	var none T
	*x = append(*x, none)
}

// ClearRow sets the value of r to the zero value.
func (x *Column[T]) ClearRow(r Row) {
	var none T
	(*x)[r] = none
}
