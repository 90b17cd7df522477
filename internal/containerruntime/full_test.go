package containerruntime

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/plimsoll-dev/plimsoll/test/smallfs"
)

// On a disk without blocks or inodes the overlay probe returns no error, and leaves nothing.
func TestProbeOverlayOnAFullDisk(t *testing.T) {
	dir := smallfs.Tmpfs(t, "size=1m,nr_inodes=12")
	for leave := range uint64(8) {
		full := smallfs.FillInodes(t, dir, leave)
		if err := probeOverlay(dir); err != nil {
			t.Errorf("%d inodes left: %v", leave, err)
		}
		full.Free()
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Fatalf("%d inodes left: there are %v, %v", leave, left, err)
		}
	}
}

// Leases are removed, but not their directory, for which the next start may find no space.
func TestRemoveLeases(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "leases")
	if err := removeLeases(dir); err != nil {
		t.Errorf("none: %v", err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "network", "10.244.0.2"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := removeLeases(dir); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("there are %v, %v", left, err)
	}
}
