//go:build e2e

package disk

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
	"github.com/plimsoll-dev/plimsoll/test/smallfs"
)

// agentDisk mounts a disk of 256 MiB and 2,000 inodes for the agent's files.
func agentDisk(t *testing.T) func(*rig.Cluster) error {
	return func(c *rig.Cluster) error {
		// The lock file says that the directory is plimsoll's.
		err := errors.Join(os.MkdirAll(c.AgentRoot(), 0o700), os.WriteFile(filepath.Join(c.StateDir, "lock"), nil, 0o600))
		if err == nil {
			smallfs.ForTest(t, c.AgentRoot(), 256*unit.MiB, "-N", "2000")
		}
		return err
	}
}

// TestShort takes resources away from an agent, one after the other.
func TestShort(t *testing.T) {
	n := start(t, "short", agentDisk(t))
	n.setting("first")
	steady := n.run("steady", reads)
	n.has(steady, "first")
	for _, c := range []struct {
		what string
		of   func(node)
	}{
		{"blocks", node.blocks},
		{"blocks at its start", node.blocksAtStart},
		{"inodes", node.inodes},
		{"writing", node.writing},
		{"descriptors", node.descriptors},
		{"time", node.time},
	} {
		whole := t.Run(c.what, func(t *testing.T) {
			inner := n
			inner.t = t
			c.of(inner)
			inner.untouched(steady)
		})
		if !whole {
			break // the next one needs the state that this one leaves
		}
	}
}

// setting changes the ConfigMap that the steady pod reads.
func (n node) setting(value string) {
	n.t.Helper()
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "settings"}, Data: map[string]string{"value": value}}
	maps := n.API.CoreV1().ConfigMaps(n.ns)
	_, err := maps.Update(n.t.Context(), m, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		_, err = maps.Create(n.t.Context(), m, metav1.CreateOptions{})
	}
	if err != nil {
		n.t.Fatal(err)
	}
}

// reads gives a pod a volume of that ConfigMap.
func reads(s *corev1.PodSpec) {
	s.Volumes = append(s.Volumes, corev1.Volume{Name: "settings", VolumeSource: corev1.VolumeSource{
		ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}},
	}})
	mount := corev1.VolumeMount{Name: "settings", MountPath: "/settings"}
	s.Containers[0].VolumeMounts = append(s.Containers[0].VolumeMounts, mount)
}

// has waits until a pod reads the given text in its volume. It fails if the pod reads anything but the old or the new
// text meanwhile, such as an empty file.
func (n node) has(pod *corev1.Pod, want string) {
	n.t.Helper()
	path := filepath.Join(n.AgentRoot(), "pods", string(pod.UID), "volumes/kubernetes.io~configmap/settings/value")
	rig.Eventually(n.t, soon, "settings of "+pod.Name+" are "+want, func(context.Context) error {
		text, err := os.ReadFile(path)
		if err != nil || string(text) != "first" && string(text) != "second" {
			n.t.Fatalf("settings of %s: %q, %v", pod.Name, text, err)
		}
		if string(text) != want {
			return fmt.Errorf("they are %s", text)
		}
		return nil
	})
}

// fillBy makes a pod use most of the disk, and then the rest.
func (n node) fillBy(pod *corev1.Pod) *smallfs.Filler {
	n.t.Helper()
	big, err := os.Create(filepath.Join(n.volume(pod), "big"))
	if err != nil {
		n.t.Fatal(err)
	}
	defer big.Close()
	if err := unix.Fallocate(int(big.Fd()), 0, 0, 120<<20); err != nil {
		n.t.Fatal(err)
	}
	return smallfs.Fill(n.t, n.AgentRoot())
}

// blocks uses up the last block while the agent runs. The agent evicts the pod that uses most of the disk, and then
// runs new pods.
func (n node) blocks() {
	pid := n.pid(agent)
	full := n.fillBy(n.run("data"))
	n.until("data", "is evicted", evicted)
	// There was no block for the journal either: its decision waits in memory.
	n.Explains(n.t, "pod "+n.ns+"/data", nil, `Failed, Evicted.*The node was low on resource: ephemeral-storage\. `+
		`Threshold quantity: 60Mi, available: [0-9]`, `nodefs\.available +[0-9].* evicted for nodefs\.available`)
	n.takesPods("after-blocks")
	full.Free()
	n.remove("data")
	n.same(pid)
}

// blocksAtStart kills the agent when the last block has been used. The next agent starts without a free block.
func (n node) blocksAtStart() {
	pod := n.run("more-data")
	pid := n.pid(agent)
	n.signal(pid, syscall.SIGSTOP) // otherwise the old agent would free some
	full := n.fillBy(pod)
	n.signal(pid, syscall.SIGKILL)
	pid = n.another(pid)
	n.until("more-data", "is evicted", evicted)
	n.takesPods("after-a-start-without-blocks")
	full.Free()
	n.remove("more-data")
	n.same(pid)
}

// inodes starts an agent when no inode is free. The sockets for device plugins and for the pod-resources API are gone
// with their directories. A new pod's Event says so, and it starts when files have been removed. Then both sockets
// exist again. A volume whose content changes meanwhile keeps the complete old content, and gets the new one
// afterwards.
func (n node) inodes() {
	parent, pid := n.pid(supervisor), n.pid(agent)
	n.signal(parent, syscall.SIGSTOP) // otherwise the supervisor would start another agent before the inodes are used up
	n.signal(pid, syscall.SIGKILL)
	n.dead(pid)
	sockets := []string{"device-plugins", "pod-resources"}
	for _, dir := range sockets {
		if err := os.RemoveAll(filepath.Join(n.AgentRoot(), dir)); err != nil {
			n.t.Fatal(err)
		}
	}
	full := smallfs.FillInodes(n.t, n.AgentRoot(), 0)
	n.signal(parent, syscall.SIGCONT)
	pid = n.another(pid)
	n.post("wants-inodes")
	n.fails("wants-inodes", "FailedMount", "no space left on device")
	steady := n.until("steady", "is ready", ready)
	said := n.logSize()
	n.setting("second")
	n.inLog(said, "volume: not refreshed")
	n.has(steady, "first")
	full.Free()
	n.until("wants-inodes", "is ready", ready)
	n.has(steady, "second")
	for _, dir := range sockets {
		n.listens(filepath.Join(n.AgentRoot(), dir, "kubelet.sock"))
	}
	n.remove("wants-inodes")
	n.same(pid)
}

// dead waits until a killed process has closed its files. Its parent is stopped, so it remains a zombie
// (proc_pid_stat(5)).
func (n node) dead(pid int) {
	n.t.Helper()
	rig.Eventually(n.t, soon, "the killed process is dead", func(context.Context) error {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err == nil && !strings.Contains(string(text), ") Z ") {
			err = fmt.Errorf("it is %s", text)
		}
		return err
	})
}

// listens waits until a socket accepts connections.
func (n node) listens(socket string) {
	n.t.Helper()
	rig.Eventually(n.t, soon, "somebody listens at "+socket, func(ctx context.Context) error {
		c, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
		if err == nil {
			err = c.Close()
		}
		return err
	})
}

// writing starts an agent on a read-only disk. A new pod's Event says so, and it starts when the disk is writable
// again.
func (n node) writing() {
	parent, pid := n.pid(supervisor), n.pid(agent)
	n.signal(parent, syscall.SIGSTOP) // otherwise the supervisor would start another agent before the disk is read-only
	n.signal(pid, syscall.SIGKILL)
	smallfs.RemountIdle(n.t, n.AgentRoot(), unix.MS_RDONLY)
	n.signal(parent, syscall.SIGCONT)
	pid = n.another(pid)
	n.post("wants-to-write")
	n.fails("wants-to-write", "FailedMount", "read-only file system")
	smallfs.Remount(n.t, n.AgentRoot(), 0)
	n.until("wants-to-write", "is ready", ready)
	n.remove("wants-to-write")
	n.same(pid)
}

// descriptors limits the agent's file descriptors to those that it has open.
func (n node) descriptors() {
	pid, said := n.pid(agent), n.logSize()
	restore := smallfs.NoDescriptorsOf(n.t, pid)
	n.post("wants-files")
	n.inLog(said, "too many open files")
	began := time.Now()
	n.renews(began)
	restore()
	n.until("wants-files", "is ready", ready)
	n.remove("wants-files")
	n.same(pid)
}

// time stops the agent for longer than its Lease lasts, as a suspended machine does.
func (n node) time() {
	pid := n.pid(agent)
	n.signal(pid, syscall.SIGSTOP)
	began := time.Now()
	select {
	case <-time.After((leaseSeconds + 1) * time.Second): // the outage lasts that long
	case <-n.t.Context().Done():
	}
	n.signal(pid, syscall.SIGCONT)
	n.renews(began.Add(leaseSeconds * time.Second))
	n.takesPods("after-time")
	n.same(pid)
}
