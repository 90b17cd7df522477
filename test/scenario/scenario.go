// Package scenario plays scenario texts that are made of one kind of block, each of which is a story of its own: what is between
// the block's command and ---- happens, and what comes of it stands below. Outcomes are rewritten with -rewrite. Texts whose
// blocks go on from each other use datadriven itself.
package scenario

import (
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
)

// Play plays every block of every file below dir. Each must begin with command.
func Play(t *testing.T, dir, command string, play func(t *testing.T, d *datadriven.TestData) string) {
	t.Helper()
	datadriven.Walk(t, dir, func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd != command {
				d.Fatalf(t, "unknown command %q: want %s", d.Cmd, command)
			}
			return play(t, d)
		})
	})
}

// Duration reads a time in a scenario.
func Duration(t *testing.T, d *datadriven.TestData, text string) time.Duration {
	t.Helper()
	v, err := time.ParseDuration(text)
	if err != nil {
		d.Fatalf(t, "%v", err)
	}
	return v
}
