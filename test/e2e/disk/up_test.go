//go:build e2e

package disk

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
	"github.com/plimsoll-dev/plimsoll/test/smallfs"
)

// TestUpOnAFullDisk runs `up` when the disk with all files of the instance is full, first of blocks, then of inodes.
// `up` starts the existing instance and says what is full. Its agent starts the pods that ran before, and evicts only
// the pod that uses most of the disk. The second time, new pods were bound while no agent ran, and the node has room
// for them only without a pod that ran before: that pod keeps its place.
func TestUpOnAFullDisk(t *testing.T) {
	var disk *smallfs.Disk
	n := start(t, "fulup", func(c *rig.Cluster) error {
		disk = smallfs.ForTest(t, "", unit.GiB, "-N", "8192")
		c.StateDir = filepath.Join(disk.Dir, "s")
		return nil
	})
	steady, data := n.run("steady"), n.run("data")
	n.stopped(t)
	full := n.fillBy(data)
	n.upAgain(t, " MiB free, a new instance needs 256 MiB")
	n.until("data", "is evicted", evicted)
	n.back(steady)
	n.takesPods("after-blocks")
	full.Free()
	n.remove("data")

	large := n.run("z-large", n.mostCPUs)
	n.signal(n.pid(agent), syscall.SIGSTOP)
	for i := range 4 {
		n.post(fmt.Sprint("late-", i), n.mostCPUs)
	}
	n.stopped(t)
	inodes := smallfs.FillInodes(t, disk.Dir, 0)
	n.upAgain(t, "") // with the spare inodes freed there are enough
	inodes.Free()
	n.back(steady)
	n.back(large)
	for i := range 4 {
		n.until(fmt.Sprint("late-", i), "is refused", func(p *corev1.Pod) error {
			if p.Status.Phase != corev1.PodFailed || p.Status.Reason != "OutOfcpu" {
				return fmt.Errorf("%s, %s: %s", p.Status.Phase, p.Status.Reason, p.Status.Message)
			}
			return nil
		})
	}
	n.takesPods("after-inodes")
}

// mostCPUs makes a pod request more than half of the node's CPUs.
func (n node) mostCPUs(s *corev1.PodSpec) {
	n.t.Helper()
	node, err := n.API.CoreV1().Nodes().Get(n.t.Context(), n.NodeName, metav1.GetOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	cpus := resource.NewMilliQuantity(node.Status.Allocatable.Cpu().MilliValue()*6/10, resource.DecimalSI)
	s.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: *cpus}
}

// back checks that a pod that `down` ended runs again, and was neither rejected nor evicted.
func (n node) back(was *corev1.Pod) {
	n.t.Helper()
	n.until(was.Name, "runs again", func(p *corev1.Pod) error {
		if p.UID != was.UID || p.Status.Phase == corev1.PodFailed {
			n.t.Fatalf("%s: %s, %s: %s", p.Name, p.Status.Phase, p.Status.Reason, p.Status.Message)
		}
		if p.Status.ContainerStatuses[0].ContainerID == was.Status.ContainerStatuses[0].ContainerID {
			return errors.New("its status is of before")
		}
		return ready(p)
	})
}

// stopped takes the instance and its pods down, and keeps its files.
func (n node) stopped(t *testing.T) {
	t.Helper()
	if out, err := n.Plimsoll("down"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// upAgain runs up, and checks what it prints about the shortage and what it will do; empty: nothing.
func (n node) upAgain(t *testing.T, want string) {
	t.Helper()
	out, err := n.Up()
	if err != nil {
		t.Fatalf("up on a full disk: %v\n%s", err, out)
	}
	if want != "" && (!strings.Contains(out, want) || !strings.Contains(out, "evict pods")) {
		t.Errorf("up did not say %q:\n%s", want, out)
	}
}
