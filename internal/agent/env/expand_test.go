package env

import (
	"strings"
	"testing"
)

func TestExpand(t *testing.T) {
	vars := map[string]string{"A": "1", "B": "$(A)", "": "empty", "a b": "space"}
	lookup := func(name string) (string, bool) { v, ok := vars[name]; return v, ok }
	for in, want := range map[string]string{
		"": "", "x": "x", "$": "$", "$$": "$", "$$$": "$$", "$(A)": "1", "$(B)": "$(A)", "$(C)": "$(C)", "$$(A)": "$(A)",
		"$$$(A)": "$1", "$(A": "$(A", "$(A$$": "$(A$", "$A": "$A", "$(a b)": "space", "$()": "empty", "$($(A))": "$($(A))",
		"x$(A)y$(A)z": "x1y1z", "$)": "$)", "\xff$(A)\xff": "\xff1\xff", "$é": "$é",
	} {
		if got := Expand(in, lookup); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

func TestExpandPath(t *testing.T) {
	vars := map[string]string{"A": "1", "E": ""}
	lookup := func(name string) (string, bool) { v, ok := vars[name]; return v, ok }
	path, missing := ExpandPath("$(A)/$(E)/$(Z)/$(E)", lookup)
	if path != "1///" || strings.Join(missing, ",") != "E,Z" {
		t.Errorf("%q %v", path, missing)
	}
}

// plainExpand is the same rule as Expand, told one byte at a time.
func plainExpand(s string, lookup func(string) (string, bool)) string {
	out := ""
	for i := 0; i < len(s); i++ {
		if s[i] != '$' || i+1 == len(s) {
			out += s[i : i+1]
			continue
		}
		i++
		switch s[i] {
		case '$':
			out += "$"
		case '(':
			closer := strings.Index(s[i:], ")")
			if closer < 0 {
				out += "$("
				continue
			}
			name := s[i+1 : i+closer]
			if v, ok := lookup(name); ok {
				out += v
			} else {
				out += "$(" + name + ")"
			}
			i += closer
		default:
			out += "$" + s[i:i+1]
		}
	}
	return out
}

func FuzzExpand(f *testing.F) {
	for _, s := range []string{"$(A)", "$$(A)", "$(", "$", "a$(B)$", "$($(A))", "$(\xff)"} {
		f.Add(s)
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
		got := Expand(s, lookup)
		if want := plainExpand(s, lookup); got != want {
			t.Errorf("%q: %q, want %q", s, got, want)
		}
		if !strings.Contains(s, "$") && got != s {
			t.Errorf("%q without $ became %q", s, got)
		}
		if escaped := Expand(strings.ReplaceAll(s, "$", "$$"), lookup); escaped != s {
			t.Errorf("%q escaped and expanded became %q", s, escaped)
		}
	})
}

func FuzzEnvFile(f *testing.F) {
	for _, s := range []string{"A='1'", "# c\nA='1\n2'", "A=", "='", "A='x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		value, ok, err := lookupEnvFile(text, "A")
		if ok && (err != nil || value == "" || strings.Contains(value, "'")) {
			t.Errorf("%q: %q %v", text, value, err)
		}
	})
}
