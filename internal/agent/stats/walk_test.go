package stats

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// A volume of few files, or a new one, is counted more often than once a minute; a large old one is not.
func TestHowLongACountIsUsed(t *testing.T) {
	began := time.Unix(1_700_000_000, 0)
	for _, c := range []struct {
		entries   int
		age, want time.Duration
	}{
		{0, 0, walkLifeMin},
		{3, time.Hour, walkLifeMin},
		{2000, time.Hour, 20 * time.Second},
		{1_000_000_000, time.Hour, walkLife},
		{1_000_000_000, 0, walkLifeMin},
		{1_000_000_000, 20 * time.Second, 20 * time.Second},
	} {
		k := &walk{first: began, at: began.Add(c.age), entries: c.entries}
		if got := k.life(); got != c.want {
			t.Errorf("%d entries, of a volume that is there for %s: used for %s, want %s", c.entries, c.age, got, c.want)
		}
	}
}

// A volume of almost 2,000 files, read every ten seconds, is walked three times in its first minute and then every
// twenty seconds.
func TestWalksOfAVolumeGetRarer(t *testing.T) {
	dir := t.TempDir()
	for f := range 1990 { // with the directory itself and what is read on the way: less than 2,000
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(f)), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	w := walks{most: walkEntriesMax, known: map[string]*walk{}}
	began := time.Unix(1_700_000_000, 0)
	var at []int
	for second := 0; second < 120; second += 10 {
		walked := 0
		w.size(t.Context(), dir, began.Add(time.Duration(second)*time.Second), &walked, false)
		if walked > 0 {
			at = append(at, second)
		}
	}
	if want := []int{0, 10, 20, 40, 60, 80, 100}; !slices.Equal(at, want) {
		t.Errorf("walked after %d seconds, want %d", at, want)
	}
}

// A volume that is too large for one reading is counted by several; meanwhile its last size is reported. A small volume
// does not wait for it.
func TestLargeVolumesAreCountedByParts(t *testing.T) {
	large, small := t.TempDir(), t.TempDir()
	const dirs, files = 12, 250
	for d := range dirs {
		dir := filepath.Join(large, fmt.Sprint("d", d), "deep")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for f := range files {
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(f)), []byte("x"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	w := walks{most: walkShareMin, known: map[string]*walk{}}
	at := time.Unix(1_700_000_000, 0)
	// read takes readings until both are known, and returns how many that took.
	read := func() (bytes, inodes uint64, readings int) {
		for known := false; !known && readings < 20; readings++ {
			walked := 0
			bytes, inodes, known = w.size(t.Context(), large, at, &walked, false)
			if walked > walkShareMin+files+1 {
				t.Errorf("%d entries in one reading", walked)
			}
			if _, _, ok := w.size(t.Context(), small, at, &walked, false); !ok {
				t.Error("the small one waits for the large one")
			}
			at = at.Add(time.Second)
		}
		return bytes, inodes, readings
	}
	bytes, inodes, readings := read()
	if want := uint64(1 + dirs*(2+files)); inodes != want || bytes < dirs*files*512 || readings < 3 {
		t.Errorf("%d bytes in %d inodes after %d readings, want %d inodes", bytes, inodes, readings, want)
	}
	if err := os.RemoveAll(filepath.Join(large, "d0")); err != nil {
		t.Fatal(err)
	}
	at = at.Add(walkLife)
	for range 5 { // the last count is reported until the next one is complete
		walked := 0
		_, now, ok := w.size(t.Context(), large, at, &walked, false)
		if !ok || now != inodes && now != inodes-2-files {
			t.Fatalf("%d inodes, %v", now, ok)
		}
		at = at.Add(time.Second)
	}
	if _, now, _ := read(); now != inodes-2-files {
		t.Errorf("%d inodes after one of %d directories is gone, were %d", now, dirs, inodes)
	}
	if err := os.RemoveAll(filepath.Join(large, "d1")); err != nil {
		t.Fatal(err)
	}
	// in any order: the repeated count is reported
	for anew, want := range map[bool]uint64{false: inodes - 2 - files, true: inodes - 2*(2+files)} {
		walked := 0
		if _, now, _ := w.size(t.Context(), large, at, &walked, anew); now != want && now != inodes-2*(2+files) {
			t.Errorf("counted anew (%v): %d inodes, want %d", anew, now, want)
		}
	}
	w.dropUnused(at.Add(walkLife))
	if len(w.known) != 0 {
		t.Error("what nobody asks for is not forgotten")
	}
	walked := 0
	if _, _, ok := w.size(t.Context(), filepath.Join(small, "none"), at, &walked, false); ok || len(w.known) != 0 {
		t.Error("a directory that is not there has a size")
	}
}
