package volume

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/plimsoll-dev/plimsoll/internal/host/mount"
)

// A subPath is resolved while containers may change the tree below the volume: a link that is planted at the last
// moment must not lead the mount out of the volume. So the kernel resolves it beneath the volume (openat2(2), Linux
// 5.6, RESOLVE_BENEATH: an absolute link or a .. above the root is refused, not reinterpreted), and the file that was
// found is bind-mounted before its path is passed to the runtime.

// bindSubPath makes subPath of the volume at root available at target.
func bindSubPath(root, subPath, target string) error {
	base, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: root, Err: err}
	}
	defer unix.Close(base)
	fd, err := openOrMake(base, path.Clean(subPath))
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var found unix.Stat_t
	if err := unix.Fstat(fd, &found); err != nil {
		return err
	}
	switch bound, err := isBound(target, found); {
	case err != nil:
		return err
	case bound:
		return nil
	}
	if err := makeTarget(target, found.Mode&unix.S_IFMT == unix.S_IFDIR); err != nil {
		return err
	}
	if err := unix.Mount("/proc/self/fd/"+strconv.Itoa(fd), target, "", unix.MS_BIND, ""); err != nil {
		return &os.PathError{Op: "bind", Path: target, Err: err}
	}
	return nil
}

// openBeneath opens name beneath the directory at, whatever links are in it.
func openBeneath(at int, name string, flags int, resolve uint64) (int, error) {
	how := &unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC),
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS | resolve}
	for {
		fd, err := unix.Openat2(at, name, how)
		switch err {
		case unix.EINTR, unix.EAGAIN: // EAGAIN: the kernel noticed a concurrent rename or mount
			continue
		case unix.ENOSYS:
			return -1, fmt.Errorf("openat2: %w: this needs Linux 5.6 or later", err)
		}
		return fd, err
	}
}

// openOrMake opens subPath beneath base. It creates missing directories with the mode and group of base: containers
// must be able to use them like the volume itself.
func openOrMake(base int, subPath string) (int, error) {
	fd, err := openBeneath(base, subPath, unix.O_PATH, 0)
	if err != unix.ENOENT {
		return fd, describe(err, subPath)
	}
	var top unix.Stat_t
	if err := unix.Fstat(base, &top); err != nil {
		return -1, err
	}
	at, err := unix.Dup(base)
	if err != nil {
		return -1, err
	}
	done := ""
	for _, element := range strings.Split(subPath, "/") {
		done = path.Join(done, element)
		next, err := openBeneath(base, done, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		if err == unix.ENOENT {
			if err = unix.Mkdirat(at, element, 0o700); err == nil || err == unix.EEXIST {
				made := err == nil
				// O_NOFOLLOW: a link that replaced the new directory is refused, and so is a link to a missing target.
				if next, err = openBeneath(at, element, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0); err == nil && made {
					err = matchParent(next, top)
				}
			}
		}
		unix.Close(at)
		if err != nil {
			return -1, describe(err, subPath)
		}
		at = next
	}
	return at, nil
}

func matchParent(fd int, top unix.Stat_t) error {
	if err := unix.Fchown(fd, -1, int(top.Gid)); err != nil {
		return err
	}
	return unix.Fchmod(fd, top.Mode&0o7777)
}

func describe(err error, subPath string) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EXDEV), errors.Is(err, unix.ELOOP):
		return fmt.Errorf("subPath %q: leads out of its volume: %w", subPath, err)
	}
	return fmt.Errorf("subPath %q: %w", subPath, err)
}

// isBound reports whether the file found is mounted on target. Another file there, from an earlier container or from
// before the volume's content changed, is unmounted; the earlier container keeps its own mount.
func isBound(target string, found unix.Stat_t) (bool, error) {
	points, err := mount.Below(target)
	if err != nil || len(points) == 0 {
		return false, err
	}
	var at unix.Stat_t
	if err := unix.Lstat(target, &at); err != nil {
		return false, err
	}
	if at.Dev == found.Dev && at.Ino == found.Ino {
		return true, nil
	}
	return false, mount.UnmountBelow(target)
}

// makeTarget creates a directory or a file to mount on.
func makeTarget(target string, dir bool) error {
	if st, err := os.Lstat(target); err == nil && st.IsDir() != dir {
		if err := os.Remove(target); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Dir(target), dirMode); err != nil {
		return err
	}
	if dir {
		err := os.Mkdir(target, dirMode)
		if os.IsExist(err) {
			return nil
		}
		return err
	}
	file, err := os.OpenFile(target, os.O_CREATE|os.O_WRONLY|unix.O_NOFOLLOW, 0o640)
	if err != nil {
		return err
	}
	return file.Close()
}

// checkSubPath returns an error for an invalid subPath, in the kubelet's words.
func checkSubPath(subPath string) error {
	if filepath.IsAbs(subPath) {
		return fmt.Errorf("error SubPath `%s` must not be an absolute path", subPath)
	}
	if slices.Contains(strings.Split(subPath, "/"), "..") {
		return fmt.Errorf("unable to provision SubPath `%s`: must not contain '..'", subPath)
	}
	return nil
}
