//go:build e2e

package crash

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/containerruntime"
	"github.com/plimsoll-dev/plimsoll/internal/host/cri"
	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// TestExternalRuntime runs an instance on a containerd that does not belong to it, and on which another pod runs.
// Neither is affected by `up`, by the instance's pods, or by `down`.
func TestExternalRuntime(t *testing.T) {
	t.Parallel()
	theirs, cgroup, pid := somebodysContainerd(t)
	sandbox, err := theirs.RunPodSandbox(t.Context(),
		&runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{
			Metadata: &runtimeapi.PodSandboxMetadata{Name: "theirs", Namespace: "somebody", Uid: "1"},
			Linux:    &runtimeapi.LinuxPodSandboxConfig{CgroupParent: cgroup},
		}})
	if err != nil {
		t.Fatal(err)
	}
	before := sandboxes(t, theirs)
	t.Run("instance", func(t *testing.T) {
		c := rig.New(t, "extern", rig.Options{UpFlags: []string{"--container-runtime-endpoint", theirs.Endpoint}})
		namespace := c.Namespace(t)
		w := &witness{t: t, c: c, runtime: theirs, starts: t.TempDir()}
		w.crowd(namespace)
		runs := w.mustRuns()
		children, parent, err := c.Children()
		if err != nil || len(runs) != crowd {
			t.Errorf("%d containers run, %v", len(runs), err)
		}
		for _, child := range children {
			if child.Name == containerd {
				t.Errorf("a containerd of its own runs, pid %d", child.PID)
			}
		}
		if err := errors.Join(syscall.Kill(parent, syscall.SIGKILL), syscall.Kill(pidOf(t, c, agent),
			syscall.SIGKILL)); err != nil {
			t.Fatal(err)
		}
		if out, err := c.Up(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		w.undisturbed(runs, namespace)
	}) // down and down --purge end it
	if after := sandboxes(t, theirs); fmt.Sprint(after) != fmt.Sprint(before) || len(after) != 1 {
		t.Errorf("pods of the runtime were %v and are %v", before, after)
	}
	if err := syscall.Kill(pid, 0); err != nil {
		t.Errorf("their containerd: %v", err)
	}
	if _, err := theirs.RemovePodSandbox(t.Context(),
		&runtimeapi.RemovePodSandboxRequest{PodSandboxId: sandbox.PodSandboxId}); err != nil {
		t.Error(err)
	}
}

// somebodies counts the containerds that belong to no instance. Tests run beside each other: what one containerd
// leaves at its end (processes in its cgroup, its bridge) is removed, and must not be another's.
var somebodies atomic.Int32

// somebodysContainerd runs a containerd that belongs to no instance, until the test ends. It returns a client of it,
// the cgroup that its pods may be in, and its process.
func somebodysContainerd(t *testing.T) (client *cri.Client, cgroup string, pid int) {
	t.Helper()
	number := int(somebodies.Add(1))
	cgroup = fmt.Sprintf("/somebody-%d-%d", os.Getpid(), number)
	images := filepath.Join(filepath.Dir(rig.Binary(t)), "images")
	if os.Geteuid() != 0 {
		t.Skip("needs root: starts a containerd")
	}
	dir, err := os.MkdirTemp("", "sb-") // a short name: socket paths have at most 107 characters
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	runtime, err := containerruntime.New(containerruntime.Options{
		StateDir: filepath.Join(dir, "s"), RunDir: filepath.Join(dir, "r"), ImageDir: images,
		Bridge:  fmt.Sprintf("sb%d-%d", os.Getpid(), number),
		PodCIDR: fmt.Sprintf("10.97.%d.0/24", (os.Getpid()+number)%256), CgroupRoot: cgroup,
	})
	if err == nil {
		err = runtime.Prepare(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	argv := runtime.Command()
	daemon := exec.Command(argv[0], argv[1:]...)
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := daemon.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		_ = daemon.Wait() // its exit code does not matter
		if err := runtime.Teardown(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	client, err = cri.Dial(runtime.Endpoint())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	rig.Eventually(t, soon, "their containerd answers", func(ctx ctxT) error { return runtime.WaitReady(ctx) })
	if err := runtime.LoadImages(t.Context()); err != nil {
		t.Fatal(err)
	}
	return client, cgroup, daemon.Process.Pid
}

func sandboxes(t *testing.T, runtime *cri.Client) (all []string) {
	t.Helper()
	list, err := runtime.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range list.Items {
		all = append(all, fmt.Sprint(s.Id, " ", s.Metadata.GetName(), " ", s.State))
	}
	return all
}
