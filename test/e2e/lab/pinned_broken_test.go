//go:build e2e && lab

package lab

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// broken restarts the agent in situations where upstream's kubelet refuses to start, with all pods running. Each time
// the node becomes Ready, a new pod runs, no pinned pod has moved, and the log says with numbers what is different.
func (n *pinnedNode) broken(pinned map[string]string, policy string) {
	n.t.Helper()
	one, two := n.assignedTo(n.get("one")), n.assignedTo(n.get("two"))
	kept, lost := idset.Of(one.cpus.Lowest()), one.cpus.Minus(idset.Of(one.cpus.Lowest()))
	for i, c := range []struct {
		what   string
		config map[string]any
		before func()
		logged []string
	}{
		{"truncated checkpoints", pinnedConfig(policy), func() { n.checkpoints(truncated) },
			[]string{said("cpu_manager_state", truncated), said("memory_manager_state", truncated),
				said("kubelet_internal_checkpoint", truncated)}},
		{"checkpoints of other policies and another machine, and none of these policies any more", map[string]any{},
			func() { n.checkpoints(elsewhere) }, []string{said("cpu_manager_state", elsewhere)}},
		{"CPUs and memory reserved that pods have", n.reserving(policy, one, two), func() {},
			[]string{fmt.Sprintf("container c: CPUs %v: offline, reserved or assigned", one.cpus),
				fmt.Sprintf("numaNodes=[%v] type=memory assigned=48Mi has=18Mi", two.mems)}},
		{"a CPU of a pod's own fewer, and less memory", pinnedConfig(policy), func() {
			for cpu := range lost.All() {
				n.OfflineCPU(n.t, cpu)
			}
			n.movedTo("one", kept, one.mems, pinned) // the kernel does that
			n.Run(n.t, "sh", "-c",
				"echo 8 > /sys/devices/system/node/node3/hugepages/hugepages-2048kB/nr_hugepages && grep -q '^[1-9]' "+
					"/sys/devices/system/node/node3/hugepages/hugepages-2048kB/nr_hugepages")
			// What is left of the pod's core is now the core with the fewest CPUs, so systemReserved takes its one CPU
			// there.
		}, []string{fmt.Sprintf("container c: CPUs %v: offline, reserved or assigned", one.cpus),
			fmt.Sprintf("%v is assigned: missing %v", one.cpus, lost)}},
		{"the CPU again, and another topology policy", pinnedConfig("single-numa-node"), func() {
			for cpu := range lost.All() {
				n.OnlineCPU(n.t, cpu)
			}
			n.movedTo("one", one.cpus, one.mems, pinned)
		}, nil},
	} {
		n.kill()
		c.before()
		n.unmoved(c.what+", without an agent", pinned)
		n.Configure(n.t, c.config)
		n.StartAgentOnly(n.t)
		name := fmt.Sprint("after-", i)
		n.create(name, 0, "sleep", "infinity")
		n.WaitReady(n.t)
		n.unmoved(c.what, pinned)
		for _, text := range c.logged {
			n.logged(text)
		}
		n.delete(name)
		n.step(c.what)
	}
}

// Two checkpoints with which upstream's managers refuse to start, because of their checksum or of their content.
const (
	truncated = `{"policyName":"static","defaultCp`
	elsewhere = `{"policyName":"none","defaultCpuSet":"0-1023","checksum":1,"machineState":{"9":{"numberOfAssignments":3}}}`
)

// said is what the agent logs about a checkpoint.
func said(name, text string) string { return fmt.Sprintf("/%s bytes=%d", name, len(text)) }

// movedTo waits until the kernel has moved a pod to the given CPUs, and remembers that place.
func (n *pinnedNode) movedTo(name string, cpus, mems idset.Set, pinned map[string]string) {
	n.t.Helper()
	pid, _, _ := strings.Cut(pinned[name], " ")
	pinned[name] = place(pid, cpus, mems)
	p := n.get(name)
	rig.Eventually(n.t, time.Minute, "the kernel has followed", func(context.Context) error {
		if got := n.where(p); got != pinned[name] {
			return fmt.Errorf("%s, want %s", got, pinned[name])
		}
		return nil
	})
}

// logged waits until the agent has logged a text.
func (n *pinnedNode) logged(text string) {
	n.t.Helper()
	rig.Eventually(n.t, podWithin, "the agent says "+text, func(context.Context) error {
		if !strings.Contains(strings.ReplaceAll(n.Agent.Output(), `"`, ""), text) {
			return errors.New("it did not")
		}
		return nil
	})
}

// reserving is a configuration that reserves the CPUs of one pod, and nearly all memory of the NUMA node on which
// another pod has its memory.
func (n *pinnedNode) reserving(policy string, cpus, memory held) map[string]any {
	config := maps.Clone(pinnedConfig(policy))
	config["reservedSystemCPUs"] = cpus.cpus.String()
	config["systemReserved"] = map[string]string{"memory": "530Mi"}
	config["reservedMemory"] = []map[string]any{reservedMemory(0, "150Mi"),
		reservedMemory(machine.NUMAID(memory.mems.Lowest()), "430Mi")}
	return config
}

func (n *pinnedNode) checkpoints(text string) {
	n.t.Helper()
	for _, name := range []string{"cpu_manager_state", "memory_manager_state",
		"device-plugins/kubelet_internal_checkpoint"} {
		n.Write(n.t, "/var/lib/kubelet/"+name, text)
	}
}
