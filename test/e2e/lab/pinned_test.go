//go:build e2e && lab

package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/image"
	"github.com/plimsoll-dev/plimsoll/internal/kube/topology"
	"github.com/plimsoll-dev/plimsoll/lab"
	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// pinnedConfig assigns exclusive CPUs and memory to Guaranteed pods.
func pinnedConfig(policy string) map[string]any {
	return map[string]any{
		"cpuManagerPolicy": "static", "memoryManagerPolicy": "Static", "topologyManagerPolicy": policy,
		"systemReserved": map[string]string{"cpu": "500m", "memory": "100Mi"},
		"evictionHard":   map[string]string{"memory.available": "50Mi"},
		"reservedMemory": []map[string]any{reservedMemory(0, "150Mi")},
	}
}

func reservedMemory(node machine.NUMAID, amount string) map[string]any {
	return map[string]any{"numaNode": int(node), "limits": map[string]string{"memory": amount}}
}

// TestPinnedTwoSocket runs two pods with assigned CPUs and memory, reads from the kernel where they run and where their
// memory is, and kills the agent at random while other pods come and go.
func TestPinnedTwoSocket(t *testing.T) {
	n := pin(t, "two-socket", "single-numa-node")
	n.tooWide()
	pinned := n.homes(2)
	n.killed(pinned, 3)
	n.apart()
}

// TestPinnedEightNUMAAsymmetric does the same on a machine where no two NUMA nodes are alike.
func TestPinnedEightNUMAAsymmetric(t *testing.T) {
	n := pin(t, "eight-numa-asymmetric", "best-effort")
	pinned := n.homes(1)
	n.killed(pinned, 2)
	n.apart()
}

// TestPinnedFourNUMA restarts the agent in all situations where upstream's kubelet refuses to start.
func TestPinnedFourNUMA(t *testing.T) {
	n := pin(t, "four-numa", "restricted")
	pinned := n.homes(2)
	n.broken(pinned, "restricted")
	n.apart()
}

// tooWide creates a pod for which no NUMA node has enough CPUs, though the machine has. It is rejected, and the answer
// says what each NUMA node has free.
func (n *pinnedNode) tooWide() {
	n.t.Helper()
	pod, err := n.c.API.CoreV1().Pods(n.ns).Create(n.t.Context(), n.pod("wide", 5, "sleep", "infinity"),
		metav1.CreateOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	wantPod(n.t, n.c, n.ns, "wide is rejected", pod, func(p *corev1.Pod) error {
		if p.Status.Phase != corev1.PodFailed || p.Status.Reason != "TopologyAffinityError" {
			return fmt.Errorf("%s: %s: %s", p.Status.Phase, p.Status.Reason, p.Status.Message)
		}
		return nil
	})
	n.c.Explains(n.t, "pod "+n.ns+"/wide", nil, `rejected: TopologyAffinityError: .*container c asks for cpu 5, .*`+
		`free are on node 0 cpu 3 of .* on node 1 cpu 4 of 4, `)
	n.step("a pod that is too wide is rejected")
}

// pinnedNode is a node with pods that have assigned CPUs and memory.
type pinnedNode struct {
	*rig.GuestNode
	t     *testing.T
	c     *rig.Cluster
	ns    string
	began time.Time
	watch *lab.Process // checks all the time whether a process runs on CPUs assigned to another pod
	end   io.Closer    // of watch
}

func pin(t *testing.T, description, policy string) *pinnedNode {
	c := rig.Shared(t)
	n := &pinnedNode{t: t, c: c, ns: c.Namespace(t), began: time.Now()}
	n.GuestNode = c.Join(t, lab.Boot(t, description, lab.Options{}), rig.JoinOptions{Config: pinnedConfig(policy)})
	n.watch, n.end = n.program("test/apart/watch", "--mark", ownFor)
	n.step("joined")
	return n
}

// step logs the progress of the test.
func (n *pinnedNode) step(what string) {
	n.t.Helper()
	n.t.Logf("%v: %s", time.Since(n.began).Round(time.Second), what)
}

// program starts a program of the tests in the guest. It ends with its input, at the latest with the test.
func (n *pinnedNode) program(name string, args ...string) (*lab.Process, io.Closer) {
	n.t.Helper()
	path := programPath(name)
	if _, err := n.Output(n.t.Context(), "test", "-x", path); err != nil {
		n.CopyIn(n.t, rig.Build(n.t, name), path)
	}
	in, end := io.Pipe()
	p := n.Start(n.t, lab.Command{Args: append([]string{path}, args...), Stdin: in})
	n.t.Cleanup(func() { end.Close() }) // before it is stopped
	return p, end
}

func programPath(name string) string { return "/var/lib/" + name }

// apart ends the watch and fails the test if it saw a process on CPUs of another pod.
func (n *pinnedNode) apart() {
	n.t.Helper()
	n.end.Close()
	n.ended(n.watch)
	said := strings.TrimSpace(n.watch.Output())
	last := said[strings.LastIndex(said, "\n")+1:]
	var looks, overlaps int
	if _, err := fmt.Sscanf(last, "looked %d times, %d overlaps", &looks, &overlaps); err != nil || overlaps > 0 ||
		looks < 50 {
		n.t.Errorf("the watch: %v: %s", err, said)
	}
	n.step(last)
}

// homes creates a pod without assigned CPUs and two with them. It returns where the two run, which must not change.
func (n *pinnedNode) homes(cpus int64) map[string]string {
	n.t.Helper()
	shared := n.create("shared", 0, "sleep", "infinity")
	pinned := map[string]string{}
	for _, name := range []string{"one", "two"} {
		p := n.create(name, cpus, holdMemory...)
		n.isHome(p)
		pinned[name] = n.where(p)
	}
	n.wantShared(shared)
	n.step("two pods have CPUs and memory")
	return pinned
}

// holdMemory is the command of pods with assigned CPUs.
var holdMemory = []string{"memory", "--hold", heldMemory, "--for", ownFor}

// ownFor is an argument of the processes of pods with assigned CPUs. No other process has it.
const ownFor = "86399s"

func (n *pinnedNode) create(name string, cpus int64, args ...string) *corev1.Pod {
	n.t.Helper()
	return createReady(n.t, n.c, n.ns, n.pod(name, cpus, args...))
}

func (n *pinnedNode) pod(name string, cpus int64, args ...string) *corev1.Pod {
	r := corev1.ResourceRequirements{Requests: amounts("20m", "16Mi")}
	if cpus > 0 {
		r.Limits = amounts(fmt.Sprint(cpus), "48Mi")
		r.Requests = r.Limits
	}
	grace := int64(1)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{NodeName: n.Name, TerminationGracePeriodSeconds: &grace,
			Containers: []corev1.Container{{Name: "c", Image: image.Demo, Args: args, Resources: r}}},
	}
}

// pid is the first process of the pod's container.
func (n *pinnedNode) pid(p *corev1.Pod) string {
	n.t.Helper()
	_, id, _ := strings.Cut(p.Status.ContainerStatuses[0].ContainerID, "://")
	pids := strings.Fields(n.Run(n.t, "sh", "-c", "cat /sys/fs/cgroup/kubepods/*/"+id+
		"/cgroup.procs /sys/fs/cgroup/kubepods/*/*/"+id+"/cgroup.procs 2>/dev/null; true"))
	if len(pids) == 0 {
		n.t.Fatalf("nothing of %s runs in container %s", p.Name, id)
	}
	return pids[0]
}

// where describes a pod's process and where the kernel lets it run.
func (n *pinnedNode) where(p *corev1.Pod) string {
	n.t.Helper()
	pid := n.pid(p)
	return pid + " " + strings.Join(strings.Fields(n.Run(n.t, "grep", "-E", "Cpus_allowed_list|Mems_allowed_list",
		"/proc/"+pid+"/status")), " ")
}

// place is the wanted result of where.
func place(pid string, cpus, mems idset.Set) string {
	return fmt.Sprintf("%s Cpus_allowed_list: %v Mems_allowed_list: %v", pid, cpus, mems)
}

// isHome compares where a pod runs, and where the pages of its memory are, with its published assignment.
func (n *pinnedNode) isHome(p *corev1.Pod) held {
	t := n.t
	t.Helper()
	h := n.assignedTo(p)
	pid := n.pid(p)
	if got, want := n.where(p), place(pid, h.cpus, h.mems); got != want || h.cpus.IsEmpty() || h.mems.IsEmpty() {
		t.Errorf("%s: %q, want %q", p.Name, got, want)
	}
	var here, elsewhere int
	rig.Eventually(t, time.Minute, p.Name+" has its memory", func(ctx context.Context) error {
		if here, elsewhere = n.pages(pid, h.mems); here < heldPages {
			return fmt.Errorf("%d pages on its nodes %v, want %d; %d elsewhere", here, h.mems, heldPages, elsewhere)
		}
		return nil
	})
	if elsewhere > 0 {
		t.Errorf("%s: %d pages on its nodes %v, %d elsewhere", p.Name, here, h.mems, elsewhere)
	}
	t.Logf("%s: CPUs %v, %d pages of memory on nodes %v, none elsewhere, devices %v", p.Name, h.cpus, here, h.mems,
		h.devices)
	return h
}

// How much memory pods with assigned CPUs use.
const (
	heldMemory = "24Mi"
	heldPages  = 24 << 20 / 4096
)

// pages counts a process's own pages, on nodes and elsewhere.
func (n *pinnedNode) pages(pid string, nodes idset.Set) (here, elsewhere int) {
	n.t.Helper()
	for _, line := range strings.Split(n.Run(n.t, "grep", "anon=", "/proc/"+pid+"/numa_maps"), "\n") {
		if strings.Contains(line, "file=") {
			continue // pages of the program are on the node of the process that read them first
		}
		for _, field := range strings.Fields(line) {
			var node, pages int
			if k, err := fmt.Sscanf(field, "N%d=%d", &node, &pages); err != nil || k != 2 {
				continue
			}
			if nodes.Has(node) {
				here += pages
			} else {
				elsewhere += pages
			}
		}
	}
	return here, elsewhere
}

// held is what is assigned to the one container of a pod.
type held struct {
	cpus, mems idset.Set
	huge       unit.Bytes // in huge pages
	devices    []string
}

// published decodes the node's NodeResourceTopology object as the scheduler does.
func (n *pinnedNode) published(ctx context.Context) (*topology.Node, error) {
	body, err := n.c.API.CoreV1().RESTClient().Get().AbsPath("/apis", topology.GroupVersion.String(), topology.Resource,
		n.Name).DoRaw(ctx)
	if err != nil {
		return nil, err
	}
	o := &topology.Object{}
	if err := json.Unmarshal(body, o); err != nil {
		return nil, err
	}
	return topology.Decode(o, nil)
}

// assignedTo waits until the pod's assignment is published.
func (n *pinnedNode) assignedTo(p *corev1.Pod) (out held) {
	n.t.Helper()
	rig.Eventually(n.t, time.Minute, "what is assigned to "+p.Name+" is published", func(ctx context.Context) error {
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
			if b.PageSize > 0 {
				out.huge += b.Bytes
			}
			for _, id := range b.Nodes {
				out.mems = out.mems.Union(idset.Of(int(id)))
			}
		}
		for _, d := range a.Containers[0].Devices {
			out.devices = append(out.devices, d.IDs...)
		}
		return nil
	})
	return out
}

// wantShared waits until the shared pod runs on the published pool.
func (n *pinnedNode) wantShared(p *corev1.Pod) {
	n.t.Helper()
	rig.Eventually(n.t, time.Minute, "the shared pod runs on the pool", func(ctx context.Context) error {
		node, err := n.published(ctx)
		if err != nil {
			return err
		}
		if got, want := n.where(p), fmt.Sprintf("Cpus_allowed_list: %v ", node.State.SharedCPUs()); !strings.Contains(got,
			want) {
			return fmt.Errorf("%q, want %q in it", got, want)
		}
		return nil
	})
}

// unmoved checks that the pinned pods have the same processes in the same places.
func (n *pinnedNode) unmoved(when string, pinned map[string]string) {
	n.t.Helper()
	for _, name := range slices.Sorted(maps.Keys(pinned)) {
		if got := n.where(n.get(name)); got != pinned[name] {
			n.t.Errorf("%s: %s is %q, was %q", when, name, got, pinned[name])
		}
	}
}

func (n *pinnedNode) get(name string) *corev1.Pod {
	n.t.Helper()
	p, err := n.c.API.CoreV1().Pods(n.ns).Get(n.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	return p
}

// killed kills the agent at random while a pod with an assigned CPU is created and deleted.
func (n *pinnedNode) killed(pinned map[string]string, rounds int) {
	n.t.Helper()
	for round := range rounds {
		name := fmt.Sprint("guest-", round)
		n.post(n.pod(name, 1, holdMemory...))
		after := time.Duration(rand.IntN(5000)) * time.Millisecond // at a random moment of it
		<-time.After(after)
		n.kill()
		n.unmoved("without an agent", pinned)
		n.StartAgentOnly(n.t)
		p := n.untilReady(name)
		n.unmoved("after a kill", pinned)
		n.isHome(p)
		n.delete(name)
		n.step(fmt.Sprintf("the agent was killed %v after a pod had come", after))
	}
	rig.Eventually(n.t, podWithin, "what the pods had is free again", func(ctx context.Context) error {
		node, err := n.published(ctx)
		if err == nil && len(node.State.Assignments()) != len(pinned) {
			err = fmt.Errorf("%d pods own something, want %d", len(node.State.Assignments()), len(pinned))
		}
		return err
	})
}

// kill kills the agent with SIGKILL.
func (n *pinnedNode) kill() {
	n.t.Helper()
	n.Run(n.t, "pkill", "-KILL", "-f", "^plimsoll agent")
	n.ended(n.Agent)
}

func (n *pinnedNode) ended(p *lab.Process) {
	n.t.Helper()
	select {
	case <-p.Ended():
	case <-time.After(time.Minute):
		n.t.Fatalf("%s lives on", p.Name)
	}
}

func (n *pinnedNode) post(p *corev1.Pod) {
	n.t.Helper()
	if _, err := n.c.API.CoreV1().Pods(n.ns).Create(n.t.Context(), p, metav1.CreateOptions{}); err != nil {
		n.t.Fatal(err)
	}
}

// delete deletes a pod. Its object must be gone only after the agent has ended it and released what it had.
func (n *pinnedNode) delete(name string) {
	n.t.Helper()
	if err := n.c.API.CoreV1().Pods(n.ns).Delete(n.t.Context(), name, metav1.DeleteOptions{}); err != nil {
		n.t.Fatal(err)
	}
}

func (n *pinnedNode) untilReady(name string) *corev1.Pod {
	n.t.Helper()
	return n.until(name, "Ready", podReady)
}

func (n *pinnedNode) until(name, what string, is func(*corev1.Pod) error) (p *corev1.Pod) {
	n.t.Helper()
	rig.Eventually(n.t, podWithin, name+" is "+what, func(ctx context.Context) (err error) {
		if p, err = n.c.API.CoreV1().Pods(n.ns).Get(ctx, name, metav1.GetOptions{}); err != nil {
			return err
		}
		return is(p)
	})
	return p
}
