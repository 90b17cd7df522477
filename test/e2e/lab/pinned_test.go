//go:build e2e && lab

package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/image"
	"github.com/plimsoll-dev/plimsoll/internal/kube/topology"
	"github.com/plimsoll-dev/plimsoll/lab"
	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// pinnedConfig gives Guaranteed pods CPUs and memory of their own.
func pinnedConfig(policy string) map[string]any {
	return map[string]any{
		"cpuManagerPolicy": "static", "memoryManagerPolicy": "Static", "topologyManagerPolicy": policy,
		"systemReserved": map[string]string{"cpu": "500m", "memory": "100Mi"},
		"evictionHard":   map[string]string{"memory.available": "50Mi"},
		"reservedMemory": []map[string]any{{"numaNode": 0, "limits": map[string]string{"memory": "150Mi"}}},
	}
}

func TestPinnedTwoSocket(t *testing.T) {
	testPinned(t, "two-socket", "single-numa-node", 2)
}

func TestPinnedFourNUMA(t *testing.T) {
	testPinned(t, "four-numa", "restricted", 2)
}

func TestPinnedEightNUMAAsymmetric(t *testing.T) {
	testPinned(t, "eight-numa-asymmetric", "best-effort", 1)
}

// pinnedNode is a node with pods that own CPUs and memory.
type pinnedNode struct {
	*rig.GuestNode
	t       *testing.T
	c       *rig.Cluster
	ns      string
	machine machine.Machine
}

// testPinned gives two pods CPUs and memory of their own, and reads from the kernel where they run and where their memory is;
// then the agent is killed at random while others come and go, and started over what is broken.
func testPinned(t *testing.T, description, policy string, cpus int64) {
	c := rig.Shared(t)
	m := describe(t, description).Machine
	n := pinnedNode{c.Join(t, lab.Boot(t, description, lab.Options{}), rig.JoinOptions{Config: pinnedConfig(policy)}), t, c, c.Namespace(t), m}
	shared := n.create("shared", 0, "sleep", "infinity")
	pinned := map[string]string{} // what must not change
	for _, name := range []string{"one", "two"} {
		p := n.create(name, cpus, "memory", "--hold", "24Mi", "--for", ownFor)
		n.isHome(p)
		pinned[name] = n.where(p)
	}
	n.wantShared(shared)
	n.killed(pinned)
	n.broken(pinned, policy)
}

// ownFor tells the processes of pods that own CPUs from all others, by their arguments.
const ownFor = "86399s"

func (n pinnedNode) create(name string, cpus int64, args ...string) *corev1.Pod {
	n.t.Helper()
	return createReady(n.t, n.c, n.ns, n.pod(name, cpus, args...))
}

func (n pinnedNode) pod(name string, cpus int64, args ...string) *corev1.Pod {
	r := corev1.ResourceRequirements{Requests: amounts("20m", "16Mi")}
	if cpus > 0 {
		r.Limits = amounts(fmt.Sprint(cpus), "48Mi")
		r.Requests = r.Limits
	}
	grace := int64(1)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.PodSpec{NodeName: n.Name, TerminationGracePeriodSeconds: &grace, Containers: []corev1.Container{{Name: "c", Image: image.Demo, Args: args, Resources: r}}},
	}
}

// pid is the first process of the pod's container.
func (n pinnedNode) pid(p *corev1.Pod) string {
	n.t.Helper()
	_, id, _ := strings.Cut(p.Status.ContainerStatuses[0].ContainerID, "://")
	return strings.Fields(n.Run(n.t, "sh", "-c", "cat /sys/fs/cgroup/kubepods/*/"+id+"/cgroup.procs /sys/fs/cgroup/kubepods/*/*/"+id+"/cgroup.procs 2>/dev/null; true"))[0]
}

// where says of a pod which process it is and where the kernel has it run.
func (n pinnedNode) where(p *corev1.Pod) string {
	n.t.Helper()
	pid := n.pid(p)
	return pid + " " + strings.Join(strings.Fields(n.Run(n.t, "grep", "-E", "Cpus_allowed_list|Mems_allowed_list", "/proc/"+pid+"/status")), " ")
}

// isHome compares where a pod runs, and where the pages of its memory are, with what is published as its own.
func (n pinnedNode) isHome(p *corev1.Pod) {
	t := n.t
	t.Helper()
	h := n.holding(p)
	var mems []int
	for _, b := range h.memory {
		mems = append(mems, int(b))
	}
	pid := n.pid(p)
	want := fmt.Sprintf("%s Cpus_allowed_list: %v Mems_allowed_list: %v", pid, h.cpus, idset.Of(mems...))
	if got := n.where(p); got != want || h.cpus.IsEmpty() || len(mems) == 0 {
		t.Errorf("%s: %q, want %q", p.Name, got, want)
	}
	elsewhere, here := 0, 0
	for _, line := range strings.Split(n.Run(t, "grep", "anon=", "/proc/"+pid+"/numa_maps"), "\n") {
		if strings.Contains(line, "file=") {
			continue // pages of the program are where whoever read them first had them
		}
		for _, field := range strings.Fields(line) {
			var node, pages int
			if k, err := fmt.Sscanf(field, "N%d=%d", &node, &pages); err != nil || k != 2 {
				continue
			}
			if idset.Of(mems...).Has(node) {
				here += pages
			} else {
				elsewhere += pages
			}
		}
	}
	if elsewhere > 0 || here < 24<<20/4096 {
		t.Errorf("%s: %d pages on its nodes %v, %d elsewhere", p.Name, here, mems, elsewhere)
	}
	t.Logf("%s: CPUs %v, %d pages of memory on nodes %v, none elsewhere", p.Name, h.cpus, here, mems)
}

type held struct {
	cpus   idset.Set
	memory []machine.NUMAID
}

// published reads the node's object as a scheduler would.
func (n pinnedNode) published(ctx context.Context) (*topology.Node, error) {
	body, err := n.c.API.CoreV1().RESTClient().Get().AbsPath("/apis", topology.GroupVersion.String(), topology.Resource, n.Name).DoRaw(ctx)
	if err != nil {
		return nil, err
	}
	o := &topology.Object{}
	if err := json.Unmarshal(body, o); err != nil {
		return nil, err
	}
	return topology.Decode(o, nil)
}

// holding waits until what the pod owns is published.
func (n pinnedNode) holding(p *corev1.Pod) (out held) {
	n.t.Helper()
	rig.Eventually(n.t, time.Minute, "what "+p.Name+" owns is published", func(ctx context.Context) error {
		node, err := n.published(ctx)
		if err != nil {
			return err
		}
		a, known := node.State.Assignment(string(p.UID))
		if !known {
			return fmt.Errorf("it is not known among %d", len(node.State.Assignments()))
		}
		out = held{cpus: a.Containers[0].CPUs}
		for _, b := range a.Containers[0].Memory {
			out.memory = append(out.memory, b.Nodes...)
		}
		return nil
	})
	return out
}

// wantShared waits until the shared pod runs on the published pool, and never lets it run on anybody's own CPU.
func (n pinnedNode) wantShared(p *corev1.Pod) {
	n.t.Helper()
	rig.Eventually(n.t, time.Minute, "the shared pod runs on the pool", func(ctx context.Context) error {
		node, err := n.published(ctx)
		if err != nil {
			return err
		}
		if got, want := n.where(p), fmt.Sprintf("Cpus_allowed_list: %v ", node.State.SharedCPUs()); !strings.Contains(got, want) {
			return fmt.Errorf("%q, want %q in it", got, want)
		}
		return nil
	})
	n.apart()
}

// apart compares once which CPUs all processes of pods may use. Owners are read before and after the others: only those that
// were there all the time count.
func (n pinnedNode) apart() {
	n.t.Helper()
	const script = `read_all() { for f in $(find /sys/fs/cgroup/kubepods -name cgroup.procs); do for p in $(cat $f 2>/dev/null); do
	echo $1 $p $(awk '/Cpus_allowed_list/ {print $2}' /proc/$p/status 2>/dev/null) $(tr '\0' '_' < /proc/$p/cmdline 2>/dev/null); done; done; }
read_all before; read_all now; read_all after`
	out, err := n.Output(n.t.Context(), "sh", "-c", script)
	if err != nil {
		n.t.Error(err)
		return
	}
	seen := map[string]map[string]idset.Set{"before": {}, "now": {}, "after": {}}
	owners := map[string]bool{}
	for _, line := range strings.Split(out, "\n") {
		f := strings.Fields(line)
		if len(f) != 4 { // it ended meanwhile
			continue
		}
		cpus, err := idset.Parse(f[2])
		if err != nil {
			n.t.Fatal(line, err)
		}
		seen[f[0]][f[1]] = cpus
		if strings.Contains(f[3], ownFor) {
			owners[f[1]] = true
		}
	}
	for owner := range owners {
		own := seen["before"][owner]
		if again, stays := seen["after"][owner]; !stays || !again.Equal(own) {
			continue
		}
		for other, cpus := range seen["now"] {
			if other != owner && !cpus.Intersect(own).IsEmpty() {
				n.t.Errorf("process %s may run on %v, of which %v are process %s's own", other, cpus, own, owner)
			}
		}
	}
}

// unmoved checks that the pinned pods are the same processes in the same places.
func (n pinnedNode) unmoved(when string, pinned map[string]string) {
	n.t.Helper()
	for name, was := range pinned {
		p, err := n.c.API.CoreV1().Pods(n.ns).Get(n.t.Context(), name, metav1.GetOptions{})
		if err != nil {
			n.t.Fatal(err)
		}
		if got := n.where(p); got != was {
			n.t.Errorf("%s: %s is %q, was %q", when, name, got, was)
		}
	}
	n.apart()
}

// killed kills the agent at random while a pod with a CPU of its own comes, and goes again.
func (n pinnedNode) killed(pinned map[string]string) {
	const rounds = 3
	for round := range rounds {
		name := fmt.Sprint("guest-", round)
		if _, err := n.c.API.CoreV1().Pods(n.ns).Create(n.t.Context(), n.pod(name, 1, "memory", "--hold", "8Mi", "--for", ownFor), metav1.CreateOptions{}); err != nil {
			n.t.Fatal(err)
		}
		<-time.After(time.Duration(rand.IntN(4000)) * time.Millisecond) // anywhere on its way
		n.kill()
		n.apart()
		n.StartAgentOnly(n.t)
		p := n.untilReady(name)
		n.unmoved("after a kill", pinned)
		if got, h := n.where(p), n.holding(p); !strings.Contains(got, fmt.Sprintf("Cpus_allowed_list: %v ", h.cpus)) {
			n.t.Errorf("%s: %q, owns %v", name, got, h.cpus)
		}
		now := int64(0)
		if err := n.c.API.CoreV1().Pods(n.ns).Delete(n.t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
			n.t.Fatal(err)
		}
	}
	rig.Eventually(n.t, podWithin, "what the pods had is free again", func(ctx context.Context) error {
		node, err := n.published(ctx)
		if err == nil && len(node.State.Assignments()) != len(pinned) {
			err = fmt.Errorf("%d pods own something, want %d", len(node.State.Assignments()), len(pinned))
		}
		return err
	})
}

func (n pinnedNode) kill() {
	n.t.Helper()
	n.Run(n.t, "pkill", "-KILL", "-f", "plimsoll agent")
	select {
	case <-n.Agent.Ended():
	case <-time.After(time.Minute):
		n.t.Fatal("the agent lives on")
	}
}

func (n pinnedNode) untilReady(name string) (p *corev1.Pod) {
	n.t.Helper()
	rig.Eventually(n.t, podWithin, name+" is Ready", func(ctx context.Context) (err error) {
		if p, err = n.c.API.CoreV1().Pods(n.ns).Get(ctx, name, metav1.GetOptions{}); err != nil {
			return err
		}
		return podReady(p)
	})
	return p
}

// broken starts the agent over what would keep upstream's from starting. Each time the node is Ready, a new pod runs, and nothing
// has moved.
func (n pinnedNode) broken(pinned map[string]string, policy string) {
	last := n.lastCPU()
	for _, c := range []struct {
		what   string
		config map[string]any
		before func()
	}{
		{"truncated checkpoints", pinnedConfig(policy), func() { n.checkpoints(`{"policyName":"static","defaultCp`) }},
		{"checkpoints of another policy and machine", pinnedConfig(policy), func() {
			n.checkpoints(`{"policyName":"none","defaultCpuSet":"0-1023","checksum":1,"machineState":{"9":{"numberOfAssignments":3}}}`)
		}},
		{"no policies", map[string]any{}, func() {}},
		{"another topology policy, and CPUs reserved that somebody has", n.reserving("restricted", "0-3"), func() {}},
		{"a CPU fewer", pinnedConfig(policy), func() { n.OfflineCPU(n.t, last) }},
	} {
		n.kill()
		c.before()
		n.Configure(n.t, c.config)
		n.StartAgentOnly(n.t)
		n.WaitReady(n.t)
		name := "after-" + strings.ToLower(strings.ReplaceAll(strings.ReplaceAll(c.what, ",", ""), " ", "-"))
		n.create(name, 0, "sleep", "infinity")
		n.unmoved(c.what, pinned)
	}
}

func (n pinnedNode) reserving(policy, cpus string) map[string]any {
	config := pinnedConfig(policy)
	config["reservedSystemCPUs"] = cpus
	config["systemReserved"] = map[string]string{"memory": "100Mi"}
	return config
}

func (n pinnedNode) checkpoints(text string) {
	for _, name := range []string{"cpu_manager_state", "memory_manager_state"} {
		n.Write(n.t, "/var/lib/kubelet/"+name, text)
	}
}

// lastCPU is one that no pod of the test owns.
func (n pinnedNode) lastCPU() int {
	node, err := n.published(n.t.Context())
	if err != nil {
		n.t.Fatal(err)
	}
	last := -1
	for cpu := range node.State.SharedCPUs().All() {
		last = cpu
	}
	return last
}
