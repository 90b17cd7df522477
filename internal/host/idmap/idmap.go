// Package idmap finds out whether the kernel can mount directories with id mappings: files then appear with other user
// and group ids than on the disk.
//
// Pods with a user namespace (hostUsers: false) need that for every volume: a mount with a user namespace translates
// the ids of all files below it (mount_setattr(2), MOUNT_ATTR_IDMAP; Linux 5.12, tmpfs since 6.3). Whether it works
// depends on the kernel, on each file system and on what this process may do. So Check tries it, with a mount that is
// attached nowhere and is gone when Check returns.
//
// The package makes no mounts for pods: the container runtime does.
package idmap

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// tried is the first host id of the user namespace with which Check tries mounts, and how many ids it has. Chosen: any
// number would do, because no file is created with these ids.
const tried = 65536

// Check returns why mounts of one of the directories cannot have id mappings; nil: all can. It needs root.
func Check(dirs ...string) error {
	namespace, err := userNamespace()
	if err != nil {
		return fmt.Errorf("make a user namespace: %w", err)
	}
	defer namespace.Close()
	var problems []error
	for _, dir := range dirs {
		if err := check(dir, namespace); err != nil {
			problems = append(problems, fmt.Errorf("mount %s with an id mapping: %w", dir, err))
		}
	}
	return errors.Join(problems...)
}

func check(dir string, namespace *os.File) error {
	mount, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("open_tree", err)
	}
	defer unix.Close(mount)
	attr := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(namespace.Fd())}
	return os.NewSyscallError("mount_setattr", unix.MountSetattr(mount, "", unix.AT_EMPTY_PATH, attr))
}

// userNamespace opens a new user namespace. A namespace needs a process to begin with: this program's own, which the
// kernel stops before its first instruction, since it is traced, and which is killed as soon as the namespace is open.
func userNamespace() (*os.File, error) {
	runtime.LockOSThread() // the tracer is a thread
	defer runtime.UnlockOSThread()
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: tried, Size: tried}}
	attr := &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER,
		UidMappings: ids,
		GidMappings: ids,
		Ptrace:      true,
		Pdeathsig:   syscall.SIGKILL,
	}
	process, err := os.StartProcess("/proc/self/exe", []string{"user-namespace"}, &os.ProcAttr{Sys: attr})
	if err != nil {
		return nil, err
	}
	namespace, err := os.Open("/proc/" + strconv.Itoa(process.Pid) + "/ns/user")
	killed := process.Kill()
	_, ended := process.Wait()
	if err = errors.Join(err, killed, ended); err != nil && namespace != nil {
		_ = namespace.Close() // only read from
		namespace = nil
	}
	return namespace, err
}
