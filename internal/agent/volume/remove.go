package volume

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// depthMax is how many directories removeTree descends before it moves deeper ones up to the top. Each level costs a
// file descriptor, and a container may nest directories as deep as it has inodes. Chosen: deeper than real trees.
const depthMax = 64

// removing is the prefix of a tree that was moved up to be removed. No name of the agent or of a pod has it.
const removing = "..rm-"

// removeTree removes dir and everything below it. It follows no link and enters no mount: a mount point in the tree is
// an error, and its content stays. It is no error if dir does not exist.
func removeTree(dir string) error {
	parent, err := unix.Open(filepath.Dir(dir), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err == unix.ENOENT {
		return nil
	}
	if err != nil {
		return &os.PathError{Op: "remove", Path: dir, Err: err}
	}
	defer unix.Close(parent)
	r := remover{top: parent, prefix: removing + strconv.Itoa(os.Getpid()) + "-"}
	if err := r.remove(parent, filepath.Base(dir), 0); err != nil {
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	for len(r.moved) > 0 {
		next := r.moved[len(r.moved)-1]
		r.moved = r.moved[:len(r.moved)-1]
		if err := r.remove(parent, next, 0); err != nil {
			return fmt.Errorf("remove %s: %w", dir, err)
		}
	}
	return nil
}

// remover is one removeTree in progress.
type remover struct {
	top    int // the directory that contains the tree
	prefix string
	count  int
	moved  []string // trees that were moved up to top
}

// remove removes name in the directory at.
func (r *remover) remove(at int, name string, depth int) error {
	err := unix.Unlinkat(at, name, 0)
	switch err {
	case nil, unix.ENOENT:
		return nil
	case unix.EISDIR, unix.EPERM: // EPERM is what POSIX prescribes for a directory
	default:
		return fmt.Errorf("%s: %w", name, err)
	}
	// An empty directory is removed at once; a mount point is EBUSY.
	switch err := unix.Unlinkat(at, name, unix.AT_REMOVEDIR); err {
	case nil, unix.ENOENT:
		return nil
	case unix.ENOTEMPTY, unix.EEXIST:
	default:
		return fmt.Errorf("%s: %w", name, err)
	}
	if depth == depthMax {
		r.count++
		up := r.prefix + strconv.Itoa(r.count)
		if err := unix.Renameat(at, name, r.top, up); err != nil {
			return fmt.Errorf("%s: move up: %w", name, err)
		}
		r.moved = append(r.moved, up)
		return nil
	}
	fd, err := openBeneath(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW,
		unix.RESOLVE_NO_XDEV|unix.RESOLVE_NO_SYMLINKS)
	if err != nil {
		if errors.Is(err, unix.EXDEV) {
			return fmt.Errorf("%s: a file system is mounted on it", name)
		}
		return fmt.Errorf("%s: %w", name, err)
	}
	err = r.empty(fd, depth)
	unix.Close(fd)
	if err != nil {
		return fmt.Errorf("%s/%w", name, err)
	}
	if err := unix.Unlinkat(at, name, unix.AT_REMOVEDIR); err != nil && err != unix.ENOENT {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// empty removes everything in the open directory fd. Entries disappear during the listing, so it lists the directory
// from the start until a complete listing finds nothing. A short listing is not the end: a signal interrupts
// getdents64(2).
func (r *remover) empty(fd, depth int) error {
	buffer := make([]byte, 16<<10)
	for found := false; ; {
		n, err := unix.Getdents(fd, buffer)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return err
		case n == 0 && !found:
			return nil
		case n == 0:
			found = false
			if _, err := unix.Seek(fd, 0, unix.SEEK_SET); err != nil {
				return err
			}
			continue
		}
		_, _, names := unix.ParseDirent(buffer[:n], -1, nil) // without . and ..
		for _, name := range names {
			found = true
			if err := r.remove(fd, name, depth+1); err != nil {
				return err
			}
		}
	}
}
