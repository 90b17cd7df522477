//go:build e2e && lab

package lab

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/lab"
	"github.com/plimsoll-dev/plimsoll/lab/wire"
	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// TestResizingWithCgroupfs resizes pods on cgroup v2 under difficulties: no room, a policy of restarts, agents that
// die, containers whose groups are not ours. TestResizingWithSystemd does the same under systemd.
func TestResizingWithCgroupfs(t *testing.T) { resizing(t, lab.Tiny, "cgroupfs", cgroupfsNames) }

func TestResizingWithSystemd(t *testing.T) { resizing(t, lab.Systemd, "systemd", systemdNames) }

func resizing(t *testing.T, init wire.InitKind, driver string, names names) {
	t.Parallel()
	n := newRunningNode(t, "resizing", init, driver, names)
	n.defers()
	n.restarts()
	if driver == "cgroupfs" { // with systemd the parent must be a slice, and none is named
		n.resizesElsewhere()
	}
}

// anew kills the agent and starts another one.
func (n runningNode) anew() {
	n.t.Helper()
	n.Agent.Stop()
	n.StartAgentOnly(n.t)
}

// defers makes a resize wait until another pod ends. Meanwhile the agent is killed.
func (n runningNode) defers() {
	t := n.t
	t.Helper()
	n.create("big", sized("c", "1200m,16Mi", "1200m,32Mi"))
	pod := n.create("patient", sized("c", "100m,16Mi", "200m,32Mi"))
	was := n.first(pod, "c")
	n.ask("patient", "c", "1000m,16Mi", "1100m,48Mi")
	deferred := func(p *corev1.Pod) error {
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodResizePending && c.Reason == corev1.PodReasonDeferred {
				return nil
			}
		}
		return fmt.Errorf("%+v", p.Status.Conditions)
	}
	n.until("patient", "waits", deferred)
	n.anew()
	n.says("pods of this node known")
	n.until("patient", "waits still", deferred)
	if has := n.read(n.group(pod, "c"), "cpu.max"); has != "20000 100000" {
		t.Errorf("cpu.max is %s while the resize waits", has)
	}
	n.c.Kubectl(t, "--namespace", n.ns, "delete", "pod", "big")
	pod = n.has("patient", "c", "1000m,16Mi", "1100m,48Mi")
	n.wantBounds(pod, "c", "110000 100000", "50331648")
	if now := n.first(pod, "c"); now != was {
		t.Errorf("container and first process are %s, were %s: restarted", now, was)
	}
	n.c.Kubectl(t, "--namespace", n.ns, "delete", "pod", "patient")
}

// restarts resizes a container that is restarted for memory, and one that is not, while agents are killed.
func (n runningNode) restarts() {
	t := n.t
	t.Helper()
	r := sized("r", "50m,16Mi", "100m,32Mi")
	r.ResizePolicy = []corev1.ContainerResizePolicy{{ResourceName: corev1.ResourceMemory,
		RestartPolicy: corev1.RestartContainer}}
	spec := n.pod("torn", []corev1.Container{sized("a", "50m,16Mi", "100m,32Mi"), r})
	spec.Spec.RestartPolicy = corev1.RestartPolicyAlways
	pod := createReady(t, n.c, n.ns, spec)
	was := n.first(pod, "a")
	for round := range 3 {
		mib := 40 + 20*round
		requests, limits := fmt.Sprintf("%dm,%dMi", mib, mib), fmt.Sprintf("%dm,%dMi", 2*mib, 2*mib)
		n.ask("torn", "a", requests, limits)
		n.ask("torn", "r", requests, limits)
		<-time.After(time.Duration(rand.IntN(1500)) * time.Millisecond) // at a random moment of it
		n.anew()
		n.has("torn", "a", requests, limits)
		pod = n.has("torn", "r", requests, limits)
		for _, name := range []string{"a", "r"} {
			n.wantBounds(pod, name, fmt.Sprintf("%d 100000", 2*mib*100), fmt.Sprint(2*mib<<20))
		}
		n.wantBounds(pod, "", fmt.Sprintf("%d 100000", 4*mib*100), fmt.Sprint(4*mib<<20))
		// Once for each resize; containerd 1.6 may start a container a second time when the agent dies while it starts
		// it.
		if times := int(n.status(pod, "r").RestartCount); times <= round || times > 2*(round+1) {
			t.Errorf("restarted %d times by %d resizes", times, round+1)
		}
	}
	if now := n.first(pod, "a"); now != was {
		t.Errorf("container and first process are %s, were %s: restarted", now, was)
	}
}

// resizesElsewhere resizes a container whose cgroup the runtime has chosen.
func (n runningNode) resizesElsewhere() {
	t := n.t
	t.Helper()
	n.Configure(t, map[string]any{"cgroupsPerQOS": false, "enforceNodeAllocatable": []string{}})
	n.anew()
	n.says("runtime read")
	pod := n.create("loose", sized("c", "100m,16Mi", "200m,32Mi"))
	group := n.Run(t, "sh", "-c", `cd /sys/fs/cgroup && find . -type d -name "*$0*" -prune`, n.id(pod, "c"))
	if group == "" || strings.Contains(group, "kubepods") {
		t.Fatalf("the container is in %q", group)
	}
	pid := n.read(group, "cgroup.procs")
	for _, size := range []struct{ requests, limits, cpu, memory string }{
		{"200m,32Mi", "400m,64Mi", "40000 100000", "67108864"},
		{"50m,16Mi", "100m,24Mi", "10000 100000", "25165824"},
	} {
		n.ask("loose", "c", size.requests, size.limits)
		pod = n.has("loose", "c", size.requests, size.limits)
		if cpu, memory := n.read(group, "cpu.max"), n.read(group, "memory.max"); cpu != size.cpu || memory != size.memory {
			t.Errorf("%s: cpu.max %s, memory.max %s, want %s, %s", size.limits, cpu, memory, size.cpu, size.memory)
		}
	}
	if now := n.read(group, "cgroup.procs"); now != pid || n.status(pod, "c").RestartCount != 0 {
		t.Errorf("its process is %s, was %s", now, pid)
	}
}

// wantBounds compares two of the kernel's files of a container, or of its pod if the name is empty.
func (n runningNode) wantBounds(pod *corev1.Pod, container, cpu, memory string) {
	n.t.Helper()
	group := n.group(pod, container)
	rig.Eventually(n.t, podWithin, "the bounds of "+group, func(context.Context) error {
		if c, m := n.read(group, "cpu.max"), n.read(group, "memory.max"); c != cpu || m != memory {
			return fmt.Errorf("cpu.max %s, memory.max %s, want %s, %s", c, m, cpu, memory)
		}
		return nil
	})
}
