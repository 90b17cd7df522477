package volume

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// mountMemory mounts the tmpfs for secrets on dir unless it is there.
func mountMemory(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !os.IsExist(err) {
		return err
	}
	if mounted, err := crossesDevice(filepath.Dir(dir), dir); err != nil || mounted {
		return err
	}
	return mountTmpfs(dir, []string{"mode=0700"})
}

// mountTmpfs mounts a tmpfs on dir, kept out of swap where the kernel can (noswap, Linux 6.4).
func mountTmpfs(dir string, options []string) error {
	err := unix.Mount("tmpfs", dir, "tmpfs", 0, strings.Join(append(options, "noswap"), ","))
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPERM) {
		err = unix.Mount("tmpfs", dir, "tmpfs", 0, strings.Join(options, ","))
	}
	return err
}

// crossesDevice reports whether dir is on another file system than its parent: whether one is mounted on it. (A bind
// mount from the same file system does not show; see mountsBelow.)
func crossesDevice(parent, dir string) (bool, error) {
	var above, at unix.Stat_t
	if err := unix.Lstat(parent, &above); err != nil {
		return false, &os.PathError{Op: "stat", Path: parent, Err: err}
	}
	if err := unix.Lstat(dir, &at); err != nil {
		return false, &os.PathError{Op: "stat", Path: dir, Err: err}
	}
	return above.Dev != at.Dev, nil
}

// mountsBelow returns the mount points at or below dir, innermost first.
func mountsBelow(dir string) ([]string, error) {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	points := parseMountPoints(string(table), dir)
	slices.Reverse(points) // the table is in order of mounting: what was mounted later is on top or further in
	return points, nil
}

// parseMountPoints returns the mount points at or below dir in order. A line of mountinfo (proc_pid_mountinfo(5)) is
//
//	36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue
//
// where the fifth field is the mount point, with space, tab, newline and backslash as \040 and the like.
func parseMountPoints(table, dir string) []string {
	var points []string
	for line := range strings.Lines(table) {
		fields := strings.SplitN(line, " ", 6)
		if len(fields) < 6 {
			continue
		}
		point := unescapeMount(fields[4])
		if point == dir || strings.HasPrefix(point, dir+"/") {
			points = append(points, point)
		}
	}
	return points
}

func unescapeMount(s string) string {
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

// unmountBelow unmounts everything at or below dir and fails if something stays.
func unmountBelow(dir string) error {
	points, err := mountsBelow(dir)
	if err != nil || len(points) == 0 {
		return err
	}
	for _, p := range points {
		err := unix.Unmount(p, unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EBUSY) {
			// Someone on the host has it open. The files go when they let go; our directory must not wait for them.
			err = unix.Unmount(p, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
		}
		// EINVAL, ENOENT: gone already, with what it was mounted on or by another's hand.
		if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("unmount %s: %w", p, err)
		}
	}
	left, err := mountsBelow(dir)
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("unmount %s: still mounted", left[0])
	}
	return err
}

// UnmountAll unmounts everything below an agent's root directory, the tmpfs with all secrets included. It is for the
// end of a node, when no pod runs any more. It is idempotent, and no Keeper is needed.
func UnmountAll(rootDir string) error {
	root, err := filepath.EvalSymlinks(rootDir)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("unmount volumes: %w", err)
	}
	for _, dir := range []string{"pods", "memory"} {
		if err := unmountBelow(filepath.Join(root, dir)); err != nil {
			return fmt.Errorf("unmount volumes: %w", err)
		}
	}
	return nil
}
