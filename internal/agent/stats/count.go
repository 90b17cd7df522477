package stats

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// count is a walk of a volume that may be interrupted between two directories. A container owns the volume: it may
// move, remove and exchange directories during the walk, and nest them so deep that no path can name them.
//
// # Invariants
//
//   - The walk goes from one directory to the next by descriptor, one step down or up at a time. Each directory costs
//     the steps from the one before, not its depth, whatever the tree. Steps are counted like entries.
//   - A directory is read only if its inode is the one that was seen: no symbolic link is followed, and a step up that
//     leads elsewhere is undone.
//   - It stores the names of directories that are still to be read, and of those above them, never their paths.
type count struct {
	top           *place
	todo          []*place        // directories to read, the next one last
	linked        map[uint64]bool // inodes with several names, counted once
	device        uint64          // of the volume; file systems mounted below are not counted
	bytes, inodes uint64
	entries       int      // read so far
	anew          bool     // started by a reading that counts everything again
	without       []string // names in the volume's root that are counted elsewhere
}

// place is a directory of the volume.
type place struct {
	above *place // nil: the volume itself
	name  string
	inode uint64
}

// newCount starts to count an open directory.
func newCount(top *os.File, without []string) (*count, error) {
	var s unix.Stat_t
	if err := unix.Fstat(int(top.Fd()), &s); err != nil {
		return nil, &os.PathError{Op: "stat", Path: top.Name(), Err: err}
	}
	c := &count{top: &place{inode: s.Ino}, linked: map[uint64]bool{}, device: uint64(s.Dev), without: without}
	c.todo = []*place{c.top}
	c.add(&s)
	return c, nil
}

// resume reads directories until walked reaches until, and returns whether none are left. If the way down to the first
// directory already reaches until, at least walkShareMin entries are read nevertheless.
func (c *count) resume(ctx context.Context, top int, walked *int, until int) (done bool) {
	w := walker{count: c, top: top, walked: walked, at: c.top, fd: -1}
	defer w.leave()
	for first := true; len(c.todo) > 0 && (first || *walked < until) && ctx.Err() == nil; first = false {
		next := c.todo[len(c.todo)-1]
		c.todo = c.todo[:len(c.todo)-1]
		err := w.enter(next)
		if first {
			until = max(until, *walked+walkShareMin)
		}
		if err != nil {
			continue // it was removed, and has no content
		}
		w.read()
	}
	return len(c.todo) == 0
}

// add counts a file or directory, and returns whether it belongs to the volume.
func (c *count) add(s *unix.Stat_t) bool {
	switch {
	case uint64(s.Dev) != c.device:
		return false
	case s.Nlink > 1 && s.Mode&unix.S_IFMT != unix.S_IFDIR:
		if c.linked[s.Ino] {
			return false
		}
		c.linked[s.Ino] = true
	}
	c.bytes += uint64(s.Blocks) * 512 // stat(2): always in units of 512 bytes
	c.inodes++
	return true
}

// walker is the position of a count during one reading.
type walker struct {
	*count
	top    int // the volume's descriptor; the caller closes it
	walked *int
	at     *place
	fd     int // of at; -1: at is the volume's root, open as top
}

// errMoved means that a directory is not where it was seen.
var errMoved = errors.New("the directory was moved")

// here returns the descriptor of at.
func (w *walker) here() int {
	if w.fd < 0 {
		return w.top
	}
	return w.fd
}

// leave goes back to the volume's root.
func (w *walker) leave() {
	if w.fd >= 0 {
		_ = unix.Close(w.fd) // opened for reading only
	}
	w.at, w.fd = w.count.top, -1
}

// step opens a neighbour of at by name, and goes there if it is the expected place.
func (w *walker) step(name string, to *place) error {
	*w.walked++
	fd, err := unix.Openat(w.here(), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC,
		0)
	if err != nil {
		return err
	}
	var s unix.Stat_t
	if err := unix.Fstat(fd, &s); err != nil || s.Ino != to.inode || uint64(s.Dev) != w.device {
		return errors.Join(errMoved, err, unix.Close(fd))
	}
	if w.fd >= 0 {
		_ = unix.Close(w.fd) // opened for reading only
	}
	w.at, w.fd = to, fd
	return nil
}

// enter goes to a directory: first up to its parent, then down. The parent is at or an ancestor of at, since the
// directory that was seen last is read first. If a container has moved a directory in between, enter goes down from the
// volume's root again.
func (w *walker) enter(to *place) error {
	if to.above == nil {
		w.leave()
		return nil
	}
	for w.at != to.above {
		if w.at.above == nil || w.step("..", w.at.above) != nil {
			if err := w.descend(to.above); err != nil {
				return err
			}
		}
	}
	return w.step(to.name, to)
}

// descend goes down from the volume's root to a place.
func (w *walker) descend(to *place) error {
	var way []*place
	for p := to; p.above != nil; p = p.above {
		way = append(way, p)
	}
	w.leave()
	for _, p := range slices.Backward(way) {
		if err := w.step(p.name, p); err != nil {
			return err
		}
	}
	return nil
}

// walkChunk is how many entries of a directory are listed at a time, so that a huge directory needs little memory.
const walkChunk = 1024

// read adds up the directory at, however large it is.
func (w *walker) read() {
	fd, err := unix.Openat(w.here(), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	f := os.NewFile(uintptr(fd), w.at.name)
	defer f.Close()
	for {
		names, err := f.Readdirnames(walkChunk)
		for _, name := range names {
			*w.walked++
			if w.at.above == nil && slices.Contains(w.without, name) {
				continue
			}
			var s unix.Stat_t
			if unix.Fstatat(fd, name, &s, unix.AT_SYMLINK_NOFOLLOW) != nil {
				continue // removed meanwhile
			}
			if w.add(&s) && s.Mode&unix.S_IFMT == unix.S_IFDIR {
				w.todo = append(w.todo, &place{above: w.at, name: name, inode: s.Ino})
			}
		}
		if err != nil {
			if err != io.EOF {
				slog.Debug("directory of volume not read to its end", "name", w.at.name, "err", err)
			}
			return
		}
	}
}
