// Package untrusted opens files that a container may have written, replaced or extended.
//
// # Model
//
// A container with a bind mount of a file may make it terabytes long without a block on the disk (truncate(2)). A
// container with a directory may replace a file by anything: a link to a file of the host, a FIFO whose opening waits
// forever, a device whose opening has an effect, a file with a lease (fcntl(2), F_SETLEASE), for which an opening
// process waits for 45 s. So a path is first opened without any effect (O_PATH, open(2)), without following a link in
// its last element. Then its type is checked. Only a regular file is opened for reading, through /proc/self/fd, so that
// it cannot be replaced in between.
//
// # Invariants
//
//   - No call waits for another process. A file that is refused is not affected.
//   - No call reads more than its caller allows, whatever the size of the file.
//   - Open and Read trust only the directories on the path. Dir trusts only its root, nothing below it.
//
// The package writes nothing except new files (Dir.Create) and links (Dir.Symlink), and does not know which files
// belong to whom.
package untrusted

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// ErrNotRegular means that a name is not a regular file: a link, a FIFO, a device, a directory.
var ErrNotRegular = errors.New("not a regular file")

// ErrTooLarge means that a file is larger than the caller allows.
var ErrTooLarge = errors.New("larger than what is read of it")

// Open opens a regular file for reading. A link in the last element of path is not followed.
func Open(path string) (*os.File, error) { return openAt(unix.AT_FDCWD, path, path) }

// Read returns the content of a regular file. If the file has more than most bytes, the error is ErrTooLarge.
func Read(path string, most int64) ([]byte, error) {
	text, err := Head(path, most+1)
	if err == nil && int64(len(text)) > most {
		return nil, &os.PathError{Op: "read", Path: path, Err: fmt.Errorf("%w: more than %d bytes", ErrTooLarge, most)}
	}
	return text, err
}

// Head returns the first bytes of a regular file, at most most.
func Head(path string, most int64) ([]byte, error) {
	file, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return io.ReadAll(io.LimitReader(file, most))
}

// HasContent reports whether path is a regular file with exactly this content. The sizes are compared first.
func HasContent(path string, text []byte) bool {
	file, err := Open(path)
	if err != nil {
		return false
	}
	defer file.Close()
	if info, err := file.Stat(); err != nil || info.Size() != int64(len(text)) {
		return false
	}
	had, err := io.ReadAll(io.LimitReader(file, int64(len(text))+1))
	return err == nil && bytes.Equal(had, text)
}

// openAt opens name in the directory at; path is its name in errors.
func openAt(at int, name, path string) (*os.File, error) {
	found, err := again(func() (int, error) {
		return unix.Openat(at, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC,
			0)
	})
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(found)
	var st unix.Stat_t
	if err := unix.Fstat(found, &st); err != nil {
		return nil, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, &os.PathError{Op: "open", Path: path, Err: ErrNotRegular}
	}
	// O_NONBLOCK: for a file with a lease this is EWOULDBLOCK at once; otherwise the call would wait until the kernel
	// breaks the lease.
	fd, err := again(func() (int, error) {
		return unix.Open("/proc/self/fd/"+strconv.Itoa(found), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// again repeats a call that a signal interrupted.
func again(open func() (int, error)) (int, error) {
	for {
		if fd, err := open(); err != unix.EINTR {
			return fd, err
		}
	}
}

// Dir is an open directory below a trusted root. What happens to its name afterwards does not matter. All names are
// single elements in it.
type Dir struct {
	fd   int
	path string
}

// OpenDir opens the directory at path, which is root or below it. root may be reached through links; below it no link
// is followed.
func OpenDir(root, path string) (*Dir, error) {
	below, err := filepath.Rel(root, path)
	if err != nil || !filepath.IsLocal(below) {
		return nil, fmt.Errorf("open %s: outside %s", path, root)
	}
	base, err := again(func() (int, error) { return unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: root, Err: err}
	}
	defer unix.Close(base)
	how := &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	}
	for {
		fd, err := unix.Openat2(base, below, how)
		switch err {
		case nil:
			return &Dir{fd, path}, nil
		case unix.EINTR, unix.EAGAIN: // EAGAIN: the kernel noticed a concurrent rename or mount (openat2(2))
		default:
			return nil, &os.PathError{Op: "open", Path: path, Err: err}
		}
	}
}

// Close closes d.
func (d *Dir) Close() error { return unix.Close(d.fd) }

func (d *Dir) join(name string) string { return filepath.Join(d.path, name) }

// check returns an error for a name that is not a single element.
func (d *Dir) check(op, name string) error {
	if name == "" || name == "." || name == ".." || filepath.Base(name) != name {
		return &os.PathError{Op: op, Path: d.join(name), Err: errors.New("not a name in this directory")}
	}
	return nil
}

// Open opens a regular file for reading.
func (d *Dir) Open(name string) (*os.File, error) {
	if err := d.check("open", name); err != nil {
		return nil, err
	}
	return openAt(d.fd, name, d.join(name))
}

// Create creates a new file for writing. An existing file of that name is removed; a directory is not.
func (d *Dir) Create(name string, mode os.FileMode) (*os.File, error) {
	if err := d.check("create", name); err != nil {
		return nil, err
	}
	if err := d.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	fd, err := again(func() (int, error) {
		return unix.Openat(d.fd, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC,
			uint32(mode.Perm()))
	})
	if err != nil {
		return nil, &os.PathError{Op: "create", Path: d.join(name), Err: err}
	}
	return os.NewFile(uintptr(fd), d.join(name)), nil
}

// Remove removes a file that is not a directory.
func (d *Dir) Remove(name string) error {
	if err := d.check("remove", name); err != nil {
		return err
	}
	if err := unix.Unlinkat(d.fd, name, 0); err != nil {
		return &os.PathError{Op: "remove", Path: d.join(name), Err: err}
	}
	return nil
}

// Rename gives a file another name in d.
func (d *Dir) Rename(from, to string) error {
	if err := errors.Join(d.check("rename", from), d.check("rename", to)); err != nil {
		return err
	}
	if err := unix.Renameat(d.fd, from, d.fd, to); err != nil {
		return &os.PathError{Op: "rename", Path: d.join(from), Err: err}
	}
	return nil
}

// Symlink makes a link to target, which is not checked. An existing file of that name is an error, os.ErrExist.
func (d *Dir) Symlink(target, name string) error {
	if err := d.check("symlink", name); err != nil {
		return err
	}
	if err := unix.Symlinkat(target, d.fd, name); err != nil {
		return &os.PathError{Op: "symlink", Path: d.join(name), Err: err}
	}
	return nil
}

// Readlink returns the target of the link called name.
func (d *Dir) Readlink(name string) (string, error) {
	if err := d.check("readlink", name); err != nil {
		return "", err
	}
	text := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(d.fd, name, text)
	if err != nil {
		return "", &os.PathError{Op: "readlink", Path: d.join(name), Err: err}
	}
	return string(text[:n]), nil
}

// Stat describes a name without following links.
func (d *Dir) Stat(name string) (unix.Stat_t, error) {
	var st unix.Stat_t
	if err := d.check("stat", name); err != nil {
		return st, err
	}
	if err := unix.Fstatat(d.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return st, &os.PathError{Op: "stat", Path: d.join(name), Err: err}
	}
	return st, nil
}

// IsRegular reports whether st is of a regular file.
func IsRegular(st unix.Stat_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFREG }

// Names lists at most most names of d, since a container may create as many as the disk has inodes. whole is false if
// there are more.
func (d *Dir) Names(most int) (names []string, whole bool, err error) {
	fd, err := again(func() (int, error) {
		return unix.Openat(d.fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC,
			0)
	})
	if err != nil {
		return nil, false, &os.PathError{Op: "list", Path: d.path, Err: err}
	}
	file := os.NewFile(uintptr(fd), d.path)
	defer file.Close()
	names, err = file.Readdirnames(most)
	if err == io.EOF {
		err = nil
	}
	return names, len(names) < most, err
}
