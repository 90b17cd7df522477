//go:build e2e

package resize

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// CPU and memory are raised and lowered while processes run: of a container, a sidecar and the pod, in the kernel and
// in the status.
func TestInPlace(t *testing.T) {
	b := amid(t)
	always := corev1.ContainerRestartPolicyAlways
	side := container("side", "50m,16Mi", "100m,32Mi", "sleep", "infinity")
	side.RestartPolicy = &always
	p := b.post("p", corev1.PodSpec{InitContainers: []corev1.Container{side}, Containers: []corev1.Container{container("a",
		"100m,32Mi", "200m,64Mi", "sleep", "infinity")}})
	b.kernel(p, "a", size(100, 200, 64))
	b.kernel(p, "", size(150, 300, 96))
	was, wasSide := b.first(p, "a"), b.first(p, "side")

	b.resize("p", "a", "300m,64Mi", "400m,128Mi")
	p = b.resized("p", "a", "300m,64Mi", "400m,128Mi")
	b.kernel(p, "a", size(300, 400, 128))
	b.kernel(p, "", size(350, 500, 160))
	b.resize("p", "side", "60m,16Mi", "300m,48Mi")
	p = b.resized("p", "side", "60m,16Mi", "300m,48Mi")
	b.kernel(p, "side", size(60, 300, 48))
	b.kernel(p, "", size(360, 700, 176))
	b.resize("p", "a", "50m,16Mi", "100m,32Mi")
	p = b.resized("p", "a", "50m,16Mi", "100m,32Mi")
	b.kernel(p, "a", size(50, 100, 32))
	b.kernel(p, "", size(110, 400, 80))
	b.resize("p", "a", "50m,20Mi", "100m,32Mi") // the cgroup does not change
	p = b.resized("p", "a", "50m,20Mi", "100m,32Mi")

	if now, nowSide := b.first(p, "a"), b.first(p, "side"); now != was || nowSide != wasSide ||
		statusOf(p, "a").RestartCount != 0 {
		t.Errorf("restarted: %s %s, want %s %s", now, nowSide, was, wasSide)
	}
	if got := p.Status.AllocatedResources; !same(got, amounts("110m,36Mi")) ||
		p.Status.ObservedGeneration != p.Generation {
		t.Errorf("pod: allocated %v, generation %d observed %d", got, p.Generation, p.Status.ObservedGeneration)
	}
	b.event("p", "ResizeStarted",
		`"containers":[{"name":"a","resources":{"limits":{"cpu":"400m","memory":"128Mi"},"requests":{"cpu":"300m","memory":"64Mi"}}}],"generation":2}`)
	b.event("p", "ResizeCompleted", `"generation":2}`)
}

// A resize policy restarts that container, for that resource only.
func TestRestartContainer(t *testing.T) {
	b := amid(t)
	a := container("a", "100m,32Mi", "200m,64Mi", "sleep", "infinity")
	a.ResizePolicy = []corev1.ContainerResizePolicy{{ResourceName: "memory", RestartPolicy: corev1.RestartContainer},
		{ResourceName: "cpu", RestartPolicy: corev1.NotRequired}}
	p := b.create("p", a, container("b", "100m,32Mi", "200m,64Mi", "sleep", "infinity"))
	was, neighbour := b.first(p, "a"), b.first(p, "b")
	b.resize("p", "a", "150m,32Mi", "250m,64Mi")
	p = b.resized("p", "a", "150m,32Mi", "250m,64Mi")
	if now := b.first(p, "a"); now != was {
		t.Errorf("CPU alone restarted it: %s, was %s", now, was)
	}
	for i, memory := range []int64{128, 48} {
		b.resize("p", "a", "150m,32Mi", fmt.Sprintf("250m,%dMi", memory))
		p = b.resized("p", "a", "150m,32Mi", fmt.Sprintf("250m,%dMi", memory))
		b.kernel(p, "a", size(150, 250, memory))
		b.kernel(p, "", size(250, 450, memory+64))
		if s := statusOf(p, "a"); s.RestartCount != int32(i+1) || b.first(p, "a") == was || b.first(p, "b") != neighbour {
			t.Errorf("restarted %d times: %s, neighbour %s was %s", s.RestartCount, b.first(p, "a"), b.first(p, "b"), neighbour)
		}
	}
	b.event("p", "Killing", "Container a resize requires restart")
}

// Resources of the pod as a whole limit containers that have none, and an init container is resized while it runs.
func TestPodLevelAndInit(t *testing.T) {
	b := amid(t)
	whole := corev1.ResourceRequirements{Requests: amounts("200m,64Mi"), Limits: amounts("400m,128Mi")}
	p := b.post("level", corev1.PodSpec{Resources: &whole, Containers: []corev1.Container{container("a", "50m,16Mi",
		"100m,32Mi", "sleep", "infinity"), container("b", "", "", "sleep", "infinity")}})
	b.kernel(p, "", size(200, 400, 128))
	was := b.first(p, "b")
	b.resize("level", "", "300m,64Mi", "600m,192Mi")
	p = b.until("level", "resized", func(p *corev1.Pod) error {
		s := p.Status.Resources
		if s == nil || !same(s.Requests, amounts("300m,64Mi")) || !same(s.Limits, amounts("600m,192Mi")) ||
			condition(p, corev1.PodResizeInProgress) != nil {
			return fmt.Errorf("%+v, %+v", s, p.Status.Conditions)
		}
		return nil
	})
	b.kernel(p, "", size(300, 600, 192))
	b.kernel(p, "a", size(50, 100, 32))
	b.kernel(p, "b", map[string]int64{"cpu.cfs_quota_us": 60000, "memory.limit_in_bytes": 192 << 20})
	if now := b.first(p, "b"); now != was {
		t.Errorf("restarted: %s, was %s", now, was)
	}

	grace := int64(0)
	spec := corev1.PodSpec{TerminationGracePeriodSeconds: &grace, InitContainers: []corev1.Container{container("init",
		"50m,16Mi", "100m,32Mi", "sleep", "infinity")}, Containers: []corev1.Container{container("a", "50m,16Mi", "100m,32Mi",
		"sleep", "infinity")}}
	if _, err := b.API.CoreV1().Pods(b.ns).Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "init"},
		Spec: spec}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	b.until("init", "its init container runs", func(p *corev1.Pod) error {
		if statusOf(p, "init").State.Running == nil {
			return fmt.Errorf("%+v", statusOf(p, "init").State)
		}
		return nil
	})
	b.resize("init", "init", "100m,32Mi", "200m,64Mi")
	p = b.resized("init", "init", "100m,32Mi", "200m,64Mi")
	b.kernel(p, "init", size(100, 200, 64))
	b.kernel(p, "", size(100, 200, 64))
	if s := statusOf(p, "init"); s.RestartCount != 0 || s.State.Running == nil {
		t.Errorf("init container: %+v", s)
	}
}

// A resize that does not fit waits, and is carried out as soon as another pod ends or shrinks.
func TestDeferred(t *testing.T) {
	b := at(t)
	node, err := b.API.CoreV1().Nodes().Get(t.Context(), b.NodeName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	all := node.Status.Allocatable.Cpu().MilliValue()
	part := func(n int64) string { return fmt.Sprintf("%dm,16Mi", all*n/10) }
	b.create("a", container("c", part(3), "", "sleep", "infinity"))
	b.create("big", container("c", part(5), "", "sleep", "infinity"))
	p := b.create("patient", container("c", part(1), "", "sleep", "infinity"))
	was := b.first(p, "c")

	b.resize("patient", "c", part(4), "")
	p = b.pending("patient", corev1.PodReasonDeferred,
		fmt.Sprintf("Node didn't have enough resource: cpu, requested: %d, used: %d, capacity: %d", all*4/10, all*3/10+
			all*5/10, all))
	if s := statusOf(p, "c"); !same(s.AllocatedResources, amounts(part(1))) ||
		!same(s.Resources.Requests, amounts(part(1))) {
		t.Errorf("not allocated, and yet %+v", s)
	}
	b.kernel(p, "", map[string]int64{"cpu.shares": all / 10 * 1024 / 1000})
	b.event("patient", "ResizeDeferred", `"error":"Node didn't have enough resource: cpu`)

	// The agent is killed. A resize that waits still waits afterwards: allocated differs from desired.
	b.killAgent()
	rig.Eventually(t, soon, "the new agent serves", func(ctx context.Context) error { return b.serves(ctx) })
	b.pending("patient", corev1.PodReasonDeferred)
	b.kernel(p, "", map[string]int64{"cpu.shares": all / 10 * 1024 / 1000})

	began := time.Now()
	b.delete("big")
	b.resized("patient", "c", part(4), "")
	t.Logf("allocated and reported %v after another pod ended", time.Since(began).Round(10*time.Millisecond))

	b.resize("patient", "c", part(8), "")
	b.pending("patient", corev1.PodReasonDeferred)
	began = time.Now()
	b.resize("a", "c", part(1), "")
	p = b.resized("patient", "c", part(8), "")
	t.Logf("allocated and reported %v after another pod shrank", time.Since(began).Round(10*time.Millisecond))
	b.kernel(p, "", map[string]int64{"cpu.shares": all * 8 / 10 * 1024 / 1000})
	if now := b.first(p, "c"); now != was {
		t.Errorf("restarted: %s, was %s", now, was)
	}

	// The agent carries out what the API admitted. A resize that the user takes back no longer waits.
	b.resize("patient", "c", part(10), "")
	b.pending("patient", corev1.PodReasonDeferred)
	b.resize("patient", "c", part(8), "")
	b.resized("patient", "c", part(8), "")

	// The scheduler counts the desired, actual or allocated resources, whichever is most.
	b.resize("patient", "c", part(10), "")
	b.pending("patient", corev1.PodReasonDeferred)
	if _, err := b.API.CoreV1().Pods(b.ns).Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "late"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{container("c", part(1), "", "sleep", "infinity")}}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	b.event("late", "FailedScheduling", "Insufficient cpu")
	b.resize("patient", "c", part(1), "")
	b.until("late", "runs", func(p *corev1.Pod) error {
		if p.Status.Phase != corev1.PodRunning {
			return fmt.Errorf("phase %s", p.Status.Phase)
		}
		return nil
	})
}

// Resizes that this node can never carry out.
func TestInfeasible(t *testing.T) {
	b := amid(t)
	p := b.create("p", container("c", "100m,32Mi", "100m,32Mi", "sleep", "infinity"))
	was := b.first(p, "c")
	b.resize("p", "c", "200m,32Mi", "200m,32Mi")
	p = b.pending("p", corev1.PodReasonInfeasible,
		`Resize is infeasible for Guaranteed Pods alongside CPU Manager policy "static"`)
	b.event("p", "ResizeInfeasible", `"error":"Resize is infeasible`)
	b.kernel(p, "c", size(100, 100, 32))
	if err := b.patch("p", "c", "50m,32Mi", "100m,32Mi"); err == nil ||
		!strings.Contains(err.Error(), "Pod QOS Class may not change") {
		t.Errorf("another QoS class: %v", err)
	}
	b.resize("p", "c", "100m,64Mi", "100m,64Mi") // memory is another matter
	p = b.resized("p", "c", "100m,64Mi", "100m,64Mi")
	b.kernel(p, "c", size(100, 100, 64))
	b.kernel(p, "", size(100, 100, 64))
	if now := b.first(p, "c"); now != was {
		t.Errorf("restarted: %s, was %s", now, was)
	}
}

// A memory limit is not lowered below the memory in use.
func TestMemoryInUse(t *testing.T) {
	b := amid(t)
	p := b.create("p", container("c", "10m,16Mi", "500m,128Mi", "memory", "--hold", "48Mi"))
	was := b.first(p, "c")
	rig.Eventually(t, soon, "it holds its memory", func(context.Context) error {
		out, err := b.TryKubectl(t, "--namespace", b.ns, "logs", "p")
		if err == nil && !strings.Contains(out, "48") {
			err = fmt.Errorf("%q", out)
		}
		return err
	})
	b.resize("p", "c", "10m,16Mi", "500m,32Mi")
	p = b.until("p", "shows why not", func(p *corev1.Pod) error {
		c := condition(p, corev1.PodResizeInProgress)
		if c == nil || c.Reason != corev1.PodReasonError ||
			!strings.Contains(c.Message, `attempting to set container "c" memory limit (33554432) below current usage`) {
			return fmt.Errorf("%+v", c)
		}
		return nil
	})
	b.kernel(p, "c", size(10, 500, 128))
	b.event("p", "ResizeError", `cannot decrease memory limits: `)
	b.resize("p", "c", "10m,16Mi", "500m,96Mi")
	p = b.resized("p", "c", "10m,16Mi", "500m,96Mi")
	b.kernel(p, "c", size(10, 500, 96))
	if now := b.first(p, "c"); now != was {
		t.Errorf("restarted: %s, was %s", now, was)
	}
}

// The agent is killed at random moments of resizes. In the end the pod has what its specification says, and its
// containers were not restarted.
func TestAgentDies(t *testing.T) {
	b := at(t)
	restarted := container("r", "50m,16Mi", "100m,32Mi", "sleep", "infinity")
	restarted.ResizePolicy = []corev1.ContainerResizePolicy{{ResourceName: "memory",
		RestartPolicy: corev1.RestartContainer}}
	p := b.create("p", container("a", "50m,16Mi", "100m,32Mi", "sleep", "infinity"), container("b", "50m,16Mi",
		"100m,32Mi", "sleep", "infinity"), restarted)
	was, neighbour := b.first(p, "a"), b.first(p, "b")
	const rounds = 5
	for round := range int64(rounds) {
		n := 40 + 20*(round%3)
		requests, limits := fmt.Sprintf("%dm,%dMi", n, n), fmt.Sprintf("%dm,%dMi", 2*n, 2*n)
		wait := time.NewTimer(time.Duration(100+rand.IntN(500)) * time.Millisecond)
		done := make(chan error, 1)
		go func() { done <- errors.Join(b.patch("p", "a", requests, limits), b.patch("p", "r", requests, limits)) }()
		<-wait.C
		b.killAgent()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		b.resized("p", "a", requests, limits)
		p = b.resized("p", "r", requests, limits)
		b.kernel(p, "a", size(n, 2*n, 2*n))
		b.kernel(p, "r", size(n, 2*n, 2*n))
		b.kernel(p, "", size(2*n+50, 4*n+100, 4*n+32))
		// Once for each resize; containerd 1.6 may start a container a second time when the agent dies while it starts
		// it (Known limits in CHANGELOG).
		if n := int64(statusOf(p, "r").RestartCount); n < round+1 || n > 2*(round+1) {
			t.Errorf("restarted %d times by %d resizes", n, round+1)
		}
	}
	if now := b.first(p, "a"); now != was || b.first(p, "b") != neighbour {
		t.Errorf("restarted: %s %s, was %s %s", now, b.first(p, "b"), was, neighbour)
	}
}

// The kernel kills a child while no agent runs. The next agent reports it, once.
func TestOOMWithoutAgent(t *testing.T) {
	b := at(t)
	p := b.create("p", container("c", "10m,16Mi", "500m,32Mi", "sleep", "infinity"))
	agent := b.PID(t, "agent")
	group := filepath.Join("/sys/fs/cgroup/memory", b.CgroupRoot(), "kubepods/burstable/pod"+string(p.UID),
		strings.Fields(b.first(p, "c"))[0], "memory.oom_control")
	exec := b.KubectlCommand(t.Context(), "--namespace", b.ns, "exec", "p", "--", "/workload", "run", "sleep 2s",
		"memory --hold 200Mi")
	if err := exec.Start(); err != nil {
		t.Fatal(err)
	}
	first := strings.Fields(b.first(p, "c"))[1]
	rig.Eventually(t, soon, "the child runs", func(context.Context) error {
		pids, err := os.ReadFile(strings.Replace(strings.Replace(group, "/memory/", "/pids/", 1), "memory.oom_control",
			"cgroup.procs", 1))
		if err == nil && len(strings.Fields(string(pids))) < 2 {
			err = fmt.Errorf("only %s", first)
		}
		return err
	})
	if err := syscall.Kill(agent, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	rig.Eventually(t, soon, "the kernel has taken it", func(context.Context) error {
		text, err := os.ReadFile(group)
		if err == nil && !strings.Contains(string(text), "oom_kill 1") {
			err = fmt.Errorf("%s", text)
		}
		return err
	})
	for range 2 { // and the agent after that does not report it again
		b.killAgent()
		rig.Eventually(t, soon, "the new agent serves", b.serves)
		b.event("p", "OOMKilled", "(workload) of container c was killed by the kernel")
	}
	_ = exec.Wait() // its stream is broken
	events, err := b.API.CoreV1().Events(b.ns).List(t.Context(), metav1.ListOptions{FieldSelector: "reason=OOMKilled"})
	if err != nil || len(events.Items) != 1 || events.Items[0].Count > 1 {
		t.Errorf("events: %+v, %v", events, err)
	}
}

func (b bench) killAgent() {
	b.t.Helper()
	pid := b.PID(b.t, "agent")
	if pid == 0 {
		return // it has not come back since it was killed last
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		b.t.Fatal(err)
	}
	deaths++
}

// serves checks that the agent answers.
func (b bench) serves(ctx context.Context) error {
	if b.PID(b.t, "agent") == 0 {
		return fmt.Errorf("no agent")
	}
	return nil
}
