package store

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/localvolume"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// workDir is set in the process that TestKillAtAnyInstant kills: the directory that it works in.
const workDir = "PLIMSOLL_STORE_DIR"

// kills is how often the process is killed, and wordsMax after how many of its reports at most (chosen: the test takes
// some seconds).
const (
	kills    = 12
	wordsMax = 24
)

// tmpfs is where the volumes are. Flushes, whose effect a kill does not test, do not slow the process there.
const tmpfs = "/dev/shm"

// TestKillAtAnyInstant kills a process that makes, copies, grows and removes volumes, at random instants. Each time it
// checks what the next process finds: no incomplete volume, none lost, no file left over.
func TestKillAtAnyInstant(t *testing.T) {
	if dir := os.Getenv(workDir); dir != "" {
		work(t, dir)
		return
	}
	dir, err := os.MkdirTemp(tmpfs, "plimsoll-store")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 9))
	seen := 0
	for range kills {
		said := workUntilKilled(t, dir, r.IntN(wordsMax), time.Duration(r.IntN(5000))*time.Microsecond)
		s := open(t, dir)
		seen += len(s.Snapshots())
		checkWhole(t, s)
		checkSaid(t, s, said)
		if t.Failed() {
			return
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if seen < kills {
		t.Errorf("%d snapshots were found after %d kills: too few to say anything", seen, kills)
	}
}

func open(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := Open(Options{Dir: dir, Node: "here"})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// workUntilKilled starts a process, kills it a while after one of its reports, and returns all its reports.
func workUntilKilled(t *testing.T, dir string, word int, after time.Duration) []string {
	t.Helper()
	worker := exec.Command(os.Args[0], "-test.run=^TestKillAtAnyInstant$")
	worker.Env = append(os.Environ(), workDir+"="+dir)
	out, err := worker.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := worker.Start(); err != nil {
		t.Fatal(err)
	}
	var said []string
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if len(said) == word {
			time.AfterFunc(after, func() { _ = worker.Process.Kill() }) // it may have ended by an error, which is seen below
		}
		said = append(said, lines.Text())
	}
	if err := worker.Wait(); err == nil || worker.ProcessState.ExitCode() >= 0 {
		t.Fatalf("the process ended by itself: %v: %q", err, said)
	}
	return said
}

// work changes volumes until it is killed. It reports what it has done, and what it is about to remove.
func work(t *testing.T, dir string) {
	s := open(t, dir)
	r := rand.New(rand.NewPCG(uint64(os.Getpid()), 1))
	fmt.Println("begin")
	for i := 0; ; i++ {
		name := fmt.Sprintf("volume-%d-%d", os.Getpid(), i)
		v, err := s.Create(name, localvolume.Wish{Required: 2 * unit.MiB, Block: true}, "")
		if err != nil {
			t.Fatal(err)
		}
		if err := fill(s.Content(v), content(v)); err != nil {
			t.Fatal(err)
		}
		fmt.Println("made", v.ID)
		if _, err := s.TakeSnapshot(name, v.ID); err != nil {
			t.Fatal(err)
		}
		fmt.Println("made", s.SnapshotID(name))
		if _, err := s.Create(name+"-clone", localvolume.Wish{Required: 3 * unit.MiB, Block: true}, v.ID); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Expand(v.ID, 4*unit.MiB, 0); err != nil {
			t.Fatal(err)
		}
		fmt.Println("grown", v.ID)
		all := append(s.Volumes(), s.Snapshots()...)
		for _, e := range all {
			if len(all) < 12 || r.IntN(3) > 0 {
				continue
			}
			fmt.Println("removing", e.ID)
			if err := errors.Join(s.Delete(e.ID), s.DeleteSnapshot(e.ID)); err != nil {
				t.Fatal(err)
			}
			fmt.Println("removed", e.ID)
		}
	}
}

// content returns the full content of a volume: random bytes that depend on its ID, without holes.
func content(v Entry) []byte {
	r := rand.NewChaCha8(sha256.Sum256([]byte(v.ID)))
	text := make([]byte, v.Size)
	_, _ = r.Read(text) // it cannot fail
	return text
}

// checkWhole checks that every volume and snapshot is complete.
func checkWhole(t *testing.T, s *Store) {
	t.Helper()
	for _, sub := range []string{dirNew, dirOld} {
		if left, err := os.ReadDir(filepath.Join(s.dir, sub)); err != nil || len(left) > 0 {
			t.Errorf("left in %s: %v, %v", sub, left, err)
		}
	}
	for sub, loaded := range map[string]int{dirVolumes: len(s.Volumes()), dirSnapshots: len(s.Snapshots())} {
		if there, err := os.ReadDir(filepath.Join(s.dir, sub)); err != nil || len(there) != loaded {
			t.Errorf("%d are in %s, %d were loaded: %v", len(there), sub, loaded, err)
		}
	}
	for _, e := range append(s.Volumes(), s.Snapshots()...) {
		info, err := os.Stat(s.Content(e))
		if err != nil || unit.Bytes(info.Size()) < e.Size {
			t.Errorf("%s: %+v: %v", e.ID, e, err)
		}
	}
	for _, e := range s.Snapshots() {
		text, err := os.ReadFile(s.Content(e))
		of := Entry{ID: e.Source, Size: 2 * unit.MiB}
		if err != nil || !bytes.Equal(text, content(of)) {
			t.Errorf("snapshot %s is not what %s was: %d bytes, %v", e.ID, e.Source, len(text), err)
		}
	}
}

// fill writes the content of an image, as a device does: it does not truncate the file, which a kill could interrupt.
func fill(path string, text []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Close())
}

// checkSaid compares the reports of a killed process with the volumes of the next one.
func checkSaid(t *testing.T, s *Store, said []string) {
	t.Helper()
	has := map[string]Entry{}
	for _, e := range append(s.Volumes(), s.Snapshots()...) {
		has[e.ID] = e
	}
	removing := map[string]bool{}
	for _, line := range said {
		if id, ok := strings.CutPrefix(line, "removing "); ok {
			removing[id] = true
		}
	}
	for _, line := range said {
		what, id, _ := strings.Cut(line, " ")
		e, there := has[id]
		switch {
		case what == "made" && !there && !removing[id], what == "removed" && there:
			t.Errorf("the killed process said %q; there: %v", line, there)
		case what == "grown" && there && e.Size != 4*unit.MiB:
			t.Errorf("the killed process said %q; it has %v", line, e.Size)
		}
	}
}
