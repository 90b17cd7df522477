package containerruntime

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/host/cri"
	"github.com/plimsoll-dev/plimsoll/internal/image"
)

// patience bounds every step of the rig. Chosen: far longer than any step takes, so that only a hang reaches it.
const patience = 20 * time.Second

var buildImages = sync.OnceValue(func() error {
	out, err := exec.Command("make", "-C", "../..", "images", "bin/cni/plimsoll-hostport").CombinedOutput()
	if err != nil {
		return fmt.Errorf("make images and plugin: %w: %s", err, out)
	}
	return nil
})

// newTestInstance makes an instance with its own directories, bridge, network and cgroup. The number distinguishes the
// instances of one test.
func newTestInstance(t *testing.T, number int, options Options) *Instance {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: starts a containerd and makes network interfaces and cgroups")
	}
	if _, err := findTools(options.withDefaults()); err != nil {
		t.Skipf("needs a container runtime: %v", err)
	}
	if err := buildImages(); err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "plimsoll-rt") // t.TempDir's names are too long for a socket path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	images, err := filepath.Abs("../../bin/images")
	if err != nil {
		t.Fatal(err)
	}
	options.StateDir = filepath.Join(dir, "state")
	options.RunDir = filepath.Join(dir, "run")
	options.ImageDir = images
	// Names with this process's ID, so that two runs of the tests on one machine do not tear each other down.
	pid := os.Getpid()
	options.Bridge = fmt.Sprintf("prt%d-%d", pid, number)
	// Packages are tested at the same time: this one's networks are in 10.192.0.0/11, agent/server's in 10.224.0.0/16,
	// cluster's in 10.225.0.0/16.
	options.PodCIDR = fmt.Sprintf("10.%d.%d.0/24", 192+pid/16%32, pid%16*16+number)
	options.CgroupRoot = fmt.Sprintf("/plimsoll-rt-%d-%d", pid, number)
	instance, err := New(options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // also after a test that failed half-way
		if err := instance.Teardown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return instance
}

// A rig is a running instance.
type rig struct {
	*Instance
	client *cri.Client
	daemon *exec.Cmd
	log    bytes.Buffer

	sharePIDs bool   // later pods have one PID namespace for all their containers
	image     string // of later containers; empty: the workload image
}

func (r *rig) namespaces() *runtimeapi.NamespaceOption {
	if r.sharePIDs {
		return &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_POD}
	}
	return &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER}
}

func startTestInstance(t *testing.T, instance *Instance) *rig {
	t.Helper()
	ctx := testContext(t)
	if err := instance.Prepare(ctx); err != nil {
		t.Fatal(err)
	}
	r := &rig{Instance: instance}
	r.start(t)
	var err error
	if r.client, err = cri.Dial(instance.Endpoint()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.client.Close() })
	begin := time.Now()
	if err := instance.LoadImages(ctx); err != nil {
		t.Fatal(err)
	}
	t.Logf("images loaded after %s", time.Since(begin).Round(time.Millisecond))
	return r
}

func (r *rig) start(t *testing.T) {
	t.Helper()
	argv := r.Command()
	r.daemon = exec.Command(argv[0], argv[1:]...)
	r.daemon.Stdout, r.daemon.Stderr = &r.log, &r.log
	r.daemon.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	begin := time.Now()
	if err := r.daemon.Start(); err != nil {
		t.Fatal(err)
	}
	daemon := r.daemon
	t.Cleanup(func() {
		daemon.Process.Kill()
		daemon.Wait()
		if t.Failed() {
			t.Logf("containerd said:\n%s", r.log.String())
		}
	})
	if err := r.WaitReady(testContext(t)); err != nil {
		t.Fatal(err)
	}
	t.Logf("containerd ready after %s", time.Since(begin).Round(time.Millisecond))
}

// killDaemon ends containerd like a crash.
func (r *rig) killDaemon(t *testing.T) {
	t.Helper()
	if err := r.daemon.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	r.daemon.Wait() // its result is known
}

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// pod starts a sandbox below the instance's pod cgroup and returns its ID.
func (r *rig) pod(t *testing.T, name string, ports ...*runtimeapi.PortMapping) string {
	t.Helper()
	config := r.podConfig(name)
	config.PortMappings = ports
	answer, err := r.client.RunPodSandbox(testContext(t), &runtimeapi.RunPodSandboxRequest{Config: config})
	if err != nil {
		t.Fatalf("run pod %s: %v", name, err)
	}
	return answer.PodSandboxId
}

// pid returns the first process of a sandbox.
func (r *rig) pid(t *testing.T, pod string) int {
	t.Helper()
	answer, err := r.client.PodSandboxStatus(testContext(t), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: pod,
		Verbose: true})
	if err != nil {
		t.Fatal(err)
	}
	var info struct{ PID int }
	if err := json.Unmarshal([]byte(answer.Info["info"]), &info); err != nil || info.PID == 0 {
		t.Fatalf("no pid in %s: %v", answer.Info["info"], err)
	}
	return info.PID
}

func (r *rig) podConfig(name string) *runtimeapi.PodSandboxConfig {
	return &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: name, Uid: name, Namespace: "rt"},
		LogDirectory: filepath.Join(r.options.StateDir, "logs"),
		Hostname:     name,
		Linux: &runtimeapi.LinuxPodSandboxConfig{
			CgroupParent:    r.options.CgroupRoot + "/kubepods/besteffort/pod" + name,
			SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{NamespaceOptions: r.namespaces()},
		},
	}
}

// container starts the workload image with args in a pod and returns its ID.
func (r *rig) container(t *testing.T, pod, name string, args ...string) string {
	t.Helper()
	id := r.create(t, pod, name, args...)
	if _, err := r.client.StartContainer(testContext(t), &runtimeapi.StartContainerRequest{ContainerId: id}); err != nil {
		t.Fatalf("start container %s: %v", name, err)
	}
	return id
}

func (r *rig) create(t *testing.T, pod, name string, args ...string) string {
	t.Helper()
	made, err := r.client.CreateContainer(testContext(t), &runtimeapi.CreateContainerRequest{
		PodSandboxId: pod,
		Config: &runtimeapi.ContainerConfig{
			Metadata:    &runtimeapi.ContainerMetadata{Name: name},
			Image:       &runtimeapi.ImageSpec{Image: cmp.Or(r.image, image.Demo)},
			Args:        args,
			LogPath:     name + ".log",
			Annotations: map[string]string{cri.AnnotationPodGracePeriod: "1"},
			Linux: &runtimeapi.LinuxContainerConfig{
				SecurityContext: &runtimeapi.LinuxContainerSecurityContext{NamespaceOptions: r.namespaces()},
			},
		},
		SandboxConfig: r.podConfig(name),
	})
	if err != nil {
		t.Fatalf("create container %s: %v", name, err)
	}
	return made.ContainerId
}

// exec runs a command in a container until it succeeds, and returns its output.
func (r *rig) exec(t *testing.T, container string, argv ...string) string {
	t.Helper()
	ctx := testContext(t)
	for {
		answer, err := r.client.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: container, Cmd: argv, Timeout: 10})
		if err != nil {
			t.Fatalf("exec %s: %v", strings.Join(argv, " "), err)
		}
		if answer.ExitCode == 0 {
			return string(answer.Stdout)
		}
		if ctx.Err() != nil {
			t.Fatalf("exec %s: exit code %d: %s", strings.Join(argv, " "), answer.ExitCode, answer.Stderr)
		}
	}
}

func (r *rig) podIP(t *testing.T, pod string) string {
	t.Helper()
	answer, err := r.client.PodSandboxStatus(testContext(t), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: pod})
	if err != nil {
		t.Fatal(err)
	}
	return answer.GetStatus().GetNetwork().GetIp()
}
