package compat

import (
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/plimsoll-dev/plimsoll/internal/kube/kubeletconfig"
	"github.com/plimsoll-dev/plimsoll/internal/kube/podfields"
)

var update = flag.Bool("update", false, "write docs/compatibility.md")

const page = "../../../docs/compatibility.md"

// TestCompatibilityIsCurrent: the page in the repository is the one that the tables give.
func TestCompatibilityIsCurrent(t *testing.T) {
	if *update {
		if err := os.WriteFile(page, []byte(Markdown()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if string(have) != Markdown() {
		t.Error("docs/compatibility.md is not what the tables say: run make docs")
	}
}

// TestPageHasEverything: every row of both tables is on the page, each outcome has a word, and for held fields the
// reason is given.
func TestPageHasEverything(t *testing.T) {
	text := Markdown()
	for _, f := range kubeletconfig.Fields() {
		if !strings.Contains(text, "`"+f.Path+"`") {
			t.Errorf("%s is not on the page", f.Path)
		}
	}
	for _, a := range podfields.Areas() {
		for _, g := range a.Groups {
			if !strings.Contains(text, fieldsOf(g)) || outcomes[g.Outcome] == "" {
				t.Errorf("%s: %s is not on the page", a.Title, g.At)
			}
			if g.Outcome != podfields.CarriedOut && note(g) == "" {
				t.Errorf("%s: %s: there is no reason", g.At, g.Fields)
			}
		}
	}
}
