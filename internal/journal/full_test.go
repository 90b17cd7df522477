package journal

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// smallDisk is a file system of its own.
func smallDisk(t *testing.T, options string) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: mounts a small file system")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// fill leaves no page of the disk free, and returns what gives the pages back.
func fill(t *testing.T, dir string) (free func()) {
	t.Helper()
	name := filepath.Join(dir, "filler")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	return func() {
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
}

func found(t *testing.T, j *Journal) string {
	t.Helper()
	all, err := j.Find("", "")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(names(all), " ")
}

// The disk is full in the middle of a record, of a process that lives on: that record is lost with an error, those before and
// after it are not.
func TestFullDiskSpoilsNoOtherRecord(t *testing.T) {
	dir := smallDisk(t, "size=1m")
	j := open(t, filepath.Join(dir, "journal"), 0)
	if _, err := j.Append(record("before", 3000)); err != nil {
		t.Fatal(err)
	}
	free := fill(t, dir)
	for range 3 { // the first byte of it goes to the page that is there, the rest has no room
		if _, err := j.Append(record("lost", 6000)); !errors.Is(err, unix.ENOSPC) {
			t.Errorf("%v: want ENOSPC", err)
		}
	}
	if _, err := j.Append(record("small", 10)); err != nil {
		t.Errorf("what has room in the last page: %v", err)
	}
	free()
	if _, err := j.Append(record("after", 6000)); err != nil {
		t.Error(err)
	}
	if got := found(t, j); got != "before small after" {
		t.Errorf("found %q", got)
	}
	if err := j.Close(); err != nil {
		t.Error(err)
	}
	if damaged, err := open(t, filepath.Join(dir, "journal"), 0).each(func(Record) {}); err != nil || damaged != 0 {
		t.Errorf("%d damaged lines, %v", damaged, err)
	}
}

// A machine lost its power in the middle of a record and comes up with a full disk: the journal opens, and goes on when there is room.
func TestOpensOnAFullDisk(t *testing.T) {
	for _, had := range []string{"a torn line of one page", "nothing"} {
		dir := smallDisk(t, "size=1m,nr_inodes=8")
		where := filepath.Join(dir, "journal")
		if had != "nothing" {
			if err := os.Mkdir(where, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(where, newer), []byte(strings.Repeat("x", 4096)), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		free := fill(t, dir)
		var taken []string
		for {
			name := filepath.Join(dir, fmt.Sprint("inode", len(taken)))
			if err := os.WriteFile(name, nil, 0o600); err != nil {
				break
			}
			taken = append(taken, name)
		}
		j, err := Open(where, 0)
		if err != nil {
			t.Fatalf("%s: the agent would not come up, and nobody would free the disk: %v", had, err)
		}
		if _, err := j.Append(record("lost", 10)); !errors.Is(err, unix.ENOSPC) {
			t.Errorf("%s: %v: want ENOSPC", had, err)
		}
		free()
		for _, name := range taken {
			if err := os.Remove(name); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := j.Append(record("kept", 10)); err != nil {
			t.Errorf("%s: with room again: %v", had, err)
		}
		if got := found(t, j); got != "kept" {
			t.Errorf("%s: found %q", had, got)
		}
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	}
}

// The newer file takes the place of the older just when there is no inode for another: the journal heals with the first record that
// has one.
func TestFullDiskBetweenRenameAndOpen(t *testing.T) {
	dir := smallDisk(t, "size=8m,nr_inodes=5")
	where := filepath.Join(dir, "journal")
	j := open(t, where, 0)
	for range 10 { // a mebibyte is the half
		if _, err := j.Append(record("a", 100_000)); err != nil {
			t.Fatal(err)
		}
	}
	var taken []string
	for {
		name := filepath.Join(dir, fmt.Sprint("inode", len(taken)))
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			break
		}
		taken = append(taken, name)
	}
	for range 2 {
		if _, err := j.Append(record("lost", 100_000)); !errors.Is(err, unix.ENOSPC) {
			t.Errorf("%v: want ENOSPC", err)
		}
	}
	if err := os.Remove(taken[0]); err != nil {
		t.Fatal(err)
	}
	if _, err := j.Append(record("b", 10)); err != nil {
		t.Errorf("with an inode again: %v", err)
	}
	if got, want := found(t, j), strings.Repeat("a ", 10)+"b"; got != want {
		t.Errorf("found %q, want %q", got, want)
	}
	if err := j.Close(); err != nil {
		t.Error(err)
	}
}

// A process with no file descriptor left loses records with an error, and nothing else.
func TestNoFileDescriptors(t *testing.T) {
	where := t.TempDir()
	j := open(t, where, 0)
	for range 10 {
		if _, err := j.Append(record("a", 100_000)); err != nil {
			t.Fatal(err)
		}
	}
	var had unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &had); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: had.Max}); err != nil {
		t.Fatal(err)
	}
	_, lost := j.Append(record("lost", 100_000))
	_, again := j.Append(record("lost", 100_000))
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &had); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(lost, unix.EMFILE) || !errors.Is(again, unix.EMFILE) {
		t.Errorf("%v, %v: want EMFILE", lost, again)
	}
	if _, err := j.Append(record("b", 10)); err != nil {
		t.Error(err)
	}
	if got, want := found(t, j), strings.Repeat("a ", 10)+"b"; got != want {
		t.Errorf("found %q, want %q", got, want)
	}
	if err := j.Close(); err != nil {
		t.Error(err)
	}
}
