package cluster

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/plimsoll-dev/plimsoll/internal/cluster/supervise"
	"github.com/plimsoll-dev/plimsoll/internal/image"
)

// program is a fresh build of cmd/plimsoll with its own instance.
type program struct {
	t        *testing.T
	path     string
	instance []string // flags that select it
	up       []string // flags of up
}

// newProgram skips the test, with the reason, if there is no control plane to run.
func newProgram(t *testing.T) *program {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a real control plane, which takes some 20 s: not with -short")
	}
	repository, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	controlplane := os.Getenv("PLIMSOLL_CONTROLPLANE")
	if controlplane == "" {
		controlplane = filepath.Join(repository, "bin", controlplaneName)
	}
	if _, err := os.Stat(controlplane); err != nil {
		t.Skipf("no control plane binary: build it with `make bin/%s`, or name one in PLIMSOLL_CONTROLPLANE: %v",
			controlplaneName, err)
	}
	path, err := buildPlimsoll()
	if err != nil {
		t.Fatal(err)
	}
	t.Parallel() // several instances can run on one machine
	p := &program{t: t, path: path}
	p.instance = []string{"--instance", "t" + strconv.Itoa(freePort(t)), "--state-dir", filepath.Join(t.TempDir(), "s")}
	p.up = append(slices.Clone(p.instance), "--no-agent", "--hollow", "2", "--controlplane-binary", controlplane,
		"--apiserver-port", strconv.Itoa(freePort(t)), "--controller-manager-port", "0")
	t.Cleanup(func() { p.run("down", append(slices.Clone(p.instance), "--purge")...) })
	return p
}

// buildPlimsoll builds cmd/plimsoll once for all tests; TestMain removes it.
var buildPlimsoll = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "plimsoll-test")
	if err != nil {
		return "", err
	}
	builtIn = dir
	build := exec.Command("go", "build", "-o", dir, "./cmd/plimsoll")
	build.Dir = "../.."
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build plimsoll: %w\n%s", err, out)
	}
	return filepath.Join(dir, "plimsoll"), nil
})

// builtIn is the directory that buildPlimsoll created.
var builtIn string

// freePort returns a free port below the range of outgoing connections (32768 on, ip(7)), so that no connection takes
// it before it is used.
func freePort(t *testing.T) int {
	t.Helper()
	for range 100 {
		port := 20000 + rand.IntN(12000)
		listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err == nil {
			listener.Close()
			return port
		}
	}
	t.Fatal("no free port in a hundred tries")
	return 0
}

// run runs a verb and returns its output.
func (p *program) run(verb string, args ...string) (string, error) {
	// The test's own context has ended when cleanups run.
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, p.path, append([]string{verb}, args...)...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}

func (p *program) must(verb string, args ...string) string {
	p.t.Helper()
	out, err := p.run(verb, args...)
	if err != nil {
		p.t.Fatalf("plimsoll %s %v: %v\n%s", verb, args, err, out)
	}
	return out
}

func (p *program) kubectl(args ...string) string {
	p.t.Helper()
	return p.must("kubectl", append(slices.Clone(p.instance), args...)...)
}

func (p *program) status() Status {
	p.t.Helper()
	// exit code 1 means that not everything is healthy
	out, _ := p.run("status", append(slices.Clone(p.instance), "-o", "json")...)
	var s Status
	if strings.Contains(out, "never been up") {
		return s
	}
	if err := json.NewDecoder(strings.NewReader(out)).Decode(&s); err != nil {
		p.t.Fatalf("status: %v\n%s", err, out)
	}
	return s
}

func (s Status) child(name string) supervise.Status {
	i := slices.IndexFunc(s.Children, func(c supervise.Status) bool { return c.Name == name })
	if i < 0 {
		return supervise.Status{}
	}
	return s.Children[i]
}

// await polls for a state of real processes, for which there is no event.
func await(t *testing.T, what string, true func() bool) {
	t.Helper()
	tick := time.NewTicker(pollPeriod)
	defer tick.Stop()
	timeout := time.After(time.Minute)
	for !true() {
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatalf("never came true: %s", what)
		}
	}
}

// The life of an instance: up, crash of a child, crash of the supervisor, up again, down, down again, up with the
// earlier data. Objects in the API show that nothing was lost.
func TestInstance(t *testing.T) {
	p := newProgram(t)
	p.must("up", append(p.up, "--detach")...)
	first := p.status()
	if !first.Up() || len(first.Nodes) != 2 {
		t.Fatalf("after up: %+v", first)
	}
	p.kubectl("create", "configmap", "witness", "--from-literal=a=b")
	witness := func() {
		t.Helper()
		if got := p.kubectl("get", "configmap", "witness", "-o", "jsonpath={.data.a}"); got != "b" {
			t.Errorf("the witness says %q", got)
		}
	}

	if out := p.must("up", append(p.up, "--detach")...); !strings.Contains(out, "already up") {
		t.Errorf("up twice: %s", out)
	}
	if again := p.status(); again.SupervisorPID != first.SupervisorPID ||
		again.child(childEtcd).PID != first.child(childEtcd).PID {
		t.Errorf("up twice started something: %+v", again)
	}

	// A child dies: only that child is started again.
	kill(t, first.child(childControllerManager).PID)
	await(t, "kube-controller-manager runs again", func() bool {
		c := p.status().child(childControllerManager)
		return c.PID != 0 && c.PID != first.child(childControllerManager).PID
	})

	// The supervisor dies, and then etcd, which nobody restarts.
	kill(t, first.SupervisorPID)
	kill(t, first.child(childEtcd).PID)
	await(t, "the supervisor is gone", func() bool { return p.status().SupervisorPID == 0 })
	p.must("up", append(p.up, "--detach")...)
	second := p.status()
	if second.child(childAPIServer).PID != first.child(childAPIServer).PID {
		t.Errorf("kube-apiserver was %d and is %d: not adopted", first.child(childAPIServer).PID,
			second.child(childAPIServer).PID)
	}
	if pid := second.child(childEtcd).PID; pid == 0 || pid == first.child(childEtcd).PID {
		t.Errorf("etcd is %d", pid)
	}
	witness()

	// Everything dies at once.
	kill(t, second.SupervisorPID)
	for _, c := range second.Children {
		kill(t, c.PID)
	}
	p.must("up", append(p.up, "--detach")...)
	witness()

	for range 2 {
		p.must("down", p.instance...)
		p.wantNothingRunning()
	}
	p.must("up", append(p.up, "--detach")...)
	witness()

	// down without a supervisor.
	kill(t, p.status().SupervisorPID)
	p.must("down", append(slices.Clone(p.instance), "--purge")...)
	p.wantNothingRunning()
	if _, err := os.Stat(p.instance[3]); !os.IsNotExist(err) {
		t.Errorf("purged, but %s: %v", p.instance[3], err)
	}
}

// A node with real containers: they survive the death of other processes, and down leaves nothing of them.
func TestNode(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("containers need root")
	}
	if _, err := exec.LookPath("containerd"); err != nil {
		t.Skipf("no containerd: install it with `make deps`: %v", err)
	}
	images, err := filepath.Abs("../../bin/images")
	if err == nil {
		_, err = os.Stat(filepath.Join(images, image.WorkloadFile))
	}
	if err != nil {
		t.Skipf("no images: build them with `make images`: %v", err)
	}
	p := newProgram(t)
	o := Options{Instance: p.instance[1], StateDir: p.instance[3]}
	l := layout{o}
	up := append(slices.Clone(p.up), "--no-agent=false", "--hollow", "0", "--detach", "--node-name", "test-node",
		"--image-dir", images,
		"--agent-port", strconv.Itoa(freePort(t)), "--agent-health-port", "0", "--pod-cidr", "10.225.0.0/16",
		// the tests of containerruntime list which networks each package uses
		"--without", "kube-proxy,coredns,metrics-server,csi")
	out := p.must("up", up...)
	if !strings.Contains(out, "node test-node: Ready") || !strings.Contains(out, "ALLOCATABLE") {
		t.Errorf("up shows no allocatable resources:\n%s", out)
	}
	p.kubectl("create", "deployment", "hello", "--image", image.Demo, "--replicas", "2")
	p.kubectl("rollout", "status", "deployment/hello", "--timeout", "60s")
	running := func() string {
		t.Helper()
		return p.kubectl("get", "pods", "-o",
			"jsonpath={range .items[*]}{.metadata.name} {.status.podIP} {.status.containerStatuses[0].containerID} "+
				"{.status.containerStatuses[0].state.running.startedAt}{\"\\n\"}{end}")
	}
	before := running()

	s := p.status()
	kill(t, s.SupervisorPID)
	for _, c := range s.Children {
		kill(t, c.PID)
	}
	p.must("up", up...)
	if after := running(); after != before {
		t.Errorf("killing and healing everything changed the containers from\n%s\nto\n%s", before, after)
	}
	if got := p.kubectl("logs", "deployment/hello"); !strings.Contains(got, "serving") {
		t.Errorf("logs: %q", got)
	}

	links, err := filepath.Glob("/sys/class/net/" + l.bridge() + "/brif/*")
	if err != nil || len(links) != 2 {
		t.Errorf("links of two pods: %v, %v", links, err)
	}
	kill(t, p.status().SupervisorPID) // down must not need it
	p.must("down", p.instance...)
	p.wantNothingRunning()
	for _, link := range append(links, l.bridge()) {
		if _, err := os.Stat("/sys/class/net/" + filepath.Base(link)); err == nil {
			t.Errorf("interface %s is left", filepath.Base(link))
		}
	}
	if groups, err := filepath.Glob("/sys/fs/cgroup/*" + l.podCgroup()); err != nil || len(groups) != 0 {
		t.Errorf("cgroups are left: %v, %v", groups, err)
	}
	if mounts, err := os.ReadFile("/proc/self/mountinfo"); err != nil || bytes.Contains(mounts, []byte(o.StateDir)) {
		t.Errorf("mounts are left: %v", err)
	}
}

// A control plane for components that run elsewhere: only etcd and kube-apiserver, with the garbage collector's setting
// in their environments. The next up may start more.
func TestUpWithoutControllers(t *testing.T) {
	p := newProgram(t)
	names := func() (out []string) {
		for _, c := range p.status().Children {
			out = append(out, c.Name)
		}
		slices.Sort(out)
		return out
	}
	bare := []string{"--hollow", "0", "--no-scheduler", "--no-lifecycle", "--detach"}
	p.must("up", append(append(slices.Clone(p.up), bare...), "--no-controller-manager", "--gc-percent", "200")...)
	if got, want := names(), []string{childEtcd, childAPIServer}; !slices.Equal(got, want) {
		t.Errorf("children are %v, want %v", got, want)
	}
	server := p.status().child(childAPIServer).PID
	environment, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", server))
	if err != nil || !slices.Contains(strings.Split(string(environment), "\x00"), "GOGC=200") {
		t.Errorf("kube-apiserver has the environment %q, %v: no GOGC=200", environment, err)
	}
	p.must("down", p.instance...)
	p.must("up", append(slices.Clone(p.up), bare...)...)
	if got, want := names(), []string{childEtcd, childAPIServer, childControllerManager}; !slices.Equal(got, want) {
		t.Errorf("children are %v, want %v", got, want)
	}
}

// Options that cannot work are refused before anything is started. The error names the flag, the value, the reason and
// what to do.
func TestUpRefuses(t *testing.T) {
	p := newProgram(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	port := strconv.Itoa(taken.Addr().(*net.TCPAddr).Port)
	unreadable := filepath.Join(t.TempDir(), "kubelet.yaml")
	if err := os.WriteFile(unreadable, []byte("maxPods: many\nmaxPod: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	full := smallFilesystem(t)
	base := append(slices.Clone(p.instance), "--no-agent", "--controller-manager-port", "0")
	for _, c := range []struct {
		what string
		args []string
		root bool     // needs root: the agent
		want []string // in the message
	}{
		{"port in use", append(slices.Clone(p.up), "--apiserver-port", port), false, []string{"port " + port, "(pid " +
			strconv.Itoa(os.Getpid()) + ")", "--apiserver-port"}},
		{"missing binary", append(slices.Clone(p.up), "--controlplane-binary", "/no/such/binary"), false,
			[]string{"/no/such/binary", "no such file"}},
		{"full state directory", append(slices.Clone(base), "--state-dir", filepath.Join(full, "s")), false,
			[]string{full, "free", "--state-dir"}},
		{"someone's directory", append(slices.Clone(base), "--state-dir", filepath.Dir(unreadable)), false,
			[]string{"kubelet.yaml", "--state-dir"}},
		{"bad flags", append(slices.Clone(base), "--pod-cidr", "all", "--hollow", "-1"), false, []string{"--pod-cidr",
			"--hollow"}},
		{"bad agent configuration", append(slices.Clone(p.up), "--no-agent=false", "--agent-config", unreadable,
			"--agent-port", strconv.Itoa(freePort(t)), "--agent-health-port", "0"), true,
			[]string{unreadable, "maxPods", "maxPod"}},
		{"unreadable agent configuration", append(slices.Clone(p.up), "--no-agent=false", "--agent-config", "/no/such.yaml",
			"--agent-port", strconv.Itoa(freePort(t)), "--agent-health-port", "0"), true,
			[]string{"--agent-config", "/no/such.yaml"}},
	} {
		t.Run(c.what, func(t *testing.T) {
			switch {
			case c.root && os.Geteuid() != 0:
				t.Skip("an agent needs root")
			case c.what == "full state directory" && full == "":
				t.Skip("no small file system: mounting one needs root")
			}
			out, err := p.run("up", append(slices.Clone(c.args), "--detach")...)
			if err == nil {
				t.Errorf("it came up:\n%s", out)
			}
			for _, want := range c.want {
				if !strings.Contains(out, want) {
					t.Errorf("the message does not hold %q:\n%s", want, out)
				}
			}
			if children := p.status().Children; len(children) != 0 {
				t.Errorf("it started %v", children)
			}
		})
	}
}

// smallFilesystem returns a directory on a file system of 1 MiB, empty if this process may not mount one.
func smallFilesystem(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		return ""
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// In the foreground, SIGTERM has the effect of `down`.
func TestForeground(t *testing.T) {
	p := newProgram(t)
	cmd := exec.Command(p.path, append([]string{"up"}, p.up...)...)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	said := ""
	for lines := bufio.NewScanner(out); lines.Scan(); {
		said += lines.Text() + "\n"
		if strings.Contains(lines.Text(), "Ctrl-C") {
			if s := p.status(); !s.Up() || len(s.Nodes) != 2 {
				t.Errorf("it says that it is up: %+v", s)
			}
			if err := cmd.Process.Signal(unix.SIGTERM); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := cmd.Wait(); err != nil || !strings.Contains(said, "stop etcd") {
		t.Errorf("%v\n%s", err, said)
	}
	p.wantNothingRunning()
}

// wantNothingRunning looks for processes that mention the instance's directory in their command line or environment.
func (p *program) wantNothingRunning() {
	p.t.Helper()
	if _, err := os.Stat(filepath.Join(p.instance[3], "run")); !os.IsNotExist(err) {
		p.t.Errorf("the run directory is still there: %v", err)
	}
	for _, file := range []string{"cmdline", "environ"} {
		paths, err := filepath.Glob("/proc/[0-9]*/" + file)
		if err != nil {
			p.t.Fatal(err)
		}
		for _, path := range paths {
			if text, err := os.ReadFile(path); err == nil && bytes.Contains(text, []byte(p.instance[3])) {
				p.t.Errorf("still running: %s: %q", path, text)
			}
		}
	}
}

func kill(t *testing.T, pid int) {
	t.Helper()
	if pid == 0 {
		t.Fatal("no process to kill")
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
}
