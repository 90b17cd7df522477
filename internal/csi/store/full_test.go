package store

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/plimsoll-dev/plimsoll/test/smallfs"
)

// TestFormatFull: the error of mkfs, which another program's file deprives of its blocks, is that of a full disk.
func TestFormatFull(t *testing.T) {
	dir := smallfs.Ext4(t, "loop")
	image := filepath.Join(dir, "image")
	if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, 8<<20)); err != nil {
		t.Fatal(err)
	}
	full := smallfs.Fill(t, dir)
	if err := format(image, "ext4"); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("%v, want ENOSPC", err)
	}
	full.Free()
	if err := format(image, "ext4"); err != nil {
		t.Error(err)
	}
}
