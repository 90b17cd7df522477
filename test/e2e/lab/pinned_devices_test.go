//go:build e2e && lab

package lab

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/lab"
	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// gpu is the resource of a real device plugin in the guest: two devices near node 1, one near node 0.
const (
	gpu        = "example.com/gpu"
	pluginPath = "test/deviceplugin/plugin"
)

// devicesNode is a node with a device plugin.
type devicesNode struct {
	*pinnedNode
	plugin *lab.Process
	input  io.Closer // of plugin
}

// TestPinnedDevices runs pods with devices, CPUs, memory and huge pages on one NUMA node. It kills plugin and agent at
// random while other pods come. Then it boots the machine again with less memory and starts the plugin late: the pod
// waits, and then has what it had.
func TestPinnedDevices(t *testing.T) {
	n := &devicesNode{pinnedNode: pin(t, "two-socket", "single-numa-node")}
	n.startPlugin()
	n.offers(3)
	spec := n.withDevices("first", 2, 2)
	spec.Spec.Containers[0].Resources.Limits["hugepages-2Mi"] = resource.MustParse("4Mi")
	pod := createReady(t, n.c, n.ns, spec)
	first := n.isHome(pod)
	if first.huge != 4*unit.MiB {
		t.Errorf("it owns %v in huge pages", first.huge)
	}
	n.wantHeld(pod, first, 1, "gpu0", "gpu1") // without devices it would get CPUs of node 0
	place := n.where(pod)
	n.step("a pod has two devices")
	for round := range 2 {
		name := fmt.Sprint("guest-", round)
		n.post(n.withDevices(name, 1, 1))
		after := time.Duration(rand.IntN(5000)) * time.Millisecond
		<-time.After(after)
		agentToo := round == 0
		n.killPlugin()
		if agentToo {
			n.kill()
			n.StartAgentOnly(t)
		}
		n.startPlugin()
		guest := n.untilReady(name)
		n.wantHeld(guest, n.isHome(guest), 0, "gpu2")
		if now := n.where(pod); now != place {
			t.Errorf("%s is %q, was %q", pod.Name, now, place)
		}
		n.delete(name)
		n.gone(name)
		n.step(fmt.Sprintf("the plugin was killed %v after a pod had come, the agent too: %v", after, agentToo))
	}
	n.apart()
	n.reboots(first)
}

func (n *devicesNode) startPlugin() {
	n.t.Helper()
	n.plugin, n.input = n.program(pluginPath, "--resource", gpu, "--devices", "gpu0@1,gpu1@1,gpu2@0", "--env", "GPUS",
		"--nodes")
}

func (n *devicesNode) killPlugin() {
	n.t.Helper()
	n.Run(n.t, "pkill", "-KILL", "-f", "^"+programPath(pluginPath))
	n.input.Close()
	n.ended(n.plugin)
}

// offers waits until the node publishes the given number of devices.
func (n *devicesNode) offers(want int64) {
	n.t.Helper()
	rig.Eventually(n.t, podWithin, "the node publishes its devices", func(ctx context.Context) error {
		node, err := n.c.API.CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if q := node.Status.Allocatable[gpu]; q.Value() != want {
			return fmt.Errorf("%d of %d", q.Value(), want)
		}
		return nil
	})
}

func (n *devicesNode) withDevices(name string, cpus, devices int64) *corev1.Pod {
	p := n.pod(name, cpus, holdMemory...)
	p.Spec.Containers[0].Resources.Limits[gpu] = *resource.NewQuantity(devices, resource.DecimalSI)
	return p
}

// wantHeld compares a pod's assigned devices with those that its process sees.
func (n *devicesNode) wantHeld(p *corev1.Pod, h held, node int, devices ...string) {
	n.t.Helper()
	cpus := idset.Of(0, 1, 2, 3)
	if node == 1 {
		cpus = idset.Of(4, 5, 6, 7)
	}
	if !slices.Equal(h.devices, devices) || !h.cpus.Minus(cpus).IsEmpty() || !h.mems.Equal(idset.Of(node)) {
		n.t.Errorf("%s has %v, CPUs %v, memory of nodes %v; want %v, all on node %d", p.Name, h.devices, h.cpus, h.mems,
			devices, node)
	}
	told := n.Run(n.t, "sh", "-c", "tr '\\0' '\\n' < /proc/"+n.pid(p)+"/environ | grep ^GPUS=")
	if want := "GPUS=" + strings.Join(devices, ","); told != want {
		n.t.Errorf("%s has %q, want %q", p.Name, told, want)
	}
}

func (n *devicesNode) gone(name string) {
	n.t.Helper()
	rig.Eventually(n.t, podWithin, name+" is gone", func(ctx context.Context) error {
		_, err := n.c.API.CoreV1().Pods(n.ns).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it is there: %w", err)
	})
}

// reboots boots the machine again, with less memory on the pod's NUMA node. The pod waits for its plugin, and then has
// what it had.
func (n *devicesNode) reboots(had held) {
	n.t.Helper()
	n.Run(n.t, "sync")
	n.input.Close()
	n.PowerOff()
	n.Shrink(n.t, 1, 16*unit.MiB)
	n.Restart(n.t)
	n.StartRuntime(n.t)
	n.StartAgent(n.t)
	n.until("first", "waiting for its devices", func(p *corev1.Pod) error {
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodReadyToStartContainers && c.Status == corev1.ConditionFalse &&
				c.Reason == "WaitingForDevices" && strings.Contains(c.Message, gpu+": its device plugin is not registered") {
				return nil
			}
		}
		return fmt.Errorf("%s %s: %+v", p.Status.Phase, p.Status.Reason, p.Status.Conditions)
	})
	n.WaitReady(n.t)
	n.step("booted again, and the pod waits")
	n.startPlugin()
	pod := n.until("first", "Ready again", func(p *corev1.Pod) error {
		if s := p.Status.ContainerStatuses; podReady(p) != nil || s[0].RestartCount != 1 {
			return fmt.Errorf("%w, %+v", podReady(p), s)
		}
		return nil
	})
	now := n.isHome(pod)
	n.wantHeld(pod, now, 1, "gpu0", "gpu1")
	if !now.cpus.Equal(had.cpus) {
		n.t.Errorf("it has CPUs %v, had %v", now.cpus, had.cpus)
	}
	want := describe(n.t, "two-socket").Machine.Memory - 16*unit.MiB
	rig.Eventually(n.t, podWithin, "the node publishes less memory", func(ctx context.Context) error {
		node, err := n.c.API.CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if has := node.Status.Capacity.Memory().Value(); has != int64(want) {
			return fmt.Errorf("%v, want %v", unit.Bytes(has), want)
		}
		return nil
	})
	n.step("the plugin is back, and the pod has what it had")
}
