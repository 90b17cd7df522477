//go:build e2e

package pods

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// Logs in every form that kubectl asks for.
func TestLogs(t *testing.T) {
	b := at(t)
	b.create("done", brief(workload("c", "log", "--lines", "100"), workload("d", "log", "--lines", "2")))
	b.create("again", lasting(workload("c", "run", "log --lines 3", "sleep 2s", "exit --code 1")))
	b.create("ticks", lasting(workload("c", "log", "--rate", "5")))
	b.ended("done", corev1.PodSucceeded)
	lines := func(text string) []string { return strings.Split(strings.TrimSpace(text), "\n") }
	if got := lines(b.kubectl("logs", "done", "-c", "c")); len(got) != 100 || !strings.HasPrefix(got[99], "line 100") {
		t.Errorf("%d lines, the last %q", len(got), got[len(got)-1])
	}
	if got := lines(b.kubectl("logs", "done", "-c", "c", "--tail=3")); len(got) != 3 ||
		!strings.HasPrefix(got[0], "line 98") {
		t.Errorf("the last three lines: %q", got)
	}
	if got := b.kubectl("logs", "done", "-c", "c", "--limit-bytes=10"); len(got) != 10 {
		t.Errorf("ten bytes: %q", got)
	}
	if got := lines(b.kubectl("logs", "done", "--all-containers", "--prefix")); len(got) != 102 {
		t.Errorf("%d lines of all containers", len(got))
	}
	if got := b.kubectl("logs", "done", "-c", "d", "--timestamps", "--tail=1"); !strings.HasPrefix(got,
		fmt.Sprint(time.Now().UTC().Year(), "-")) {
		t.Errorf("with time: %q", got)
	}
	if out, err := b.TryKubectl(t, "logs", "-n", b.ns, "done", "-c", "none"); err == nil {
		t.Errorf("logs of no container: %q", out)
	}
	b.ready("ticks")
	ctx, cancel := rig.StartClock().Limit(t.Context(), soon)
	defer cancel()
	follow := b.KubectlCommand(ctx, "logs", "-n", b.ns, "-f", "ticks", "--tail=1")
	out, err := follow.StdoutPipe()
	if err == nil {
		err = follow.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	followed := 0
	for scan := bufio.NewScanner(out); followed < 5 && scan.Scan(); {
		followed++
	}
	if followed < 5 {
		t.Errorf("followed %d lines", followed)
	}
	b.kubectl("delete", "pod", "ticks", "--wait=false")
	rest, _ := io.ReadAll(out)
	if err := follow.Wait(); err != nil {
		t.Errorf("following did not end with the container: %v\n%s", err, rest)
	}
	recent := b.kubectl("logs", "done", "-c", "c", "--since=1h")
	if len(lines(recent)) != 100 {
		t.Errorf("since an hour: %d lines", len(lines(recent)))
	}
	rig.Eventually(t, soon, "nothing is younger than a second", func(context.Context) error {
		if got := b.kubectl("logs", "done", "-c", "c", "--since=1s"); got != "" {
			return fmt.Errorf("%q", got)
		}
		return nil
	})
	b.until("again", "restarted", soon, func(p *corev1.Pod) error {
		if n := container(p, "c").RestartCount; n < 1 {
			return fmt.Errorf("%d restarts", n)
		}
		return nil
	})
	if got := lines(b.kubectl("logs", "-p", "again")); len(got) != 4 {
		t.Errorf("the run before: %q", got)
	}
}

// exec, cp both ways, attach and port-forward.
func TestStreams(t *testing.T) {
	b := at(t)
	c := workload("c", "http")
	c.Stdin = true
	talk := workload("talk", "stdin")
	talk.Stdin, talk.StdinOnce = true, true
	b.create("p", lasting(c, talk))
	b.ready("p")
	b.want("exec", b.in("p/c", "env", "HOSTNAME"), "p")
	_, err := b.tryIn("p/c", "exit", "--code", "7")
	if err == nil || !strings.Contains(err.Error(), "exit code 7") {
		t.Errorf("exit code of exec: %v", err)
	}
	feed := b.KubectlCommand(t.Context(), "exec", "-i", "-n", b.ns, "p", "-c", "c", "--", "/workload", "cat")
	feed.Stdin = strings.NewReader(strings.Repeat("x", 1<<20))
	if out, err := feed.Output(); err != nil || len(out) != 1<<20 {
		t.Errorf("a MiB through exec: %d bytes, %v", len(out), err)
	}

	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "in/deep"), 0o755); err != nil {
		t.Fatal(err)
	}
	body := bytes.Repeat([]byte("0123456789\n"), 50_000)
	if err := os.WriteFile(filepath.Join(dir, "in/deep/file"), body, 0o644); err != nil {
		t.Fatal(err)
	}
	b.kubectl("cp", filepath.Join(dir, "in"), "p:/tmp/in", "-c", "c")
	b.kubectl("cp", "p:/tmp/in", filepath.Join(dir, "out"), "-c", "c")
	if got, err := os.ReadFile(filepath.Join(dir, "out/deep/file")); err != nil || !bytes.Equal(got, body) {
		t.Errorf("copied there and back: %d bytes, %v", len(got), err)
	}

	attach := b.KubectlCommand(t.Context(), "attach", "-i", "-n", b.ns, "p", "-c", "talk")
	attach.Stdin = strings.NewReader("hello there\n")
	if out, err := attach.Output(); err != nil || !strings.Contains(string(out), "hello there") {
		t.Errorf("attach: %q, %v", out, err)
	}
	b.portForward()
}

func (b bench) portForward() {
	b.t.Helper()
	ctx, cancel := context.WithCancel(b.t.Context())
	defer cancel()
	forward := b.KubectlCommand(ctx, "port-forward", "-n", b.ns, "pod/p", ":8080")
	out, err := forward.StdoutPipe()
	if err == nil {
		err = forward.Start()
	}
	if err != nil {
		b.t.Fatal(err)
	}
	defer func() { cancel(); _ = forward.Wait() }()
	line, err := bufio.NewReader(out).ReadString('\n') // Forwarding from 127.0.0.1:40123 -> 8080
	words := strings.Fields(line)
	if err != nil || len(words) < 3 {
		b.t.Fatalf("port-forward says %q, %v", line, err)
	}
	for range 3 {
		answer, err := http.Get("http://" + words[2] + "/")
		if err != nil {
			b.t.Fatal(err)
		}
		text, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		if err != nil || !strings.HasPrefix(string(text), "p up ") {
			b.t.Errorf("through port-forward: %q, %v", text, err)
		}
	}
}

// kubectl describe shows what happened to a pod and to the node.
func TestDescribe(t *testing.T) {
	b := at(t)
	b.create("p", lasting(workload("c", "sleep", "infinity")))
	b.ready("p")
	b.event("p", "Started")
	told := b.kubectl("describe", "pod", "p")
	for _, want := range []string{"QoS Class:", "BestEffort", "Scheduled", "Pulled", "Created", "Started",
		"Container started", b.NodeName} {
		if !strings.Contains(told, want) {
			t.Errorf("describe lacks %q:\n%s", want, told)
		}
	}
	told = b.Kubectl(t, "describe", "node", b.NodeName)
	for _, want := range []string{"MemoryPressure", "KubeletReady", "Allocated resources", "containerd://", "Lease:"} {
		if !strings.Contains(told, want) {
			t.Errorf("describe lacks %q:\n%s", want, told)
		}
	}
}

// kubectl debug adds a container to a running pod, also one in the namespaces of another container. The pod's other
// containers do not change.
func TestDebug(t *testing.T) {
	b := at(t)
	b.create("p", lasting(workload("c", "sleep", "infinity"), workload("d", "http")))
	was := b.ready("p")
	b.kubectl("debug", "p", "--image", image, "--image-pull-policy", "Never", "--container", "look", "--target", "c", "--",
		"/workload", "run", "cat /proc/1/cmdline", "get http://127.0.0.1:8080/healthz")
	p := b.until("p", "has been looked at", soon, func(p *corev1.Pod) error {
		for _, s := range p.Status.EphemeralContainerStatuses {
			if s.State.Terminated != nil {
				return nil
			}
		}
		return fmt.Errorf("%+v", p.Status.EphemeralContainerStatuses)
	})
	if end := p.Status.EphemeralContainerStatuses[0].State.Terminated; end.ExitCode != 0 || end.Reason != "Completed" {
		t.Errorf("%+v", end)
	}
	if log := b.logs("p", "look"); !strings.Contains(log, "sleep\x00infinity") {
		t.Errorf("it did not see the process of its target: %q", log)
	}
	if e := b.event("p", "Started"); e.InvolvedObject.Name != "p" {
		t.Errorf("%+v", e)
	}
	b.kubectl("debug", "p", "--image", image, "--image-pull-policy", "Never", "--container", "stay", "--", "/workload",
		"sleep", "infinity")
	b.until("p", "is being looked at", soon, func(p *corev1.Pod) error {
		for _, s := range p.Status.EphemeralContainerStatuses {
			if s.Name == "stay" && s.State.Running != nil {
				return nil
			}
		}
		return fmt.Errorf("%+v", p.Status.EphemeralContainerStatuses)
	})
	b.want("exec", b.in("p/stay", "env", "HOSTNAME"), "p")
	p = b.ready("p")
	for i, s := range p.Status.ContainerStatuses {
		if s.ContainerID != was.Status.ContainerStatuses[i].ContainerID || s.RestartCount != 0 {
			t.Errorf("%s is another: %+v", s.Name, s)
		}
	}
	b.delete("p", -1, slack)
}
