package volume

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/plimsoll-dev/plimsoll/internal/agent/csivolume"
	"github.com/plimsoll-dev/plimsoll/internal/agent/poddir"
	"github.com/plimsoll-dev/plimsoll/internal/host/mount"
)

// mountMemory mounts the tmpfs for secrets on dir unless it is mounted.
func mountMemory(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !os.IsExist(err) {
		return err
	}
	if mounted, err := crossesDevice(filepath.Dir(dir), dir); err != nil || mounted {
		return err
	}
	return mountTmpfs(dir, []string{"mode=0700"})
}

// mountTmpfs mounts a tmpfs on dir, excluded from swap if the kernel supports it (noswap, Linux 6.4).
func mountTmpfs(dir string, options []string) error {
	err := unix.Mount("tmpfs", dir, "tmpfs", 0, strings.Join(append(options, "noswap"), ","))
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPERM) {
		err = unix.Mount("tmpfs", dir, "tmpfs", 0, strings.Join(options, ","))
	}
	return err
}

// crossesDevice reports whether dir is on another file system than its parent, which means that one is mounted on it.
// (It does not detect a bind mount from the same file system; see mount.Below.)
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

// UnmountAll unmounts everything below an agent's root directory, including the tmpfs with all secrets. It is for the
// end of a node, when no pod runs any more. It is idempotent and needs no Manager.
func UnmountAll(rootDir string) error {
	root, err := filepath.EvalSymlinks(rootDir)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("unmount volumes: %w", err)
	}
	for _, dir := range []string{poddir.Pods, "memory", csivolume.StagingDir} {
		if err := mount.UnmountBelow(filepath.Join(root, dir)); err != nil {
			return fmt.Errorf("unmount volumes: %w", err)
		}
	}
	return nil
}
