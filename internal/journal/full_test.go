package journal

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

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

// later appends a record that the disk does not take, for a reason.
func later(t *testing.T, j *Journal, r Record, why error) {
	t.Helper()
	if _, err := j.Append(r); !errors.Is(err, ErrLater) || !errors.Is(err, why) {
		t.Errorf("%v: want %v, for %v", err, ErrLater, why)
	}
}

// written waits until nothing waits for the disk.
func written(t *testing.T, j *Journal) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); measured(t, j.Measurements("j"))["waiting"] != 0; {
		if time.Now().After(deadline) {
			t.Fatal("the disk has room, and records wait")
		}
	}
}

// The disk becomes full in the middle of a record, and the process continues: that record and those after it wait, and
// are answered. They are written in their order when there is room, though no other record comes.
func TestRecordsWaitForAFullDisk(t *testing.T) {
	dir := smallfs.Tmpfs(t, "size=1m")
	where := filepath.Join(dir, "journal")
	j := open(t, where, 0)
	if _, err := j.Append(record("before", 3000)); err != nil {
		t.Fatal(err)
	}
	full := smallfs.Fill(t, dir)
	for _, name := range []string{"a", "b", "c"} { // the first byte goes to the existing page; the rest has no space
		later(t, j, record(name, 6000), unix.ENOSPC)
	}
	later(t, j, record("small", 10), unix.ENOSPC) // what has room in the last page waits, too: the order stays
	const all = "before a b c small"
	if a := ask(t, j.Find, Query{}); strings.Join(names(a.Records), " ") != all || a.Waiting != 4 || a.Missing != 0 ||
		a.Damaged != 0 || a.First != 1 || a.Last != 5 {
		t.Errorf("on a full disk: %+v", a)
	}
	if got := measured(t, j.Measurements("j")); got["waiting"] != 4 || got["lost_total"] != 0 {
		t.Errorf("on a full disk: %v", got)
	}
	full.Free()
	written(t, j)
	a, err := Read(where, Query{})
	if err != nil || strings.Join(names(a.Records), " ") != all || a.Damaged != 0 || a.Missing != 0 || a.Waiting != 0 {
		t.Errorf("with room again, on the disk: %+v, %v", a, err)
	}
	if _, err := j.Append(record("after", 6000)); err != nil {
		t.Error(err)
	}
	if got := found(t, j); got != all+" after" {
		t.Errorf("found %q", got)
	}
	if err := j.Close(); err != nil {
		t.Error(err)
	}
}

// More waits for a full disk than may wait: the oldest are lost, and the answer counts them, also where nothing is on
// the disk. What still waits when the journal is closed is lost with an error.
func TestTooManyRecordsWait(t *testing.T) {
	dir := smallfs.Tmpfs(t, "size=8m")
	where := filepath.Join(dir, "journal")
	j := open(t, where, BytesMax)
	full := smallfs.Fill(t, dir)
	for i := range 30 {
		later(t, j, record(fmt.Sprint(i), 100_000), unix.ENOSPC)
	}
	a := ask(t, j.Find, Query{})
	kept := uint64(len(a.Records))
	if kept < 18 || kept > 20 || a.Missing != 30-kept || a.Waiting != kept || a.First != 1 || !a.Since.IsZero() ||
		a.Last != 30 || a.Records[kept-1].Pods[0].Name != "29" {
		t.Errorf("%d records from %d to %d since %v: %d missing, %d wait", kept, a.First, a.Last, a.Since, a.Missing,
			a.Waiting)
	}
	if lost := measured(t, j.Measurements("j"))["lost_total"]; lost != float64(30-kept) {
		t.Errorf("%v records count as lost, want %d", lost, 30-kept)
	}
	full.Free()
	written(t, j)
	full = smallfs.Fill(t, dir)
	later(t, j, record("late", 100_000), unix.ENOSPC)
	if err := j.Close(); !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "lost records: 1:") {
		t.Errorf("closed on a full disk: %v", err)
	}
	full.Free()
	a, err := Read(where, Query{})
	if err != nil || uint64(len(a.Records)) != kept || a.Last != 30 || a.Damaged != 0 {
		t.Errorf("on the disk afterwards: %d records until %d, %d damaged, %v", len(a.Records), a.Last, a.Damaged, err)
	}
}

// A Log whose disk is full keeps no more in memory than without a disk, but its records wait for the disk.
func TestLogWaitsForAFullDisk(t *testing.T) {
	dir := smallfs.Tmpfs(t, "size=2m")
	l := newLog(t, 1, filepath.Join(dir, "journal")) // a chunk of memory
	full := smallfs.Fill(t, dir)
	const decisions = 4 * chunkLength
	for i := range decisions {
		l.Note(placed(fmt.Sprint("p", i)))
		for deadline := time.Now().Add(time.Minute); i%chunkLength == chunkLength-1 &&
			measured(t, l.Measurements("l"))["waiting"] != float64(i+1); {
			if time.Now().After(deadline) {
				t.Fatalf("%v, want %d that wait", measured(t, l.Measurements("l")), i+1)
			}
		}
	}
	if a := ask(t, l.Find, Query{}); len(a.Records) != decisions || a.Waiting != decisions || a.Missing != 0 {
		t.Errorf("%d records, %d wait, %d missing", len(a.Records), a.Waiting, a.Missing)
	}
	full.Free()
	written(t, l.disk)
	a, err := Read(filepath.Join(dir, "journal"), Query{})
	if err != nil || len(a.Records) != decisions || a.Missing != 0 || a.Damaged != 0 {
		t.Errorf("with room again: %d records, %d missing, %d damaged, %v", len(a.Records), a.Missing, a.Damaged, err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
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
		later(t, j, record("waits", 10), unix.ENOSPC)
		full.Free()
		inodes.Free()
		if _, err := j.Append(record("kept", 10)); err != nil {
			t.Errorf("%s: with room again: %v", had, err)
		}
		if got := found(t, j); got != "waits kept" {
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
		later(t, j, record("waits", 100_000), unix.ENOSPC)
	}
	inodes.FreeOne()
	if _, err := j.Append(record("b", 10)); err != nil {
		t.Errorf("with an inode again: %v", err)
	}
	if got, want := found(t, j), strings.Repeat("a ", 10)+"waits waits b"; got != want {
		t.Errorf("found %q, want %q", got, want)
	}
	if err := j.Close(); err != nil {
		t.Error(err)
	}
}

// A process without free file descriptors writes its records when it has some again.
func TestNoFileDescriptors(t *testing.T) {
	where := t.TempDir()
	j := open(t, where, 0)
	for range 10 {
		if _, err := j.Append(record("a", 100_000)); err != nil {
			t.Fatal(err)
		}
	}
	restore := smallfs.NoDescriptors(t)
	_, first := j.Append(record("waits", 100_000))
	_, second := j.Append(record("waits", 100_000))
	restore()
	if !errors.Is(first, unix.EMFILE) || !errors.Is(second, unix.EMFILE) {
		t.Errorf("%v, %v: want EMFILE", first, second)
	}
	if _, err := j.Append(record("b", 10)); err != nil {
		t.Error(err)
	}
	if got, want := found(t, j), strings.Repeat("a ", 10)+"waits waits b"; got != want {
		t.Errorf("found %q, want %q", got, want)
	}
	if err := j.Close(); err != nil {
		t.Error(err)
	}
}
