package stats

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A volume that one reading is not enough for is counted by several, and meanwhile told as it was known; a small one beside it does
// not wait for it.
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
	for range 5 { // the last count stands until there is another
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
	for anew, want := range map[bool]uint64{false: inodes - 2 - files, true: inodes - 2*(2+files)} { // in any order: what was counted anew is known
		walked := 0
		if _, now, _ := w.size(t.Context(), large, at, &walked, anew); now != want && now != inodes-2*(2+files) {
			t.Errorf("counted anew (%v): %d inodes, want %d", anew, now, want)
		}
	}
	w.forget(at.Add(walkLife))
	if len(w.known) != 0 {
		t.Error("what nobody asks for is not forgotten")
	}
	walked := 0
	if _, _, ok := w.size(t.Context(), filepath.Join(small, "none"), at, &walked, false); ok || len(w.known) != 0 {
		t.Error("a directory that is not there has a size")
	}
}
