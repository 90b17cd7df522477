//go:build e2e && lab

package lab

import (
	"context"
	"fmt"
	"path"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/plimsoll-dev/plimsoll/internal/image"
	"github.com/plimsoll-dev/plimsoll/lab"
	"github.com/plimsoll-dev/plimsoll/lab/wire"
	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// TestRunningWithCgroupfs changes running containers on cgroup v2: it resizes them, and lets the kernel kill their
// processes for memory. test/e2e/resize and test/e2e/pods test more, on cgroup v1. TestRunningWithSystemd does the same
// under systemd.
func TestRunningWithCgroupfs(t *testing.T) { running(t, lab.Tiny, "cgroupfs", cgroupfsNames) }

func TestRunningWithSystemd(t *testing.T) { running(t, lab.Systemd, "systemd", systemdNames) }

// running is a node whose pods are changed.
type runningNode struct {
	*rig.GuestNode
	t  *testing.T
	c  *rig.Cluster
	ns string
	names
}

// newRunningNode boots a guest for a test of that name and makes it a node.
func newRunningNode(t *testing.T, name string, init wire.InitKind, driver string, names names) runningNode {
	t.Helper()
	c := rig.Shared(t)
	n := runningNode{t: t, c: c, ns: c.Namespace(t), names: names}
	n.GuestNode = c.Join(t, lab.Boot(t, "tiny", lab.Options{Init: init, Name: name + "-" + driver}),
		rig.JoinOptions{CgroupDriver: driver})
	return n
}

func running(t *testing.T, init wire.InitKind, driver string, names names) {
	t.Parallel()
	n := newRunningNode(t, "running", init, driver, names)
	n.resizes()
	n.killsWhole()
	n.Agent.Stop()
	n.Configure(t, map[string]any{"singleProcessOOMKill": true})
	n.StartAgentOnly(t)
	n.killsSingle()
}

// resizes resizes a container up and down. The other container keeps its values, and pod and tier have the sum.
func (n runningNode) resizes() {
	t := n.t
	t.Helper()
	pod := n.create("sized", sized("a", "100m,32Mi", "200m,64Mi"), sized("b", "100m,16Mi", "100m,32Mi"))
	if host, err := n.in("sized", "a", "env", "HOSTNAME"); err != nil || strings.TrimSpace(host) != "sized" {
		t.Errorf("exec: %q, %v", host, err)
	}
	first := n.first(pod, "a")
	n.wantSizes(pod, `
a 4 20000/100000 67108864
b 4 10000/100000 33554432
pod 8 30000/100000 100663296
tier 8 max/100000 max
`)
	pod = n.resize("sized", "a", "300m,64Mi", "400m,128Mi")
	n.wantSizes(pod, `
a 12 40000/100000 134217728
b 4 10000/100000 33554432
pod 16 50000/100000 167772160
tier 16 max/100000 max
`)
	pod = n.resize("sized", "a", "50m,16Mi", "100m,32Mi")
	n.wantSizes(pod, `
a 2 10000/100000 33554432
b 4 10000/100000 33554432
pod 6 20000/100000 67108864
tier 6 max/100000 max
`)
	if now := n.first(pod, "a"); now != first || n.status(pod, "a").RestartCount != 0 {
		t.Errorf("container and first process are %s, were %s: restarted", now, first)
	}
}

// containersLimit is the message where another container has no limit, so that the pod has none either. Otherwise the
// pod's limit is their sum, and may be reached first, because the sandbox is in it too.
const (
	containersLimit = "of the container's limit (32Mi) were in use"
	anyLimit        = " limit (32Mi) were in use"
)

// killsWhole makes a child process and a first process run out of memory in a container that is killed as a whole, as
// is the default.
func (n runningNode) killsWhole() {
	t := n.t
	t.Helper()
	pod := n.create("whole", sized("c", "", ",32Mi"), sized("d", "", ""))
	if group := n.read(n.group(pod, "c"), "memory.oom.group"); group != "1" {
		t.Errorf("memory.oom.group is %s, want 1", group)
	}
	_, pid, _ := strings.Cut(n.first(pod, "c"), " ")
	if _, err := n.in("whole", "c", "memory", "--hold", "200Mi"); err == nil {
		t.Error("the child has lived")
	}
	end := n.until("whole", "c has ended", ended)
	if d := n.status(end, "d"); d.State.Running == nil || d.RestartCount != 0 {
		t.Errorf("the neighbour: %+v", d)
	}
	victim := n.victim(pod, "c")
	if said := n.status(end, "c").State.Terminated.Message; victim == pid ||
		!strings.HasPrefix(said, "Process "+victim+" (workload) of container c was killed by the kernel") {
		t.Errorf("the kernel chose process %s, the container's first is %s, its status says: %s", victim, pid, said)
	}
	n.event("whole", "Process "+victim+" (workload) of container c was killed by the kernel", containersLimit)
	n.event("whole", "Process "+pid+" (workload), the first of container c, was killed by the kernel", containersLimit)

	hungry := sized("c", "", ",32Mi")
	hungry.Args = []string{"memory", "--hold", "200Mi"}
	n.post("hungry", hungry)
	pod = n.until("hungry", "c has ended", ended)
	n.event("hungry", "Process "+n.victim(pod, "c")+" (workload)", anyLimit)

	// The kernel logs these two more than twice, also by the ids of other threads.
	if said, err := n.events(t.Context(), "whole"); err != nil || len(said) != 2 {
		t.Errorf("%d events, %v: %q", len(said), err, said)
	}
}

// killsSingle makes a child process run out of memory where the kernel may kill it alone.
func (n runningNode) killsSingle() {
	t := n.t
	t.Helper()
	pod := n.create("single", sized("c", "", ",32Mi"))
	first := n.first(pod, "c")
	if group := n.read(n.group(pod, "c"), "memory.oom.group"); group != "0" {
		t.Errorf("memory.oom.group is %s, want 0", group)
	}
	if _, err := n.in("single", "c", "memory", "--hold", "200Mi"); err == nil {
		t.Error("the child has lived")
	}
	n.event("single", "Process "+n.victim(pod, "c")+" (workload) of container c was killed by the kernel", anyLimit)
	pod = n.until("single", "is ready", podReady)
	if now := n.first(pod, "c"); now != first || n.status(pod, "c").RestartCount != 0 {
		t.Errorf("container and first process are %s, were %s", now, first)
	}
}

// sized sleeps, with requests and limits written as cpu,memory; empty: none.
func sized(name, requests, limits string) corev1.Container {
	list := func(text string) corev1.ResourceList {
		cpu, memory, _ := strings.Cut(text, ",")
		return amounts(cpu, memory)
	}
	return corev1.Container{Name: name, Image: image.Demo, Args: []string{"sleep", "infinity"},
		Resources: corev1.ResourceRequirements{Requests: list(requests), Limits: list(limits)}}
}

func (n runningNode) pod(name string, containers []corev1.Container) *corev1.Pod {
	grace := int64(1)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{NodeName: n.Name, RestartPolicy: corev1.RestartPolicyNever,
			TerminationGracePeriodSeconds: &grace, Containers: containers},
	}
}

func (n runningNode) create(name string, containers ...corev1.Container) *corev1.Pod {
	n.t.Helper()
	return createReady(n.t, n.c, n.ns, n.pod(name, containers))
}

func (n runningNode) post(name string, containers ...corev1.Container) {
	n.t.Helper()
	if _, err := n.c.API.CoreV1().Pods(n.ns).Create(n.t.Context(), n.pod(name, containers),
		metav1.CreateOptions{}); err != nil {
		n.t.Fatal(err)
	}
}

// in runs a verb of the workload in a container, as users do.
func (n runningNode) in(pod, container string, args ...string) (string, error) {
	return n.c.TryKubectl(n.t, append([]string{"--namespace", n.ns, "exec", pod, "-c", container, "--", "/workload"},
		args...)...)
}

func (n runningNode) until(name, what string, is func(*corev1.Pod) error) *corev1.Pod {
	n.t.Helper()
	var pod *corev1.Pod
	rig.Eventually(n.t, podWithin, name+": "+what, func(ctx context.Context) (err error) {
		if pod, err = n.c.API.CoreV1().Pods(n.ns).Get(ctx, name, metav1.GetOptions{}); err != nil {
			return err
		}
		return is(pod)
	})
	return pod
}

// ended waits until the first container has ended, and checks the reason in its status.
func ended(p *corev1.Pod) error {
	if len(p.Status.ContainerStatuses) == 0 {
		return fmt.Errorf("%s", p.Status.Phase)
	}
	end := p.Status.ContainerStatuses[0].State.Terminated
	if end == nil || end.Reason != "OOMKilled" || end.ExitCode != 137 || !strings.Contains(end.Message, "(workload)") ||
		!strings.Contains(end.Message, anyLimit) {
		return fmt.Errorf("%+v", p.Status.ContainerStatuses[0].State)
	}
	return nil
}

// resize requests another size and waits until the container has it.
func (n runningNode) resize(pod, container, requests, limits string) *corev1.Pod {
	n.t.Helper()
	n.ask(pod, container, requests, limits)
	return n.has(pod, container, requests, limits)
}

// ask requests another size of a container by kubectl.
func (n runningNode) ask(pod, container, requests, limits string) {
	n.t.Helper()
	want := sized(container, requests, limits).Resources
	body := fmt.Sprintf(`{"spec":{"containers":[{"name":%q,"resources":{"requests":%s,"limits":%s}}]}}`, container,
		amountsJSON(want.Requests), amountsJSON(want.Limits))
	n.c.Kubectl(n.t, "--namespace", n.ns, "patch", "pod", pod, "--subresource", "resize", "--patch", body)
}

func amountsJSON(list corev1.ResourceList) string {
	return fmt.Sprintf(`{"cpu":%q,"memory":%q}`, list.Cpu(), list.Memory())
}

// has waits until the container has a size and no resize is pending.
func (n runningNode) has(pod, container, requests, limits string) *corev1.Pod {
	n.t.Helper()
	want := sized(container, requests, limits).Resources
	return n.until(pod, container+" resized to "+requests, func(p *corev1.Pod) error {
		s := n.status(p, container)
		if s.Resources == nil || amountsJSON(s.Resources.Requests) != amountsJSON(want.Requests) ||
			amountsJSON(s.Resources.Limits) != amountsJSON(want.Limits) {
			return fmt.Errorf("%+v, %+v", s.Resources, p.Status.Conditions)
		}
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodResizePending || c.Type == corev1.PodResizeInProgress {
				return fmt.Errorf("%+v", c)
			}
		}
		return nil
	})
}

func (n runningNode) status(p *corev1.Pod, container string) corev1.ContainerStatus {
	for _, s := range p.Status.ContainerStatuses {
		if s.Name == container {
			return s
		}
	}
	return corev1.ContainerStatus{}
}

// group is the cgroup of a container, or of its pod if the name is empty. All pods here are Burstable.
func (n runningNode) group(p *corev1.Pod, container string) string {
	group := path.Join(n.burstable, n.of(n.names.pod, n.burstable, p.UID))
	if container == "" {
		return group
	}
	return path.Join(group, strings.Replace(n.container, "ID", n.id(p, container), 1))
}

func (n runningNode) id(p *corev1.Pod, container string) string {
	_, id, _ := strings.Cut(n.status(p, container).ContainerID, "://")
	return id
}

func (n runningNode) read(group, file string) string {
	n.t.Helper()
	return n.Run(n.t, "cat", path.Join("/sys/fs/cgroup", group, file))
}

// wantSizes compares the kernel's files.
func (n runningNode) wantSizes(p *corev1.Pod, want string) {
	n.t.Helper()
	var table strings.Builder
	for _, row := range []struct{ name, group string }{{"a", n.group(p, "a")}, {"b", n.group(p, "b")},
		{"pod", n.group(p, "")}, {"tier", n.burstable}} {
		const script = `cd "/sys/fs/cgroup/$0" && for f; do tr " " / < $f; done`
		values := n.Run(n.t, "sh", "-c", script, row.group, "cpu.weight", "cpu.max", "memory.max")
		fmt.Fprintln(&table, row.name, strings.Join(strings.Fields(values), " "))
	}
	if got := table.String(); got != want[1:] {
		n.t.Errorf("cpu.weight cpu.max memory.max are\n%swant%s", got, want)
	}
}

// first is a container's id and first process, which must not change.
func (n runningNode) first(p *corev1.Pod, container string) string {
	n.t.Helper()
	return n.id(p, container) + " " + strings.Fields(n.read(n.group(p, container), "cgroup.procs"))[0]
}

// victim is the process that the kernel logged as killed in a container.
func (n runningNode) victim(p *corev1.Pod, container string) string {
	n.t.Helper()
	found := regexp.MustCompile(`oom-kill:.*`+n.id(p, container)+`.*,pid=(\d+),`).FindAllStringSubmatch(n.Run(n.t,
		"dmesg"), -1)
	if len(found) != 1 {
		n.t.Fatalf("the kernel's log has these kills in container %s: %v", container, found)
	}
	return found[0][1]
}

// events are the messages of the Events OOMKilled about a pod.
func (n runningNode) events(ctx context.Context, pod string) ([]string, error) {
	events, err := n.c.API.CoreV1().Events(n.ns).List(ctx,
		metav1.ListOptions{FieldSelector: fields.Set{"involvedObject.name": pod, "reason": "OOMKilled"}.String()})
	if err != nil {
		return nil, err
	}
	var said []string
	for _, e := range events.Items {
		said = append(said, e.Message)
	}
	return said, nil
}

// event waits for an Event OOMKilled about a pod with the given texts about what happened and which limit was reached.
func (n runningNode) event(pod, what, limit string) {
	n.t.Helper()
	rig.Eventually(n.t, podWithin, fmt.Sprintf("an event of %s with %q", pod, what), func(ctx context.Context) error {
		said, err := n.events(ctx, pod)
		if err != nil {
			return err
		}
		for _, text := range said {
			if strings.Contains(text, what) && strings.Contains(text, limit) {
				return nil
			}
		}
		return fmt.Errorf("there are %q", said)
	})
}
