//go:build e2e

package storage

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"golang.org/x/sys/unix"

	"github.com/plimsoll-dev/plimsoll/internal/host/loop"
	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// soon bounds what takes a few seconds on two idle cores.
const soon = 90 * time.Second

// keeper is the StatefulSet of examples/volume.yaml in a namespace of a test, whose pod appends a line to a file in its
// volume whenever it starts.
type keeper struct {
	*rig.Cluster
	t  *testing.T
	ns string
}

// TestStatefulSet takes one volume through its life: it is used, grown, copied, survives crashes and `down`, and is
// deleted.
func TestStatefulSet(t *testing.T) {
	c := rig.Shared(t)
	k := keeper{Cluster: c, t: t, ns: c.Namespace(t)}
	k.kubectl("apply", "-f", "../../../examples/volume.yaml")
	k.wantStarts(1)

	// Another pod gets the same volume.
	k.kubectl("delete", "pod", "keeper-0")
	k.wantStarts(2)

	// Agent, driver and controllers are killed. The container is not affected, and the next pod gets the volume.
	before := k.pod().Status.ContainerStatuses[0].ContainerID
	for _, child := range []string{"agent", "csi-driver", "storage"} {
		kill(t, c.PID(t, child))
	}
	k.wantStarts(2)
	if after := k.pod().Status.ContainerStatuses[0].ContainerID; after != before {
		t.Errorf("the container is %s, was %s before everything was killed", after, before)
	}
	kill(t, c.PID(t, "agent"))
	k.kubectl("delete", "pod", "keeper-0")
	k.wantStarts(3)

	starts := k.grow("128Mi", 3)
	k.copies(starts)

	// `down`, and `up` again.
	if out, err := c.Plimsoll("down"); err != nil {
		t.Fatalf("down: %v\n%s", err, out)
	}
	if devices, err := loop.Below(c.StateDir); err != nil || len(devices) > 0 {
		t.Errorf("down leaves the loop devices %v, %v", devices, err)
	}
	if out, err := c.Up(); err != nil {
		t.Fatalf("up: %v\n%s", err, out)
	}
	k.wantStarts(starts + 1)

	k.kubectl("delete", "-f", "../../../examples/volume.yaml", "-f", "../../../examples/volume-copies.yaml",
		"--wait=false")
	k.kubectl("delete", "persistentvolumeclaims", "--all", "--wait=false")
	k.wantNothingKept()
}

func (k keeper) kubectl(args ...string) string {
	k.t.Helper()
	return k.Kubectl(k.t, append([]string{"--namespace", k.ns}, args...)...)
}

func (k keeper) pod() *corev1.Pod {
	k.t.Helper()
	pod, err := k.API.CoreV1().Pods(k.ns).Get(k.t.Context(), "keeper-0", metav1.GetOptions{})
	if err != nil {
		k.t.Fatal(err)
	}
	return pod
}

// wantStarts waits until the pod runs, and its volume says that it has started n times.
func (k keeper) wantStarts(n int) {
	k.t.Helper()
	rig.Eventually(k.t, soon, fmt.Sprintf("the volume has %d lines", n), func(context.Context) error {
		out, err := k.TryKubectl(k.t, "--namespace", k.ns, "exec", "keeper-0", "--", "/workload", "cat", "/data/starts")
		if err != nil {
			return err
		}
		if got := strings.Count(out, "started"); got != n {
			return fmt.Errorf("it has %d: %q", got, out)
		}
		return nil
	})
}

// grow asks for a larger volume, and waits until the claim and the file system in the pod have that size. Where root
// may not grow an ext4 that is mounted, the volume grows when its pod starts again. starts is how often the pod has
// started; grow returns how often it has afterwards.
func (k keeper) grow(size string, starts int) int {
	k.t.Helper()
	k.kubectl("patch", "persistentvolumeclaim", "data-keeper-0", "--patch",
		`{"spec":{"resources":{"requests":{"storage":"`+size+`"}}}}`)
	if !mayGrowMounted(k.t) {
		k.kubectl("wait", "persistentvolumeclaim/data-keeper-0", "--for=condition=FileSystemResizePending",
			rig.KubectlWaits)
		k.kubectl("delete", "pod", "keeper-0")
		starts++
		k.wantStarts(starts)
	}
	k.kubectl("wait", "persistentvolumeclaim/data-keeper-0", "--for=jsonpath={.status.capacity.storage}="+size,
		rig.KubectlWaits)
	mounts, err := filepath.Glob(filepath.Join(k.AgentRoot(), "pods", string(k.pod().UID),
		"volumes/kubernetes.io~csi/*/mount"))
	if err != nil || len(mounts) != 1 {
		k.t.Fatalf("mounts of the pod's volume: %v, %v", mounts, err)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(mounts[0], &fs); err != nil {
		k.t.Fatal(err)
	}
	const want = 100 << 20 // of 128 MiB: an ext4 needs some for itself
	if got := int64(fs.Blocks) * fs.Bsize; got < want {
		k.t.Errorf("the file system has %d bytes after growing to %s, want at least %d", got, size, want)
	}
	return starts
}

// mayGrowMounted reports whether this process has CAP_SYS_RESOURCE, which the driver inherits.
func mayGrowMounted(t *testing.T) bool {
	t.Helper()
	sets := [2]unix.CapUserData{}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	if err := unix.Capget(&header, &sets[0]); err != nil {
		t.Fatal(err)
	}
	return sets[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0
}

// copies makes a snapshot, a volume restored from it and a clone, and waits until pods read from both what the volume
// holds.
func (k keeper) copies(starts int) {
	k.t.Helper()
	k.kubectl("apply", "-f", "../../../examples/volume-copies.yaml")
	k.kubectl("wait", "volumesnapshot/keeper", "--for=jsonpath={.status.readyToUse}=true", rig.KubectlWaits)
	for _, pod := range []string{"restored", "cloned"} {
		rig.Eventually(k.t, soon, "pod "+pod+" reads its volume", func(context.Context) error {
			out, err := k.TryKubectl(k.t, "--namespace", k.ns, "logs", pod)
			if err != nil {
				return err
			}
			if got := strings.Count(out, "started"); got != starts {
				return fmt.Errorf("%d lines, want %d: %q", got, starts, out)
			}
			return nil
		})
	}
}

// wantNothingKept waits until the API has no volume of the namespace, and the driver no volume and snapshot at all.
func (k keeper) wantNothingKept() {
	k.t.Helper()
	rig.Eventually(k.t, soon, "the space is free again", func(ctx context.Context) error {
		volumes, err := k.API.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, v := range volumes.Items {
			if v.Spec.ClaimRef != nil && v.Spec.ClaimRef.Namespace == k.ns {
				return fmt.Errorf("volume %s is %s", v.Name, v.Status.Phase)
			}
		}
		for _, dir := range []string{"volumes", "snapshots", "new", "old"} {
			left, err := os.ReadDir(filepath.Join(k.StateDir, "volumes", dir))
			if err != nil || len(left) > 0 {
				return fmt.Errorf("%s of the driver: %v, %v", dir, left, err)
			}
		}
		return nil
	})
}

// TestTooLarge: a claim for more than the disk can hold gets an Event that says so, and a smaller claim is not
// affected.
func TestTooLarge(t *testing.T) {
	c := rig.Shared(t)
	k := keeper{Cluster: c, t: t, ns: c.Namespace(t)}
	for name, size := range map[string]string{"huge": "900Ti", "small": "16Mi"} {
		k.apply(claim(name, size) + podWith(name))
	}
	k.ready("small")
	k.event("huge", "FailedScheduling", "did not have enough free storage")
	k.kubectl("delete", "pods,persistentvolumeclaims", "--all", "--wait=false")
	k.wantNothingKept()
}

// apply applies YAML documents.
func (k keeper) apply(manifest string) {
	k.t.Helper()
	path := filepath.Join(k.t.TempDir(), "objects.yaml")
	if err := os.WriteFile(path, []byte(manifest), 0o600); err != nil {
		k.t.Fatal(err)
	}
	k.kubectl("apply", "-f", path)
}

func kill(t *testing.T, pid int) {
	t.Helper()
	if pid == 0 {
		t.Fatal("no process to kill")
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}
