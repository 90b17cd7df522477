//go:build e2e && lab

package lab

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/lab"
	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// upstreamKubelet is the name of upstream's kubelet, which `make bench-build` builds.
const upstreamKubelet = "upstream-kubelet"

// TestPinnedSwap has upstream's kubelet and our agent take a node from each other, while pods run that have CPUs,
// memory and devices of one NUMA node. It is in a guest because a kubelet with the static memory manager refuses its
// own files on a machine whose memory grows or shrinks. What a pod has stays as it is, whoever started it, and nobody
// else gets it.
func TestPinnedSwap(t *testing.T) {
	if os.Getenv("PLIMSOLL_E2E_LONG") == "" {
		t.Skip("takes minutes, and needs bin/upstream-kubelet: make swap")
	}
	pinned := pin(t, "two-socket", "single-numa-node")
	n := &swapNode{devicesNode: &devicesNode{pinnedNode: pinned}, at: map[string]string{}}
	n.end.Close() // the watch: a kubelet moves the shared containers every ten seconds only
	n.ended(n.watch)
	n.CopyIn(t, filepath.Join(filepath.Dir(rig.Binary(t)), upstreamKubelet), programPath(upstreamKubelet))
	n.startPlugin()
	n.offers(3)
	n.add("first", 2, 1, true)
	for round := range 2 {
		n.toKubelet()
		n.add(fmt.Sprint("kubelet-", round), 1, round, false)
		n.toOurs()
		for name := range n.at {
			n.isHome(n.get(name))
		}
		n.remove(fmt.Sprint("kubelet-", round))
		n.add(fmt.Sprint("ours-", round), 1, round, true)
	}
	n.toKubelet()
	n.remove("first") // one that ours started
	n.add("last", 2, 1, false)
}

// swapNode is a node that has either agent.
type swapNode struct {
	*devicesNode
	at map[string]string // where each pod is (place), by name
}

// add creates a pod with CPUs, and devices if there are any, and notes where it is. Only our agent publishes what it
// has.
func (n *swapNode) add(name string, cpus int64, devices int, ours bool) {
	n.t.Helper()
	spec := n.pod(name, cpus, holdMemory...)
	if devices > 0 {
		spec = n.withDevices(name, cpus, int64(devices))
	}
	pod := createReady(n.t, n.c, n.ns, spec)
	if ours {
		n.isHome(pod)
	}
	n.at[name] = n.where(pod)
	n.undivided()
	n.step(fmt.Sprintf("%s is at %s", name, n.at[name]))
}

// undivided checks that no CPU has two pods, and that each pod is on one NUMA node.
func (n *swapNode) undivided() {
	n.t.Helper()
	var taken idset.Set
	for name, at := range n.at {
		fields := strings.Fields(at) // see place
		cpus, err := idset.Parse(fields[2])
		if err != nil {
			n.t.Fatal(err)
		}
		for _, node := range []idset.Set{idset.Of(0, 1, 2, 3), idset.Of(4, 5, 6, 7)} {
			if !cpus.Intersect(node).IsEmpty() && !cpus.Minus(node).IsEmpty() {
				n.t.Errorf("%s has CPUs %v of two NUMA nodes", name, cpus)
			}
		}
		if both := cpus.Intersect(taken); !both.IsEmpty() {
			n.t.Errorf("%s has CPUs %v, and another pod too: %v", name, both, n.at)
		}
		taken = taken.Union(cpus)
	}
}

func (n *swapNode) remove(name string) {
	n.t.Helper()
	n.delete(name)
	n.gone(name)
	delete(n.at, name)
	n.unmoved("after the end of "+name, n.at)
}

// toKubelet has the kubelet take the node from our agent.
func (n *swapNode) toKubelet() {
	n.t.Helper()
	n.Run(n.t, "pkill", "-TERM", "-f", "^plimsoll agent")
	n.ended(n.Agent)
	n.unmoved("without an agent", n.at)
	n.Agent = n.Start(n.t, lab.Command{Args: []string{programPath(upstreamKubelet),
		"--kubeconfig", "/etc/plimsoll/kubeconfig", "--config", "/etc/plimsoll/config.yaml", "--node-ip", n.IP}})
	n.has(false)
}

// toOurs has our agent take the node from the kubelet.
func (n *swapNode) toOurs() {
	n.t.Helper()
	n.Run(n.t, "pkill", "-TERM", "-f", "^"+programPath(upstreamKubelet))
	n.ended(n.Agent)
	n.unmoved("without a kubelet", n.at)
	n.StartAgentOnly(n.t)
	n.has(true)
}

// has waits until an agent has the node, with all devices, and checks that no pod moved or was restarted.
func (n *swapNode) has(ours bool) {
	n.t.Helper()
	rig.Eventually(n.t, podWithin, "the Node is of the other agent", func(ctx context.Context) error {
		select {
		case <-n.Agent.Ended():
			n.t.Fatalf("the agent ended: %v: %s", n.Agent.Err(), n.Agent.Output())
		default:
		}
		node, err := n.c.API.CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if version := node.Status.NodeInfo.KubeletVersion; strings.Contains(version, "+plimsoll") != ours {
			return fmt.Errorf("version %s", version)
		}
		return nil
	})
	n.WaitReady(n.t)
	n.offers(3)
	n.unmoved("after a take-over", n.at)
	for name := range n.at {
		n.until(name, "as it was", func(p *corev1.Pod) error {
			if s := p.Status.ContainerStatuses; podReady(p) != nil || s[0].RestartCount != 0 {
				return fmt.Errorf("%w, %+v", podReady(p), s)
			}
			return nil
		})
	}
	n.step(fmt.Sprintf("ours has the node: %v", ours))
}
