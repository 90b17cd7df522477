// Package scenario runs scenario texts that consist of one kind of block. Each block is independent: its input is
// between the block's command and ----, and its output is below. Outputs are rewritten with -rewrite. Texts whose
// blocks depend on each other use datadriven directly.
package scenario

import (
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
)

// Play runs every block of every file below dir. Each must begin with command.
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

// Duration reads a duration in a scenario.
func Duration(t *testing.T, d *datadriven.TestData, text string) time.Duration {
	t.Helper()
	v, err := time.ParseDuration(text)
	if err != nil {
		d.Fatalf(t, "%v", err)
	}
	return v
}
