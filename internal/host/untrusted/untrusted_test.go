package untrusted

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestNothingButRegularFilesIsOpened tries what containers may put in place of a file.
func TestNothingButRegularFilesIsOpened(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	must(t, os.WriteFile(at("file"), []byte("text"), 0o600))
	must(t, os.Symlink("file", at("link")))
	must(t, unix.Mkfifo(at("fifo"), 0o600))
	must(t, os.Mkdir(at("dir"), 0o700))
	if err := unix.Mknod(at("zero"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 5))); err != nil {
		t.Logf("no device made: %v", err)
	}
	d, err := OpenDir(dir, dir)
	must(t, err)
	defer d.Close()
	for _, name := range []string{"link", "fifo", "dir", "zero"} {
		if _, err := os.Lstat(at(name)); err != nil {
			continue
		}
		if _, err := Read(at(name), 10); !errors.Is(err, ErrNotRegular) {
			t.Errorf("read %s: %v", name, err)
		}
		if f, err := d.Open(name); !errors.Is(err, ErrNotRegular) {
			t.Errorf("open %s: %v, %v", name, f, err)
		}
		if HasContent(at(name), []byte("text")) {
			t.Errorf("%s holds what a file behind it has", name)
		}
	}
	if text, err := Read(at("file"), 4); err != nil || string(text) != "text" {
		t.Errorf("%q, %v", text, err)
	}
	if _, err := Read(at("file"), 3); !errors.Is(err, ErrTooLarge) {
		t.Errorf("a file of 4 bytes read where 3 are taken: %v", err)
	}
	if text, err := Head(at("file"), 3); err != nil || string(text) != "tex" {
		t.Errorf("%q, %v", text, err)
	}
	if _, err := Read(at("none"), 3); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
	if !HasContent(at("file"), []byte("text")) || HasContent(at("file"), []byte("tex")) ||
		HasContent(at("file"), []byte("texx")) {
		t.Error("Holds does not compare")
	}
}

// TestSparseFileIsNotRead: a container makes a file that is mounted into it 8 TiB long. None of it may be read.
func TestSparseFileIsNotRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "hosts")
	must(t, os.WriteFile(path, []byte("text"), 0o600))
	if err := os.Truncate(path, 8<<40); err != nil {
		t.Skipf("this file system has no files of 8 TiB: %v", err)
	}
	if HasContent(path, []byte("text")) {
		t.Error("8 TiB are taken for four bytes")
	}
	if _, err := Read(path, 1<<20); !errors.Is(err, ErrTooLarge) {
		t.Errorf("%v", err)
	}
}

// TestLeasedFileIsNotWaitedFor: a process that opens a file with a lease waits up to /proc/sys/fs/lease-break-time, 45
// s.
func TestLeasedFileIsNotWaitedFor(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(path, []byte("text"), 0o600))
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	must(t, err)
	defer f.Close()
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		t.Skipf("no leases here: %v", err)
	}
	if _, err := Read(path, 10); !errors.Is(err, unix.EWOULDBLOCK) {
		t.Errorf("read a leased file: %v, want %v", err, unix.EWOULDBLOCK)
	}
}

func TestDirectoryIsReachedWithoutLinks(t *testing.T) {
	base := t.TempDir()
	root, outside := filepath.Join(base, "root"), filepath.Join(base, "outside")
	must(t, os.MkdirAll(filepath.Join(root, "pod/c"), 0o700))
	must(t, os.MkdirAll(outside, 0o700))
	must(t, os.WriteFile(filepath.Join(outside, "secret"), []byte("s"), 0o600))
	must(t, os.Symlink(outside, filepath.Join(root, "away")))
	must(t, os.Symlink("pod", filepath.Join(root, "beside")))
	must(t, os.Symlink(root, filepath.Join(base, "trusted")))
	for _, bad := range []string{"away", "beside", "beside/c", "../outside", "pod/c/../../../outside"} {
		if d, err := OpenDir(root, root+"/"+bad); err == nil {
			t.Errorf("%s was opened as %s", bad, d.path)
		}
	}
	d, err := OpenDir(filepath.Join(base, "trusted"), filepath.Join(base, "trusted/pod/c"))
	must(t, err)
	defer d.Close()
	must(t, os.Symlink(filepath.Join(outside, "secret"), filepath.Join(root, "pod/c/new")))
	f, err := d.Create("new", 0o600) // a link with that name is replaced, not written through
	must(t, err)
	_, err = f.WriteString("x")
	must(t, err)
	must(t, f.Close())
	if text, err := os.ReadFile(filepath.Join(outside, "secret")); err != nil || string(text) != "s" {
		t.Errorf("what a link leads to was written: %q, %v", text, err)
	}
	must(t, d.Rename("new", "newer"))
	if st, err := d.Stat("newer"); err != nil || !IsRegular(st) || st.Size != 1 {
		t.Errorf("%+v, %v", st, err)
	}
	for _, bad := range []string{"", ".", "..", "../../away/secret", "a/b"} {
		if d.Remove(bad) == nil || d.Rename("newer", bad) == nil {
			t.Errorf("%q was taken for a name", bad)
		}
		if _, err := d.Open(bad); err == nil {
			t.Errorf("%q was opened", bad)
		}
		if _, err := d.Readlink(bad); err == nil || d.Symlink("to", bad) == nil {
			t.Errorf("%q was taken for a link's name", bad)
		}
	}
	must(t, d.Symlink("../nowhere", "link"))
	if to, err := d.Readlink("link"); err != nil || to != "../nowhere" {
		t.Errorf("%q, %v", to, err)
	}
	if err := d.Symlink("elsewhere", "link"); !errors.Is(err, os.ErrExist) {
		t.Errorf("a second link of the same name: %v", err)
	}
	must(t, d.Remove("link"))
	must(t, os.WriteFile(filepath.Join(root, "pod/c/b"), nil, 0o600))
	names, whole, err := d.Names(10)
	if err != nil || !whole || len(names) != 2 {
		t.Errorf("%v, %v, %v", names, whole, err)
	}
	if names, whole, err := d.Names(1); err != nil || whole || len(names) != 1 {
		t.Errorf("%s, %v, %v", strings.Join(names, " "), whole, err)
	}
}
