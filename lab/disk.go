package lab

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/lab/wire"
)

// blockSize is the block size of every file system we make; it is also the kernel's page size.
const blockSize = 4 * unit.KiB

// mke2fs returns the program's path: it may be installed outside of users' PATH.
func mke2fs() (string, error) {
	for _, name := range []string{"mke2fs", "/usr/sbin/mke2fs", "/sbin/mke2fs"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%w: no mke2fs: install e2fsprogs", ErrCannot)
}

// makeExt4 makes a file with an ext4 file system that contains the tree at from. It is mounted read-only, so it has no
// journal and no free space.
func makeExt4(ctx context.Context, path, from, label string) error {
	var size unit.Bytes
	inodes := int64(0)
	err := filepath.WalkDir(from, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		inodes++
		size += (unit.Bytes(info.Size()) + blockSize - 1) / blockSize * blockSize
		return nil
	})
	if err != nil {
		return err
	}
	program, err := mke2fs()
	if err != nil {
		return err
	}
	inodes += inodes/50 + 64 // for lost+found and reserved inodes
	// Inodes of 256 bytes, directories' blocks and bitmaps fit in a twentieth of the size.
	size += size/20 + unit.Bytes(inodes)*512 + 4*unit.MiB
	return runQuietly(exec.CommandContext(ctx, program, "-q", "-t", "ext4", "-O", "^has_journal,^resize_inode", "-m", "0",
		"-L", label, "-b", fmt.Sprint(int64(blockSize)),
		"-N", fmt.Sprint(inodes), "-E", "root_owner=0:0", "-d", from, path, fmt.Sprintf("%dk", int64(size/unit.KiB))))
}

// A disk is a drive of one guest. Its file has no name: it is removed when the last process closes it.
type disk struct {
	serial   string
	file     *os.File
	readOnly bool
}

// openDisk opens a disk that guests share.
func openDisk(serial, path string) (disk, error) {
	file, err := os.Open(path)
	return disk{serial, file, true}, err
}

// newDisk makes a sparse file in dir.
func newDisk(dir, serial string, size unit.Bytes) (disk, error) {
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return disk{}, fmt.Errorf("make disk %s in %s: %w", serial, dir, err)
	}
	file := os.NewFile(uintptr(fd), filepath.Join(dir, serial))
	if err := file.Truncate(int64(size)); err != nil {
		return disk{}, errors.Join(fmt.Errorf("make disk %s of %v: %w", serial, size, err), file.Close())
	}
	return disk{serial: serial, file: file}, nil
}

// format makes an ext4 file system of exactly that size and number of inodes on d. It has a journal, since guests
// crash.
func (d disk) format(ctx context.Context, want machine.Filesystem) error {
	program, err := mke2fs()
	if err != nil {
		return err
	}
	command := exec.CommandContext(ctx, program, "-q", "-t", "ext4", "-m", "0", "-b", fmt.Sprint(int64(blockSize)), "-N",
		fmt.Sprint(want.Inodes),
		"-E", "assume_storage_prezeroed=1,nodiscard", childFile(0))
	command.ExtraFiles = []*os.File{d.file}
	if err := runQuietly(command); err != nil {
		return err
	}
	var made [8]byte // the superblock's numbers of inodes and blocks (Documentation/filesystems/ext4/super.rst)
	if _, err := d.file.ReadAt(made[:], 1024); err != nil {
		return err
	}
	got := machine.Filesystem{Capacity: unit.Bytes(binary.LittleEndian.Uint32(made[4:])) * blockSize,
		Inodes: int64(binary.LittleEndian.Uint32(made[:]))}
	if got != want {
		return fmt.Errorf("make %s of %v with %d inodes: mke2fs makes %v with %d: describe that", d.serial, want.Capacity,
			want.Inodes, got.Capacity, got.Inodes)
	}
	return nil
}

// childFD returns the file descriptor, in a child, of its ExtraFiles[i] (os/exec numbers them from 3).
func childFD(i int) int { return 3 + i }

// childFile returns the path, in a child, of its ExtraFiles[i].
func childFile(i int) string { return fmt.Sprintf("/proc/self/fd/%d", childFD(i)) }

// newSwap makes a swap area of which the kernel uses exactly that size: the first page is the header (union
// swap_header, linux/swap.h).
func newSwap(dir string, size unit.Bytes) (disk, error) {
	d, err := newDisk(dir, wire.DiskSwap, size+blockSize)
	if err != nil {
		return d, err
	}
	header := make([]byte, blockSize)
	binary.LittleEndian.PutUint32(header[1024:], 1)                      // version
	binary.LittleEndian.PutUint32(header[1028:], uint32(size/blockSize)) // last page
	copy(header[blockSize-10:], "SWAPSPACE2")
	_, err = d.file.WriteAt(header, 0)
	return d, err
}

// memoryFile returns an unnamed file with content.
func memoryFile(name string, content []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make a file in memory: %w", err)
	}
	file := os.NewFile(uintptr(fd), name)
	if _, err := file.Write(content); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}
