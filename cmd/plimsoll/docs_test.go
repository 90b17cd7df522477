package main

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/plimsoll-dev/plimsoll/test/flagdoc"
)

var update = flag.Bool("update", false, "write flags and outputs of the programs into the pages of docs/")

// TestFlagsAreDocumented: the page for users has the flags of every verb.
func TestFlagsAreDocumented(t *testing.T) {
	root := newRootCommand()
	for _, verb := range [][]string{{"fleet"}, {"fleet", "fault"}, {"fleet", "status"}} {
		c, _, err := root.Find(verb)
		if err != nil {
			t.Fatal(err)
		}
		c.Flags().Lookup("control").DefValue = "/run/plimsoll-fleet.sock" // the default for root; it differs for other users
	}
	flagdoc.Check(t, "../../docs/flags-and-files.md", root, *update)
}

// question is a command on the page about whatif, with the output that the page shows.
var question = regexp.MustCompile("(?s)plimsoll (whatif [^\n]*)\n```\n\n```text\n(.*?)```\n")

// TestAnswersAreDocumented: the page about whatif shows what its commands print for the files in examples/whatif.
func TestAnswersAreDocumented(t *testing.T) {
	page, err := filepath.Abs("../../docs/what-if.md")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir("../../examples/whatif")
	found := question.FindAllStringSubmatch(string(text), -1)
	if len(found) != 4 {
		t.Errorf("%d commands of whatif with their output, want one for each of the 4 questions", len(found))
	}
	now := string(text)
	for _, m := range found {
		block := m[0]
		command := m[1]
		have := m[2]
		want := answer(t, strings.Fields(command))
		if want != have && !*update {
			t.Errorf("plimsoll %s prints something else by now (make docs): the page has\n%s\nwant\n%s", command, have, want)
		}
		now = strings.Replace(now, block, strings.Replace(block, have, want, 1), 1)
	}
	if *update {
		if err := os.WriteFile(page, []byte(now), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// answer returns what a command prints on both outputs, without spaces at ends of lines.
func answer(t *testing.T, args []string) string {
	t.Helper()
	var out bytes.Buffer
	c := newRootCommand()
	c.SetArgs(args)
	c.SetOut(&out)
	c.SetErr(&out)
	if err := c.ExecuteContext(t.Context()); err != nil {
		t.Fatalf("plimsoll %s: %v", strings.Join(args, " "), err)
	}
	lines := strings.Split(out.String(), "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return strings.Join(lines, "\n")
}
