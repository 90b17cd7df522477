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

// TestUpOnAFullDisk: the disk that all files of an instance lie on is full, first of blocks, then of inodes. `up`
// brings the instance up that is there, saying what is full; its agent brings back the pods that ran, and frees the
// disk by evicting who took it, nobody else. The second time, pods have come while the agent did not listen, for which
// there is room only without the one that ran: it keeps its room.
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
	n.upAgain(t, "") // with the reserve given back there are enough
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

// mostCPUs has a pod ask for more than half of the node's CPUs.
func (n node) mostCPUs(s *corev1.PodSpec) {
	n.t.Helper()
	node, err := n.API.CoreV1().Nodes().Get(n.t.Context(), n.NodeName, metav1.GetOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	cpus := resource.NewMilliQuantity(node.Status.Allocatable.Cpu().MilliValue()*6/10, resource.DecimalSI)
	s.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: *cpus}
}

// back wants a pod that `down` ended to run again, never having been told to go.
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

// stopped takes the instance down, pods and all, and leaves its files.
func (n node) stopped(t *testing.T) {
	t.Helper()
	if out, err := n.Plimsoll("down"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// upAgain brings the instance up, and wants that to say what is short and what will be done; empty: nothing.
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
