package idmap

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestCheck: tmpfs and the file system of temporary files can be mounted with id mappings; proc and a directory that
// does not exist cannot. (Linux 6.18; kernels before 6.3 cannot do that with tmpfs.)
func TestCheck(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: mounts")
	}
	memory := t.TempDir()
	if err := unix.Mount("tmpfs", memory, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(memory, 0); err != nil {
			t.Error(err)
		}
	})
	if err := Check(t.TempDir(), memory); err != nil {
		t.Error(err)
	}
	if err := Check("/proc"); !errors.Is(err, unix.EINVAL) {
		t.Errorf("proc: %v", err)
	}
	if err := Check(memory, filepath.Join(memory, "none")); !errors.Is(err, unix.ENOENT) {
		t.Errorf("nothing: %v", err)
	}
}
