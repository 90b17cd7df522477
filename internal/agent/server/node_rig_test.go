package server

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/cadvisor"
	"github.com/plimsoll-dev/plimsoll/internal/agent/metrics"
	"github.com/plimsoll-dev/plimsoll/internal/agent/stats"
	"github.com/plimsoll-dev/plimsoll/internal/containerruntime"
	"github.com/plimsoll-dev/plimsoll/internal/host/cgroup"
	"github.com/plimsoll-dev/plimsoll/internal/host/cri"
	"github.com/plimsoll-dev/plimsoll/internal/image"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

const (
	nodeName  = "served"
	patience  = 60 * time.Second // patience bounds every step; no step takes nearly as long
	groupRoot = "/plimsoll-server-test"
)

// node is a real control plane, a real containerd with one pod in it, and the agent's server between them. There are no
// pod workers: the test fills in their table of pods.
type node struct {
	*Server
	dir, bin, state string
	address         string // of this machine; the API server does not proxy to loopback
	admin           *kube.Client
	cri             *cri.Client
	pods            *table
	sandbox         *runtimeapi.PodSandboxConfig
	port            int32
	metrics         *metrics.Set
}

func free(t *testing.T) int32 {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return int32(l.Addr().(*net.TCPAddr).Port)
}

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func newNode(t *testing.T) *node {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: starts a control plane and a containerd, half a minute")
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root: starts a containerd and makes network interfaces and cgroups")
	}
	bin := must[string](t)(filepath.Abs("../../../bin"))
	if _, err := os.Stat(filepath.Join(bin, "plimsoll-controlplane")); err != nil {
		t.Skipf("needs the control plane: %v; run make build", err)
	}
	for _, target := range []string{"bin/plimsoll", "images"} {
		if out, err := exec.Command("make", "-C", "../../..", target).CombinedOutput(); err != nil {
			t.Fatalf("make %s: %v: %s", target, err, out)
		}
	}
	dir := must[string](t)(os.MkdirTemp("", "plsrv")) // t.TempDir's names are too long for a socket path
	t.Cleanup(func() { os.RemoveAll(dir) })
	n := &node{dir: dir, bin: bin, state: filepath.Join(dir, "cp"), port: free(t), metrics: metrics.New(nodeName),
		pods: &table{sandboxes: map[string]string{}, containers: map[string]Container{}}}
	n.startControlPlane(t)
	n.startRuntime(t)
	n.startPod(t)
	n.serve(t)
	return n
}

func (n *node) startControlPlane(t *testing.T) {
	t.Helper()
	instance := []string{"--instance", "srvtest", "--state-dir", n.state}
	up := append([]string{"up", "--no-agent", "--detach", "--node-name", nodeName, "--apiserver-port", fmt.Sprint(free(t)),
		"--controller-manager-port", "0"}, instance...)
	t.Cleanup(func() {
		if out, err := exec.Command(n.bin+"/plimsoll", append([]string{"down"},
			instance...)...).CombinedOutput(); err != nil {
			t.Errorf("down: %v: %s", err, out)
		}
	})
	if out, err := exec.Command(n.bin+"/plimsoll", up...).CombinedOutput(); err != nil {
		t.Fatalf("up: %v: %s", err, out)
	}
	n.admin = must[*kube.Client](t)(kube.NewClient(kube.Options{Kubeconfig: n.state + "/admin.kubeconfig", QPS: -1}))
	var options struct{ NodeIP string }
	if err := json.Unmarshal(must[[]byte](t)(os.ReadFile(n.state+"/options.json")), &options); err != nil {
		t.Fatal(err)
	}
	n.address = options.NodeIP
	object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}}
	if err := n.admin.Create(within(t), kube.Nodes, "", "", object, object); err != nil {
		t.Fatal(err)
	}
	object.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: n.address}}
	object.Status.DaemonEndpoints.KubeletEndpoint.Port = n.port
	patch := must[[]byte](t)(json.Marshal(map[string]any{"status": object.Status}))
	if err := n.admin.Patch(within(t), kube.Nodes, "", nodeName, "application/merge-patch+json", patch, nil,
		"status"); err != nil {
		t.Fatal(err)
	}
}

func (n *node) startRuntime(t *testing.T) {
	t.Helper()
	instance, err := containerruntime.New(containerruntime.Options{
		StateDir: n.dir + "/state", RunDir: n.dir + "/run", ImageDir: n.bin +
			"/images", Bridge: "plsrvtest0", PodCIDR: "10.224.78.0/24", CgroupRoot: groupRoot,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := instance.Prepare(within(t)); err != nil {
		t.Skipf("needs a container runtime: %v", err)
	}
	var said bytes.Buffer
	argv := instance.Command()
	daemon := exec.Command(argv[0], argv[1:]...)
	daemon.Stdout = &said
	daemon.Stderr = &said
	daemon.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		daemon.Process.Signal(syscall.SIGTERM)
		daemon.Wait()
		if err := instance.Teardown(context.Background()); err != nil {
			t.Errorf("teardown: %v", err)
		}
		if t.Failed() {
			t.Logf("containerd said:\n%s", said.String())
		}
	})
	if err := instance.WaitReady(within(t)); err != nil {
		t.Fatal(err)
	}
	if err := instance.LoadImages(within(t)); err != nil {
		t.Fatal(err)
	}
	n.cri = must[*cri.Client](t)(cri.Dial(instance.Endpoint(), n.metrics.RuntimeCalls()))
	t.Cleanup(func() { n.cri.Close() })
}

// startPod creates the pod default/p in the API and in the runtime.
func (n *node) startPod(t *testing.T) {
	t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default"},
		Spec: corev1.PodSpec{NodeName: nodeName, Containers: []corev1.Container{
			{Name: "web", Image: image.Demo}, {Name: "chat", Image: image.Demo, Stdin: true}, {Name: "log", Image: image.Demo},
		}}}
	for ctx := within(t); ; { // a controller creates its service account
		err := n.admin.Create(ctx, kube.Pods, "default", "", pod, pod)
		if err == nil {
			break
		}
		if ctx.Err() != nil || !strings.Contains(err.Error(), "serviceaccount") {
			t.Fatal(err)
		}
		<-time.After(50 * time.Millisecond)
	}
	pod.Status.Phase = corev1.PodRunning
	if err := n.admin.Patch(within(t), kube.Pods, "default", "p", "application/merge-patch+json",
		[]byte(`{"status":{"phase":"Running"}}`), nil, "status"); err != nil {
		t.Fatal(err)
	}
	n.pods.pods = []*corev1.Pod{pod}
	n.sandbox = &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: "p", Namespace: "default", Uid: string(pod.UID)},
		Labels: map[string]string{cri.LabelPodName: "p", cri.LabelPodNamespace: "default",
			cri.LabelPodUID: string(pod.UID)},
		LogDirectory: n.dir + "/logs/p", Hostname: "p",
		Linux: &runtimeapi.LinuxPodSandboxConfig{CgroupParent: groupOf(pod)},
	}
	answer, err := n.cri.RunPodSandbox(within(t), &runtimeapi.RunPodSandboxRequest{Config: n.sandbox})
	if err != nil {
		t.Fatal(err)
	}
	n.pods.sandboxes["default/p"] = answer.PodSandboxId
	n.start(t, "web", false, "http", "--port", "8080")
	n.start(t, "chat", true, "stdin")
	n.start(t, "log", false, "log", "--lines", "5")
	n.ended(t, "log")
}

func groupOf(pod *corev1.Pod) string { return groupRoot + "/kubepods/besteffort/pod" + string(pod.UID) }

// start starts a container of the pod, or its next attempt.
func (n *node) start(t *testing.T, name string, stdin bool, args ...string) {
	t.Helper()
	key := "default/p/" + name
	attempt := uint32(0)
	if last, ok := n.pods.containers[key]; ok {
		attempt = last.Attempt + 1
		n.pods.set(key+"-previous", last)
	}
	log := fmt.Sprintf("%s/%d.log", name, attempt)
	if err := os.MkdirAll(filepath.Dir(filepath.Join(n.sandbox.LogDirectory, log)), 0o755); err != nil {
		t.Fatal(err)
	}
	made, err := n.cri.CreateContainer(within(t), &runtimeapi.CreateContainerRequest{
		PodSandboxId: n.pods.sandboxes["default/p"], SandboxConfig: n.sandbox,
		Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: name,
				Attempt: attempt}, Image: &runtimeapi.ImageSpec{Image: image.Demo}, Args: args,
			Labels: map[string]string{cri.LabelPodName: "p", cri.LabelPodNamespace: "default",
				cri.LabelPodUID: n.sandbox.Metadata.Uid, cri.LabelContainerName: name},
			Stdin: stdin, LogPath: log,
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.cri.StartContainer(within(t),
		&runtimeapi.StartContainerRequest{ContainerId: made.ContainerId}); err != nil {
		t.Fatal(err)
	}
	n.pods.set(key, Container{
		ID: made.ContainerId, LogPath: filepath.Join(n.sandbox.LogDirectory,
			log), State: Running, Attempt: attempt, Stdin: stdin, StartedAt: time.Now(),
	})
}

// ended waits for a container's end and records it as the pod workers would.
func (n *node) ended(t *testing.T, name string) {
	t.Helper()
	c, _ := n.pods.Container("default", "p", name, "", false)
	for ctx := within(t); ; {
		answer, err := n.cri.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: c.ID})
		if err != nil {
			t.Fatal(err)
		}
		if answer.Status.State == runtimeapi.ContainerState_CONTAINER_EXITED {
			break
		}
		<-time.After(20 * time.Millisecond)
	}
	c.State = Exited
	n.pods.set("default/p/"+name, c)
}

// serve starts the server with the options that `up` gives an agent.
func (n *node) serve(t *testing.T) {
	t.Helper()
	yes := true
	pki := n.state + "/pki"
	client := must[*kube.Client](t)(kube.NewClient(kube.Options{Kubeconfig: pki + "/agent.kubeconfig", QPS: -1}))
	tree := must[*cgroup.Tree](t)(cgroup.Open("/sys/fs/cgroup"))
	hour := metav1.Duration{Duration: time.Hour}
	measured := StatsPods(n.pods, groupOf, func(group, id string) string { return group + "/" + id }, n.dir+"/agent")
	var err error
	n.Server, err = New(Options{
		Config: &kubeletconfigv1beta1.KubeletConfiguration{
			Address: n.address, Port: n.port, PodLogsDir: n.dir + "/logs",
			TLSCertFile: pki + "/agent-serving.crt", TLSPrivateKeyFile: pki + "/agent-serving.key",
			Authentication: kubeletconfigv1beta1.KubeletAuthentication{
				X509:    kubeletconfigv1beta1.KubeletX509Authentication{ClientCAFile: pki + "/ca.crt"},
				Webhook: kubeletconfigv1beta1.KubeletWebhookAuthentication{Enabled: &yes, CacheTTL: hour},
			},
			Authorization: kubeletconfigv1beta1.KubeletAuthorization{
				Mode:    kubeletconfigv1beta1.KubeletAuthorizationModeWebhook,
				Webhook: kubeletconfigv1beta1.KubeletWebhookAuthorization{CacheAuthorizedTTL: hour, CacheUnauthorizedTTL: hour},
			},
		},
		NodeName: nodeName, CertDir: n.dir + "/agent/pki", API: client, Pods: n.pods, Runtime: n.cri, Metrics: n.metrics,
		Cgroups: cadvisor.New(cadvisor.Options{Tree: tree, Pods: measured,
			SandboxImage: func() string { return image.Pause }}),
		Stats: stats.New(stats.Options{
			NodeName: nodeName, Pods: measured, Cgroups: tree, PodsGroup: groupRoot + "/kubepods",
			Runtime: n.cri, Images: n.cri.Images, RuntimeSocket: strings.TrimPrefix(n.cri.Endpoint, "unix://"), RootDir: n.dir,
		}),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("server ends with %v", err)
		}
	})
}

func (n *node) command(ctx context.Context, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, n.bin+"/plimsoll-controlplane", append([]string{"kubectl", "--kubeconfig", n.state +
		"/admin.kubeconfig"}, args...)...)
}

// kubectl runs the original kubectl through the real API server and returns both outputs.
func (n *node) kubectl(t *testing.T, stdin string, env []string, args ...string) (string, error) {
	t.Helper()
	c := n.command(within(t), args...)
	c.Stdin, c.Env = strings.NewReader(stdin), append(os.Environ(), env...)
	out, err := c.CombinedOutput()
	return string(out), err
}
