package journal

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/plimsoll-dev/plimsoll/test/smallfs"
)

func found(t *testing.T, j *Journal) string {
	t.Helper()
	all, err := j.Find(Query{})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(names(all.Records), " ")
}

// The disk becomes full in the middle of a record, and the process continues: that record is lost with an error; those
// before and after it are not.
func TestFullDiskSpoilsNoOtherRecord(t *testing.T) {
	dir := smallfs.Tmpfs(t, "size=1m")
	j := open(t, filepath.Join(dir, "journal"), 0)
	if _, err := j.Append(record("before", 3000)); err != nil {
		t.Fatal(err)
	}
	full := smallfs.Fill(t, dir)
	for range 3 { // its first byte goes to the existing page; the rest has no space
		if _, err := j.Append(record("lost", 6000)); !errors.Is(err, unix.ENOSPC) {
			t.Errorf("%v: want ENOSPC", err)
		}
	}
	if _, err := j.Append(record("small", 10)); err != nil {
		t.Errorf("what has room in the last page: %v", err)
	}
	if lost := measured(t, j.Measurements("j"))["lost_total"]; lost != 3 {
		t.Errorf("%v records count as lost, want 3", lost)
	}
	full.Free()
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

// A machine loses power in the middle of a record and starts with a full disk: the journal opens, and continues when
// there is space.
func TestOpensOnAFullDisk(t *testing.T) {
	for _, had := range []string{"a torn line of one page", "nothing"} {
		dir := smallfs.Tmpfs(t, "size=1m,nr_inodes=8")
		where := filepath.Join(dir, "journal")
		if had != "nothing" {
			if err := os.Mkdir(where, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(where, newer), []byte(strings.Repeat("x", 4096)), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		full := smallfs.Fill(t, dir)
		inodes := smallfs.FillInodes(t, dir, 0)
		j, err := Open(where, 0)
		if err != nil {
			t.Fatalf("%s: the agent would not come up, and nobody would free the disk: %v", had, err)
		}
		if _, err := j.Append(record("lost", 10)); !errors.Is(err, unix.ENOSPC) {
			t.Errorf("%s: %v: want ENOSPC", had, err)
		}
		full.Free()
		inodes.Free()
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

// The newer file has replaced the older one, and there is no inode for another file. The journal recovers with the
// first record after an inode is free.
func TestFullDiskBetweenRenameAndOpen(t *testing.T) {
	dir := smallfs.Tmpfs(t, "size=8m,nr_inodes=5")
	where := filepath.Join(dir, "journal")
	j := open(t, where, 0)
	for range 10 { // a mebibyte is the half
		if _, err := j.Append(record("a", 100_000)); err != nil {
			t.Fatal(err)
		}
	}
	inodes := smallfs.FillInodes(t, dir, 0)
	for range 2 {
		if _, err := j.Append(record("lost", 100_000)); !errors.Is(err, unix.ENOSPC) {
			t.Errorf("%v: want ENOSPC", err)
		}
	}
	inodes.FreeOne()
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

// A process without free file descriptors loses records, with an error, and the journal has no other damage.
func TestNoFileDescriptors(t *testing.T) {
	where := t.TempDir()
	j := open(t, where, 0)
	for range 10 {
		if _, err := j.Append(record("a", 100_000)); err != nil {
			t.Fatal(err)
		}
	}
	restore := smallfs.NoDescriptors(t)
	_, lost := j.Append(record("lost", 100_000))
	_, again := j.Append(record("lost", 100_000))
	restore()
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
