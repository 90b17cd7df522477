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

// Commands that make and mount a separate disk for the agent's files.
const (
	makeStateDisk = `set -e
modprobe loop
truncate -s 256M /var/lib/node.disk
mkfs.ext4 -q -N 2000 -m 0 /var/lib/node.disk`
	mountStateDisk = `mkdir -p /var/lib/kubelet && modprobe loop && mount -o loop /var/lib/node.disk /var/lib/kubelet`
	// lastBytes fills empty files of a directory until the disk has no block left. It writes blocks of 1 KiB, the file
	// system's size: a longer write may fail where a part of it had room.
	lastBytes = `set -e
tries=0
until [ "$(stat -f -c %a "$0")" = 0 ]; do
	tries=$((tries+1))
	[ $tries -le 10 ]
	dd if=/dev/zero bs=1k of="$0/$tries" 2>/dev/null || true
	sync
done`
)

// TestFullDiskAndPower fills a node's state disk to the last inode and byte, and cuts its power while a record of the
// journal is being written. After the boot the agent frees the disk by evicting the pod that filled it, and runs new
// pods. Then the disk is read-only for a while, and the real-time clock is two years ahead, then two behind. Each time
// the node works, or works again when that is over, with the same agent process.
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

// takesPods checks that the node runs a new pod, with its own token and hosts file.
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
	// No sockets whose inodes were used, and a record that was cut off.
	n.Run(t, "sh", "-c",
		`cd /var/lib/kubelet && : > filled-by-the-lab && rm -rf device-plugins pod-resources pki && mkdir -p journal && printf '0badc0de {"number":4,"kind":"evic' >> journal/decisions`)
	n.Run(t, "sh", "-c",
		`mkdir /var/lib/kubelet/many && cd /var/lib/kubelet/many && i=0 && while (: > $i) 2>/dev/null; do i=$((i+1)); done; test $i -gt 100`)
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

// readOnlyDisk starts an agent on a read-only disk. Running pods are not affected; a new pod waits until the disk is
// writable.
func (n evictingNode) readOnlyDisk() {
	t := n.t
	n.Agent.Stop()
	n.Run(t, "mount", "-o", "remount,ro", "/var/lib/kubelet")
	n.StartAgentOnly(t)
	n.says("pods of this node known")
	n.WaitReady(t)
	n.postLoad("writes", "16Mi", 1, "sleep infinity")
	n.until("writes", "shows that the disk is read-only", func(p *corev1.Pod) error {
		text := n.c.Kubectl(t, "--namespace", n.ns, "get", "events", "--field-selector",
			"involvedObject.name=writes,reason=FailedMount", "-o", "jsonpath={.items[*].message}")
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

// otherYears sets the real-time clock two years ahead and two back. Tokens are renewed within moments, since nobody
// knows which of the times is right. Running pods continue, and with the right time the node is as before.
func (n evictingNode) otherYears() {
	steady := n.until("steady", "is ready", podReady)
	token := func(ctx context.Context) string {
		text, _ := n.Output(ctx, "sh", "-c", fmt.Sprintf("cat /var/lib/kubelet/memory/%s/kubernetes.io~projected/*/token",
			steady.UID))
		return text
	}
	for i, years := range []int{2, 0, -2, 0} {
		had := token(n.t.Context())
		if had == "" {
			n.t.Fatal("it has no token")
		}
		n.SetClock(n.t, time.Now().AddDate(years, 0, 0))
		rig.Eventually(n.t, podWithin, fmt.Sprintf("another token, %d years from now", years),
			func(ctx context.Context) error {
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

// alive checks that the agent is still the process that was started.
func (n evictingNode) alive() {
	n.t.Helper()
	select {
	case <-n.Agent.Ended():
		n.t.Fatalf("the agent ended: %v", n.Agent.Err())
	default:
	}
}
