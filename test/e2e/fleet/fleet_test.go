//go:build e2e

// Package fleet drives the scheduler, the lifecycle controller and hollow nodes against the real control plane that
// `plimsoll up --no-agent --hollow N` starts. It needs no root.
//
//	make build && go test -tags e2e ./test/e2e/fleet
//
// PLIMSOLL_BIN names the directory of the built binaries; without it, bin/ of the repository.
package fleet

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
	"github.com/plimsoll-dev/plimsoll/test/freeport"
)

const hollowNodes = 50

// instance is a running control plane with hollow nodes.
type instance struct {
	t      *testing.T
	binary string
	flags  []string
	config *rest.Config
	api    kubernetes.Interface

	schedulerPort string
}

// up starts a separate instance, and takes it down when the test ends.
func up(t *testing.T, flags ...string) *instance {
	t.Helper()
	i := &instance{t: t, binary: rig.Binary(t), flags: []string{"--instance", "e2efleet", "--state-dir", t.TempDir()}}
	t.Cleanup(func() { i.plimsoll("down") })
	i.schedulerPort = strconv.Itoa(freeport.ForTest(t))
	i.plimsoll("up", append([]string{"--detach", "--no-agent", "--hollow", fmt.Sprint(hollowNodes), "--apiserver-port",
		strconv.Itoa(freeport.ForTest(t)),
		"--controller-manager-port", "0", "--scheduler-port", i.schedulerPort}, flags...)...)
	config, err := clientcmd.BuildConfigFromFlags("", strings.TrimSpace(i.plimsoll("kubeconfig")))
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	config.ContentType = "application/vnd.kubernetes.protobuf" // the test lists a thousand nodes again and again
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	i.config = config
	if i.api, err = kubernetes.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	i.until("the default service account", time.Minute, func(ctx context.Context) (bool, string) {
		_, err := i.api.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{})
		return err == nil, fmt.Sprint(err)
	})
	return i
}

func (i *instance) plimsoll(verb string, args ...string) string {
	i.t.Helper()
	command := exec.Command(i.binary, append(append([]string{verb}, i.flags...), args...)...)
	out, err := command.Output()
	if err != nil {
		detail := ""
		if exit := (*exec.ExitError)(nil); asExit(err, &exit) {
			detail = string(exit.Stderr)
		}
		i.t.Fatalf("plimsoll %s: %v\n%s%s", verb, err, out, detail)
	}
	return string(out)
}

func asExit(err error, into **exec.ExitError) bool {
	exit, ok := err.(*exec.ExitError)
	*into = exit
	return ok
}

// pid returns the process of a child of `up`, zero while it is down.
func (i *instance) pid(child string) int {
	i.t.Helper()
	var status struct {
		Children []struct {
			Name string
			PID  int
		}
	}
	// It fails while a child is down, but prints its result.
	out, _ := exec.Command(i.binary, append(append([]string{"status"}, i.flags...), "-o", "json")...).Output()
	if err := json.Unmarshal(out, &status); err != nil {
		i.t.Fatal(err)
	}
	for _, c := range status.Children {
		if c.Name == child {
			return c.PID
		}
	}
	return 0
}

// until waits for a condition. It fails the test with the last state that it saw.
func (i *instance) until(what string, limit time.Duration, condition func(context.Context) (bool, string)) {
	i.t.Helper()
	ctx, cancel := rig.StartClock().Limit(i.t.Context(), limit)
	defer cancel()
	began, last := time.Now(), ""
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		ok, seen := condition(ctx)
		if ok && ctx.Err() == nil { // a read that the deadline cancelled returns nothing
			i.t.Logf("%s after %v", what, time.Since(began).Round(100*time.Millisecond))
			return
		}
		if ctx.Err() == nil {
			last = seen
		}
		select {
		case <-ctx.Done():
			i.t.Fatalf("%s: not within %v; last seen: %s", what, limit, last)
		case <-tick.C:
		}
	}
}

func (i *instance) pods(ctx context.Context) []corev1.Pod {
	list, err := i.api.CoreV1().Pods("default").List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return nil
	}
	return list.Items
}

func (i *instance) createPods(from, to int, spec corev1.PodSpec) {
	i.t.Helper()
	slots := make(chan struct{}, 16)
	var all sync.WaitGroup
	for n := from; n < to; n++ {
		all.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("p%04d", n)}, Spec: spec}
			if _, err := i.api.CoreV1().Pods("default").Create(i.t.Context(), pod, metav1.CreateOptions{}); err != nil {
				i.t.Errorf("create pod %d: %v", n, err)
			}
		})
	}
	all.Wait()
}

func podSpec(cpu string) corev1.PodSpec {
	return corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "x", Resources: corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)},
	}}}}
}

// TestFleet does with one instance what users do. Each part needs the state that the part before it left.
func TestFleet(t *testing.T) {
	i := up(t)
	t.Run("burst", i.burst)
	t.Run("metrics", i.metrics)
	t.Run("unschedulable", i.unschedulable)
	t.Run("preemption", i.preemption)
	t.Run("drain", i.drain)
	t.Run("faults", i.faults)
	t.Run("silence", i.silence)
}

// burst creates 1,000 pods while the scheduler is killed again and again. Each pod is bound once, runs, and has its own
// address.
func (i *instance) burst(t *testing.T) {
	const count = 1000
	i.t = t
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var mu sync.Mutex
	nodes, moved := map[string]string{}, 0
	note := func(obj any) {
		mu.Lock()
		defer mu.Unlock()
		pod := obj.(*corev1.Pod)
		before, known := nodes[pod.Name]
		if known && before != pod.Spec.NodeName {
			moved++
		}
		if pod.Spec.NodeName != "" {
			nodes[pod.Name] = pod.Spec.NodeName
		}
	}
	informers := informers.NewSharedInformerFactory(i.api, 0)
	if _, err := informers.Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: note,
		UpdateFunc: func(_, after any) { note(after) }}); err != nil {
		t.Fatal(err)
	}
	informers.Start(ctx.Done())
	informers.WaitForCacheSync(ctx.Done())
	killed := 0
	creating := make(chan struct{})
	go func() {
		defer close(creating)
		i.createPods(0, count, podSpec("100m"))
	}()
	for done := false; !done; {
		select {
		case <-creating:
			done = true
		case <-time.After(700 * time.Millisecond):
		}
		if pid := i.pid("scheduler"); pid > 0 && killed < 5 && syscall.Kill(pid, syscall.SIGKILL) == nil {
			killed++
		}
	}
	i.until("1,000 pods Running", 2*time.Minute, func(ctx context.Context) (bool, string) {
		running, addresses := 0, map[string]bool{}
		for _, p := range i.pods(ctx) {
			if p.Status.Phase == corev1.PodRunning {
				running++
				addresses[p.Status.PodIP] = true
			}
		}
		mu.Lock()
		defer mu.Unlock()
		return running == count && len(addresses) == count && len(nodes) == count, fmt.Sprintf("%d Running with %d addresses",
			running, len(addresses))
	})
	cancel()
	informers.Shutdown()
	perNode := map[string]int{}
	for _, node := range nodes {
		perNode[node]++
	}
	for node, n := range perNode {
		if n > 110 {
			t.Errorf("node %s holds %d pods, its limit is 110", node, n)
		}
	}
	t.Logf("scheduler killed %d times; pods on %d nodes", killed, len(perNode))
	if moved != 0 || len(nodes) != count || killed == 0 {
		t.Errorf("%d pods seen bound, %d changed their node, %d kills", len(nodes), moved, killed)
	}
}

// unschedulable creates a pod that fits on no node: its condition says why, and it is placed as soon as there is room.
func (i *instance) unschedulable(t *testing.T) {
	i.t = t
	spec := podSpec("31500m") // beside 20 pods of 100m, a node of 32 CPUs has 30
	i.createPods(9000, 9001, spec)
	i.until("the condition that says why", 30*time.Second, func(ctx context.Context) (bool, string) {
		pod, err := i.api.CoreV1().Pods("default").Get(ctx, "p9000", metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodScheduled {
				want := fmt.Sprintf("0/%d nodes are available: %d Insufficient cpu. preemption: ", hollowNodes, hollowNodes)
				return c.Reason == "Unschedulable" && strings.HasPrefix(c.Message, want), c.Message
			}
		}
		return false, "no condition"
	})
	for _, p := range i.pods(t.Context()) {
		if p.Spec.NodeName == "hollow-7" {
			_ = i.api.CoreV1().Pods("default").Delete(t.Context(), p.Name, metav1.DeleteOptions{})
		}
	}
	i.until("placed where room appeared", 30*time.Second, func(ctx context.Context) (bool, string) {
		pod, err := i.api.CoreV1().Pods("default").Get(ctx, "p9000", metav1.GetOptions{})
		return err == nil && pod.Spec.NodeName == "hollow-7", fmt.Sprint(pod.Spec.NodeName, err)
	})
	spec = podSpec("1m")
	spec.Volumes = []corev1.Volume{{Name: "data",
		VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
		}}}
	i.createPods(9001, 9002, spec)
	i.until("a claim that there is not is named", 30*time.Second, func(ctx context.Context) (bool, string) {
		pod, err := i.api.CoreV1().Pods("default").Get(ctx, "p9001", metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		for _, c := range pod.Status.Conditions {
			if strings.Contains(c.Message, "persistentvolumeclaim \"data\" not found") {
				return true, ""
			}
		}
		return false, fmt.Sprint(pod.Status.Conditions)
	})
}

// preemption creates a pod of high priority that fits on no node. It preempts as few pods as possible, all on its node.
func (i *instance) preemption(t *testing.T) {
	i.t = t
	class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "gold"}, Value: 1000}
	if _, err := i.api.SchedulingV1().PriorityClasses().Create(t.Context(), class, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	was := map[string]string{}
	for _, p := range i.pods(t.Context()) {
		was[p.Name] = p.Spec.NodeName
	}
	spec := podSpec("31500m")
	spec.PriorityClassName = "gold"
	i.createPods(9002, 9003, spec)
	node := ""
	i.until("placed on a node that was made ready for it", time.Minute, func(ctx context.Context) (bool, string) {
		pod, err := i.api.CoreV1().Pods("default").Get(ctx, "p9002", metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		node = pod.Spec.NodeName
		return node != "", fmt.Sprint(pod.Status) // the API server removes the nomination with the bind
	})
	for _, p := range i.pods(t.Context()) {
		delete(was, p.Name)
	}
	for name, on := range was {
		if on != node {
			t.Errorf("pod %s was evicted from %s, but the room was needed on %s", name, on, node)
		}
	}
	if len(was) == 0 || len(was) > 20 {
		t.Errorf("%d pods evicted from %s: %v", len(was), node, was)
	}
}

// drain deletes all pods and waits until they are gone.
func (i *instance) drain(t *testing.T) {
	i.t = t
	if err := i.api.CoreV1().Pods("default").DeleteCollection(t.Context(), metav1.DeleteOptions{},
		metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	i.until("no pods", time.Minute, func(ctx context.Context) (bool, string) {
		n := len(i.pods(ctx))
		return n == 0, fmt.Sprint(n, " pods left")
	})
}

// silence stops the fleet's process. Its nodes are marked as unreachable and their pods as not ready. Because all nodes
// are silent, none gets a NoExecute taint. Then the process continues, and all nodes are Ready again.
func (i *instance) silence(t *testing.T) {
	i.t = t
	i.createPods(0, 100, podSpec("100m"))
	i.until("100 pods Running", time.Minute, func(ctx context.Context) (bool, string) {
		return i.readyPods(ctx) == 100,
			""
	})
	pid := i.pid("fleet")
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Kill(pid, syscall.SIGCONT) }()
	i.until("all nodes Unknown, tainted, no pod Ready", 75*time.Second, func(ctx context.Context) (bool, string) {
		unknown, tainted := i.countNodes(ctx, corev1.ConditionUnknown)
		ready := i.readyPods(ctx)
		return unknown == hollowNodes && tainted == hollowNodes &&
			ready == 0, fmt.Sprintf("%d Unknown, %d taints, %d pods Ready", unknown, tainted, ready)
	})
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	i.until("all nodes Ready, no taint, all pods Ready", 30*time.Second, func(ctx context.Context) (bool, string) {
		up, tainted := i.countNodes(ctx, corev1.ConditionTrue)
		ready := i.readyPods(ctx)
		return up == hollowNodes && tainted == 0 && ready == 100, fmt.Sprintf("%d Ready, %d taints, %d pods Ready", up,
			tainted, ready)
	})
}

func (i *instance) readyPods(ctx context.Context) int {
	n := 0
	for _, p := range i.pods(ctx) {
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
				n++
			}
		}
	}
	return n
}

// countNodes counts the nodes whose condition Ready has the status, and the taints on all of them.
func (i *instance) countNodes(ctx context.Context, status corev1.ConditionStatus) (nodes, taints int) {
	list, err := i.api.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return 0, 0
	}
	for _, n := range list.Items {
		taints += len(n.Spec.Taints)
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == status {
				nodes++
			}
		}
	}
	return nodes, taints
}
