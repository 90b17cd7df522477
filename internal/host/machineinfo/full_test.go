package machineinfo

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/plimsoll-dev/plimsoll/test/smallfs"
)

// TestOwnIDOnAFullDisk: a machine without an ID gets one on a disk without blocks, without inodes, and on a read-only
// one, since the agent that may free the disk must start. The first ID that can be stored is kept.
func TestOwnIDOnAFullDisk(t *testing.T) {
	dir := smallfs.Tmpfs(t, "size=64k,nr_inodes=8")
	h := Host{StateDir: dir}
	own := func(when string) string {
		t.Helper()
		id, err := h.ownID()
		if err != nil || len(id) != 32 {
			t.Fatalf("%s: %q, %v", when, id, err)
		}
		return id
	}
	blocks := smallfs.Fill(t, dir)
	own("no blocks")
	blocks.Free()
	inodes := smallfs.FillInodes(t, dir, 0)
	own("no inodes")
	inodes.Free()
	smallfs.Remount(t, dir, unix.MS_RDONLY)
	own("read-only")
	smallfs.Remount(t, dir, 0)
	if kept, again := own("room"), own("room, again"); kept != again {
		t.Errorf("it was %s and is %s", kept, again)
	}
}
