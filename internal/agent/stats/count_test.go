package stats

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// comb makes a chain of directories, and several siblings in the last one. It returns how many there are.
func comb(t *testing.T, dir string, deep, wide int) uint64 {
	t.Helper()
	at, err := unix.Open(dir, unix.O_DIRECTORY, 0)
	for i := 0; i < deep && err == nil; i++ {
		if err = unix.Mkdirat(at, "d", 0o755); err == nil {
			above := at
			at, err = unix.Openat(above, "d", unix.O_DIRECTORY, 0)
			_ = unix.Close(above)
		}
	}
	for i := 0; i < wide && err == nil; i++ {
		err = unix.Mkdirat(at, fmt.Sprint(i), 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(at)
	return uint64(1 + deep + wide)
}

// Directories deeper than the longest path are counted, at a cost proportional to their number. Going down from the
// volume's root to each of them would take millions of steps here.
func TestDepthCostsNothing(t *testing.T) {
	dir := t.TempDir()
	want := comb(t, dir, 4000, 3000)
	w := walks{most: walkEntriesMax, known: map[string]*walk{}}
	walked := 0
	_, inodes, ok := w.size(t.Context(), dir, time.Unix(1, 0), &walked, false)
	if !ok || inodes != want || uint64(walked) > 3*want {
		t.Errorf("%d inodes, %v, in %d steps; want %d inodes, in three times as many steps at the most", inodes, ok, walked,
			want)
	}
}

// A count over many readings continues where it stopped, however deep that is.
func TestDepthInParts(t *testing.T) {
	dir := t.TempDir()
	want := comb(t, dir, 3000, 3000)
	w := walks{most: walkShareMin, known: map[string]*walk{}}
	for range 100 {
		walked := 0
		if _, inodes, ok := w.size(t.Context(), dir, time.Unix(1, 0), &walked, false); ok {
			if inodes != want {
				t.Errorf("%d inodes, want %d", inodes, want)
			}
			return
		}
	}
	t.Error("not counted in a hundred readings")
}

// A directory that is moved, replaced by a link or removed during the count never leads elsewhere, and the rest is
// counted.
func TestMovedWhileCounted(t *testing.T) {
	outside, dir := t.TempDir(), t.TempDir()
	comb(t, outside, 0, 500)
	for _, name := range []string{"a/x/y/z", "b/x/y/z", "c/x/y/z", "d/x/y/z"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	top, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer top.Close()
	c, err := newCount(top, nil)
	if err != nil {
		t.Fatal(err)
	}
	walked := 0
	w := walker{count: c, top: int(top.Fd()), walked: &walked, at: c.top, fd: -1}
	for i := 0; len(c.todo) > 0; i++ {
		next := c.todo[len(c.todo)-1]
		c.todo = c.todo[:len(c.todo)-1]
		if w.enter(next) == nil {
			w.read()
		}
		if i != 3 { // the volume, the last one, its x and its y were read: z is next
			continue
		}
		last := filepath.Join(dir, w.at.above.above.name)
		for _, err := range []error{
			// ".." of the open directory now leads outside
			os.Rename(filepath.Join(last, "x/y"), filepath.Join(outside, "y")),
			os.RemoveAll(last), os.Symlink(outside, last),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	w.leave()
	if want := uint64(1 + 4*4); c.inodes != want {
		t.Errorf("%d inodes, want %d, as many as were seen", c.inodes, want)
	}
	if walked > 100 {
		t.Errorf("%d entries were looked at: it went outside", walked)
	}
}
