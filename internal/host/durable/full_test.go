package durable

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/plimsoll-dev/plimsoll/test/smallfs"
)

// On a disk without free blocks, inodes or write permission, and without file descriptors, a file keeps its old
// content, the error names the file and the reason, no other file is left, and the next attempt with enough space
// succeeds.
func TestShortOfSomething(t *testing.T) {
	dir := smallfs.Tmpfs(t, "size=64k,nr_inodes=8")
	path := filepath.Join(dir, "file")
	for _, c := range []struct {
		what error
		take func() (give func())
	}{
		{unix.ENOSPC, func() func() { // half of the content fits
			full := smallfs.Fill(t, dir)
			full.Shrink(16 << 10)
			return full.Free
		}},
		{unix.ENOSPC, func() func() { return smallfs.FillInodes(t, dir, 0).Free }},
		{unix.EROFS, func() func() {
			smallfs.Remount(t, dir, unix.MS_RDONLY)
			return func() { smallfs.Remount(t, dir, 0) }
		}},
		{unix.EMFILE, func() func() { return smallfs.NoDescriptors(t) }},
	} {
		old, fresh := []byte("old"), bytes.Repeat([]byte("n"), 32<<10)
		if err := Write(path, old); err != nil {
			t.Fatal(err)
		}
		give := c.take()
		err := Write(path, fresh)
		_, leftover := os.Lstat(filepath.Join(dir, ".file.new"))
		give()
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
