package main

import (
	"flag"
	"testing"

	"github.com/plimsoll-dev/plimsoll/test/flagdoc"
)

var update = flag.Bool("update", false, "write the flags into docs/flags-and-files.md")

// TestFlagsAreDocumented: the page for users has the flags of every verb.
func TestFlagsAreDocumented(t *testing.T) {
	var began bool
	flagdoc.Check(t, "../../docs/flags-and-files.md", newRootCommand(&began), *update)
}
