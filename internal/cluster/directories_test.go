package cluster

import (
	"os"
	"strings"
	"testing"

	"github.com/plimsoll-dev/plimsoll/internal/cluster/progress"
	"github.com/plimsoll-dev/plimsoll/test/smallfs"
)

// notes records the events that were shown.
type notes []progress.Event

func (n *notes) Show(e progress.Event) { *n = append(*n, e) }
func (n *notes) Close()                {}

// A new instance is refused on a disk without space. An existing one is started, and the user is told that the disk is
// full and what will be done about it.
func TestSpaceOfNewAndOldInstances(t *testing.T) {
	for _, c := range []struct{ options, want string }{
		{"size=1m,nr_inodes=4000", "MiB free, a new instance needs 256 MiB"},
		{"size=300m,nr_inodes=100", "inodes free, a new instance needs 256"},
		{"size=1m,nr_inodes=100", "MiB free, a new instance needs 256 MiB; 9"},
	} {
		for _, agent := range []bool{true, false} {
			var shown notes
			l := layout{Options{StateDir: smallfs.Tmpfs(t, c.options), Agent: agent}}
			if err := l.checkSpace(); err == nil || !strings.Contains(err.Error(), c.want) ||
				!strings.Contains(err.Error(), "--state-dir") {
				t.Errorf("%s: a new instance: %v, want %q", c.options, err, c.want)
			}
			if err := os.WriteFile(l.options(), []byte("{}"), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := l.checkSpace(); err != nil {
				t.Errorf("%s: an instance that is there: %v", c.options, err)
			}
			(&cluster{layout: l, sink: &shown}).warnOfSpace()
			if len(shown) != 1 || shown[0].Phase != progress.Note || !strings.Contains(shown[0].Detail, c.want) ||
				strings.Contains(shown[0].Detail, "evict pods") != agent {
				t.Errorf("%s, agent %v: shown %+v", c.options, agent, shown)
			}
		}
	}
	var shown notes
	l := layout{Options{StateDir: smallfs.Tmpfs(t, "size=300m,nr_inodes=4000")}}
	(&cluster{layout: l, sink: &shown}).warnOfSpace()
	if err := l.checkSpace(); err != nil || len(shown) != 0 {
		t.Errorf("with room: %v, shown %v", err, shown)
	}
}
