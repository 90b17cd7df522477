package main

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/plimsoll-dev/plimsoll/internal/version"
)

var (
	manDir  = flag.String("man", "", "write the manual pages into this directory (make release)")
	manDate = flag.Int64("man-date", 0, "date in the manual pages, in seconds since 1970")
)

// TestManualPages: each verb has a manual page with its flags. They are written by a test, so that the program needs no
// code for them.
func TestManualPages(t *testing.T) {
	dir := *manDir
	if dir == "" {
		dir = t.TempDir()
	}
	date := time.Unix(*manDate, 0).UTC()
	root := newRootCommand()
	root.DisableAutoGenTag = true
	for _, verb := range [][]string{{"fleet"}, {"fleet", "fault"}, {"fleet", "status"}} {
		c, _, err := root.Find(verb)
		if err != nil {
			t.Fatal(err)
		}
		c.Flags().Lookup("control").DefValue = "/run/plimsoll-fleet.sock" // the default for root
	}
	options := doc.GenManTreeOptions{
		Path: dir,
		Header: &doc.GenManHeader{
			Section: "1",
			Date:    &date,
			Source:  "Plimsoll " + version.Plimsoll(),
			Manual:  "Plimsoll",
		},
		CommandSeparator: "-",
	}
	if err := doc.GenManTreeFromOpts(root, options); err != nil {
		t.Fatal(err)
	}
	pages := 0
	eachCommand(root, func(c *cobra.Command) {
		name := strings.ReplaceAll(c.CommandPath(), " ", "-") + ".1"
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Error(err)
			return
		}
		pages++
		plain := strings.ReplaceAll(string(text), `\`, "")
		for _, want := range []string{".SH NAME", c.Short, date.Format("Jan 2006")} {
			if !strings.Contains(plain, want) {
				t.Errorf("%s lacks %q", name, want)
			}
		}
		if home, err := os.UserHomeDir(); err == nil && home != "/" && strings.Contains(plain, home) {
			t.Errorf("%s names a directory of the user who makes it", name)
		}
	})
	if pages < 25 {
		t.Errorf("only %d pages", pages)
	}
}

// eachCommand visits the commands that users see.
func eachCommand(c *cobra.Command, visit func(*cobra.Command)) {
	visit(c)
	for _, below := range c.Commands() {
		if below.IsAvailableCommand() {
			eachCommand(below, visit)
		}
	}
}
