//go:build e2e && lab

package lab

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-dev/plimsoll/internal/image"
	"github.com/plimsoll-dev/plimsoll/lab"
	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// evictingMemory leaves 624 MiB of the guest's 1 GiB to pods. With a threshold of 100 MiB they may use 524 MiB
// together.
func evictingMemory(more map[string]any) map[string]any {
	config := map[string]any{
		"systemReserved":                   map[string]string{"memory": "400Mi"},
		"evictionHard":                     map[string]string{"memory.available": "100Mi"},
		"evictionPressureTransitionPeriod": "2s",
	}
	for field, value := range more {
		config[field] = value
	}
	return config
}

// TestEvictingMemory lets a node with cgroup v2 run short of memory in many ways, in one boot. A well-behaved pod must
// run all the time, and the kernel must kill no process for memory: the agent has to be first.
func TestEvictingMemory(t *testing.T) {
	c := rig.Shared(t)
	n := evictingNode{runningNode{t: t, c: c, ns: c.Namespace(t), names: cgroupfsNames}, t}
	guest := lab.Boot(t, "swap", lab.Options{Name: "evicting", FillMemory: true})
	swap := guest.Run(t, "awk", "NR == 2 { print $1 }", "/proc/swaps")
	guest.Run(t, "swapoff", swap)
	n.GuestNode = c.Join(t, guest, rig.JoinOptions{Config: evictingMemory(nil)})
	n.protectsItself()
	n.load("steady", "memory --hold=32Mi")

	n.run("steady growth", func(n evictingNode) { n.grows("--hold=300Mi --grow=20Mi") })
	n.run("sudden growth", func(n evictingNode) { n.grows("--hold=900Mi") })
	n.run("many small pods", evictingNode.manySmall)
	n.run("runtime hung", evictingNode.runtimeHung)

	n.again(map[string]any{
		"evictionSoft":              map[string]string{"allocatableMemory.available": "300Mi"},
		"evictionSoftGracePeriod":   map[string]string{"allocatableMemory.available": "2s"},
		"evictionMaxPodGracePeriod": 600,
	})
	n.run("refuses SIGTERM", evictingNode.refuses)
	n.run("agent killed between deciding and killing", evictingNode.agentKilled)
	n.run("hard while soft waits", evictingNode.hardWhileSoft)

	guest.Run(t, "swapon", swap)
	n.again(map[string]any{"memorySwap": map[string]string{"swapBehavior": "LimitedSwap"}}, "--memory-signal", "available")
	n.run("page cache", evictingNode.pageCache)
	n.run("swap", evictingNode.swaps)
	guest.Run(t, "swapoff", swap)

	line := n.tasksLeft() - 250
	n.again(map[string]any{
		"evictionHard": map[string]string{"memory.available": "100Mi",
			"pid.available": fmt.Sprint(line)}, "podPidsLimit": 400,
	}, "--reclaim-memory")
	n.run("reclaim", evictingNode.reclaims)
	n.run("fork bomb", evictingNode.forkBomb)
}

// evictingNode is a node that runs short of a resource.
type evictingNode struct {
	runningNode
	whole *testing.T // the test that scenarios are parts of
}

// run runs a scenario as a subtest, and then checks that everything else is as before.
func (n evictingNode) run(name string, scenario func(evictingNode)) {
	n.t.Run(name, func(t *testing.T) {
		inner := n
		inner.t = t
		t.Cleanup(func() {
			if t.Failed() { // the next one needs the state that this one leaves
				_, _ = n.c.TryKubectl(n.t, "--namespace", n.ns, "delete", "pod", "--grace-period=1",
					"--field-selector=metadata.name!=steady")
			}
		})
		scenario(inner)
		if events := inner.read("kubepods", "memory.events"); !strings.Contains(events, "oom_kill 0") {
			t.Errorf("the kernel killed: %s", events)
		}
		inner.lives("steady")
	})
}

// again restarts the agent with another configuration.
func (n evictingNode) again(more map[string]any, flags ...string) {
	n.t.Helper()
	n.Agent.Stop()
	n.Configure(n.t, evictingMemory(more))
	n.StartAgentOnly(n.t, flags...)
	n.says("pods of this node known")
}

// load creates a pod that runs verbs of the workload, one after the other, and is restarted when it ends. It waits
// until the pod runs.
func (n evictingNode) load(name string, verbs ...string) *corev1.Pod {
	n.t.Helper()
	n.postLoad(name, "16Mi", 1, verbs...)
	return n.until(name, "runs", func(p *corev1.Pod) error {
		if len(p.Status.ContainerStatuses) == 0 || p.Status.ContainerStatuses[0].State.Running == nil {
			return fmt.Errorf("%s: %s", p.Status.Phase, p.Status.Message)
		}
		return nil
	})
}

func (n evictingNode) postLoad(name, request string, grace int64, verbs ...string) {
	n.t.Helper()
	c := sized("c", "10m,"+request, "")
	c.Image, c.Args = image.Demo, append([]string{"run"}, verbs...)
	c.VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
	pod := n.pod(name, []corev1.Container{c})
	pod.Spec.RestartPolicy, pod.Spec.TerminationGracePeriodSeconds = corev1.RestartPolicyAlways, &grace
	pod.Spec.Volumes = []corev1.Volume{{Name: "data",
		VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	n.postPod(pod)
}

func (n evictingNode) postPod(pod *corev1.Pod) {
	n.t.Helper()
	if _, err := n.c.API.CoreV1().Pods(n.ns).Create(n.t.Context(), pod, metav1.CreateOptions{}); err != nil {
		n.t.Fatal(err)
	}
}

// evicted waits until a pod is evicted for a resource, and checks that it was never restarted.
func (n evictingNode) evicted(name, resource string) {
	n.t.Helper()
	pod := n.until(name, "is evicted", isEvicted)
	if want := "The node was low on resource: " + resource +
		". Threshold quantity: "; !strings.HasPrefix(pod.Status.Message, want) {
		n.t.Errorf("the message of %s is %q, want %q", name, pod.Status.Message, want)
	}
	for _, s := range pod.Status.ContainerStatuses {
		if s.RestartCount != 0 {
			n.t.Errorf("%s was restarted: %+v", name, s)
		}
	}
	for line := range strings.Lines(n.Agent.Output()) {
		if strings.Contains(line, "/"+name+" ") && strings.Contains(line, "evicted") {
			n.t.Log(strings.TrimSpace(line))
		}
	}
	if signal := signals[resource]; signal != "" {
		n.c.Explains(n.t, "pod "+n.ns+"/"+name, nil, `Threshold quantity: [0-9]+[A-Z]?i?, available: [0-9]+`,
			signal+` +[0-9]+.* evicted for `+signal)
	}
}

// signals are, by the resource in the message, the signals that explain must name. Memory is not among them: an
// eviction that another agent ended has no decision.
var signals = map[string]string{
	"inodes":            `nodefs\.inodesFree`,
	"ephemeral-storage": `(nodefs|imagefs)\.available`,
	"pids":              `pid\.available`,
}

func isEvicted(p *corev1.Pod) error {
	if p.Status.Phase != corev1.PodFailed || p.Status.Reason != "Evicted" {
		return fmt.Errorf("%s, %s: %s: %+v", p.Status.Phase, p.Status.Reason, p.Status.Message, p.Status.ContainerStatuses)
	}
	return nil
}

// lives checks that a pod runs and was never restarted.
func (n evictingNode) lives(name string) {
	n.t.Helper()
	n.until(name, "runs on", func(p *corev1.Pod) error {
		if s := p.Status.ContainerStatuses; p.Status.Phase != corev1.PodRunning || s[0].State.Running == nil ||
			s[0].RestartCount != 0 {
			return fmt.Errorf("%s: %s: %+v", p.Status.Phase, p.Status.Message, s)
		}
		return nil
	})
}

// holds waits until a growing pod has logged that it has reached its size.
func (n evictingNode) holds(name string, mib int) {
	n.t.Helper()
	n.logs(name, fmt.Sprintf("holding %d bytes", mib<<20))
	n.lives(name)
}

// logs waits until a pod has logged a text.
func (n evictingNode) logs(name, want string) {
	n.t.Helper()
	rig.Eventually(n.t, podWithin, name+" says "+want, func(context.Context) error {
		text, err := n.c.TryKubectl(n.t, "--namespace", n.ns, "logs", name)
		if err == nil && !strings.Contains(text, want) {
			err = fmt.Errorf("it says %q", text)
		}
		return err
	})
}

func (n evictingNode) remove(names ...string) {
	n.t.Helper()
	n.c.Kubectl(n.t, append([]string{"--namespace", n.ns, "delete", "pod", "--grace-period=1"}, names...)...)
}

// inside starts a script in the cgroup of a pod's container, which must be Burstable. It ends with that cgroup or with
// the test.
func (n evictingNode) inside(pod *corev1.Pod, script string) *lab.Process {
	n.t.Helper()
	const enter = `echo $$ > "/sys/fs/cgroup/$0/cgroup.procs" && eval "$1"`
	return n.Start(n.t, lab.Command{Args: []string{"sh", "-c", enter, n.group(pod, "c"), script}})
}

// protectsItself checks the OOM scores of agent and runtime: the kernel must choose them last.
func (n evictingNode) protectsItself() {
	n.t.Helper()
	for _, program := range []string{"containerd", "plimsoll"} {
		rig.Eventually(n.t, podWithin, "oom_score_adj of "+program, func(ctx context.Context) error {
			score, err := n.Output(ctx, "sh", "-c", "cat /proc/$(pgrep -x "+program+" | head -n 1)/oom_score_adj")
			if err == nil && strings.TrimSpace(score) != "-999" {
				err = fmt.Errorf("it is %s", score)
			}
			return err
		})
	}
}

// grows runs one pod that uses more memory than there is.
func (n evictingNode) grows(how string) {
	n.postLoad("grower", "16Mi", 1, "memory "+how)
	n.evicted("grower", "memory")
	n.says("how=cgroup.kill")
	n.says("the agent's own memory locked=true")
	n.c.WaitCondition(n.t, n.Name, corev1.NodeMemoryPressure, corev1.ConditionFalse, podWithin)
	n.remove("grower")
}

// manySmall: six pods grow to 140 MiB each, and three of them fit. Exactly three are evicted.
func (n evictingNode) manySmall() {
	var names []string
	for i := range 6 {
		names = append(names, fmt.Sprintf("small-%d", i))
		n.postLoad(names[i], "16Mi", 1, "memory --hold=8Mi --grow=10Mi --max=140Mi")
	}
	left := func() (left []string, err error) {
		for _, name := range names {
			phase, err := n.c.TryKubectl(n.t, "--namespace", n.ns, "get", "pod", name, "-o",
				"jsonpath={.status.phase} {.status.reason}")
			if err != nil {
				return nil, err
			}
			if phase != "Failed Evicted" {
				left = append(left, name)
			}
		}
		return left, nil
	}
	rig.Eventually(n.t, podWithin, "three are evicted", func(context.Context) error {
		left, err := left()
		if err == nil && len(left) > 3 {
			err = fmt.Errorf("left are %v", left)
		}
		return err
	})
	survivors, err := left()
	if err != nil {
		n.t.Fatal(err)
	}
	for _, name := range survivors {
		n.holds(name, 140)
	}
	if survivors, err = left(); err != nil || len(survivors) != 3 {
		n.t.Errorf("left are %v, %v", survivors, err)
	}
	n.remove(names...)
}

// runtimeHung: the runtime is stopped while a pod grows. The pod is killed all the same, and its status is right when
// the runtime continues.
func (n evictingNode) runtimeHung() {
	pod := n.load("hung", "memory --hold=64Mi --grow=30Mi")
	n.Run(n.t, "pkill", "-STOP", "-x", "containerd")
	n.t.Cleanup(func() { // also if the test fails meanwhile
		if _, err := n.Output(context.WithoutCancel(n.t.Context()), "pkill", "-CONT", "-x", "containerd"); err != nil {
			n.t.Error(err)
		}
	})
	n.empties(pod)
	n.Run(n.t, "pkill", "-CONT", "-x", "containerd")
	n.evicted("hung", "memory")
	n.remove("hung")
}

// empties waits until no process is left in a pod.
func (n evictingNode) empties(pod *corev1.Pod) {
	n.t.Helper()
	rig.Eventually(n.t, podWithin, "no process is left in "+pod.Name, func(ctx context.Context) error {
		if left, err := n.tasks(ctx, pod); err != nil || left != "" {
			return fmt.Errorf("left are %q, %w", left, err)
		}
		return nil
	})
}

func (n evictingNode) tasks(ctx context.Context, pod *corev1.Pod) (string, error) {
	const script = `[ ! -d "$0" ] || find "$0" -name cgroup.procs -exec cat {} +`
	out, err := n.Output(ctx, "sh", "-c", script, "/sys/fs/cgroup/"+n.group(pod, ""))
	return strings.Join(strings.Fields(out), " "), err
}

// stubborn is a pod above the soft threshold that ignores SIGTERM.
func (n evictingNode) stubborn(name string, grace int64) {
	n.t.Helper()
	n.postLoad(name, "16Mi", grace, "memory --hold=330Mi --for=1ms", "ignore-term")
}

// refuses: a pod ignores SIGTERM. It gets its termination grace period and no more.
func (n evictingNode) refuses() {
	n.stubborn("refuses", 4)
	n.evicted("refuses", "memory")
	n.remove("refuses")
}

// agentKilled: a pod is evicted, and the agent is killed before its termination grace period has ended. The next agent
// ends the pod and does not start it again.
func (n evictingNode) agentKilled() {
	n.stubborn("orphan", 8)
	n.decided("orphan")
	n.Agent.Stop()
	pod := n.until("orphan", "is there", func(*corev1.Pod) error { return nil })
	if left, err := n.tasks(n.t.Context(), pod); err != nil || left == "" {
		n.t.Errorf("it was killed before the agent was: %q, %v", left, err)
	}
	n.StartAgentOnly(n.whole)
	n.empties(pod)
	n.evicted("orphan", "memory")
	n.remove("orphan")
}

// decided waits until the agent has decided to evict a pod.
func (n evictingNode) decided(name string) {
	n.t.Helper()
	n.says("pod evicted pod=" + n.ns + "/" + name + " ")
}

// hardWhileSoft: a pod has ten minutes of its termination grace period left when the hard threshold is met. It is
// killed then, and no other pod is evicted.
func (n evictingNode) hardWhileSoft() {
	n.stubborn("gentle", 600)
	n.decided("gentle")
	n.postLoad("hasty", "16Mi", 1, "memory --hold=16Mi --grow=20Mi --max=230Mi")
	n.evicted("gentle", "memory")
	n.holds("hasty", 230)
	n.remove("gentle", "hasty")
}

// pageCache: a pod reads a large file again and again while another one grows. Together they use more than the
// threshold allows, and none is evicted, because the kernel can drop the cache.
func (n evictingNode) pageCache() {
	pod := n.load("reader", "sleep infinity")
	n.fillsCache(pod, 320)
	n.postLoad("calm", "16Mi", 1, "memory --hold=16Mi --grow=20Mi --max=330Mi")
	n.holds("calm", 330)
	n.lives("reader")
	n.remove("reader", "calm")
}

// cachedFile is what fillsCache reads.
const cachedFile = "/var/lib/cached"

// fillsCache reads a file of some MiB until its cache is active and charged to the pod.
func (n evictingNode) fillsCache(pod *corev1.Pod, mib int) {
	n.t.Helper()
	n.inside(pod,
		fmt.Sprintf(`dd if=/dev/zero of=%s bs=1M count=%d 2>/dev/null; while :; do cat %[1]s > /dev/null; sleep 1; done`,
			cachedFile, mib))
	rig.Eventually(n.t, podWithin, "the cache is in use", func(context.Context) error {
		if active := n.stat(pod, "active_file"); active < int64(mib)<<20*3/4 {
			return fmt.Errorf("%d bytes are", active)
		}
		return nil
	})
}

// stat reads a line of a container's memory.stat.
func (n evictingNode) stat(pod *corev1.Pod, key string) (value int64) {
	n.t.Helper()
	for line := range strings.Lines(n.read(n.group(pod, "c"), "memory.stat")) {
		if name, text, _ := strings.Cut(strings.TrimSpace(line), " "); name == key {
			_, _ = fmt.Sscan(text, &value)
		}
	}
	return value
}

// swaps: a pod that may swap uses more than the pods' limit, partly in swap, and is not evicted. One that uses all
// memory and swap is evicted. The cache that the scenario before has left is dropped first: at a limit the kernel swaps
// beside dropping cache. 264 MiB of old cache in the pods' group cost up to 290 MiB of swap when 22 MiB were needed
// (seen with a busy host). Only that cache is dropped. With all caches dropped, pages of programs were charged to the
// pods, and filling 540 MiB took minutes, because QEMU checks each store to a page with translated code until the page
// is overwritten. Both pods grow slower than the disk writes pages: otherwise the kernel kills although swap is left.
func (n evictingNode) swaps() {
	n.Run(n.t, "rm", "-f", cachedFile)
	// may have 300Mi in swap, in proportion to its request
	n.postLoad("swapper", "480Mi", 1, "memory --hold=540Mi --grow=4Mi --max=606Mi")
	n.holds("swapper", 606)
	pod := n.until("swapper", "is there", func(*corev1.Pod) error { return nil })
	if swapped := n.read(n.group(pod, "c"), "memory.swap.current"); len(swapped) < len("10000000") {
		n.t.Errorf("%s bytes are in swap", swapped)
	}
	n.remove("swapper")
	// The threshold is 100Mi. This pod swaps out some 40 MiB of its 137Mi.
	n.postLoad("insatiable", "220Mi", 1, "memory --hold=540Mi --grow=4Mi")
	n.evicted("insatiable", "memory")
	n.remove("insatiable")
}

// reclaims: as pageCache, with a signal that counts the cache: the agent makes the kernel drop it in time.
func (n evictingNode) reclaims() {
	pod := n.load("cacher", "sleep infinity")
	n.inside(pod,
		`dd if=/dev/zero of=/var/lib/cached bs=1M count=200 2>/dev/null; cat /var/lib/cached /var/lib/cached /var/lib/cached > /dev/null; sleep infinity`)
	rig.Eventually(n.t, podWithin, "the cache is in use", func(context.Context) error {
		if active := n.stat(pod, "active_file"); active < 150<<20 {
			return fmt.Errorf("%d bytes are", active)
		}
		return nil
	})
	n.postLoad("grows", "16Mi", 1, "memory --hold=150Mi --grow=10Mi --max=320Mi")
	n.holds("grows", 320)
	n.says(`step="memory of pods"`)
	n.lives("cacher")
	if active := n.stat(pod, "active_file"); active > 120<<20 {
		n.t.Errorf("%d bytes of cache are in use still", active)
	}
	n.remove("cacher", "grows")
}

// tasksLeft is how many more tasks the guest may have.
func (n evictingNode) tasksLeft() (left int) {
	n.t.Helper()
	const script = `cd /proc/sys/kernel; most=$(sort -n pid_max threads-max | head -n 1); echo $((most - $(cut -d/ -f2 /proc/loadavg | cut -d" " -f1)))`
	if _, err := fmt.Sscan(n.Run(n.t, "sh", "-c", script), &left); err != nil {
		n.t.Fatal(err)
	}
	return left
}

// forkBomb: a pod's processes start others for ever. Their number stays within the pod's limit and the node stays
// Ready. When process ids become short, all of the pod is evicted.
func (n evictingNode) forkBomb() {
	pod := n.load("bomb", "sleep infinity")
	n.inside(pod, `bomb() { while :; do bomb & bomb & sleep 1; done; }; bomb 2>/dev/null`)
	n.evicted("bomb", "pids")
	n.empties(pod)
	if err := n.ready(); err != nil {
		n.t.Error(err)
	}
	n.remove("bomb")
}

func (n evictingNode) ready() error {
	status, err := n.c.TryKubectl(n.t, "get", "node", n.Name, "-o",
		`jsonpath={.status.conditions[?(@.type=="Ready")].status}`)
	if err == nil && status != "True" {
		err = errors.New("Ready is " + status)
	}
	return err
}
