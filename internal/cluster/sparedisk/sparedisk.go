// Package sparedisk reserves a part of a disk for a start while the disk is full: the components that can free the disk
// need some space to start.
//
//	sparedisk.Keep(dir)        // while there is space; repeatable
//	sparedisk.GiveIfShort(dir) // at the start, before anything is written
//
// A reserve is a directory with one file that uses blocks and empty files that use inodes. Space that was given back is
// available to every process, so it helps only a process that uses it at once.
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
	// blocks is how many bytes are reserved. etcd's next log segment needs 64 MB: etcd removes that file when it ends and
	// allocates it again when it starts. If less is free, ext4 allocates all of it before it reports that it was not
	// enough. The rest is for its database, sockets, directories and logs (chosen). A larger reserve wastes a disk that is
	// not full; with a smaller one etcd does not start.
	blocks = 64*1000*1000 + 16<<20
	// inodes is how many files are reserved. Chosen: the run directory of an instance with its container runtime is
	// about a hundred files and directories; the first pods need some more.
	inodes = 256
	// room says how much must be free before the reserve is made, as a multiple of the reserve, so that the reserve itself
	// does not cause disk pressure. Chosen; with a greater value small disks have no reserve.
	room = 4
)

// Keep makes the reserve in dir, a directory for it alone, unless it exists. If the disk does not have enough space,
// Keep does nothing.
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

// blocksFile is created last, so that a reserve with a complete blocksFile is complete.
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
	const unit = 512 // the unit of st_blocks, in bytes (stat(2))
	return unix.Stat(filepath.Join(dir, blocksFile), &s) == nil && s.Blocks*unit >= blocks
}

// GiveIfShort removes the reserve in dir if fewer bytes or inodes are free than the reserve has. It reports whether it
// removed one.
func GiveIfShort(dir string) (given bool, err error) {
	if _, err := os.Stat(dir); err != nil {
		return false, nil // there is no reserve
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
		return free{}, fmt.Errorf("read free space for the reserve: statfs %s: %w", dir, err)
	}
	f := free{int64(fs.Bavail) * fs.Bsize, int64(fs.Ffree)}
	if fs.Files == 0 { // the file system has no fixed number, as btrfs
		f.inodes = room * inodes
	}
	return f, nil
}
