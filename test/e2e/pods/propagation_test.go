//go:build e2e

package pods

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// A mount that is made while containers run reaches those whose mountPropagation asks for it, in the direction that it
// names.
func TestMountPropagation(t *testing.T) {
	b := at(t)
	dir := sharedMount(t)
	sees := func(name string, mode corev1.MountPropagationMode) corev1.Container {
		c := workload(name, "sleep", "infinity")
		c.VolumeMounts = []corev1.VolumeMount{{Name: "host", MountPath: "/m", MountPropagation: &mode}}
		return c
	}
	both := sees("both", corev1.MountPropagationBidirectional)
	both.SecurityContext = &corev1.SecurityContext{Privileged: ptr(true)}
	spec := lasting(sees("none", corev1.MountPropagationNone), sees("in", corev1.MountPropagationHostToContainer), both)
	spec.Volumes = []corev1.Volume{{Name: "host",
		VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: dir}}}}
	b.create("p", spec)
	p := b.ready("p")

	outer := filepath.Join(dir, "outer")
	b.do(unix.Mount("tmpfs", outer, "tmpfs", 0, "size=1m"))
	b.do(os.WriteFile(filepath.Join(outer, "file"), []byte("x"), 0o600))
	_, id, _ := strings.Cut(container(p, "both").ContainerID, "://")
	b.do(mountInside(t, id, "/m/inner"))
	// on the container's mount, if it came here
	b.do(os.WriteFile(filepath.Join(dir, "inner", "file"), []byte("x"), 0o600))
	for name, want := range map[string][2]bool{"none": {false, false}, "in": {true, true}, "both": {true, true}} {
		for i, path := range []string{"/m/outer/file", "/m/inner/file"} {
			if _, err := b.tryIn("p/"+name, "test", "-e", path); (err == nil) != want[i] {
				t.Errorf("%s sees %s: %v, want %v", name, path, err == nil, want[i])
			}
		}
	}
	b.delete("p", -1, soon)
}

// sharedMount returns a mount point of this machine with two directories, whose mounts propagate.
func sharedMount(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, at := range []string{filepath.Join(dir, "outer"), filepath.Join(dir, "inner")} {
			_ = unix.Unmount(at, unix.MNT_DETACH)
		}
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	if err := unix.Mount("", dir, "", unix.MS_SHARED, ""); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"outer", "inner"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// mountInside mounts a tmpfs in the mount namespace of a container, as a process of it would.
func mountInside(t *testing.T, id, path string) error {
	t.Helper()
	pid := 0
	rig.Eventually(t, soon, "the container's process is found", func(context.Context) error {
		groups, err := filepath.Glob("/proc/[0-9]*/cgroup")
		if err != nil {
			return err
		}
		for _, group := range groups {
			if text, err := os.ReadFile(group); err == nil && strings.Contains(string(text), id) {
				pid, err = strconv.Atoi(filepath.Base(filepath.Dir(group)))
				return err
			}
		}
		return fmt.Errorf("no process in a cgroup of %s", id)
	})
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // for ever: the thread is in another namespace and ends with this goroutine
		result <- func() error {
			namespace, err := os.Open(fmt.Sprintf("/proc/%d/ns/mnt", pid))
			if err != nil {
				return err
			}
			defer namespace.Close()
			if err := unix.Unshare(unix.CLONE_FS); err != nil {
				return fmt.Errorf("unshare: %w", err)
			}
			if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNS); err != nil {
				return fmt.Errorf("enter the mount namespace of %d: %w", pid, err)
			}
			return unix.Mount("tmpfs", path, "tmpfs", 0, "size=1m")
		}()
	}()
	return <-result
}
