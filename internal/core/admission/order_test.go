package admission

import (
	"slices"
	"testing"
)

// TestOrder: every two neighbours of a list in the right order are told apart, both ways, and no two of it are the
// same.
func TestOrder(t *testing.T) {
	right := []Arrival{
		{Standing: Remains, Created: 1, Name: "z/z"},
		{Standing: Remains, Created: 9, Name: "a/a"},
		{Standing: Ran, Created: 5, Name: "b/b"},
		{Standing: Ran, Created: 8, Name: "a/b"},
		{Standing: Unknown, Created: 2, Name: "c/c"},
		{Standing: Unknown, Created: 7, Name: "a/c"},
		{Standing: Unknown, Created: 7, Name: "a/d"},
	}
	for i, a := range right {
		for j, b := range right {
			got := Order(a, b)
			if (got < 0) != (i < j) || (got == 0) != (i == j) {
				t.Errorf("Order(%+v, %+v) is %d", a, b, got)
			}
		}
	}
	mixed := slices.Clone(right)
	slices.Reverse(mixed)
	if slices.SortFunc(mixed, Order); !slices.Equal(mixed, right) {
		t.Errorf("in order: %+v", mixed)
	}
}
