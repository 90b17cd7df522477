package configfile

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/plimsoll-dev/plimsoll/test/cost"
)

type Recipe struct {
	Name  string         `json:"name,omitempty"`
	Grams int            `json:"grams,omitempty"`
	Parts map[string]int `json:"parts,omitempty"`
}

const head = "apiVersion: kitchen/v1\nkind: Recipe\n"

func decode(text string) (*Recipe, map[string]bool, string) {
	var p Problems
	out, has := Decode[Recipe]([]byte(text), "kitchen/v1", "Recipe", &p)
	if err := p.Err(); err != nil {
		return out, has, err.Error()
	}
	return out, has, ""
}

func TestDecode(t *testing.T) {
	for text, want := range map[string]string{
		"":                       "",
		head + "name: soup":      "",
		head + "name: {}":        `name: "{}": cannot unmarshal object into field `,
		head + "parts: {a: b}":   `parts: "{\"a\":\"b\"}": cannot unmarshal`,
		head + "spoons: 2":       `unknown field "spoons"`,
		"name: soup":             "2 problems:\n  - apiVersion: \"\": want kitchen/v1\n  - kind: \"\": want Recipe",
		"- a":                    "want a mapping of fields",
		head + "grams: 1\ngrams": "yaml: ",
		head + "grams: a lot\nname: [1]\nspoons: 1": "3 problems:",
	} {
		if _, _, err := decode(text); !strings.Contains(err, want) || (err == "") != (want == "") {
			t.Errorf("%q: %s, want %q", text, err, want)
		}
	}
	out, has, _ := decode(head + "grams: 7\nname: 1\nparts: {}")
	if out.Grams != 7 || out.Name != "" || !has["parts"] || has["kind"] {
		t.Errorf("beside a bad field: %+v, %v", out, has)
	}
	if out, _, _ := decode("[1]"); out != nil {
		t.Errorf("no document at all: %+v", out)
	}
}

func TestReadIsBounded(t *testing.T) {
	large := filepath.Join(t.TempDir(), "large")
	if err := os.WriteFile(large, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(large, sizeMax+1); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{large: "want a regular file of at most 1048576 bytes",
		t.TempDir(): "want a regular file", "/no/such/file": "no such file"} {
		if _, err := Read(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
}

// Every input gives either a Recipe without problems, or problems.
func FuzzDecode(f *testing.F) {
	for _, text := range []string{head + "grams: 7", head + "parts: {a: 1}\nname: b", "- a", "\x00",
		head + "grams: 1\ngrams: 2"} {
		cost.Attack(f, text)
	}
	f.Add(cost.Aliases(head))
	f.Fuzz(func(t *testing.T, text string) {
		defer cost.Spend(t, len(text))()
		if out, _, err := decode(text); out == nil && err == "" {
			t.Error("refused, and nothing is wrong")
		}
	})
}
