//go:build e2e && lab

// Package enforce compares allocatable and reservations with what the kernel enforces, in guests of the lab.
// test/e2e/enforce reads the same values from cgroup v1 of this machine. Here they are read from cgroup v2, with either
// cgroup driver, and from v1 under systemd. All pods are static, so that no control plane is needed. Each guest takes
// two minutes or more.
package enforce

import (
	"context"
	"fmt"
	"path"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/qos"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/image"
	"github.com/plimsoll-dev/plimsoll/lab"
	"github.com/plimsoll-dev/plimsoll/lab/wire"
)

const (
	mount     = "/sys/fs/cgroup"
	manifests = "/etc/static-pods"
	soon      = 2 * time.Minute // a guest is ten times slower than its host, which may be busy
)

// node is an agent and a runtime in a guest. Its state is read from files.
type node struct {
	*lab.Guest
	t      *testing.T
	layout qos.Layout
	agent  *lab.Process
	memory unit.Bytes // of the guest
	seen   map[string]bool
}

// start boots a guest and starts its runtime.
func start(t *testing.T, machine string, kind wire.InitKind, driver qos.Driver, kernel ...string) *node {
	t.Helper()
	layout, err := qos.NewLayout(driver, "/")
	if err != nil {
		t.Fatal(err)
	}
	n := &node{Guest: lab.Boot(t, machine, lab.Options{Init: kind, KernelArgs: kernel}), layout: layout, t: t,
		seen: map[string]bool{}}
	config := "/etc/containerd/config.toml"
	if driver == qos.Systemd {
		config = "/etc/containerd/config-systemd.toml"
	}
	n.Start(t, lab.Command{Args: []string{"containerd", "--config", config}})
	n.until("the runtime answers", func() error { _, err := n.Output(t.Context(), "ctr", "version"); return err })
	for _, archive := range []string{"pause", "workload"} {
		n.Run(t, "ctr", "--namespace", "k8s.io", "images", "import", wire.CargoDir+"/images/"+archive+".tar")
	}
	n.Run(t, "mkdir", "-p", manifests, "/var/lib/agent")
	n.Write(t, "/etc/agent.kubeconfig",
		"apiVersion: v1\nkind: Config\nclusters: [{name: none, cluster: {server: 'http://127.0.0.1:1'}}]\n"+
			"contexts: [{name: none, context: {cluster: none, user: none}}]\nusers: [{name: none}]\ncurrent-context: none\n")
	match := regexp.MustCompile(`MemTotal: +(\d+) kB`).FindStringSubmatch(n.Run(t, "cat", "/proc/meminfo"))
	kib, err := strconv.ParseInt(match[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	n.memory = unit.Bytes(kib) * unit.KiB
	return n
}

// configure writes another configuration for the agent, and restarts it.
func (n *node) configure(text string, flags ...string) {
	n.t.Helper()
	if n.agent != nil {
		n.agent.Stop()
	}
	n.Write(n.t, "/etc/agent.yaml",
		"apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nstaticPodPath: "+manifests+
			"\ncgroupDriver: "+string(n.layout.Driver())+"\n"+text)
	n.agent = n.Start(n.t, lab.Command{Args: append([]string{"plimsoll", "agent", "--kubeconfig", "/etc/agent.kubeconfig",
		"--config", "/etc/agent.yaml",
		"--root-dir", "/var/lib/agent", "--container-runtime-endpoint", wire.Runtime}, flags...)})
}

// until calls a function until the result is nil.
func (n *node) until(what string, ask func() error) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), soon)
	defer cancel()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		err := ask()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			n.t.Fatalf("%s: not within %v: %v", what, soon, err)
		case <-tick.C:
		}
	}
}

func (n *node) read(group, file string) string {
	n.t.Helper()
	return n.Run(n.t, "cat", path.Join(mount, group, file))
}

// want waits until a file of the kernel has the wanted content.
func (n *node) want(group, file, want string) {
	n.t.Helper()
	n.until(path.Join(group, file), func() error {
		got, err := n.Output(n.t.Context(), "cat", path.Join(mount, group, file))
		if got = strings.TrimSpace(got); err == nil && got != want {
			err = fmt.Errorf("%q, want %q", got, want)
		}
		return err
	})
}

// said waits until the agent has logged a text.
func (n *node) said(text string) {
	n.t.Helper()
	n.until("the agent says "+text, func() error {
		if !strings.Contains(n.agent.Output(), text) {
			return fmt.Errorf("not yet")
		}
		return nil
	})
}

// write writes the manifest of a static pod.
func (n *node) write(name, resources, args string) {
	n.t.Helper()
	n.Write(n.t, manifests+"/"+name+".yaml", fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: default}
spec:
  hostNetwork: true
  terminationGracePeriodSeconds: 1
  containers:
  - {name: c, image: %s, imagePullPolicy: Never, args: [%s], resources: {%s}}
`, name, image.Demo, args, resources))
}

// pod creates a static pod and waits for the group of its container: a new group in the tier of its class, which has no
// other new pod.
func (n *node) pod(name string, class qos.Class, resources, args string) (pod, container string) {
	n.t.Helper()
	n.write(name, resources, args)
	root := mount
	if _, err := n.Output(n.t.Context(), "test", "-e", mount+"/pids"); err == nil {
		root = mount + "/pids"
	}
	n.until(name+" runs", func() error {
		out, err := n.Output(n.t.Context(), "ls", root+n.layout.Tier(class))
		for _, group := range strings.Fields(out) {
			uid, ok := n.layout.UID(group)
			if !ok || n.seen[uid] {
				continue
			}
			pod = n.layout.Pod(class, uid)
			procs, err := n.Output(n.t.Context(), "sh", "-c",
				`for g in "$0"/*/; do grep -lq workload $(sed 's|.*|/proc/&/cmdline|' $g/cgroup.procs) /dev/null && basename $g; done; true`, root+pod)
			if err == nil && strings.TrimSpace(procs) != "" {
				n.seen[uid] = true
				container = path.Join(pod, strings.TrimSpace(procs))
				return nil
			}
		}
		return fmt.Errorf("among %q: %w", out, err)
	})
	return pod, container
}

// end removes a static pod and waits until its group is gone.
func (n *node) end(name, pod string) {
	n.t.Helper()
	n.Run(n.t, "rm", manifests+"/"+name+".yaml")
	n.until(name+" has gone", func() error {
		out, err := n.Output(n.t.Context(), "sh", "-c", `ls -d $0$1 $0/*$1 2>/dev/null; true`, mount, pod)
		if err == nil && out != "" {
			err = fmt.Errorf("%s", out)
		}
		return err
	})
}

func TestCgroupfs(t *testing.T) {
	enforce(t, start(t, "tiny", lab.Tiny, qos.Cgroupfs), "/system")
}

func TestSystemd(t *testing.T) {
	n := start(t, "tiny", lab.Systemd, qos.Systemd)
	enforce(t, n, "/system.slice")
	// systemd has the values as properties, and keeps them when it reloads. When it restarts, the agent connects to it
	// again.
	for unitName, want := range map[string]string{
		"kubepods.slice":           "MemoryMax=" + fmt.Sprint(int64(n.memory-512*unit.MiB)),
		"system.slice":             "MemoryMax=536870912",
		"kubepods-burstable.slice": "CPUWeight=4",
	} {
		n.shows(unitName, want)
	}
	n.Run(t, "systemctl", "daemon-reload")
	n.Run(t, "systemctl", "daemon-reexec")
	n.want("/kubepods.slice", "memory.max", fmt.Sprint(int64(n.memory-512*unit.MiB)))
	n.want("/kubepods.slice/kubepods-burstable.slice", "cpu.weight", "4")
	pod, _ := n.pod("late", qos.Burstable, "requests: {cpu: 255m}, limits: {cpu: 255m}", "sleep, infinity")
	n.want(pod, "cpu.max", "26000 100000") // systemd keeps whole percents only
	n.want("/kubepods.slice/kubepods-burstable.slice", "cpu.weight", fmt.Sprint(qos.SharesOf(355).Weight()))
	n.end("late", pod)
	if units := n.Run(t, "systemctl", "list-units", "--all", "--plain", "--no-legend",
		"kubepods-burstable-pod*"); strings.Count(units, "\n") != 0 {
		t.Errorf("the slice of a pod that has gone is still there:\n%s", units)
	}
}

// TestSystemdOnV1 tests the systemd driver on the hierarchies of cgroup v1, of which systemd manages some.
func TestSystemdOnV1(t *testing.T) {
	n := start(t, "tiny", lab.Systemd, qos.Systemd, "systemd.unified_cgroup_hierarchy=0")
	n.configure("systemReserved: {cpu: 250m, memory: 500Mi}\nenforceNodeAllocatable: [pods, system-reserved]\n"+
		"systemReservedCgroup: /system.slice\npodPidsLimit: 64\n", "--create-missing-cgroups")
	pod, container := n.pod("full", qos.Guaranteed, "limits: {cpu: 500m, memory: 128Mi}", "sleep, infinity")
	const tier = "/kubepods.slice/kubepods-burstable.slice"
	late, _ := n.pod("late", qos.Burstable, "requests: {cpu: 250m}", "sleep, infinity")
	for file, want := range map[string]string{
		"memory/system.slice/memory.limit_in_bytes":     "524288000",
		"cpu/system.slice/cpu.shares":                   "256",
		"memory/kubepods.slice/memory.limit_in_bytes":   fmt.Sprint(int64(n.memory - 500*unit.MiB)),
		"cpu/kubepods.slice/cpu.shares":                 "1792",
		"cpu" + pod + "/cpu.cfs_quota_us":               "50000",
		"cpu" + container + "/cpu.cfs_quota_us":         "50000",
		"memory" + container + "/memory.limit_in_bytes": "134217728",
		"memory" + pod + "/memory.limit_in_bytes":       "134217728",
		"pids" + pod + "/pids.max":                      "64",
		"cpuset" + pod + "/cpuset.cpus":                 "0-1",
		"cpu" + tier + "/cpu.shares":                    "256",
	} {
		n.want("/", file, want)
	}
	n.shows("kubepods.slice", "MemoryLimit="+fmt.Sprint(int64(n.memory-500*unit.MiB)))
	n.Run(t, "systemctl", "daemon-reload")
	n.want("/", "cpu"+tier+"/cpu.shares", "256")
	n.end("late", late)
	n.want("/", "cpu"+tier+"/cpu.shares", "2")
}

// shows compares a property of a systemd unit.
func (n *node) shows(unitName, want string) {
	n.t.Helper()
	property, _, _ := strings.Cut(want, "=")
	if got := n.Run(n.t, "systemctl", "show", "-p", property, unitName); got != want {
		n.t.Errorf("systemd has %s for %s, want %s", got, unitName, want)
	}
}

// enforce compares the same values with both drivers.
func enforce(t *testing.T, n *node, reserved string) {
	// A missing reserved group is reported with the command that makes it. Then the agent may make it itself.
	const system = "systemReserved: {cpu: 250m, memory: 500Mi}\nenforceNodeAllocatable: [pods, system-reserved]\n" +
		"systemReservedCgroup: "
	n.configure(system + reserved + "\n")
	<-n.agent.Ended()
	if out := n.agent.Output(); !strings.Contains(out, "- cpuset at "+mount+reserved+": ") ||
		!strings.Contains(out, "echo +cpuset > "+mount+"/cgroup.subtree_control") {
		t.Errorf("the agent says\n%s", out)
	}
	if _, err := n.Output(t.Context(), "test", "-e", mount+n.layout.Node()); err == nil {
		t.Error("groups were made before the refusal")
	}
	n.configure(system+reserved+"\n", "--create-missing-cgroups")
	n.want(reserved, "memory.max", "524288000")
	n.want(reserved, "cpu.weight", "10")
	n.want(n.layout.Node(), "memory.max", fmt.Sprint(int64(n.memory-500*unit.MiB)))
	n.want(n.layout.Node(), "memory.high", "max")
	n.want(n.layout.Node(), "cpu.weight", fmt.Sprint(qos.SharesOf(1750).Weight()))
	n.want(n.layout.Node(), "cpuset.cpus", "0-1")
	n.want(n.layout.Tier(qos.BestEffort), "cpu.weight", "1")

	// All at once: other reservations, protected memory, limits of processes.
	n.configure("systemReserved: {cpu: \"1\", memory: 512Mi, pid: \"900\"}\n" +
		"enforceNodeAllocatable: [pods, system-reserved]\nsystemReservedCgroup: " + reserved +
		"\nfeatureGates: {MemoryQoS: true}\nmemoryReservationPolicy: TieredReservation\npodPidsLimit: 64\n")
	n.want(reserved, "memory.max", "536870912")
	n.want(reserved, "memory.min", "536870912")
	n.want(reserved, "cpu.weight", "39")
	n.want(reserved, "pids.max", "900")

	pod, container := n.pod("full", qos.Guaranteed, "limits: {cpu: 500m, memory: 128Mi}", "sleep, infinity")
	for group, values := range map[string]map[string]string{
		pod: {"cpu.max": "50000 100000", "cpu.weight": "20", "memory.max": "134217728", "memory.min": "134217728",
			"pids.max": "64"},
		container: {"cpu.max": "50000 100000", "memory.max": "134217728", "memory.min": "134217728", "memory.high": "max",
			"memory.swap.max": "0"},
	} {
		for file, want := range values {
			n.want(group, file, want)
		}
	}
	n.score(container, "-997")
	pod, container = n.pod("burst", qos.Burstable, "requests: {cpu: 100m, memory: 64Mi}, limits: {memory: 128Mi}",
		"sleep, infinity")
	const high = "127504384" // 64Mi and 0.9 of the 64Mi above it, in whole pages
	for group, values := range map[string]map[string]string{
		pod: {"cpu.max": "max 100000", "cpu.weight": "4", "memory.max": "134217728",
			"memory.low": "67108864", "memory.min": "0"},
		container:                    {"memory.max": "134217728", "memory.low": "67108864", "memory.high": high},
		n.layout.Tier(qos.Burstable): {"cpu.weight": "4", "memory.low": "67108864"},
		n.layout.Node():              {"memory.min": fmt.Sprint(int64((128 + 64) * unit.MiB))},
	} {
		for file, want := range values {
			n.want(group, file, want)
		}
	}
	best, container := n.pod("best", qos.BestEffort, "", "memory, --hold, 200Mi")
	n.want(container, "cpu.max", "max 100000")
	n.score(container, "1000")
	n.lower(reserved, best)
}

// score compares the OOM score of a container's process.
func (n *node) score(container, want string) {
	n.t.Helper()
	if got := n.Run(n.t, "sh", "-c", `cat /proc/$(head -1 $0/cgroup.procs)/oom_score_adj`, mount+container); got != want {
		n.t.Errorf("%s: oom_score_adj %s, want %s", container, got, want)
	}
}

// lower brings the limit of all pods below the usage of one of them (k/k #141609). On v2, writing such a limit at once
// would make the kernel kill it.
func (n *node) lower(reserved, best string) {
	t, pods := n.t, n.layout.Node()
	n.until("the pod holds its memory", func() error {
		if used, err := strconv.ParseInt(n.read(pods, "memory.current"), 10, 64); err != nil || used < int64(200*unit.MiB) {
			return fmt.Errorf("%d bytes, %w", used, err)
		}
		return nil
	})
	rest := "podPidsLimit: 64\n"
	n.configure(fmt.Sprintf("systemReserved: {memory: \"%d\"}\n", int64(n.memory-150*unit.MiB)) + rest)
	n.said("is lowered in steps")
	if limit := n.read(pods, "memory.max"); limit == fmt.Sprint(int64(150*unit.MiB)) {
		t.Errorf("memory.max is %s while 200Mi are used", limit)
	}
	if events := n.read(pods, "memory.events"); !strings.Contains(events, "oom_kill 0") {
		t.Errorf("somebody was killed: %s", events)
	}
	// No API server answers here. If a manifest is removed before the agent has read it, the agent cannot tell that pod
	// from one of the API, and lets it run.
	n.said("static pods read")
	n.end("best", best)
	n.want(pods, "memory.max", fmt.Sprint(int64(150*unit.MiB)))
	n.want(pods, "memory.high", "max")
	if events := n.read(pods, "memory.events"); !strings.Contains(events, "oom_kill 0") {
		t.Errorf("somebody was killed: %s", events)
	}
	// A higher limit is set at once.
	n.configure("systemReserved: {memory: 512Mi}\n" + rest)
	n.want(pods, "memory.max", fmt.Sprint(int64(n.memory-512*unit.MiB)))
	n.said("oom_score_adj set")
	n.want(reserved, "memory.max", "536870912") // as before
}

// TestSwap: the agent refuses to run with swap unless failSwapOn is false, and then gives none to pods that may not
// have it. It also runs a node without QoS cgroups (cgroupsPerQOS: false).
func TestSwap(t *testing.T) {
	n := start(t, "swap", lab.Tiny, qos.Cgroupfs)
	n.configure("memorySwap: {swapBehavior: LimitedSwap}\n")
	<-n.agent.Ended()
	if out := n.agent.Output(); !strings.Contains(out, "failSwapOn: true: this machine has ") ||
		!strings.Contains(out, " of swap: turn it off (swapoff -a)") {
		t.Errorf("the agent says\n%s", out)
	}
	n.configure("memorySwap: {swapBehavior: LimitedSwap}\nfailSwapOn: false\n")
	// Static pods are critical and get no swap. The tests of core/qos check how much others get.
	_, container := n.pod("critical", qos.Burstable, "requests: {memory: 64Mi}", "sleep, infinity")
	n.want(container, "memory.swap.max", "0")

	// Without QoS cgroups the runtime chooses the parent of a pod's cgroup.
	n.configure("cgroupsPerQOS: false\nenforceNodeAllocatable: []\nfailSwapOn: false\n")
	n.write("free", "", "sleep, 77777s")
	n.until("the pod runs", func() error { _, err := n.Output(t.Context(), "pgrep", "-f", "sleep 77777s"); return err })
	if out := n.Run(t, "sh", "-c", "cat /proc/$(pgrep -o -f 'sleep 77777s')/cgroup"); strings.Contains(out, "kubepods") {
		t.Errorf("the pod is in %s", out)
	}
}
