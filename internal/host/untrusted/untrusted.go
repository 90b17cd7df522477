// Package untrusted opens files that a container may have written, replaced or grown.
//
// # Model
//
// A container with a bind mount of a file may make it terabytes long without a block on the disk (truncate(2)); one
// with a directory may put anything in the place of a file: a link to a file of the host, a FIFO whose opening waits
// for ever, a device whose opening does something, a file with a lease (fcntl(2), F_SETLEASE), which makes whoever
// opens it wait for 45 s. So a path is opened without any effect first (O_PATH, open(2)), without following a link in
// its last element; what was found is looked at; and only a regular file is opened for reading, by /proc/self/fd, so
// that nothing can take its place in between.
//
// # Invariants
//
//   - No call waits for another process, and none has an effect on what it refuses.
//   - No call reads more than its caller said, whatever the size of the file.
//   - Open and Read trust the directories on the way and no more; Dir trusts the root that it was given and nothing
//     below it.
//
// It writes nothing but new files (Dir.Create) and links (Dir.Symlink), and does not know which files are whose.
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

// ErrNotRegular says that a name is not a regular file: a link, a FIFO, a device, a directory.
var ErrNotRegular = errors.New("not a regular file")

// ErrTooLarge says that a file is larger than its reader takes.
var ErrTooLarge = errors.New("larger than what is read of it")

// Open opens a regular file for reading. A link in the last element of path is not followed.
func Open(path string) (*os.File, error) { return openAt(unix.AT_FDCWD, path, path) }

// Read returns the whole of a regular file that has at most most bytes, else ErrTooLarge.
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

// Holds reports whether path is a regular file with exactly this content. The sizes are compared first.
func Holds(path string, text []byte) bool {
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

// openAt opens name in the directory at; path is what errors call it.
func openAt(at int, name, path string) (*os.File, error) {
	found, err := again(func() (int, error) { return unix.Openat(at, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0) })
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
	// O_NONBLOCK: a file with a lease is EWOULDBLOCK now, instead of a wait until the kernel breaks the lease.
	fd, err := again(func() (int, error) {
		return unix.Open("/proc/self/fd/"+strconv.Itoa(found), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// again repeats what a signal interrupted.
func again(open func() (int, error)) (int, error) {
	for {
		if fd, err := open(); err != unix.EINTR {
			return fd, err
		}
	}
}

// Dir is an open directory below a trusted root, whatever is done to its name afterwards. All names are single elements
// of it.
type Dir struct {
	fd   int
	path string
}

// OpenDir opens the directory at path, which is root or below it. root may be reached by links; below it no link is
// followed.
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
		case unix.EINTR, unix.EAGAIN: // EAGAIN: a rename or mount somewhere made the kernel unsure (openat2(2))
		default:
			return nil, &os.PathError{Op: "open", Path: path, Err: err}
		}
	}
}

// Close closes d.
func (d *Dir) Close() error { return unix.Close(d.fd) }

func (d *Dir) join(name string) string { return filepath.Join(d.path, name) }

// check refuses what is no single element.
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

// Create makes a new file for writing. Whatever had its name is removed; directories are not.
func (d *Dir) Create(name string, mode os.FileMode) (*os.File, error) {
	if err := d.check("create", name); err != nil {
		return nil, err
	}
	if err := d.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	fd, err := again(func() (int, error) {
		return unix.Openat(d.fd, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, uint32(mode.Perm()))
	})
	if err != nil {
		return nil, &os.PathError{Op: "create", Path: d.join(name), Err: err}
	}
	return os.NewFile(uintptr(fd), d.join(name)), nil
}

// Remove removes a name that is no directory.
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

// Symlink makes a link to target, which is not looked at. What has the name already is an error, os.ErrExist.
func (d *Dir) Symlink(target, name string) error {
	if err := d.check("symlink", name); err != nil {
		return err
	}
	if err := unix.Symlinkat(target, d.fd, name); err != nil {
		return &os.PathError{Op: "symlink", Path: d.join(name), Err: err}
	}
	return nil
}

// Readlink returns what the link called name leads to.
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

// Stat describes a name without following it.
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

// Names lists d, at most most names: a container may make as many as the disk has inodes. whole is false if there are
// more.
func (d *Dir) Names(most int) (names []string, whole bool, err error) {
	fd, err := again(func() (int, error) { return unix.Openat(d.fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0) })
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
