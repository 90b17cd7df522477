// Package mount finds and removes mounts by their location.
//
// The mounts are read from the kernel's table each time and never stored, so a crash loses no mount. Directories may be
// given by a symbolic link; the table has resolved paths. The package sees the mounts of its own process's namespace.
//
// It mounts nothing: the packages that need a mount make it.
package mount

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Below returns the mount points at and below the directories, innermost first. A directory that does not exist has
// none.
func Below(dirs ...string) ([]string, error) {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	points := Parse(string(table))
	slices.Reverse(points) // the table is in the order of mounting: what was mounted later is on top or further in
	var roots []string
	for _, dir := range dirs {
		root, err := filepath.EvalSymlinks(dir)
		if err != nil {
			root = filepath.Clean(dir) // it does not exist; what is mounted there, if anything, is found by its name
		}
		roots = append(roots, root)
	}
	return slices.DeleteFunc(points, func(point string) bool {
		return !slices.ContainsFunc(roots, func(root string) bool { return Within(point, root) })
	}), nil
}

// At reports whether something is mounted on path itself, which may be a symbolic link to a mount point, and then is
// none. It asks the kernel about the path, not for its table: that has thousands of lines on a node with as many
// volumes. It reads the table where a kernel before Linux 5.8 does not say it, or what is mounted there does not
// answer.
func At(path string) (bool, error) {
	const flags = unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT | unix.AT_STATX_DONT_SYNC
	var st unix.Statx_t
	switch err := unix.Statx(unix.AT_FDCWD, path, flags, 0, &st); {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return false, nil
	case err == nil && st.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT != 0:
		return st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
	}
	points, err := Below(path)
	return slices.Contains(points, path), err
}

// Within reports whether a clean path is dir or below it.
func Within(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// Inside is Below without the directories themselves: a disk that an administrator mounted on a directory of the agent
// must not be unmounted.
func Inside(dirs ...string) ([]string, error) {
	points, err := Below(dirs...)
	for _, dir := range dirs {
		if root, err := filepath.EvalSymlinks(dir); err == nil {
			points = slices.DeleteFunc(points, func(point string) bool { return point == root })
		}
	}
	return points, err
}

// UnmountBelow unmounts everything at and below the directories. It returns an error if a mount stays. A mount with
// open files is detached: it disappears when the files are closed.
func UnmountBelow(dirs ...string) error { return unmount(Below, dirs) }

// UnmountInside is UnmountBelow except for mounts on the directories themselves.
func UnmountInside(dirs ...string) error { return unmount(Inside, dirs) }

func unmount(find func(...string) ([]string, error), dirs []string) error {
	points, err := find(dirs...)
	if err != nil || len(points) == 0 {
		return err
	}
	for _, point := range points {
		err := unix.Unmount(point, unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EBUSY) {
			err = unix.Unmount(point, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
		}
		// EINVAL, ENOENT: already unmounted, with its parent mount or by another program.
		if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("unmount %s: %w", point, err)
		}
	}
	left, err := find(dirs...)
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("unmount %s: still mounted", left[0])
	}
	return err
}

// Parse returns the mount points of a table in its order. A line of mountinfo (proc_pid_mountinfo(5)) is
//
//	36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue
//
// where the fifth field is the mount point, with space, tab, newline and backslash as \040 and the like. Lines that are
// too short are ignored: they contain nothing to unmount.
func Parse(table string) []string {
	var points []string
	for line := range strings.Lines(table) {
		if fields := strings.SplitN(line, " ", 6); len(fields) == 6 {
			points = append(points, unescape(fields[4]))
		}
	}
	return points
}

func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var out strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) && octal(s[i+1]) && octal(s[i+2]) && octal(s[i+3]) {
			out.WriteByte(s[i+1]<<6 | (s[i+2]-'0')<<3 | (s[i+3] - '0'))
			i += 3
			continue
		}
		out.WriteByte(s[i])
	}
	return out.String()
}

func octal(c byte) bool { return '0' <= c && c <= '7' }
