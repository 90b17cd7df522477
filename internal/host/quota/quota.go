// Package quota measures directories by project quota. The kernel keeps the sum of the sizes of all files with a
// project ID. A file that is created below a directory with such an ID inherits it. Reading the sum takes microseconds,
// however many files there are. It includes files that were deleted and are still open, which no walk can see.
//
// # Model
//
// A project is a 32-bit number on one file system. Here each measured directory has a project of its own. Its number is
// derived from the directory's inode number, which no other directory on that file system has at the same time. So
// nothing needs to be stored, and a directory itself shows whether it is measured. IDs begin at 1<<30, above what
// administrators write into /etc/projects. When an inode number is reused, files of the former directory that are still
// open count for the new directory; they do occupy the disk.
//
// # Requirements
//
// A file system with project quota accounting: ext4 with the features project and quota (mkfs.ext4 -O project,quota -E
// quotatype=prjquota), mounted with prjquota; Linux 5.14 for quotactl_fd(2). Elsewhere Begin and Of return ErrNone, and
// the caller counts files.
//
// Limit is for volumes with a size of their own. Directories because of which the agent evicts pods have no limit: a
// program at the limit would get ENOSPC and its pod would not be evicted. Root with CAP_SYS_RESOURCE is not limited;
// containers lack that capability unless they request it.
package quota

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// ErrNone means that the kernel does not measure a directory.
var ErrNone = errors.New("no project quota")

const (
	idBase = 1 << 30 // the smallest project ID of the agent
	idSpan = 1 << 30 // how many project IDs the agent has; inode numbers beyond are not measured

	// From linux/quota.h and linux/fs.h; x/sys/unix has no names for them.
	getQuota      = 0x800007<<8 | 2 // QCMD(Q_GETQUOTA, PRJQUOTA)
	getAttributes = 0x801c581f      // FS_IOC_FSGETXATTR
	setQuota      = 0x800008<<8 | 2 // QCMD(Q_SETQUOTA, PRJQUOTA)
	getState      = 0x5805<<8 | 2   // QCMD(Q_XGETQSTAT, PRJQUOTA)
	setAttributes = 0x401c5820      // FS_IOC_FSSETXATTR
	flagInherit   = 0x200           // FS_XFLAG_PROJINHERIT
	validLimits   = 1               // QIF_BLIMITS: a block's limits of space are to be set
	limitUnit     = unit.KiB        // QIF_DQBLKSIZE: the unit of the limits of space
	stateEnforced = 1 << 5          // FS_QUOTA_PDQ_ENFD
)

// attributes is struct fsxattr.
type attributes struct {
	flags, extentSize, extents, project, copyOnWrite uint32
	_                                                [8]byte
}

// block is struct if_dqblk; space is in bytes.
type block struct {
	spaceHard, spaceSoft, space    uint64
	inodesHard, inodesSoft, inodes uint64
	spaceTime, inodesTime          uint64
	valid                          uint32
	_                              uint32
}

// state is struct fs_quota_stat as far as it is read.
type state struct {
	version int8
	flags   uint16
	_       [92]byte
}

// Enforced reports whether the kernel enforces the limits of projects on the file system of dir.
func Enforced(dir string) (bool, error) {
	f, err := open(dir)
	if err != nil {
		return false, err
	}
	defer f.Close()
	var s state
	err = noneOr(command(f, getState, 0, unsafe.Pointer(&s)))
	if errors.Is(err, ErrNone) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read quota of %s: %w", dir, err)
	}
	return s.flags&stateEnforced != 0, nil
}

// Limit bounds the space of dir, for which Begin was called, and of everything below it. The limit is rounded up to a
// KiB; 0 ends it.
func Limit(dir string, limit unit.Bytes) error {
	f, err := open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	project, err := projectOf(f)
	if err != nil {
		return err
	}
	blocks := uint64((limit + limitUnit - 1) / limitUnit)
	b := block{
		spaceHard: blocks,
		spaceSoft: blocks,
		valid:     validLimits,
	}
	if err := command(f, setQuota, project, unsafe.Pointer(&b)); err != nil {
		return noneOr(fmt.Errorf("limit %s by quota: project %d to %v: %w", dir, project, limit, err))
	}
	return nil
}

// Begin makes the kernel measure what will be created below dir, which must be an empty directory. ErrNone means that
// the kernel cannot.
func Begin(dir string) error {
	f, err := open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return fmt.Errorf("count %s by quota: %w", dir, err)
	}
	if st.Ino >= idSpan {
		return ErrNone
	}
	id := uint32(idBase + st.Ino)
	// Without accounting, the kernel cannot report the sum of a project.
	if _, err := read(f, id); err != nil {
		return err
	}
	var a attributes
	if err := control(f, getAttributes, unsafe.Pointer(&a)); err != nil {
		return noneOr(fmt.Errorf("count %s by quota: read attributes: %w", dir, err))
	}
	a.project, a.flags = id, a.flags|flagInherit
	if err := control(f, setAttributes, unsafe.Pointer(&a)); err != nil {
		return noneOr(fmt.Errorf("count %s by quota: set project %d: %w", dir, id, err))
	}
	return nil
}

// Usage is the size of a directory.
type Usage struct {
	Bytes  unit.Bytes
	Inodes int64
}

// Of returns the size of dir and everything below it. ErrNone means that Begin was not called for it, or failed.
func Of(dir string) (Usage, error) {
	f, err := open(dir)
	if err != nil {
		return Usage{}, err
	}
	defer f.Close()
	project, err := projectOf(f)
	if err != nil {
		return Usage{}, err
	}
	return read(f, project)
}

// projectOf returns the project that Begin gave to a directory.
func projectOf(f *os.File) (uint32, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return 0, fmt.Errorf("read quota of %s: %w", f.Name(), err)
	}
	var a attributes
	if err := control(f, getAttributes, unsafe.Pointer(&a)); err != nil {
		return 0, noneOr(fmt.Errorf("read quota of %s: read attributes: %w", f.Name(), err))
	}
	if a.project < idBase || uint64(a.project-idBase) != st.Ino {
		return 0, ErrNone
	}
	return a.project, nil
}

func open(dir string) (*os.File, error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	return os.NewFile(uintptr(fd), dir), nil
}

// read reads the sum of a project. A project without files has none, which is zero.
func read(f *os.File, project uint32) (Usage, error) {
	var b block
	err := command(f, getQuota, project, unsafe.Pointer(&b))
	switch {
	case errors.Is(err, unix.ENOENT):
		return Usage{}, nil
	case err != nil:
		return Usage{}, noneOr(fmt.Errorf("read quota of %s: project %d: %w", f.Name(), project, err))
	}
	return Usage{unit.Bytes(b.space), int64(b.inodes)}, nil
}

func command(f *os.File, request uintptr, project uint32, argument unsafe.Pointer) error {
	_, _, errno := unix.Syscall6(unix.SYS_QUOTACTL_FD, f.Fd(), request, uintptr(project), uintptr(argument), 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

func control(f *os.File, request uintptr, argument unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), request, uintptr(argument)); errno != 0 {
		return errno
	}
	return nil
}

// noneOr turns the errors of a kernel or file system without project quota into ErrNone. ESRCH: accounting is off.
func noneOr(err error) error {
	for _, none := range []error{unix.ENOTTY, unix.ENOSYS, unix.EOPNOTSUPP, unix.ESRCH, unix.EINVAL, unix.ENOTBLK,
		unix.ENODEV} {
		if errors.Is(err, none) {
			return ErrNone
		}
	}
	return err
}
