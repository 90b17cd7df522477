package encode

import (
	"fmt"
	"testing"
)

// TestApart checks that lists of values with equal concatenations have different encodings.
func TestApart(t *testing.T) {
	seen := map[string]string{}
	for _, c := range []struct {
		what string
		key  []byte
	}{
		{`"a", "b"`, String(String(nil, "a"), "b")},
		{`"ab", ""`, String(String(nil, "ab"), "")},
		{`"", "ab"`, String(String(nil, ""), "ab")},
		{`["a"], "b"`, String(Strings(nil, []string{"a"}), "b")},
		{`["a", "b"]`, Strings(nil, []string{"a", "b"})},
		{`[], "a", "b"`, String(String(Strings(nil, nil), "a"), "b")},
		{`1, 2`, Number(Number(nil, 1), 2)},
		{`2, 1`, Number(Number(nil, 2), 1)},
		{`300`, Number(nil, 300)},
		{`-1`, Number(nil, -1)},
		{`false`, Bool(nil, false)},
		{`false, true`, Bool(Bool(nil, false), true)},
	} {
		if other, twice := seen[string(c.key)]; twice {
			t.Errorf("%s and %s have the same encoding", c.what, other)
		}
		seen[string(c.key)] = c.what
	}
	if a, b := fmt.Sprint(Strings(nil, nil)), fmt.Sprint(Strings(nil, []string{})); a != b {
		t.Errorf("a nil list %s, an empty one %s", a, b)
	}
}
