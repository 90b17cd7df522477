package server

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/podlog"
)

// TestNode uses the server as its clients do: kubectl through kube-apiserver, and scrapers with tokens of their own.
func TestNode(t *testing.T) {
	n := newNode(t)
	t.Run("logs", n.testLogs)
	for name, env := range map[string][]string{
		"websocket": nil,
		"spdy":      {"KUBECTL_REMOTE_COMMAND_WEBSOCKETS=false", "KUBECTL_PORT_FORWARD_WEBSOCKETS=false"},
	} {
		t.Run("exec over "+name, func(t *testing.T) { n.testExec(t, env) })
		t.Run("port-forward over "+name, func(t *testing.T) { n.testPortForward(t, env) })
	}
	t.Run("attach", n.testAttach)
	t.Run("exec whose client vanishes", n.testVanishing)
	t.Run("rotation", n.testRotation)
	t.Run("raw", n.testRaw)
	t.Run("tokens", n.testTokens) // last, since it stops the API server
}

func (n *node) testLogs(t *testing.T) {
	const all = "line 1\nline 2\nline 3\nline 4\nline 5\n"
	n.start(t, "log", false, "log", "--lines", "3")
	follow := n.command(within(t), "logs", "p", "-c", "log", "-f")
	var out bytes.Buffer
	follow.Stdout, follow.Stderr = &out, &out
	if err := follow.Start(); err != nil {
		t.Fatal(err)
	}
	n.ended(t, "log")
	if err := follow.Wait(); err != nil || out.String() != "line 1\nline 2\nline 3\n" {
		t.Errorf("logs -f: %v: %q", err, out.String())
	}
	for _, c := range []struct {
		args string
		want string
	}{
		{"-c log", "line 1\nline 2\nline 3\n"},
		{"-c log -p", all},
		{"-c log --previous --tail 2", "line 4\nline 5\n"},
		{"-c log --since 1h --limit-bytes 6", "line 1"},
		{"-c chat", ""},
	} {
		got, err := n.kubectl(t, "", nil, append([]string{"logs", "p"}, strings.Fields(c.args)...)...)
		if err != nil || got != c.want {
			t.Errorf("logs %s: %v: %q, want %q", c.args, err, got, c.want)
		}
	}
	if got, err := n.kubectl(t, "", nil, "logs", "p", "-c", "web", "-p"); err == nil ||
		!strings.Contains(got, "previous terminated container") {
		t.Errorf("logs -p of a first attempt: %v: %q", err, got)
	}
}

func (n *node) testExec(t *testing.T, env []string) {
	if got, err := n.kubectl(t, "", env, "exec", "p", "-c", "web", "--", "cat", "/etc/passwd"); err != nil ||
		!strings.HasPrefix(got, "root:x:0:0") {
		t.Errorf("exec cat: %v: %q", err, got)
	}
	big := strings.Repeat("0123456789abcde\n", 200_000) // 3 MiB both ways
	if got, err := n.kubectl(t, big, env, "exec", "-i", "p", "-c", "web", "--", "/workload", "stdin"); err != nil ||
		got != big {
		t.Errorf("exec -i: %v: %d bytes came back, want %d", err, len(got), len(big))
	}
	if got, err := n.kubectl(t, "", env, "exec", "p", "-c", "web", "--", "/workload", "exit", "--code", "7"); err == nil ||
		!strings.Contains(got, "exit code 7") {
		t.Errorf("exec of a failing command: %v: %q", err, got)
	}
	if got, err := n.kubectl(t, "", env, "exec", "p", "-c", "log", "--", "cat"); err == nil ||
		!strings.Contains(got, "is not running") {
		t.Errorf("exec in a container that ended: %v: %q", err, got)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte(big), 0o644); err != nil {
		t.Fatal(err)
	}
	if got, err := n.kubectl(t, "", env, "cp", "-c", "web", file, "p:/tmp/copy"); err != nil {
		t.Fatalf("cp to the container: %v: %q", err, got)
	}
	if got, err := n.kubectl(t, "", env, "cp", "-c", "web", "p:/tmp/copy", file+".back"); err != nil {
		t.Fatalf("cp from the container: %v: %q", err, got)
	}
	if back, err := os.ReadFile(file + ".back"); err != nil || string(back) != big {
		t.Errorf("cp there and back: %v: %d bytes, want %d", err, len(back), len(big))
	}
}

func (n *node) testPortForward(t *testing.T, env []string) {
	ctx, cancel := context.WithCancel(within(t))
	defer cancel()
	c := n.command(ctx, "port-forward", "p", ":8080")
	c.Env = append(os.Environ(), env...)
	out := must[io.ReadCloser](t)(c.StdoutPipe())
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer c.Wait()
	defer cancel()
	var port int
	if _, err := fmt.Fscanf(out, "Forwarding from 127.0.0.1:%d -> 8080\n", &port); err != nil {
		t.Fatal(err)
	}
	go io.Copy(io.Discard, out)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	for range 5 { // each is a separate stream
		response, err := client.Get(fmt.Sprintf("http://127.0.0.1:%d/healthz", port))
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != http.StatusOK {
			t.Errorf("through the port: %s", response.Status)
		}
	}
}

func (n *node) testAttach(t *testing.T) {
	c := n.command(within(t), "attach", "-i", "-q", "p", "-c", "chat")
	in, out := must[io.WriteCloser](t)(c.StdinPipe()), must[io.ReadCloser](t)(c.StdoutPipe())
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		said := fmt.Sprintf("hello %d\n", i)
		fmt.Fprint(in, said)
		heard := make([]byte, len(said))
		if _, err := io.ReadFull(out, heard); err != nil || string(heard) != said {
			t.Fatalf("heard %q, %v", heard, err)
		}
	}
	c.Process.Kill()
	c.Wait() // the test killed it
}

func (n *node) testVanishing(t *testing.T) {
	before := runtime.NumGoroutine()
	for range 10 {
		ctx, cancel := context.WithCancel(within(t))
		c := n.command(ctx, "exec", "p", "-c", "web", "--", "/workload", "log", "--rate", "100")
		out := must[io.ReadCloser](t)(c.StdoutPipe())
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := out.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		cancel()
		c.Wait() // the test killed it
	}
	await(t, before+8) // the API server keeps connections for its next request
}

// output is what a command has written; begun is closed when it has written something.
type output struct {
	text  bytes.Buffer
	begun chan struct{}
	once  sync.Once
}

func (o *output) Write(b []byte) (int, error) {
	defer o.once.Do(func() { close(o.begun) })
	return o.text.Write(b)
}

// A container logs all the time, and its log is followed while it is rotated again and again: every line arrives once,
// in order.
func (n *node) testRotation(t *testing.T) {
	const lines = 3500
	n.start(t, "log", false, "log", "--lines", fmt.Sprint(lines), "--rate", "1000", "--stderr-every", "10")
	r := &podlog.Rotator{MaxBytes: 20 << 10, MaxFiles: 3, Workers: 1, Interval: 300 * time.Millisecond,
		Logs: func() []podlog.Log { return Logs(n.pods) },
		Reopen: func(ctx context.Context, id string) error {
			_, err := n.cri.ReopenContainerLog(ctx, &runtimeapi.ReopenContainerLogRequest{ContainerId: id})
			return err
		}}
	ctx, cancel := context.WithCancel(within(t))
	follow := n.command(within(t), "logs", "p", "-c", "log", "-f")
	out := output{begun: make(chan struct{})}
	follow.Stdout, follow.Stderr = &out, &out
	if err := follow.Start(); err != nil {
		t.Fatal(err)
	}
	// Rotation removes the first lines within two seconds, in which a busy machine may not have started kubectl.
	select {
	case <-out.begun:
	case <-ctx.Done():
		t.Fatal("logs -f shows nothing")
	}
	rotating := make(chan error, 1)
	go func() { rotating <- r.Run(ctx) }()
	n.ended(t, "log")
	err := follow.Wait()
	cancel()
	<-rotating
	if err != nil {
		t.Fatalf("logs -f: %v: %s", err, out.text.String())
	}
	seen, last := map[string]int{}, 0
	newest := map[bool]int{} // by stream: the runtime keeps no order between streams
	for line := range strings.Lines(out.text.String()) {
		seen[strings.TrimSpace(line)]++
		last++
		var number int
		fmt.Sscanf(line, "line %d", &number)
		if stderr := number%10 == 0; number < newest[stderr] {
			t.Errorf("line %d comes after line %d", number, newest[stderr])
		} else {
			newest[stderr] = number
		}
	}
	for i := 1; i <= lines; i++ {
		if c := seen[fmt.Sprintf("line %d", i)]; c != 1 {
			t.Fatalf("line %d was shown %d times, of %d lines", i, c, last)
		}
	}
	c, _ := n.pods.Container("default", "p", "log", "", false)
	files := must[[]string](t)(filepath.Glob(c.LogPath + "*"))
	if len(files) < 2 || len(files) > 3 {
		t.Errorf("%d log files, want 2 or 3: %v", len(files), files)
	}
	t.Logf("%d lines, files %v", last, files)
}

func (n *node) testRaw(t *testing.T) {
	raw := func(path string) string {
		t.Helper()
		out, err := n.kubectl(t, "", nil, "get", "--raw", "/api/v1/nodes/"+nodeName+"/proxy"+path)
		if err != nil {
			t.Fatalf("%s: %v: %s", path, err, out)
		}
		return out
	}
	for path, want := range map[string]string{
		"/healthz": "ok", "/pods": `"name":"p"`, "/runningpods/": `"name":"web"`, "/configz": `"kubeletconfig"`,
		"/metrics":          `kubelet_runtime_operations_total{operation_type="run_podsandbox"} 1`,
		"/metrics/resource": `container_memory_working_set_bytes{container="web",namespace="default",pod="p"}`,
		"/metrics/cadvisor": `namespace="default",pod="p",interface="eth0"}`, "/logs/": "<a href=",
	} {
		if got := raw(path); !strings.Contains(got, want) {
			t.Errorf("%s: no %q in %.1000s", path, want, got)
		}
	}
	var s statsapi.Summary
	for began := time.Now(); ; { // containerd adds up the size of its images every 10 s
		s = statsapi.Summary{}
		if err := json.Unmarshal([]byte(raw("/stats/summary")), &s); err != nil {
			t.Fatal(err)
		}
		if s.Node.Runtime != nil && *s.Node.Runtime.ImageFs.UsedBytes > 0 || time.Since(began) > time.Minute {
			break
		}
	}
	if len(s.Pods) != 1 || len(s.Pods[0].Containers) != 2 || len(s.Node.SystemContainers) != 3 {
		t.Fatalf("%d pods, %+v", len(s.Pods), s)
	}
	p := s.Pods[0]
	web := p.Containers[0]
	if web.Memory == nil || *web.Memory.WorkingSetBytes < 100<<10 || web.CPU == nil || *web.CPU.UsageCoreNanoSeconds == 0 {
		t.Errorf("web uses nothing: %+v", web)
	}
	// the file that kubectl cp wrote; the runtime measures every 10 s
	if web.Rootfs == nil || *web.Rootfs.UsedBytes < 3<<20 {
		t.Logf("writable layer of web: %+v", web.Rootfs)
	}
	if p.Network == nil || p.Network.Name != "eth0" || *p.Network.RxBytes == 0 {
		t.Errorf("network: %+v", p.Network)
	}
	if s.Node.Runtime == nil || *s.Node.Runtime.ImageFs.UsedBytes == 0 || *s.Node.Fs.CapacityBytes == 0 ||
		*p.EphemeralStorage.CapacityBytes == 0 {
		t.Errorf("file systems: %+v", s.Node)
	}
	for _, c := range s.Node.SystemContainers {
		t.Logf("%s: %d KiB", c.Name, *c.Memory.WorkingSetBytes>>10)
	}
}

// Service accounts send requests to the node itself. The API server authenticates and authorizes them, and its answers
// hold for a while after it is gone.
func (n *node) testTokens(t *testing.T) {
	for _, args := range []string{
		"create serviceaccount scraper", "create serviceaccount stranger",
		"create clusterrole scrape --verb=get --resource=nodes/metrics,nodes/stats,nodes/pods",
		"create clusterrolebinding scrape --clusterrole=scrape --serviceaccount=default:scraper",
	} {
		if out, err := n.kubectl(t, "", nil, strings.Fields(args)...); err != nil {
			t.Fatalf("%s: %v: %s", args, err, out)
		}
	}
	tokens := map[string]string{"nobody": "", "made up": "eyJhbGciOiJSUzI1NiJ9.e30.e30"}
	for _, name := range []string{"scraper", "stranger"} {
		out, err := n.kubectl(t, "", nil, "create", "token", name)
		if err != nil {
			t.Fatal(out)
		}
		tokens[name] = strings.TrimSpace(out)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(must[[]byte](t)(os.ReadFile(n.state + "/pki/ca.crt")))
	pairOf := func(name string) []tls.Certificate {
		return []tls.Certificate{must[tls.Certificate](t)(tls.LoadX509KeyPair(n.state+"/pki/"+name+".crt", n.state+"/pki/"+
			name+".key"))}
	}
	get := func(who, path string, want int) string {
		t.Helper()
		config := &tls.Config{RootCAs: roots}
		if tokens[who] == "" && who != "nobody" {
			config.Certificates = pairOf(who)
		}
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}
		request := must[*http.Request](t)(http.NewRequest("GET", fmt.Sprintf("https://%s:%d%s", n.address, n.port, path),
			nil))
		if tokens[who] != "" {
			request.Header.Set("Authorization", "Bearer "+tokens[who])
		}
		response, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		body, _ := io.ReadAll(response.Body)
		if response.StatusCode != want {
			t.Errorf("%s as %s: %s, want %d: %.300s", path, who, response.Status, want, body)
		}
		return string(body)
	}
	get("scraper", "/metrics/resource", 200)
	get("scraper", "/stats/summary", 200)
	get("scraper", "/pods", 200) // nodes/pods without nodes/proxy
	get("scraper", "/containerLogs/default/p/web", 403)
	get("scraper", "/configz", 403)
	get("stranger", "/metrics", 403)
	get("made up", "/metrics", 401)
	get("nobody", "/metrics", 401)
	get("admin", "/configz", 200)
	get("scheduler", "/metrics", 403) // a valid certificate without the permission

	if out, err := exec.Command(n.bin+"/plimsoll", "down", "--instance", "srvtest", "--state-dir",
		n.state).CombinedOutput(); err != nil {
		t.Fatalf("down: %v: %s", err, out)
	}
	get("scraper", "/metrics/resource", 200) // from the cache
	get("stranger", "/metrics", 403)
	get("made up", "/metrics", 401)
	get("nobody", "/metrics", 401)
	if text := get("scraper", "/logs/", 503); !strings.Contains(text, "API server does not answer") {
		t.Errorf("refused with %q", text)
	}
	get("lifecycle", "/healthz", 503)
}
