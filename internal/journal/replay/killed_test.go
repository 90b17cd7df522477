package replay

import (
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/trace"
	"github.com/plimsoll-dev/plimsoll/internal/journal"
)

// factsFile names the file into which a process of this test writes facts until it is killed.
const factsFile = "REPLAY_TEST_FACTS"

// TestFactsOfAKilledScheduler kills a process whose scheduler keeps facts, at random moments. Nothing in the file is
// damaged but its last line, nothing before that is missing, and all decisions in it have the same outcome again.
func TestFactsOfAKilledScheduler(t *testing.T) {
	if path := os.Getenv(factsFile); path != "" {
		keepFacts(t, path)
		return
	}
	rng := rand.New(rand.NewPCG(13, 14))
	decided := 0
	for range 8 {
		path := filepath.Join(t.TempDir(), "facts")
		killKeeper(t, path, time.Duration(rng.IntN(150))*time.Millisecond)
		a, err := journal.Read(path, journal.Query{})
		if err != nil || a.First != 1 || a.Missing > 0 || a.Damaged > 1 || a.Records[0].Kind != journal.Began {
			t.Fatalf("records %d to %d, %d missing, %d damaged, %v", a.First, a.Last, a.Missing, a.Damaged, err)
		}
		r := Records(a)
		if len(r.Differ) > 0 || len(r.Skipped) > 0 || r.Facts != int(a.Last)-1 {
			t.Errorf("%d facts of %d: %s", r.Facts, a.Last-1, r.Table())
		}
		decided += r.Same[journal.Placed] + r.Same[journal.Unschedulable]
	}
	if decided < 100 {
		t.Errorf("%d decisions were repeated: the processes wrote too little", decided)
	}
}

// killKeeper starts a process that keeps facts, and kills it some time after the first of them are on the disk.
func killKeeper(t *testing.T, path string, after time.Duration) {
	t.Helper()
	keeper := exec.Command(os.Args[0], "-test.run=^TestFactsOfAKilledScheduler$")
	keeper.Env = append(os.Environ(), factsFile+"="+path)
	if err := keeper.Start(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if info, err := os.Stat(path); err == nil && info.Size() > 0 {
			break
		}
		if time.Now().After(end) {
			_ = keeper.Process.Kill()
			t.Fatal("the process wrote nothing within a minute")
		}
	}
	time.Sleep(after) // the moment is what the test varies
	if err := keeper.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := keeper.Wait(); err == nil {
		t.Fatal("the process ended by itself")
	}
}

// keepFacts keeps the facts of a scheduler that decides without end. Sometimes it pauses, as a scheduler without work
// does, so that a kill meets a write of any length.
func keepFacts(t *testing.T, path string) {
	f, err := journal.NewFacts(path, journal.Beginning{Options: scheduler.Options{Seed: 7}, Version: "test"})
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(15, 16))
	placements(rng, func(of trace.Fact) {
		f.Note(journal.Told{Fact: of})
		if rng.IntN(50) == 0 {
			time.Sleep(time.Duration(rng.IntN(2000)) * time.Microsecond)
		}
	}, 1<<30)
}
