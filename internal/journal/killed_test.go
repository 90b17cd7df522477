package journal

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/plimsoll-dev/plimsoll/test/smallfs"
)

// writerDir names the directory in which a process of this test writes until it is killed.
const writerDir = "JOURNAL_TEST_WRITER"

// TestKilled kills a process that writes a Journal and a Log, at random moments. Whatever Append had returned for is in
// the Journal, and nothing in either is damaged but the last line of a process: a write may be cut where a page ends.
// The next process continues with higher numbers. On a busy machine one may be killed before its Log has written.
func TestKilled(t *testing.T) {
	if dir := os.Getenv(writerDir); dir != "" {
		writeUntilKilled(t, dir)
		return
	}
	dir := t.TempDir()
	rng := rand.New(rand.NewPCG(5, 6))
	appended, before := 0, uint64(0)
	const kills = 12
	for range kills {
		last := killWriter(t, dir, time.Duration(1+rng.IntN(60))*time.Millisecond)
		if last <= appended {
			t.Fatalf("the process appended nothing after %d", appended)
		}
		appended = last
		a, err := Read(dir, Query{Name: "appended"})
		if err != nil || a.Damaged > kills || a.Missing > 0 || len(a.Records) == 0 {
			t.Fatalf("%d records, %d damaged, %d missing, %v", len(a.Records), a.Damaged, a.Missing, err)
		}
		if newest := a.Records[len(a.Records)-1].Number; newest < uint64(appended) {
			t.Errorf("record %d was appended: the newest is %d", appended, newest)
		}
		noted, err := Read(filepath.Join(dir, "log"), Query{Name: "noted"})
		if err != nil || noted.Last < before || noted.Damaged > kills {
			t.Errorf("the log ends at %d, and ended at %d before; %d damaged lines, %v", noted.Last, before, noted.Damaged, err)
		}
		before = noted.Last
	}
	if before == 0 {
		t.Error("nothing of the log is on the disk")
	}
}

// killWriter starts a process that writes, kills it after a while, and returns the last number that it had printed.
func killWriter(t *testing.T, dir string, after time.Duration) (last int) {
	t.Helper()
	writer := exec.Command(os.Args[0], "-test.run=^TestKilled$", "-test.v")
	writer.Env = append(os.Environ(), writerDir+"="+dir)
	out, err := writer.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := writer.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		number, isOne := strings.CutPrefix(lines.Text(), "appended ")
		if !isOne {
			continue
		}
		if last == 0 {
			time.AfterFunc(after, func() { _ = writer.Process.Kill() })
		}
		if last, err = strconv.Atoi(number); err != nil {
			t.Fatal(err)
		}
	}
	if err := writer.Wait(); err == nil {
		t.Fatal("the process ended by itself")
	}
	return last
}

func writeUntilKilled(t *testing.T, dir string) {
	j := open(t, dir, BytesMax)
	l, err := NewLog("", 1<<20, filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	for {
		for range 5 {
			l.Note(placed("noted"))
		}
		number, err := j.Append(record("appended", 200))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Printf("appended %d\n", number)
	}
}

// TestLogOnAFullDisk: while the disk is full, a Log goes on in memory, waits for nothing, and afterwards has all of it
// on the disk.
func TestLogOnAFullDisk(t *testing.T) {
	dir := smallfs.Tmpfs(t, "size=8m")
	where := filepath.Join(dir, "journal")
	l := newLog(t, BytesMax, where)
	onDisk := func(name string) bool {
		a, err := Read(where, Query{Name: name})
		return err == nil && len(a.Records) > 0
	}
	until := func(name string) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); !onDisk(name); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s is not on the disk", name)
			}
		}
	}
	l.Note(placed("before"))
	until("before")
	full := smallfs.Fill(t, dir)
	for i := range 2000 {
		l.Note(placed(fmt.Sprint("waits", i)))
	}
	if a := ask(t, l.Find, Query{Name: "waits1999"}); len(a.Records) != 1 || a.Last != 2001 {
		t.Errorf("not in memory: %+v", a)
	}
	for tried := uint64(0); tried < 2001; time.Sleep(time.Millisecond) { // the test's own time limit bounds this
		l.disk.mu.Lock()
		tried = l.disk.number
		l.disk.mu.Unlock()
	}
	var none unix.Statfs_t
	if err := unix.Statfs(dir, &none); err != nil || none.Bavail > 0 {
		t.Errorf("the disk is not full: %d blocks, %v", none.Bavail, err)
	}
	full.Free()
	l.Note(placed("after"))
	until("after")
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	a, err := Read(where, Query{})
	if err != nil || a.Damaged > 0 || a.Last != 2002 || len(a.Records) != 2002 || a.Missing != 0 {
		t.Errorf("%d records until %d, %d damaged, %d missing, %v", len(a.Records), a.Last, a.Damaged, a.Missing, err)
	}
}
