package containerruntime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/host/cgroup"
	"github.com/plimsoll-dev/plimsoll/internal/host/mount"
)

// TestLifeOfInstance goes through an instance's whole life with each OCI runtime: prepare, start, images, a pod with
// its own network, exec, teardown, and a second start with the images that were kept.
func TestLifeOfInstance(t *testing.T) {
	for _, oci := range []string{"runc", "crun"} {
		t.Run(oci, func(t *testing.T) {
			if why := crunRefusal(cgroupMount); oci == "crun" && why != "" {
				t.Skip(why)
			}
			r := startTestInstance(t, newTestInstance(t, 1, Options{OCIRuntime: oci}))
			pod := r.pod(t, "one")
			id := r.container(t, pod, "one", "http", "--port", "8080")
			if got := r.exec(t, id, "cat", "/etc/passwd"); !strings.HasPrefix(got, "root:x:0:0") {
				t.Errorf("cat in the container answered %q", got)
			}
			ip := r.podIP(t, pod)
			if got := r.exec(t, id, "/workload", "get", "http://"+ip+":8080/"); !strings.HasPrefix(got, "one up") {
				t.Errorf("the pod answered %q at its own address", got)
			}
			if got := r.exec(t, id, "ls", "-l", "/bin/tar"); !strings.Contains(got, "-> /workload") {
				t.Errorf("ls of a link printed %q", got)
			}
			r.mustLeaveNothing(t)

			again := startTestInstance(t, r.Instance)
			again.container(t, again.pod(t, "two"), "two", "sleep", "infinity")
		})
	}
}

// TestCrashKeepsContainers kills containerd and starts it again, twice: the pod's processes are the same, and it can be
// used.
func TestCrashKeepsContainers(t *testing.T) {
	r := startTestInstance(t, newTestInstance(t, 8, Options{}))
	pod := r.pod(t, "steady")
	id := r.container(t, pod, "steady", "http")
	tree, err := cgroup.Open(cgroupMount)
	if err != nil {
		t.Fatal(err)
	}
	processes := func() string {
		pids, err := tree.PIDs(r.options.CgroupRoot)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(pids)
	}
	before := processes()
	for range 2 {
		r.killDaemon(t)
		r.start(t)
		if got := processes(); got != before || before == "[]" {
			t.Errorf("processes after a crash of containerd: %s, before: %s", got, before)
		}
		if got := r.exec(t, id, "/workload", "get", "http://"+r.podIP(t, pod)+":8080/"); !strings.HasPrefix(got,
			"steady up") {
			t.Errorf("after a crash of containerd the pod answers %q", got)
		}
	}
	r.mustLeaveNothing(t)
}

// TestPauseReaps shares a PID namespace between pause and a container that leaves orphans: they end as children of
// process 1, and pause must reap them.
func TestPauseReaps(t *testing.T) {
	r := startTestInstance(t, newTestInstance(t, 6, Options{}))
	r.sharePIDs = true
	pod := r.pod(t, "shared")
	id := r.container(t, pod, "shared", "fork", "--children", "0", "--orphans", "5")
	pause := r.pid(t, pod)
	inPod := func() (running, zombies int) {
		for _, child := range children(t, pause) {
			if child == "Z" {
				zombies++
			} else {
				running++
			}
		}
		return running, zombies
	}
	most := 0
	for ctx := testContext(t); ; {
		running, zombies := inPod()
		most = max(most, running)
		if most == 5 && running == 0 && zombies == 0 {
			break // all were started and have ended
		}
		if !sleep(ctx, pollPeriod) {
			t.Fatalf("process 1 had at most %d of 5 orphans, now has %d and %d zombies; log: %s", most, running, zombies,
				r.exec(t, id, "ls", "/"))
		}
	}
	begin := time.Now()
	r.mustLeaveNothing(t)
	if took := time.Since(begin); took > stopGraceMax {
		t.Errorf("the pod needed %s: pause did not end at SIGTERM", took)
	}
}

// TestTeardown tears down from every state in which a machine may be.
func TestTeardown(t *testing.T) {
	for _, c := range []struct {
		name    string
		prepare func(*testing.T, *rig)
	}{
		{"containerd runs", func(*testing.T, *rig) {}},
		{"containerd was killed", func(t *testing.T, r *rig) { r.killDaemon(t) }},
		{"containerd cannot start", func(t *testing.T, r *rig) {
			r.killDaemon(t)
			if err := os.WriteFile(r.options.configPath(), []byte("not TOML"), 0o600); err != nil {
				t.Fatal(err)
			}
		}},
		{"binaries are gone", func(t *testing.T, r *rig) {
			r.killDaemon(t)
			r.missing = errors.New("not on this machine: containerd")
		}},
		{"everything was killed", func(t *testing.T, r *rig) {
			r.killDaemon(t)
			if err := killAll(testContext(t), r.shims()); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := startTestInstance(t, newTestInstance(t, 2, Options{}))
			r.container(t, r.pod(t, "good"), "good", "sleep", "infinity")
			r.container(t, r.pod(t, "stubborn"), "stubborn", "ignore-term")
			c.prepare(t, r)
			r.mustLeaveNothing(t)
		})
	}
}

// TestRemoveWhileStarting removes a pod whose container is being started: the client may be gone, but the runtime
// continues. Here it takes a second to connect to the pod's shim.
func TestRemoveWhileStarting(t *testing.T) {
	instance := newTestInstance(t, 8, Options{})
	shim, err := exec.LookPath("containerd-shim-runc-v2")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	hold, begun := filepath.Join(dir, "hold"), filepath.Join(dir, "begun")
	script := fmt.Sprintf(`#!/bin/sh
case " $* " in *" start "*) if [ -e %[1]q ]; then touch %[2]q; sleep 1; fi ;; esac
exec %[3]q "$@"
`, hold, begun, shim)
	if err := os.WriteFile(filepath.Join(dir, filepath.Base(shim)), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	r := startTestInstance(t, instance)
	id := r.create(t, r.pod(t, "late"), "late", "sleep", "infinity")
	if err := os.WriteFile(hold, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	started := make(chan error, 1)
	go func() {
		_, err := r.client.StartContainer(testContext(t), &runtimeapi.StartContainerRequest{ContainerId: id})
		started <- err
	}()
	for ctx := testContext(t); ; {
		if _, err := os.Stat(begun); err == nil {
			break
		}
		if !sleep(ctx, time.Millisecond) {
			t.Fatal("the start does not begin")
		}
	}
	if err := removePods(testContext(t), r.client, func(podFacts) bool { return true }); err != nil {
		t.Error(err)
	}
	t.Logf("start: %v", <-started)
	if left, err := listPods(testContext(t), r.client); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// TestRemoveLeftovers removes containers that containerd reports as exited, but whose task it still has. That happens
// when a client gives up a start at the wrong moment; here containerd's own tool makes it happen. containerd refuses to
// remove such containers.
func TestRemoveLeftovers(t *testing.T) {
	r := startTestInstance(t, newTestInstance(t, 10, Options{}))
	pod := r.pod(t, "halfway")
	leftover := func(name string) string {
		id := r.create(t, pod, name, "sleep", "infinity")
		out, err := exec.Command(r.tools.ctr, "--address", r.options.socket(), "--namespace", "k8s.io", "tasks", "start",
			"--detach", "--null-io", id).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if _, err := r.client.StartContainer(testContext(t), &runtimeapi.StartContainerRequest{ContainerId: id}); err == nil {
			t.Fatal("containerd started a container twice")
		}
		_, err = r.client.RuntimeServiceClient.RemoveContainer(testContext(t),
			&runtimeapi.RemoveContainerRequest{ContainerId: id})
		if status.Code(err) != codes.FailedPrecondition {
			t.Fatalf("containerd says %v of the removal: the test is without its point", err)
		}
		return id
	}
	runs := r.container(t, pod, "runs", "sleep", "infinity")
	if _, err := r.client.RemoveContainer(testContext(t),
		&runtimeapi.RemoveContainerRequest{ContainerId: leftover("a")}); err != nil {
		t.Error(err)
	}
	r.exec(t, runs, "ls", "/") // its neighbour was not touched
	leftover("b")
	leftover("c")
	if err := removePods(testContext(t), r.client, func(podFacts) bool { return true }); err != nil {
		t.Error(err)
	}
	if left, err := listPods(testContext(t), r.client); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	out, err := exec.Command(r.tools.ctr, "--address", r.options.socket(), "--namespace", "k8s.io", "tasks", "list",
		"--quiet").Output()
	if err != nil || len(out) != 0 {
		t.Errorf("processes left: %q, %v", out, err)
	}
}

// TestNeighbours runs two instances: a packet that leaves one's network has the machine's address, and the end of one
// does not affect the other.
func TestNeighbours(t *testing.T) {
	here, there := startTestInstance(t, newTestInstance(t, 3, Options{})), startTestInstance(t, newTestInstance(t, 4,
		Options{}))
	client := here.container(t, here.pod(t, "client"), "client", "sleep", "infinity")
	pod := there.pod(t, "server")
	server := there.container(t, pod, "server", "http")
	got := here.exec(t, client, "/workload", "get", "http://"+there.podIP(t, pod)+":8080/")
	if want := "you are " + strings.Replace(there.options.PodCIDR, ".0/24", ".1:", 1); !strings.Contains(got, want) {
		t.Errorf("server saw another address than the bridge's: %q, want %q", got, want)
	}
	here.mustLeaveNothing(t)
	if got := there.exec(t, server, "/workload", "get", "http://127.0.0.1:8080/"); !strings.HasPrefix(got, "server up") {
		t.Errorf("after its neighbour's teardown the pod answered %q", got)
	}
}

// TestExternalRuntime uses another instance's containerd: images are imported, and Teardown removes only the instance's
// own pods.
func TestExternalRuntime(t *testing.T) {
	r := startTestInstance(t, newTestInstance(t, 7, Options{}))
	theirs := r.container(t, r.pod(t, "theirs"), "theirs", "sleep", "infinity")
	guest, err := New(Options{External: r.Endpoint(), ImageDir: r.options.ImageDir, CgroupRoot: r.options.CgroupRoot +
		"-guest"})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(guest.Prepare(testContext(t)), guest.WaitReady(testContext(t)),
		guest.LoadImages(testContext(t))); err != nil {
		t.Fatal(err)
	}
	if guest.Command() != nil || guest.Endpoint() != r.Endpoint() {
		t.Errorf("command %v, endpoint %s: want none and %s", guest.Command(), guest.Endpoint(), r.Endpoint())
	}
	own := r.options.CgroupRoot
	r.options.CgroupRoot = guest.options.CgroupRoot
	r.container(t, r.pod(t, "guest"), "guest", "sleep", "infinity")
	r.options.CgroupRoot = own
	if err := guest.Teardown(testContext(t)); err != nil {
		t.Fatal(err)
	}
	pods, err := listPods(testContext(t), r.client)
	if err != nil || len(pods) != 1 || pods[0].name != "rt/theirs" {
		t.Errorf("pods left: %v, %v; want rt/theirs", pods, err)
	}
	r.exec(t, theirs, "ls", "/")
	if left, _ := filepath.Glob(cgroupMount + "/*" + guest.options.CgroupRoot); left != nil {
		t.Errorf("cgroups left: %v", left)
	}
}

// TestHostPort reaches a pod through a port of the machine: from the machine itself, over the loopback, from another
// pod, and from the pod itself. When the pod is removed its port is closed, and another pod's port stays open.
func TestHostPort(t *testing.T) {
	r := startTestInstance(t, newTestInstance(t, 5, Options{}))
	gone, stays := freePort(t), freePort(t)
	web := func(name string, port int32) (pod, container string) {
		pod = r.pod(t, name, &runtimeapi.PortMapping{Protocol: runtimeapi.Protocol_TCP, ContainerPort: 8080, HostPort: port})
		return pod, r.container(t, pod, name, "http")
	}
	pod, container := web("gone", gone)
	_, other := web("stays", stays)
	r.exec(t, container, "/workload", "get", "http://127.0.0.1:8080/") // until it listens
	r.exec(t, other, "/workload", "get", "http://127.0.0.1:8080/")

	gateway := strings.Replace(r.options.PodCIDR, ".0/24", ".1", 1)
	for _, host := range []string{"127.0.0.1", gateway} {
		if got := fetch(t, fmt.Sprintf("http://%s:%d/", host, gone)); !strings.HasPrefix(got, "gone up") {
			t.Errorf("from the machine over %s: %q", host, got)
		}
	}
	for name, from := range map[string]string{"the pod itself": container, "another pod": other} {
		if got := r.exec(t, from, "/workload", "get", fmt.Sprintf("http://%s:%d/", gateway, gone)); !strings.HasPrefix(got,
			"gone up") {
			t.Errorf("from %s: %q", name, got)
		}
	}
	if err := r.Prepare(testContext(t)); err != nil { // as a second `up` does
		t.Fatal(err)
	}
	if _, err := r.client.StopPodSandbox(testContext(t),
		&runtimeapi.StopPodSandboxRequest{PodSandboxId: pod}); err != nil {
		t.Fatal(err)
	}
	if got := fetch(t, fmt.Sprintf("http://127.0.0.1:%d/", gone)); !strings.Contains(got, "refused") {
		t.Errorf("after its pod's end the port answers %q", got)
	}
	if got := fetch(t, fmt.Sprintf("http://127.0.0.1:%d/", stays)); !strings.HasPrefix(got, "stays up") {
		t.Errorf("the other pod's port answers %q", got)
	}
	r.mustLeaveNothing(t)
}

// freePort finds a port on which nothing listens at this moment.
func freePort(t *testing.T) int32 {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return int32(listener.Addr().(*net.TCPAddr).Port)
}

// fetch returns the body, or the error's text.
func fetch(t *testing.T, url string) string {
	t.Helper()
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, Proxy: nil}}
	answer, err := client.Get(url)
	if err != nil {
		return err.Error()
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return err.Error()
	}
	return string(body)
}

// mustLeaveNothing tears down twice and checks that nothing is left.
func (r *rig) mustLeaveNothing(t *testing.T) {
	t.Helper()
	sockets := r.shimSockets()
	before := r.traces(t, sockets)
	for _, kind := range []string{"mount", "cgroup", "link", "table", "file"} {
		if before[kind] == nil {
			t.Errorf("a running instance shows no %s: the test cannot see what it looks for", kind)
		}
	}
	begin := time.Now()
	if err := r.Teardown(testContext(t)); err != nil {
		t.Fatal(err)
	}
	t.Logf("torn down in %s", time.Since(begin).Round(time.Millisecond))
	for kind, list := range r.traces(t, sockets) {
		t.Errorf("left behind: %s: %v", kind, list)
	}
	begin = time.Now()
	if err := r.Teardown(testContext(t)); err != nil {
		t.Errorf("second teardown: %v", err)
	}
	if took := time.Since(begin); took > time.Second {
		t.Errorf("second teardown took %s with nothing to do", took)
	}
}

// traces lists by kind what the machine has of the instance.
func (r *rig) traces(t *testing.T, shimSockets []string) map[string][]string {
	t.Helper()
	found := map[string][]string{}
	add := func(kind, what string) { found[kind] = append(found[kind], what) }
	for _, p := range append(r.daemons(), r.shims()...) {
		add("process", fmt.Sprint(p.pid))
		p.close()
	}
	points, err := mount.Below(r.options.StateDir, r.options.RunDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, point := range points {
		add("mount", point)
	}
	tree, err := cgroup.Open(cgroupMount)
	if err != nil {
		t.Fatal(err)
	}
	pids, err := tree.PIDs(r.options.CgroupRoot)
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range pids {
		add("process", fmt.Sprint(pid))
	}
	groups, err := filepath.Glob(cgroupMount + "/*" + r.options.CgroupRoot)
	if err != nil {
		t.Fatal(err)
	}
	for _, group := range append(groups, cgroupMount+r.options.CgroupRoot) {
		if _, err := os.Stat(group); err == nil {
			add("cgroup", group)
		}
	}
	r.networkTraces(t, add)
	leases, err := filepath.Glob(filepath.Join(r.options.leaseDir(), "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range slices.Concat(shimSockets, leases, []string{r.options.RunDir}) {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			add("file", path)
		}
	}
	return found
}

func (r *rig) networkTraces(t *testing.T, add func(kind, what string)) {
	t.Helper()
	if _, err := net.InterfaceByName(r.options.Bridge); err == nil {
		add("link", r.options.Bridge)
	}
	conn, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	tables, err := conn.ListTables()
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range tables {
		if table.Name == r.options.Bridge {
			add("table", table.Name)
		}
	}
}

// TestWaitReadySaysWhy checks that the error about a runtime that never answers has the reason.
func TestWaitReadySaysWhy(t *testing.T) {
	instance, err := New(Options{ImageDir: "/images", RunDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	err = instance.WaitReady(ctx)
	if err == nil || !strings.Contains(err.Error(), "containerd.sock") {
		t.Errorf("error %v does not name the socket", err)
	}
}

// children returns the states of a process's children, by the letters of proc_pid_stat(5).
func children(t *testing.T, parent int) []string {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	var states []string
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		after := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
		if len(after) > 1 && after[1] == fmt.Sprint(parent) {
			states = append(states, after[0])
		}
	}
	return states
}
