package env

import (
	"slices"
	"strings"
	"testing"

	"github.com/plimsoll-dev/plimsoll/test/cost"
)

func TestExpand(t *testing.T) {
	vars := map[string]string{"A": "1", "B": "$(A)", "": "empty", "a b": "space"}
	lookup := func(name string) (string, bool) { v, ok := vars[name]; return v, ok }
	for in, want := range map[string]string{
		"": "", "x": "x", "$": "$", "$$": "$", "$$$": "$$", "$(A)": "1", "$(B)": "$(A)", "$(C)": "$(C)", "$$(A)": "$(A)",
		"$$$(A)": "$1", "$(A": "$(A", "$(A$$": "$(A$", "$A": "$A", "$(a b)": "space", "$()": "empty", "$($(A))": "$($(A))",
		"x$(A)y$(A)z": "x1y1z", "$)": "$)", "\xff$(A)\xff": "\xff1\xff", "$é": "$é",
	} {
		if got, err := Expand(in, lookup); err != nil || got != want {
			t.Errorf("%q: %q, %v, want %q", in, got, err, want)
		}
	}
}

func TestExpandPath(t *testing.T) {
	vars := map[string]string{"A": "1", "E": ""}
	lookup := func(name string) (string, bool) { v, ok := vars[name]; return v, ok }
	path, missing, err := ExpandPath("$(A)/$(E)/$(Z)/$(E)", lookup)
	if err != nil || path != "1///" || strings.Join(missing, ",") != "E,Z" {
		t.Errorf("%q %v %v", path, missing, err)
	}
	if _, _, err := ExpandPath(strings.Repeat("$(A)", 4096), lookup); err == nil ||
		!strings.Contains(err.Error(), "4095 bytes of a path") {
		t.Errorf("a path of 4096 bytes: %v", err)
	}
}

// What cannot be passed to a process is refused, and costs no more than what can.
func TestExpandIsBounded(t *testing.T) {
	value := strings.Repeat("x", stringMax/2)
	asked := 0
	lookup := func(string) (string, bool) { asked++; return value, true }
	for in, bad := range map[string]bool{
		"$(A)":                          false,
		"$(A)" + value[1:]:              false,
		"$(A)$(A)":                      true,
		value + value:                   true,
		strings.Repeat("$(A)", 300_000): true,
		strings.Repeat("$(", 600_000):   true,
		strings.Repeat("$(", 60_000):    false,
	} {
		asked = 0
		got, err := Expand(in, lookup)
		if (err != nil) != bad || asked > 2 || err == nil && len(got) >= stringMax {
			t.Errorf("%d bytes %.8q...: %d bytes, %d lookups, %v", len(in), in, len(got), asked, err)
		}
	}
	many := slices.Repeat([]string{"$(A)"}, 1_000_000)
	if allocated := testing.AllocsPerRun(1, func() { _, _ = ExpandAll(many, lookup) }); allocated > 1000 {
		t.Errorf("%v allocations for arguments of which there are too many", allocated)
	}
}

// plainExpand is the rule of Expand, implemented byte by byte.
func plainExpand(s string, lookup func(string) (string, bool)) string {
	var out []byte
	for i := 0; i < len(s); i++ {
		if s[i] != '$' || i+1 == len(s) {
			out = append(out, s[i])
			continue
		}
		i++
		switch s[i] {
		case '$':
			out = append(out, '$')
		case '(':
			closer := strings.Index(s[i:], ")")
			if closer < 0 {
				out = append(out, "$("...)
				continue
			}
			name := s[i+1 : i+closer]
			if v, ok := lookup(name); ok {
				out = append(out, v...)
			} else {
				out = append(out, "$("+name+")"...)
			}
			i += closer
		default:
			out = append(out, '$', s[i])
		}
	}
	return string(out)
}

func FuzzExpand(f *testing.F) {
	for _, s := range []string{"$(A)", "$$(A)", "$(", "$", "a$(B)$", "$($(A))", "$(\xff)"} {
		cost.Attack(f, s)
	}
	lookup := func(name string) (string, bool) {
		switch name {
		case "A":
			return "one", true
		case "B":
			return "$(A)", true
		}
		return "", false
	}
	f.Fuzz(func(t *testing.T, s string) {
		defer cost.Spend(t, len(s))()
		got, err := Expand(s, lookup)
		if err != nil {
			if len(plainExpand(s, lookup)) < stringMax && len(s) < stringMax {
				t.Errorf("%q: %v", s, err)
			}
			return
		}
		if want := plainExpand(s, lookup); got != want {
			t.Errorf("%q: %q, want %q", s, got, want)
		}
		if !strings.Contains(s, "$") && got != s {
			t.Errorf("%q without $ became %q", s, got)
		}
		if escaped, err := Expand(strings.ReplaceAll(s, "$", "$$"), lookup); escaped != s && err == nil {
			t.Errorf("%q escaped and expanded became %q", s, escaped)
		}
	})
}

func FuzzEnvFile(f *testing.F) {
	for _, s := range []string{"A='1'", "# c\nA='1\n2'", "A=", "='", "A='x"} {
		cost.Attack(f, s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		defer cost.Spend(t, len(text))()
		value, ok, err := lookupEnvFile(text, "A")
		if ok && (err != nil || value == "" || strings.Contains(value, "'")) {
			t.Errorf("%q: %q %v", text, value, err)
		}
	})
}
