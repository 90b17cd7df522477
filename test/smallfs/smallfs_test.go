package smallfs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// A full file system has no space for a byte of data or for a file, and has it again after it was freed.
func TestFull(t *testing.T) {
	for name, dir := range map[string]string{
		"tmpfs": Tmpfs(t, "size=1m,nr_inodes=40"),
		"ext4":  ForTest(t, "", 64*unit.MiB, "-N", "1000").Dir,
	} {
		write := func(content string) error {
			path := filepath.Join(dir, "file")
			return errors.Join(os.WriteFile(path, []byte(content), 0o600), os.Remove(path))
		}
		full := Fill(t, dir)
		if err := write("one byte and more"); !errors.Is(err, unix.ENOSPC) {
			t.Errorf("%s without blocks: %v: want ENOSPC", name, err)
		}
		full.Free()
		inodes := FillInodes(t, dir, 0)
		if err := write(""); !errors.Is(err, unix.ENOSPC) {
			t.Errorf("%s without inodes: %v: want ENOSPC", name, err)
		}
		inodes.FreeOne()
		if err := write("x"); err != nil {
			t.Errorf("%s with an inode: %v", name, err)
		}
		inodes.Free()
	}
}

func TestNoDescriptors(t *testing.T) {
	restore := NoDescriptorsOf(t, os.Getpid())
	var have []*os.File
	var err error
	for range 10 { // ReadDir had one open
		f, failed := os.Open("/dev/null")
		if err = failed; err != nil {
			break
		}
		have = append(have, f)
	}
	restore()
	if !errors.Is(err, unix.EMFILE) {
		t.Errorf("%v after %d files: want EMFILE", err, len(have))
	}
	for _, f := range have {
		f.Close()
	}
	f, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
}

// The guard of a disk does not look like the remains of an instance on it.
func TestGuardIsNoTrace(t *testing.T) {
	d := ForTest(t, "", 16*unit.MiB)
	for _, file := range []string{"cmdline", "environ"} {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", d.guard.Process.Pid, file))
		if err != nil || strings.Contains(string(text), d.Dir) {
			t.Errorf("%s of the guard: %q, %v", file, text, err)
		}
	}
}
