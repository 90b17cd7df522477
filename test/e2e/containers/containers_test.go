//go:build e2e

// Package containers tests containers on a real node: volumes, environment, probes and hooks. Meanwhile it kills the
// agent and the API server. It needs root.
//
//	make build && go test -tags e2e ./test/e2e/containers
//
// PLIMSOLL_BIN names the directory of the built binaries; without it, bin/ of the repository.
package containers

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
	"github.com/plimsoll-dev/plimsoll/test/freeport"
)

const (
	nodeName = "e2e-containers"
	soon     = 2 * time.Minute // bounds what takes seconds on an idle machine
	// how much later than set a timer of the agent may fire on a busy machine, as in package pods
	slack = 20 * time.Second
)

// node is a running one-node cluster.
type node struct {
	t                *testing.T
	binary, stateDir string
	hostPath         string // the value of HOSTPATH in manifests
}

// newNode prepares a separate instance, and takes it down when the test ends.
func newNode(t *testing.T) *node {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: containers and mounts")
	}
	n := &node{t: t, binary: rig.Binary(t), stateDir: filepath.Join(t.TempDir(), "state"), hostPath: t.TempDir()}
	if err := os.Chmod(n.hostPath, 0o777); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		n.t = t
		n.run("down")
		if table, err := os.ReadFile("/proc/mounts"); err != nil || strings.Contains(string(table), n.stateDir) {
			t.Errorf("down left mounts below %s, %v", n.stateDir, err)
		}
	})
	return n
}

func (n *node) command(verb string, args ...string) *exec.Cmd {
	flags := []string{verb, "--instance", "e2econt", "--state-dir", n.stateDir}
	return exec.Command(n.binary, append(flags, args...)...)
}

func (n *node) run(verb string, args ...string) string {
	n.t.Helper()
	out, err := n.command(verb, args...).CombinedOutput()
	if err != nil {
		n.t.Fatalf("plimsoll %s %v: %v\n%s", verb, args, err, out)
	}
	return string(out)
}

// kubectl returns what kubectl prints, trimmed, and fails the test if it fails.
func (n *node) kubectl(args ...string) string {
	n.t.Helper()
	out, err := n.try(args...)
	if err != nil {
		n.t.Fatalf("kubectl %v: %v\n%s", args, err, out)
	}
	return out
}

func (n *node) try(args ...string) (string, error) {
	command := exec.Command(n.binary, append([]string{"kubectl"}, args...)...)
	command.Env = append(os.Environ(), "KUBECONFIG="+filepath.Join(n.stateDir, "admin.kubeconfig"))
	out, err := command.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// apply creates the objects of a manifest in testdata.
func (n *node) apply(file string) {
	n.t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil {
		n.t.Fatal(err)
	}
	path := filepath.Join(n.t.TempDir(), file)
	filled := strings.NewReplacer("HOSTPATH", n.hostPath, "NODENAME", nodeName).Replace(string(text))
	if err := os.WriteFile(path, []byte(filled), 0o600); err != nil {
		n.t.Fatal(err)
	}
	n.kubectl("apply", "-f", path)
}

// in runs a verb of the workload program in pod sees.
func (n *node) in(args ...string) string {
	n.t.Helper()
	return n.kubectl(append([]string{"exec", "sees", "-c", "c", "--", "/workload"}, args...)...)
}

// field returns the value of a JSONPath in a pod.
func (n *node) field(pod, path string) string {
	n.t.Helper()
	out, _ := n.try("get", "pod", pod, "-o", "jsonpath={"+path+"}")
	return out
}

// events returns the events of a pod, one "reason: message" per line.
func (n *node) events(pod string) string {
	out, _ := n.try("get", "events", "--field-selector", "involvedObject.name="+pod, "-o",
		`jsonpath={range .items[*]}{.reason}: {.message}{"\n"}{end}`)
	return out
}

// until waits for a condition. It fails the test with the last state that it saw.
func (n *node) until(what string, limit time.Duration, seen func() (bool, string)) time.Duration {
	n.t.Helper()
	clock := rig.StartClock()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		ok, last := seen()
		if ok {
			return clock.Elapsed()
		}
		if clock.Counted() > limit {
			n.t.Fatalf("%s: not within %v; last seen: %s", what, limit, last)
		}
		<-tick.C
	}
}

func (n *node) untilEvent(pod, want string) {
	n.t.Helper()
	n.until("event of "+pod, soon, func() (bool, string) {
		all := n.events(pod)
		return strings.Contains(all, want), all
	})
}

// kill kills a child of up with SIGKILL, and waits until the supervisor has started another.
func (n *node) kill(child string) {
	n.t.Helper()
	before := n.pid(child)
	if before == 0 {
		n.t.Fatalf("%s does not run", child)
	}
	if err := syscall.Kill(before, syscall.SIGKILL); err != nil {
		n.t.Fatal(err)
	}
	n.until(child+" is back", soon, func() (bool, string) {
		now := n.pid(child)
		return now != 0 && now != before, fmt.Sprint(now)
	})
}

func (n *node) pid(child string) int {
	var status struct {
		Children []struct {
			Name string
			PID  int
		}
	}
	out, _ := n.command("status", "-o", "json").Output() // it fails while a child is down, but prints its result
	if json.Unmarshal(out, &status) != nil {
		return 0
	}
	for _, c := range status.Children {
		if c.Name == child {
			return c.PID
		}
	}
	return 0
}

// TestContainers runs its parts on one node. Each part needs the state that the part before it left.
func TestContainers(t *testing.T) {
	n := newNode(t)
	n.run("up", "--detach", "--node-name", nodeName, "--pod-cidr", "10.188.0.0/16", "--without", "kube-proxy,coredns,"+
		"metrics-server,csi",
		"--apiserver-port", strconv.Itoa(freeport.ForTest(t)), "--agent-port", strconv.Itoa(freeport.ForTest(t)),
		"--agent-health-port", "0", "--controller-manager-port", "0")
	for _, part := range []struct {
		name string
		run  func()
	}{
		{"images", n.images},
		{"sees", n.sees},
		{"changes", n.changes},
		{"crashes", n.crashes},
		{"waits", n.waits},
		{"probes", n.probes},
		{"ends", n.ends},
	} {
		if !t.Run(part.name, func(t *testing.T) { n.t = t; part.run() }) {
			log, _ := os.ReadFile(filepath.Join(n.stateDir, "log/agent.log"))
			t.Logf("the agent said:\n%s", log)
			return
		}
	}
}

// images checks that an image is loaded from standard input and is listed, and that an image in use is not removed.
func (n *node) images() {
	archive, err := os.Open(filepath.Join(filepath.Dir(n.binary), "images", "workload.tar"))
	if err != nil {
		n.t.Fatal(err)
	}
	defer archive.Close()
	image := func(args ...string) (string, error) {
		command := exec.Command(n.binary, append([]string{"image"}, append(args, "--instance", "e2econt", "--state-dir",
			n.stateDir)...)...)
		command.Stdin = archive
		out, err := command.CombinedOutput()
		return string(out), err
	}
	if out, err := image("load", "-"); err != nil || !strings.Contains(out,
		"loaded plimsoll.dev/workload:1, plimsoll.dev/workload:dev") {
		n.t.Errorf("image load: %v, %s", err, out)
	}
	if out, err := image("ls"); err != nil || !strings.Contains(out, "plimsoll.dev/workload:dev ") {
		n.t.Errorf("image ls: %v, %s", err, out)
	}
	if out, err := image("rm", "plimsoll.dev/pause:1"); err == nil || !strings.Contains(out, "every pod needs it") {
		n.t.Errorf("image rm of what every pod needs: %v, %s", err, out)
	}
	n.noImages()
	if left, err := filepath.Glob(filepath.Join(n.stateDir, "image-*")); err != nil || len(left) > 0 {
		n.t.Errorf("%v is left of standard input, %v", left, err)
	}
}

// noImages checks that what is no image is refused with its place, what is wrong and what to do, as a file and as
// standard input: a text, and the tar archive of a file system, which docker export writes.
func (n *node) noImages() {
	const wanted = "want an image as docker save"
	before := n.imageList()
	var exported bytes.Buffer
	files := tar.NewWriter(&exported)
	err := files.WriteHeader(&tar.Header{
		Typeflag: tar.TypeDir,
		Name:     "etc/",
		Mode:     0o755,
	})
	if err = errors.Join(err, files.Close()); err != nil {
		n.t.Fatal(err)
	}
	for what, content := range map[string][]byte{
		"read it as tar": bytes.Repeat([]byte("no image\n"), 1000),
		"index.json: not in the archive, nor is manifest.json": exported.Bytes(),
	} {
		path := filepath.Join(n.t.TempDir(), "file.tar")
		if err := os.WriteFile(path, content, 0o600); err != nil {
			n.t.Fatal(err)
		}
		for where, said := range map[string]string{path: path, "-": "standard input"} {
			command := exec.Command(n.binary, "image", "load", where, "--instance", "e2econt", "--state-dir", n.stateDir)
			command.Stdin = bytes.NewReader(content)
			out, err := command.CombinedOutput()
			for _, want := range []string{said, what, wanted} {
				if err == nil || !strings.Contains(string(out), want) {
					n.t.Errorf("image load %s: %v, %s, want %q", where, err, out, want)
				}
			}
		}
	}
	if after := n.imageList(); after != before {
		n.t.Errorf("images were\n%s\nare\n%s", before, after)
	}
}

// imageList returns what `image ls` prints.
func (n *node) imageList() string {
	out, err := exec.Command(n.binary, "image", "ls", "--instance", "e2econt", "--state-dir", n.stateDir).CombinedOutput()
	if err != nil {
		n.t.Fatal(err, string(out))
	}
	return string(out)
}

// sees checks environment, command line, every kind of volume, names, and readiness.
func (n *node) sees() {
	n.apply("sees.yaml")
	n.kubectl("wait", "--for=condition=Ready", "pod/sees", rig.KubectlWaits)
	want := "one\nhush\n" + nodeName + "\n10\nhttp://" + nodeName + ":8080/$(X)$(Y)\none\ntwo"
	if got := n.in("env", "A", "S", "NODE", "CPU", "URL", "P_a", "P_b"); got != want {
		n.t.Errorf("environment\n%s\nwant\n%s", got, want)
	}
	if out, err := n.try("exec", "sees", "-c", "c", "--", "/workload", "env", "NONE"); err == nil {
		n.t.Errorf("an optional variable without a source is %q", out)
	}
	for file, want := range map[string]string{
		"/disk/from-init": "hello", "/cm/a": "one", "/cm/b": "two", "/s/key": "hush", "/all/sub/a": "one", "/all/key": "hush",
		"/all/labels": `app="sees"`, "/one": "one",
	} {
		if got := n.in("cat", file); got != want {
			n.t.Errorf("%s holds %q, want %q", file, got, want)
		}
	}
	for file, want := range map[string]string{
		"/all/..data/token": "-rw-r----- 1001:4242", "/s/..data/key": "-r--r----- 0:4242",
		"/all/..data/sub/a": "-r--r----- 0:4242", "/cm/..data/a": "-rw-r--r-- 0:4242",
	} {
		if got := n.in("ls", "-l", file); !strings.HasPrefix(got, want) {
			n.t.Errorf("%s is %q, want %s", file, got, want)
		}
	}
	hosts := n.in("cat", "/etc/hosts")
	for _, line := range []string{
		n.field("sees", ".status.podIP") + "\thosty.sub.default.svc.cluster.local\thosty", "192.0.2.9\talias1\talias2",
	} {
		if !strings.Contains(hosts, line) {
			n.t.Errorf("hosts file lacks %q:\n%s", line, hosts)
		}
	}
	for _, file := range []string{"/disk/mine", "/mem/mine", "/expr/mine"} {
		n.in("write", file, "x")
	}
	for _, file := range []string{"/cm/mine", "/s/mine", "/all/mine"} {
		if _, err := n.try("exec", "sees", "-c", "c", "--", "/workload", "write", file, "x"); err == nil {
			n.t.Errorf("%s could be written", file)
		}
	}
	if got := n.in("cat", "/disk/d/"+nodeName+"/mine"); got != "x" {
		n.t.Errorf("subPathExpr leads elsewhere: %q", got)
	}
	if _, err := os.Stat(filepath.Join(n.hostPath, "poststart")); err != nil {
		n.t.Errorf("postStart hook: %v", err)
	}
	if got := n.events("sees"); strings.Contains(got, "Unhealthy") {
		n.t.Errorf("a container that was not ready for 0.7 s is called unhealthy:\n%s", got)
	}
}

// changes checks that a running container sees changes of a secret and of a label.
func (n *node) changes() {
	n.kubectl("patch", "secret", "s", "-p", `{"stringData":{"key":"changed"}}`)
	took := n.until("the secret's change", slack, func() (bool, string) {
		got := n.in("cat", "/s/key")
		return got == "changed" && n.in("cat", "/all/key") == "changed", got
	})
	n.t.Logf("a change of a secret is seen within %v (two kubectl exec included)", took.Round(time.Millisecond))
	n.kubectl("label", "pod", "sees", "app=other", "--overwrite")
	n.until("the label's change", slack, func() (bool, string) {
		got := n.in("cat", "/all/labels")
		return got == `app="other"`, got
	})
}

// crashes kills the agent and the API server. No container restarts, and later changes of objects still arrive.
func (n *node) crashes() {
	const state = ".status.containerStatuses[0]['state','restartCount','ready']"
	const since = ".status.conditions[?(@.type=='Ready')].lastTransitionTime"
	was, ready := n.field("sees", state), n.field("sees", since)
	tokens, err := filepath.Glob(filepath.Join(n.stateDir, "agent/memory/*/*/*/token"))
	if err != nil || len(tokens) == 0 {
		n.t.Fatalf("no tokens: %v", err)
	}
	before := map[string]string{}
	for _, file := range tokens {
		text, err := os.ReadFile(file)
		if err != nil {
			n.t.Fatal(err)
		}
		before[file] = string(text)
	}
	n.kill("kube-apiserver")
	n.kill("agent")
	n.until("the API server", soon, func() (bool, string) {
		out, err := n.try("get", "--raw", "/readyz")
		return err == nil, out
	})
	n.kubectl("patch", "secret", "s", "-p", `{"stringData":{"key":"after"}}`)
	n.until("the secret's change", 45*time.Second, func() (bool, string) {
		got, _ := n.try("exec", "sees", "-c", "c", "--", "/workload", "cat", "/s/key")
		return got == "after", got
	})
	if now := n.field("sees", state); now != was {
		n.t.Errorf("container is %s, was %s", now, was)
	}
	if now := n.field("sees", since); now != ready {
		n.t.Errorf("Ready since %s, was since %s", now, ready)
	}
	for file, token := range before {
		if now, err := os.ReadFile(file); err != nil || string(now) != token {
			n.t.Errorf("the restarted agent asked for a new token: %s: %v", file, err)
		}
	}
}

// waits checks pods whose objects are missing: they wait, and their Events say for what.
func (n *node) waits() {
	if err := os.Symlink("/", filepath.Join(n.hostPath, "evil")); err != nil {
		n.t.Fatal(err)
	}
	n.apply("waits.yaml")
	n.untilEvent("late", `FailedMount: MountVolume.SetUp failed for volume "v" : configmap "latecomer" not found`)
	n.untilEvent("claim",
		`FailedMount: MountVolume.SetUp failed for volume "v" : failed to fetch PVC from API server: persistentvolumeclaims "x" not found`)
	n.untilEvent("badenv", "Failed: Error: couldn't find key nokey in ConfigMap default/cm")
	n.untilEvent("escape", `subPath "evil/etc": leads out of its volume`)
	if got := n.field("badenv", ".status.containerStatuses[0].state.waiting.reason"); got != "CreateContainerConfigError" {
		n.t.Errorf("badenv waits for %q", got)
	}
	n.kubectl("create", "configmap", "latecomer", "--from-literal=k=v")
	began := time.Now()
	n.kubectl("wait", "--for=condition=Ready", "pod/late", rig.KubectlWaits)
	n.t.Logf("a pod that waited for its configMap runs %v after it came", time.Since(began).Round(time.Millisecond))
}

// probes checks that liveness probes restart containers and that hooks run.
func (n *node) probes() {
	n.apply("probes.yaml")
	restarted := func(pod string) {
		n.t.Helper()
		n.until(pod+" is restarted", soon, func() (bool, string) {
			got := n.field(pod, ".status.containerStatuses[0].restartCount")
			return got != "" && got != "0", got
		})
	}
	restarted("live")
	n.untilEvent("live", "Unhealthy: Liveness probe failed: HTTP probe failed with statuscode: 500")
	restarted("unstarted")
	n.untilEvent("unstarted", "Unhealthy: Startup probe failed: dial tcp")
	if got := n.field("unstarted", ".status.containerStatuses[0]['started','ready']"); got != "false false" {
		n.t.Errorf("unstarted is started, ready: %s", got)
	}
	restarted("badhook")
	n.untilEvent("badhook", "FailedPostStartHook: PostStartHook failed")
	n.kubectl("wait", "--for=condition=Ready", "pod/slowhook", rig.KubectlWaits)
	clock := rig.StartClock()
	n.kubectl("delete", "pod", "slowhook")
	if took := clock.Elapsed(); took < 3*time.Second || clock.Counted() > 3*time.Second+slack {
		n.t.Errorf("a preStop hook of 60 s in a grace of 3 s took %v", took)
	}
}

// ends checks that the preStop hook ran and that nothing is left of the pods.
func (n *node) ends() {
	n.kubectl("delete", "pod", "--all")
	if text, err := os.ReadFile(filepath.Join(n.hostPath, "prestop")); err != nil ||
		string(text) != "done\n" && string(text) != "done" {
		n.t.Errorf("preStop hook: %q %v", text, err)
	}
	if entries, err := os.ReadDir(n.hostPath); err != nil || len(entries) != 3 {
		n.t.Errorf("the host's directory holds %v, %v; want poststart, prestop and the link", entries, err)
	}
	for _, dir := range []string{"agent/pods", "agent/memory"} {
		n.until(dir+" is empty", soon, func() (bool, string) {
			entries, err := os.ReadDir(filepath.Join(n.stateDir, dir))
			return err == nil && len(entries) == 0, fmt.Sprint(entries, err)
		})
	}
}
