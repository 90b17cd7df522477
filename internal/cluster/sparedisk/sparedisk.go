// Package sparedisk keeps a part of a disk aside for the day it is full: whoever is to free the disk needs some of it to
// come up.
//
//	recommend.Keep(dir)        // while there is room; repeatable
//	recommend.GiveIfShort(dir) // at the start, before anything is made
//
// A reserve is a directory with a file that takes blocks and empty files that take inodes. What is given back is
// anybody's: it is of use to who takes it at once.
package sparedisk

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

const (
	// blocks is how many bytes are kept. etcd's next log segment takes 64 MB of it: etcd removes that file when it ends
	// and asks for it again when it starts, and where there is less, ext4 gives it all that there is before it says
	// that this was not enough. The rest is for its database, sockets, directories and logs (chosen). More is wasted on
	// a disk with room, less does not bring etcd up.
	blocks = 64*1000*1000 + 16<<20
	// inodes is how many files are kept. Chosen: the run directory of an instance with its container runtime is about a
	// hundred files and directories; the first pods need some more.
	inodes = 256
	// room is how many times the reserve must be free for it to be taken, so that it is not the reserve that brings a
	// disk under pressure. Chosen; more leaves small disks without one.
	room = 4
)

// Keep makes the reserve in dir, which is its own, unless it is there. Where the disk has no room for one it does
// nothing.
func Keep(dir string) error {
	if whole(dir) {
		return nil
	}
	free, err := freeAt(filepath.Dir(dir))
	if err != nil || free.bytes < room*blocks || free.inodes < room*inodes {
		return err
	}
	if err := take(dir); err != nil {
		return errors.Join(fmt.Errorf("keep a reserve: %w", err), os.RemoveAll(dir))
	}
	return nil
}

// blocksFile is made last, so that a reserve that has it whole has all.
const blocksFile = "blocks"

func take(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for i := range inodes {
		if err := os.WriteFile(filepath.Join(dir, strconv.Itoa(i)), nil, 0o600); err != nil {
			return err
		}
	}
	path := filepath.Join(dir, blocksFile)
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	if err = unix.Fallocate(int(file.Fd()), 0, 0, blocks); err != nil {
		err = fmt.Errorf("allocate %d bytes for %s: %w", int64(blocks), path, err)
	}
	return errors.Join(err, file.Close())
}

func whole(dir string) bool {
	var s unix.Stat_t
	const unit = 512 // of st_blocks (stat(2))
	return unix.Stat(filepath.Join(dir, blocksFile), &s) == nil && s.Blocks*unit >= blocks
}

// GiveIfShort removes the reserve in dir if the disk has less free than it holds, of bytes or of inodes, and reports
// whether there was one.
func GiveIfShort(dir string) (given bool, err error) {
	if _, err := os.Stat(dir); err != nil {
		return false, nil // there is none
	}
	free, err := freeAt(dir)
	if err != nil || free.bytes >= blocks && free.inodes >= inodes {
		return false, err
	}
	if err := os.RemoveAll(dir); err != nil {
		return false, fmt.Errorf("give back the reserve: %w", err)
	}
	return true, nil
}

type free struct{ bytes, inodes int64 }

func freeAt(dir string) (free, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return free{}, fmt.Errorf("look at the disk of the reserve: statfs %s: %w", dir, err)
	}
	f := free{int64(fs.Bavail) * fs.Bsize, int64(fs.Ffree)}
	if fs.Files == 0 { // no fixed number, as on btrfs
		f.inodes = room * inodes
	}
	return f, nil
}
