package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/agent/poddir"
)

// HandOver gives the volumes of all pods the form in which a kubelet goes on with them. It is for the end of the agent:
// nothing may be set up any more. The next agent takes it back with each pod's first SetUp.
//
//   - A kubelet mounts a tmpfs where it expects one and finds a link, and containers would not see what it writes
//     there. So each link to a volume in memory becomes a bind mount of it.
//   - A kubelet sets the modes of an emptyDir that has no mark of its own. So each gets one.
//
// After an error the rest is done all the same.
func (k *Manager) HandOver() error {
	pods, err := os.ReadDir(k.pods)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	problems := []error{err}
	for _, pod := range pods {
		uid := types.UID(pod.Name())
		if !pod.IsDir() || checkElement("pod uid", pod.Name()) != nil {
			continue
		}
		for _, plugin := range namesIn(k.memoryDir(uid)) {
			for _, name := range namesIn(filepath.Join(k.memoryDir(uid), plugin)) {
				problems = append(problems, k.mountLinked(uid, plugin, name))
			}
		}
		for _, name := range namesIn(filepath.Join(k.podDir(uid), poddir.Volumes, poddir.EmptyDir)) {
			problems = append(problems, k.markReady(uid, name))
		}
	}
	return errors.Join(problems...)
}

// namesIn returns what is in a directory of volumes. One that is missing has nothing.
func namesIn(dir string) (names []string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if checkElement("volume name", e.Name()) == nil {
			names = append(names, e.Name())
		}
	}
	return names
}

// mountLinked replaces the link to a volume in memory by a mount of the volume. If an agent was killed while it did so,
// nothing is left of the link, or an empty directory: mountLinked goes on from there.
func (k *Manager) mountLinked(uid types.UID, plugin, name string) error {
	visible := k.visiblePath(uid, plugin, name)
	inMemory := filepath.Join(k.memoryDir(uid), plugin, name)
	if mounted, err := crossesDevice(filepath.Dir(visible), visible); err == nil && mounted {
		return nil
	}
	if target, err := os.Readlink(visible); err == nil && target != inMemory {
		return nil // not a link of ours
	}
	// A directory with content is not removed: somebody else made it.
	if err := os.Remove(visible); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Mkdir(visible, dirMode); err != nil {
		return err
	}
	if err := unix.Mount(inMemory, visible, "", unix.MS_BIND, ""); err != nil {
		return &os.PathError{Op: "bind mount " + inMemory + " on", Path: visible, Err: err}
	}
	return nil
}

// takeBack undoes mountLinked. It returns whether there was anything to undo.
func (k *Manager) takeBack(uid types.UID, plugin, name string) (bool, error) {
	visible := k.visiblePath(uid, plugin, name)
	var here, there unix.Stat_t
	if unix.Lstat(visible, &here) != nil || unix.Lstat(filepath.Join(k.memoryDir(uid), plugin, name), &there) != nil ||
		here.Dev != there.Dev || here.Ino != there.Ino {
		return false, nil
	}
	if err := unix.Unmount(visible, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
		return false, &os.PathError{Op: "unmount", Path: visible, Err: err}
	}
	return true, os.Remove(visible) // the link is made when the content is set up
}

// kubeletMarks is where a kubelet keeps what it knows of a pod's volumes.
const kubeletMarks = "plugins"

// markReady marks an emptyDir as set up.
func (k *Manager) markReady(uid types.UID, name string) error {
	dir := filepath.Join(k.podDir(uid), kubeletMarks, poddir.EmptyDir, name)
	if err := os.MkdirAll(dir, dirMode); err != nil {
		return fmt.Errorf("mark an emptyDir as ready: %w", err)
	}
	return os.WriteFile(filepath.Join(dir, "ready"), nil, 0o600)
}
