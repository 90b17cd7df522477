package durable

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// On a disk without bytes, inodes or the right to write, and without file descriptors, a file keeps its old content, the error says
// which file and why, nothing is left beside it, and the next try with room makes it new.
func TestShortOfSomething(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: mounts a small file system")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k,nr_inodes=8"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	path := filepath.Join(dir, "file")
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	remount := func(flags uintptr) {
		t.Helper()
		if err := unix.Mount("", dir, "", unix.MS_REMOUNT|flags, ""); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		what       error
		take, give func()
	}{
		{unix.ENOSPC, func() { // half of the content has room
			if err := os.WriteFile(filepath.Join(dir, "filler"), make([]byte, 40<<10), 0o600); err != nil {
				t.Fatal(err)
			}
		}, func() { os.Remove(filepath.Join(dir, "filler")) }},
		{unix.ENOSPC, func() {
			for i := 0; os.WriteFile(filepath.Join(dir, fmt.Sprint("inode", i)), nil, 0o600) == nil; i++ {
			}
		}, func() {
			for i := 0; os.Remove(filepath.Join(dir, fmt.Sprint("inode", i))) == nil; i++ {
			}
		}},
		{unix.EROFS, func() { remount(unix.MS_RDONLY) }, func() { remount(0) }},
		{unix.EMFILE, func() {
			if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: limit.Max}); err != nil {
				t.Fatal(err)
			}
		}, func() {
			if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		old, fresh := []byte("old"), bytes.Repeat([]byte("n"), 32<<10)
		if err := Write(path, old); err != nil {
			t.Fatal(err)
		}
		c.take()
		err := Write(path, fresh)
		_, leftover := os.Lstat(filepath.Join(dir, ".file.new"))
		c.give()
		var where *os.PathError
		if !errors.Is(err, c.what) || !errors.As(err, &where) {
			t.Errorf("%v: want %v and the file", err, c.what)
		}
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, old) {
			t.Errorf("%v: the file holds %d bytes, %v", c.what, len(got), err)
		}
		if !errors.Is(leftover, os.ErrNotExist) {
			t.Errorf("%v: half a file is left: %v", c.what, leftover)
		}
		if err := Write(path, fresh); err != nil {
			t.Errorf("%v: with room again: %v", c.what, err)
		}
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, fresh) {
			t.Errorf("%v: the file holds %d bytes, %v", c.what, len(got), err)
		}
	}
}
