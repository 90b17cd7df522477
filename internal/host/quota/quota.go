// Package quota counts what a directory holds by project quota: the kernel keeps the sum for a project id, and every file made
// below a directory with one inherits it. Asking costs microseconds however many files there are, and files that were deleted
// and are still open are counted, which no walk can see.
//
// # Model
//
// A *project* is a 32-bit number on one file system; here each counted directory has its own, derived from its inode number,
// which nobody else on that file system has at the same time. So nothing needs to be remembered, and a directory tells itself
// whether it is counted. Ids begin at 1<<30, above what people write into /etc/projects. When an inode number is used again, what
// its former directory still holds open counts for the new one: it is on the disk all the same.
//
// # What it needs
//
// A file system with project quota accounting: ext4 with the features project and quota (mkfs.ext4 -O project,quota -E
// quotatype=prjquota), mounted with prjquota; Linux 5.14 for quotactl_fd(2). Elsewhere Begin and Usage return ErrNone, and the
// caller counts files. It sets no limits: a program that meets one gets ENOSPC instead of being evicted.
package quota

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// ErrNone says that a directory is not counted by the kernel.
var ErrNone = errors.New("no project quota")

const (
	idBase = 1 << 30 // the least of our project ids
	idSpan = 1 << 30 // how many inode numbers can be one

	// From linux/quota.h and linux/fs.h; x/sys/unix has no names for them.
	getQuota      = 0x800007<<8 | 2 // QCMD(Q_GETQUOTA, PRJQUOTA)
	getAttributes = 0x801c581f      // FS_IOC_FSGETXATTR
	setAttributes = 0x401c5820      // FS_IOC_FSSETXATTR
	flagInherit   = 0x200           // FS_XFLAG_PROJINHERIT
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

// Begin has the kernel count what will be made below dir, which must be an empty directory. ErrNone: it cannot here.
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
	// A project that the kernel cannot tell the sum of is not worth having.
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

// Usage is what a directory holds.
type Usage struct {
	Bytes  unit.Bytes
	Inodes int64
}

// Of returns what dir, and all that was made below it, holds. ErrNone: Begin was not called for it, or cannot be.
func Of(dir string) (Usage, error) {
	f, err := open(dir)
	if err != nil {
		return Usage{}, err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return Usage{}, fmt.Errorf("read quota of %s: %w", dir, err)
	}
	var a attributes
	if err := control(f, getAttributes, unsafe.Pointer(&a)); err != nil {
		return Usage{}, noneOr(fmt.Errorf("read quota of %s: read attributes: %w", dir, err))
	}
	if a.project < idBase || uint64(a.project-idBase) != st.Ino {
		return Usage{}, ErrNone
	}
	return read(f, a.project)
}

func open(dir string) (*os.File, error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	return os.NewFile(uintptr(fd), dir), nil
}

// read asks for the sum of a project. A project that nothing belongs to has none, which is zero.
func read(f *os.File, project uint32) (Usage, error) {
	var b block
	_, _, errno := unix.Syscall6(unix.SYS_QUOTACTL_FD, f.Fd(), getQuota, uintptr(project), uintptr(unsafe.Pointer(&b)), 0, 0)
	switch {
	case errno == unix.ENOENT:
		return Usage{}, nil
	case errno != 0:
		return Usage{}, noneOr(fmt.Errorf("read quota of %s: project %d: %w", f.Name(), project, errno))
	}
	return Usage{unit.Bytes(b.space), int64(b.inodes)}, nil
}

func control(f *os.File, request uintptr, argument unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), request, uintptr(argument)); errno != 0 {
		return errno
	}
	return nil
}

// noneOr turns what a kernel or file system without project quota answers into ErrNone. ESRCH: accounting is off.
func noneOr(err error) error {
	for _, none := range []error{unix.ENOTTY, unix.ENOSYS, unix.EOPNOTSUPP, unix.ESRCH, unix.EINVAL, unix.ENOTBLK, unix.ENODEV} {
		if errors.Is(err, none) {
			return ErrNone
		}
	}
	return err
}
