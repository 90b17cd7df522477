// Package disk asks the kernel how large and how full a file system is (statfs(2)).
//
// A Usage is a snapshot. Two paths on one file system give the same Device. The package walks no directories:
// internal/agent/stats measures what a pod has written.
package disk

import (
	"errors"
	"fmt"
	"math"
	"os"

	"golang.org/x/sys/unix"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Usage is a snapshot of a file system.
type Usage struct {
	Capacity  unit.Bytes // all blocks, including those reserved for root, as the kubelet counts
	Available unit.Bytes // to ordinary users
	Used      unit.Bytes

	Inodes     int64 // 0: the file system has no fixed number
	InodesFree int64

	Device uint64 // the same for two paths on one file system
}

// Of returns the usage of the file system that path is on.
func Of(path string) (Usage, error) {
	var fs unix.Statfs_t
	for {
		err := unix.Statfs(path, &fs)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EINTR) {
			return Usage{}, &os.PathError{Op: "read file system of", Path: path, Err: err}
		}
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return Usage{}, &os.PathError{Op: "read file system of", Path: path, Err: err}
	}
	block := fs.Frsize
	if block <= 0 {
		block = fs.Bsize
	}
	if block <= 0 || fs.Blocks > math.MaxInt64/uint64(block) {
		return Usage{}, fmt.Errorf("read file system of %s: %d blocks of %d bytes cannot be", path, fs.Blocks, block)
	}
	bytes := func(blocks uint64) unit.Bytes { return unit.Bytes(blocks * uint64(block)) }
	return Usage{
		Capacity: bytes(fs.Blocks), Available: bytes(fs.Bavail), Used: bytes(fs.Blocks - min(fs.Bfree, fs.Blocks)),
		Inodes: int64(fs.Files), InodesFree: int64(fs.Ffree), Device: st.Dev,
	}, nil
}
