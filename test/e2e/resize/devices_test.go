//go:build e2e

package resize

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	podresourcesapi "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// gpu is a resource of this test alone, because pods of the test before may still be ending, with their devices.
func (b bench) gpu() corev1.ResourceName { return corev1.ResourceName("example.com/" + b.ns) }

// pluginProcess is a running test/deviceplugin.
type pluginProcess struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser

	mu   sync.Mutex
	said []string
}

// startPlugin starts a plugin with three devices, of which it prefers the last.
func (b bench) startPlugin() *pluginProcess {
	b.t.Helper()
	p := &pluginProcess{cmd: exec.Command(rig.Build(b.t, "test/deviceplugin/plugin"), "--dir", filepath.Join(b.AgentRoot(),
		"device-plugins"), "--resource", string(b.gpu()),
		"--devices", "gpu0@0,gpu1@0,gpu2@0", "--prefer", "gpu2,gpu1,gpu0", "--env", "GPUS", "--nodes", "--prestart",
		"--mount", "/usr/lib/os-release:/opt/release")}
	p.cmd.Stderr = os.Stderr
	out, err := p.cmd.StdoutPipe()
	if err == nil {
		p.stdin, err = p.cmd.StdinPipe()
	}
	if err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		b.t.Fatal(err)
	}
	go func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			p.mu.Lock()
			p.said = append(p.said, lines.Text())
			p.mu.Unlock()
		}
	}()
	b.t.Cleanup(p.kill)
	return p
}

// kill kills the plugin with SIGKILL.
func (p *pluginProcess) kill() {
	_ = p.cmd.Process.Kill() // it may have ended already
	_ = p.cmd.Wait()
}

func (p *pluginProcess) calls() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.said)
}

// offers waits until the node publishes the given numbers of devices, as allocatable/capacity.
func (b bench) offers(want string) {
	b.t.Helper()
	rig.Eventually(b.t, soon, "the node publishes "+want+" devices", func(ctx context.Context) error {
		nodes, err := b.API.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		capacity, allocatable := nodes.Items[0].Status.Capacity[b.gpu()], nodes.Items[0].Status.Allocatable[b.gpu()]
		if got := allocatable.String() + "/" + capacity.String(); got != want {
			return fmt.Errorf("%s", got)
		}
		return nil
	})
}

// withDevices creates a pod that requests n devices. It is bound without the scheduler, because the scheduler would
// wait for devices itself.
func (b bench) withDevices(name string, n int64) {
	b.t.Helper()
	nodes, err := b.API.CoreV1().Nodes().List(b.t.Context(), metav1.ListOptions{})
	if err != nil {
		b.t.Fatal(err)
	}
	c := container("c", "", "", "sleep", "infinity")
	c.Resources.Limits = corev1.ResourceList{b.gpu(): *resource.NewQuantity(n, resource.DecimalSI)}
	grace := int64(0)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{NodeName: nodes.Items[0].Name,
		TerminationGracePeriodSeconds: &grace, Containers: []corev1.Container{c}}}
	if _, err := b.API.CoreV1().Pods(b.ns).Create(b.t.Context(), pod, metav1.CreateOptions{}); err != nil {
		b.t.Fatal(err)
	}
}

func (b bench) ready(name string) *corev1.Pod {
	b.t.Helper()
	return b.until(name, "ready", func(p *corev1.Pod) error {
		if c := condition(p, corev1.PodReady); c == nil || c.Status != corev1.ConditionTrue {
			return fmt.Errorf("phase %s, %+v", p.Status.Phase, p.Status.Conditions)
		}
		return nil
	})
}

// has waits until a container sees the given devices and no others.
func (b bench) has(pod, ids string) {
	b.t.Helper()
	var out string
	rig.Eventually(b.t, soon, "a command in "+pod, func(context.Context) (err error) { // the agent may be about to restart
		out, err = b.TryKubectl(b.t, "--namespace", b.ns, "exec", pod, "--", "/workload", "run", "env GPUS", "ls /dev",
			"cat /opt/release")
		return err
	})
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if !strings.HasSuffix(lines[0], ids) {
		b.t.Errorf("%s has %q, want %s", pod, lines[0], ids)
	}
	var nodes []string
	for _, word := range strings.Fields(strings.Join(lines[1:], " ")) {
		if id, ok := strings.CutPrefix(filepath.Base(word), "gpu"); ok && len(id) == 1 {
			nodes = append(nodes, filepath.Base(word))
		}
	}
	if strings.Join(nodes, ",") != ids {
		b.t.Errorf("%s has the device nodes %v, want %s", pod, nodes, ids)
	}
	if !strings.Contains(out, "PRETTY_NAME") {
		b.t.Errorf("%s lacks its mount: %s", pod, out)
	}
}

// waits waits until a pod's status says that it waits for its devices.
func (b bench) waits(pod, why string) {
	b.t.Helper()
	b.until(pod, "waits for its devices", func(p *corev1.Pod) error {
		c := condition(p, corev1.PodReadyToStartContainers)
		if c == nil || c.Status != corev1.ConditionFalse || c.Reason != "WaitingForDevices" ||
			!strings.Contains(c.Message, why) || p.Status.Phase != corev1.PodPending {
			return fmt.Errorf("phase %s %s %s, %+v", p.Status.Phase, p.Status.Reason, p.Status.Message, c)
		}
		return nil
	})
}

// TestDevices starts and kills a device plugin, starts it late and while no agent runs, and checks the pods with its
// devices.
func TestDevices(t *testing.T) {
	b := at(t)
	plugin := b.startPlugin()
	b.offers("3/3")
	b.withDevices("p", 2)
	p := b.ready("p")
	b.has("p", "gpu1,gpu2")
	was := b.first(p, "c")
	if calls := plugin.calls(); !slices.Equal(calls[len(calls)-3:], []string{"preferred [gpu2 gpu1]",
		"allocate [gpu1 gpu2]", "prestart [gpu1 gpu2]"}) {
		t.Errorf("the plugin was asked %q", calls)
	}
	b.listed("p", "gpu1", "gpu2")

	if _, err := io.WriteString(plugin.stdin, "unhealthy gpu2\n"); err != nil {
		t.Fatal(err)
	}
	b.offers("2/3")
	b.until("p", "says that a device of its is ill", func(p *corev1.Pod) error {
		if s := statusOf(p, "c").AllocatedResourcesStatus; len(s) != 1 || len(s[0].Resources) != 2 ||
			s[0].Resources[0].Health != "Healthy" || s[0].Resources[1].Health != "Unhealthy" {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})

	plugin.kill()
	b.offers("0/3")
	b.withDevices("q", 1)
	b.waits("q", string(b.gpu())+": its device plugin is not registered")
	b.event("q", "WaitingForDevices", "its device plugin is not registered")
	b.killAgent()
	b.killContainer(p)
	b.waits("q", string(b.gpu())+": its device plugin is not registered")
	b.startPlugin()
	b.offers("3/3")
	b.ready("q")
	b.has("q", "gpu0") // p's devices stay assigned to p, whichever processes ended meanwhile
	p = b.until("p", "runs again", func(p *corev1.Pod) error {
		if s := statusOf(p, "c"); s.State.Running == nil || s.RestartCount == 0 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	b.has("p", "gpu1,gpu2")
	if b.first(p, "c") == was {
		t.Error("the container did not start again")
	}
	b.withDevices("r", 1)
	b.until("r", "is refused", func(p *corev1.Pod) error {
		if p.Status.Phase != corev1.PodFailed || p.Status.Reason != "UnexpectedAdmissionError" ||
			!strings.Contains(p.Status.Message, "requested number of devices unavailable for "+string(b.gpu())+
				". Requested: 1, Available: 0") {
			return fmt.Errorf("phase %s %s %s", p.Status.Phase, p.Status.Reason, p.Status.Message)
		}
		return nil
	})
}

// killContainer kills the container's first process.
func (b bench) killContainer(p *corev1.Pod) {
	b.t.Helper()
	_, pid, _ := strings.Cut(b.first(p, "c"), " ")
	n, err := strconv.Atoi(pid)
	if err == nil {
		err = syscall.Kill(n, syscall.SIGKILL)
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

// listed checks what the pod-resources API lists for a pod.
func (b bench) listed(pod string, ids ...string) {
	b.t.Helper()
	conn, err := grpc.NewClient("unix://"+filepath.Join(b.AgentRoot(), "pod-resources/kubelet.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		b.t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := rig.StartClock().Limit(b.t.Context(), soon)
	defer cancel()
	r, err := podresourcesapi.NewPodResourcesListerClient(conn).Get(ctx,
		&podresourcesapi.GetPodResourcesRequest{PodNamespace: b.ns, PodName: pod})
	if err != nil {
		b.t.Fatal(err)
	}
	var got []string
	for _, d := range r.PodResources.Containers[0].Devices {
		if d.ResourceName != string(b.gpu()) || len(d.Topology.GetNodes()) != 1 || d.Topology.Nodes[0].ID != 0 {
			b.t.Errorf("%+v", d)
		}
		got = append(got, d.DeviceIds...)
	}
	if !slices.Equal(got, ids) {
		b.t.Errorf("pod resources: %v, want %v", got, ids)
	}
}

// TestDevicesAmongKills kills the plugin and the agent at random moments while pods with devices come and go. No device
// may be assigned to two pods, and no pod may fail.
func TestDevicesAmongKills(t *testing.T) {
	b := at(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	plugin := b.startPlugin()
	b.offers("3/3")
	const rounds = 4
	for round := range rounds {
		name := fmt.Sprintf("p%d", round)
		after := time.After(time.Duration(rng.IntN(400)) * time.Millisecond)
		b.withDevices(name, 1)
		<-after
		if rng.IntN(2) == 0 {
			b.killAgent()
		}
		if rng.IntN(2) == 0 {
			plugin.kill()
			plugin = b.startPlugin()
		}
		p := b.ready(name)
		b.owners()
		if round%2 == 1 {
			if err := b.API.CoreV1().Pods(b.ns).Delete(t.Context(), p.Name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			rig.Eventually(t, soon, name+" is gone", func(ctx context.Context) error {
				if _, err := b.API.CoreV1().Pods(b.ns).Get(ctx, name, metav1.GetOptions{}); err == nil {
					return fmt.Errorf("it is there")
				}
				return nil
			})
		}
	}
}

// owners checks that each device is assigned to one pod at most.
func (b bench) owners() {
	b.t.Helper()
	pods, err := b.API.CoreV1().Pods(b.ns).List(b.t.Context(), metav1.ListOptions{})
	if err != nil {
		b.t.Fatal(err)
	}
	owner := map[string]string{}
	for _, p := range pods.Items {
		if p.DeletionTimestamp != nil {
			continue
		}
		var out string
		rig.Eventually(b.t, soon, "ask "+p.Name+" for its device", func(context.Context) (err error) {
			out, err = b.TryKubectl(b.t, "--namespace", b.ns, "exec", p.Name, "--", "/workload", "env", "GPUS")
			return err
		})
		id := strings.TrimSpace(out)
		if owner[id] != "" {
			b.t.Errorf("%s has %s, and so has %s", p.Name, id, owner[id])
		}
		owner[id] = p.Name
	}
}
