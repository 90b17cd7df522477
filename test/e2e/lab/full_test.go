//go:build e2e && lab

package lab

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/lab"
	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// stateDisk makes and mounts a disk of the agent's own.
const (
	makeStateDisk = `set -e
modprobe loop
truncate -s 256M /var/lib/node.disk
mkfs.ext4 -q -N 2000 -m 0 /var/lib/node.disk`
	mountStateDisk = `mkdir -p /var/lib/kubelet && modprobe loop && mount -o loop /var/lib/node.disk /var/lib/kubelet`
	// lastBytes fills empty files of a directory until its disk has no block left: in blocks of 1 KiB, the disk's own,
	// since a longer write may be refused where a part of it had room.
	lastBytes = `set -e
tries=0
until [ "$(stat -f -c %a "$0")" = 0 ]; do
	tries=$((tries+1))
	[ $tries -le 10 ]
	dd if=/dev/zero bs=1k of="$0/$tries" 2>/dev/null || true
	sync
done`
)

// TestFullDiskAndPower: a node whose state disk is full to the last inode and byte loses its power in the middle of a
// record of the journal. It comes up again, frees the disk by evicting who filled it, and takes pods. Then the disk is
// read-only for a while, and the calendar is two years ahead and two behind: the node goes on, or is as before when
// that is over, by the same agent.
func TestFullDiskAndPower(t *testing.T) {
	c := rig.Shared(t)
	n := evictingNode{runningNode{t: t, c: c, ns: c.Namespace(t), names: cgroupfsNames}, t}
	guest := lab.Boot(t, "tiny", lab.Options{Name: "powerless"})
	guest.Run(t, "sh", "-c", makeStateDisk+"\n"+mountStateDisk)
	n.GuestNode = c.Join(t, guest, rig.JoinOptions{Config: map[string]any{
		"evictionHard": map[string]string{"nodefs.available": "60Mi"}, "evictionPressureTransitionPeriod": "5s",
	}})
	n.load("steady", "sleep infinity")
	n.fullAndPowerless()
	n.readOnlyDisk()
	n.otherYears()
}

// takesPods wants the node to run a new pod, with a token and a hosts file of its own.
func (n evictingNode) takesPods(name string) {
	n.t.Helper()
	n.load(name, "sleep infinity")
	n.remove(name)
}

func (n evictingNode) fullAndPowerless() {
	t := n.t
	pod := n.load("data", "sleep infinity")
	n.Run(t, "fallocate", "-l", "120M", volume(pod)+"/big")
	n.Agent.Stop()
	// No sockets to take the inodes of, and a line that was cut off.
	n.Run(t, "sh", "-c", `cd /var/lib/kubelet && : > filled-by-the-lab && rm -rf device-plugins pod-resources pki && mkdir -p journal && printf '0badc0de {"number":4,"kind":"evic' >> journal/decisions`)
	n.Run(t, "sh", "-c", `mkdir /var/lib/kubelet/many && cd /var/lib/kubelet/many && i=0 && while (: > $i) 2>/dev/null; do i=$((i+1)); done; test $i -gt 100`)
	full := n.FillDisk(t, "/var/lib/kubelet", unit.MiB)
	n.Run(t, "sh", "-c", lastBytes, "/var/lib/kubelet/many")
	n.Kill()
	n.Restart(t)
	n.Run(t, "sh", "-c", mountStateDisk)
	n.Run(t, "sh", "-c", `tail -c 40 /var/lib/kubelet/journal/decisions | grep -q evic`)
	if free := n.Run(t, "stat", "-f", "-c", "%a %d", "/var/lib/kubelet"); free != "0 0" {
		t.Fatalf("blocks and inodes free after the power cut: %s, want none", free)
	}
	n.StartRuntime(t)
	n.StartAgent(t)
	n.WaitReady(t)
	n.until("data", "is evicted", isEvicted)
	n.Run(t, "rm", "-r", full, "/var/lib/kubelet/many")
	n.presses(corev1.ConditionFalse)
	n.remove("data")
	n.until("steady", "is ready", podReady)
	n.takesPods("after-the-power")
	rig.Eventually(t, podWithin, "sockets for device plugins are there again", func(ctx context.Context) error {
		_, err := n.Output(ctx, "test", "-S", "/var/lib/kubelet/device-plugins/kubelet.sock")
		return err
	})
	n.alive()
}

// readOnlyDisk: an agent comes up on a disk that cannot be written, with no harm to what runs; a new pod waits until it
// can be.
func (n evictingNode) readOnlyDisk() {
	t := n.t
	n.Agent.Stop()
	n.Run(t, "mount", "-o", "remount,ro", "/var/lib/kubelet")
	n.StartAgentOnly(t)
	n.says("pods of this node known")
	n.WaitReady(t)
	n.postLoad("writes", "16Mi", 1, "sleep infinity")
	n.until("writes", "is told that the disk is read-only", func(p *corev1.Pod) error {
		text := n.c.Kubectl(t, "--namespace", n.ns, "get", "events", "--field-selector", "involvedObject.name=writes,reason=FailedMount", "-o", "jsonpath={.items[*].message}")
		if text == "" {
			return errors.New("no Event FailedMount")
		}
		return nil
	})
	n.until("steady", "is ready", podReady)
	n.Run(t, "mount", "-o", "remount,rw", "/var/lib/kubelet")
	n.until("writes", "is ready", podReady)
	n.remove("writes")
	n.alive()
}

// otherYears: the calendar goes two years on and two back. What tokens live by that is renewed within moments, since
// nobody knows which of the two times was right; what runs goes on, and the right time finds the node as it was.
func (n evictingNode) otherYears() {
	steady := n.until("steady", "is ready", podReady)
	token := func(ctx context.Context) string {
		text, _ := n.Output(ctx, "sh", "-c", fmt.Sprintf("cat /var/lib/kubelet/memory/%s/kubernetes.io~projected/*/token", steady.UID))
		return text
	}
	for i, years := range []int{2, 0, -2, 0} {
		had := token(n.t.Context())
		if had == "" {
			n.t.Fatal("it has no token")
		}
		n.SetClock(n.t, time.Now().AddDate(years, 0, 0))
		rig.Eventually(n.t, podWithin, fmt.Sprintf("another token, %d years from now", years), func(ctx context.Context) error {
			if now := token(ctx); now == "" || now == had {
				return errors.New("it is the same")
			}
			return nil
		})
		n.WaitReady(n.t)
		n.takesPods(fmt.Sprint("in-another-year-", i))
		n.alive()
	}
}

// alive wants the agent to be the one that was started.
func (n evictingNode) alive() {
	n.t.Helper()
	select {
	case <-n.Agent.Ended():
		n.t.Fatalf("the agent ended: %v", n.Agent.Err())
	default:
	}
}
