package server

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/podlog"
	"github.com/plimsoll-dev/plimsoll/internal/kube/serving"
	"github.com/plimsoll-dev/plimsoll/test/cost"
)

func TestEndpoints(t *testing.T) {
	r := newRig(t, nil)
	r.pods.pods = []*corev1.Pod{testPod("p", "c", "starting"), testPod("a", "c")}
	r.addLog(t, "ns/p/c", Container{ID: "c1", State: Running, Attempt: 1}, entry(1, "one")+entry(2, "two"))
	r.addLog(t, "ns/p/c-previous", Container{ID: "c0", State: Exited}, entry(0, "zero"))
	r.pods.set("ns/a/c", Container{ID: "c9", State: Exited, LogPath: "/etc/passwd"})
	if err := os.Symlink("/etc/passwd", filepath.Join(filepath.Dir(r.logs), "leak")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		method, path string
		status       int
		want         string // a part of the body
	}{
		{"GET", "/healthz", 200, "ok"},
		{"GET", "/healthz/ping", 200, "ok"},
		{"GET", "/healthz/syncloop", 200, "ok"},
		{"GET", "/healthz?verbose", 200, "[+]syncloop ok\n"},
		{"GET", "/healthz/other", 404, ""},
		{"GET", "/pods", 200, `"kind":"PodList"`},
		{"GET", "/pods/", 200, `"name":"a"`},
		{"GET", "/runningpods/", 200, `"containers":[{"name":"a","resources":{}},{"name":"b","image":"img"`},
		{"GET", "/configz", 200, `{"kubeletconfig":{"`},
		{"GET", "/statusz", 200, "Binary version: 1.36.3\nEmulation version: 1.36\n"},
		{"GET", "/flagz", 200, "purposes only.\n\nnode-ip=192.0.2.1\nv=2\n"},
		{"PUT", "/debug/flags/v", 400, "want a number of 0 or more"},
		{"GET", "/debug/flags/v", 405, ""},
		{"POST", "/checkpoint/ns/p/c", 200, `{"items":["`},
		{"POST", "/checkpoint/ns/p/c?timeout=soon", 404, "cannot parse value of timeout parameter"},
		{"POST", "/checkpoint/ns/p/other", 404, "container other does not exist"},
		{"POST", "/checkpoint/ns/q/c", 404, "pod does not exist"},
		{"POST", "/checkpoint/ns/p/starting", 500, "checkpointing of ns/p/starting failed (container \"starting\" in pod"},
		{"GET", "/checkpoint/ns/p/c", 405, ""},
		{"GET", "/stats/summary", 200, `"rxBytes":7`},
		{"POST", "/stats/summary", 200, `"usageCoreNanoSeconds":1500000000`},
		{"GET", "/metrics", 200, "kubelet_running_pods 1\n"},
		{"GET", "/metrics", 200, `kubelet_running_containers{container_state="exited"} 1` + "\n"},
		{"GET", "/metrics", 200, `kubelet_node_name{node="n1"} 1`},
		{"GET", "/metrics", 200,
			`kubelet_http_requests_total{long_running="false",method="GET",path="healthz",server_type="readwrite"} `},
		{"GET", "/metrics", 200, "process_resident_memory_bytes "},
		{"GET", "/metrics/probes", 200, ""},
		{"GET", "/metrics", 200, "kubelet_certificate_manager_server_ttl_seconds 3"}, // a year has 3.15e+07
		{"GET", "/metrics/slis", 200, `kubernetes_healthcheck{name="syncloop",type="healthz"} 1`},
		{"GET", "/metrics/slis", 200, `kubernetes_healthchecks_total{name="ping",status="success",type="healthz"} 2`},
		{"GET", "/metrics/resource", 200, "node_cpu_usage_seconds_total 1.5 1700000000000\n"},
		{"GET", "/metrics/resource", 200,
			`container_memory_working_set_bytes{container="c",namespace="ns",pod="p"} 10 1700000000000`},
		{"GET", "/metrics/resource", 200, `container_start_time_seconds{container="c",namespace="ns",pod="p"} 1.7e+09` +
			"\n"},
		{"GET", "/metrics/resource", 200, "resource_scrape_error 0\n"},
		{"GET", "/metrics/cadvisor", 200, `container_cpu_usage_seconds_total{container="c"} 1`},
		{"GET", "/metrics/resource", 200, `container_swap_usage_bytes{container="c",namespace="ns",pod="p"} 3 1700000000000`},
		{"GET", "/metrics/resource", 200, `container_swap_limit_bytes{container="c",namespace="ns",pod="p"} 7 1700000000000`},
		{"GET", "/metrics/resource", 200, `pod_swap_usage_bytes{namespace="ns",pod="p"} 3 1700000000000`},
		{"GET", "/containerLogs/ns/p/c", 200, "one\ntwo\n"},
		{"GET", "/containerLogs/ns/p/c?tailLines=1&timestamps=true", 200, "2026-11-20T10:00:02.000000001Z two\n"},
		{"GET", "/containerLogs/ns/p/c?tail=all", 200, "one\n"},
		{"GET", "/containerLogs/ns/p/c?sinceTime=2026-11-20T10:00:02Z", 200, "two\n"},
		{"GET", "/containerLogs/ns/p/c?limitBytes=2", 200, "on"},
		{"GET", "/containerLogs/ns/p/c?previous=true", 200, "zero\n"},
		{"GET", "/containerLogs/ns/p/c?tailLines=-1&sinceSeconds=x&stream=no", 422,
			`tailLines: "-1": want a number of at least 0; sinceSeconds: "x": want a number of at least 1; stream: "no"`},
		{"GET", "/containerLogs/ns/p/c?sinceSeconds=1&sinceTime=yesterday", 422,
			`sinceTime: "yesterday": want RFC 3339; at most one`},
		{"GET", "/containerLogs/ns/p/c?stream=Stdout&tailLines=1", 422, "mutually exclusive"},
		{"GET", "/containerLogs/ns/p/c?stream=Stderr", 200, ""},
		{"GET", "/containerLogs/ns/p/starting", 400, "is waiting to start: ContainerCreating"},
		{"GET", "/containerLogs/ns/a/c?previous=1", 400, `previous terminated container "c" in pod "a" not found`},
		{"GET", "/containerLogs/ns/a/c", 400, "outside"},
		{"GET", "/containerLogs/ns/p/x", 404, `container "x" not found in pod "p"`},
		{"GET", "/containerLogs/other/p/c", 404, `pod "p" in namespace "other" does not exist`},
		{"POST", "/containerLogs/ns/p/c", 405, ""},
		{"GET", "/exec/ns/p/c?command=ls&output=1", 400, "Upgrade request required"},
		{"POST", "/exec/ns/p/c?command=ls", 400, "at least 1 of stdin, stdout, stderr"},
		{"GET", "/logs/leak", 500, ""},
		{"GET", "/logs/ca.crt", 200, "BEGIN CERTIFICATE"},
		{"GET", "/logs/", 200, "ca.crt"},
		{"GET", "/pods/../exec/ns/p/c", 400, "path is not clean"},
		{"GET", "//pods", 400, "path is not clean"},
		{"GET", "/nothing", 404, ""},
		{"GET", "/debug/pprof/cmdline", 200, "server.test"},
		{"HEAD", "/pods", 405, ""},
	} {
		t.Run(c.method+c.path, func(t *testing.T) {
			status, body := r.do(t, c.method, c.path)
			if status != c.status || !strings.Contains(body, c.want) {
				t.Errorf("status %d, want %d, with %q; body %.2000q", status, c.status, c.want, body)
			}
		})
	}
	_, body := r.do(t, "GET", "/pods")
	var list corev1.PodList
	if err := json.Unmarshal([]byte(body), &list); err != nil || len(list.Items) != 2 ||
		list.Items[1].Spec.Containers[0].Name != "c" {
		t.Errorf("/pods is not a list of two pods: %v", err)
	}
}

// The metrics of cgroups are compressed for clients that say so only.
func TestMetricsAreCompressed(t *testing.T) {
	r := newRig(t, nil)
	for accepts, want := range map[string]string{"gzip": "gzip", "deflate, gzip;q=1.0": "gzip", "gzip;q=0": "", "": "",
		"identity": ""} {
		request, err := http.NewRequestWithContext(t.Context(), "GET", r.base+"/metrics/cadvisor", nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Accept-Encoding", accepts)
		response, err := r.client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		response.Body.Close()
		if got := response.Header.Get("Content-Encoding"); err != nil || got != want {
			t.Errorf("Accept-Encoding %q: answered as %q, %v; want %q", accepts, got, err, want)
		}
		if plain := strings.HasPrefix(string(body), "container_cpu"); plain != (want == "") {
			t.Errorf("Accept-Encoding %q: body %.40q", accepts, body)
		}
	}
}

func TestSwitchedOff(t *testing.T) {
	no := false
	r := newRig(t, func(o *Options) {
		o.Config.EnableDebuggingHandlers = &no
		o.Healthy = func() error { return errors.New("no progress for 3m0s") }
		o.Stats = fixedStats{errors.New("no cgroups")}
		o.Config.StaticPodURLHeader = map[string][]string{"Authorization": {"secret"}}
	})
	for path, want := range map[string]string{
		"/exec/ns/p/c":      "405 Debug endpoints are disabled.",
		"/logs/x":           "405 Debug endpoints are disabled.",
		"/debug/pprof/heap": "405 Debug endpoints are disabled.",
		"/healthz":          "500 [+]ping ok\n[+]log ok\n[-]syncloop failed: reason withheld\nhealthz check failed",
		"/healthz/syncloop": "500 internal server error: no progress for 3m0s",
		"/stats/summary":    "500 Internal Error: no cgroups",
		"/pods":             "200 ",
	} {
		if status, body := r.do(t, "GET", path); !strings.HasPrefix(fmt.Sprint(status, " ", body), want) {
			t.Errorf("%s: %d %s, want %s", path, status, body, want)
		}
	}
	if status, body := r.do(t, "GET", "/healthz?exclude=syncloop"); status != 200 {
		t.Errorf("excluded check still counts: %d %s", status, body)
	}
	if _, body := r.do(t, "GET", "/metrics/resource"); !strings.Contains(body, "scrape_error 1\n") {
		t.Errorf("failed scrape: %s", body)
	}
	on := newRig(t, func(o *Options) { o.Config.StaticPodURLHeader = map[string][]string{"Authorization": {"secret"}} })
	if _, body := on.do(t, "GET", "/configz"); strings.Contains(body, "secret") || !strings.Contains(body, "masked") {
		t.Errorf("configz shows a secret: %s", body)
	}
}

// TestHandlersSwitchedOffAlone: each of the two can be switched off without the other.
func TestHandlersSwitchedOffAlone(t *testing.T) {
	no := false
	logs := newRig(t, func(o *Options) { o.Config.EnableSystemLogHandler = &no })
	profiles := newRig(t, func(o *Options) { o.Config.EnableProfilingHandler = &no })
	for _, c := range []struct {
		r          *rig
		path, want string
	}{
		{logs, "/logs/ca.crt", "405 logs endpoint is disabled."},
		{logs, "/debug/pprof/cmdline", "200 "},
		{profiles, "/logs/ca.crt", "200 "},
		{profiles, "/debug/pprof/cmdline", "405 profiling endpoint is disabled."},
		{profiles, "/debug/pprof/heap", "405 profiling endpoint is disabled."},
	} {
		if status, body := c.r.do(t, "GET", c.path); !strings.HasPrefix(fmt.Sprint(status, " ", body), c.want) {
			t.Errorf("%s: %d %.200s, want %s", c.path, status, body, c.want)
		}
	}
}

func TestNobodyPassesUnknown(t *testing.T) {
	r := newRig(t, nil)
	r.tls.Certificates = nil
	for _, path := range []string{"/healthz", "/pods", "/metrics", "/exec/a/b/c", "/nothing", "/stats/summary", "/logs/",
		"/debug/pprof/"} {
		if status, _ := r.do(t, "GET", path); status != 401 {
			t.Errorf("%s: status %d without a credential, want 401", path, status)
		}
	}
}

func TestStreams(t *testing.T) {
	r := newRig(t, nil)
	r.pods.pods = []*corev1.Pod{testPod("p", "c", "done")}
	r.pods.set("ns/p/c", Container{ID: "c1", State: Running, Tty: true, Stdin: true})
	r.pods.set("ns/p/done", Container{ID: "c2", State: Exited})
	r.pods.sandboxes["ns/p"] = "sandbox"
	for _, c := range []struct{ path, protocol, want string }{
		{"/exec/ns/p/c?command=ls&command=-l+x&input=1&output=1&error=1", "SPDY/3.1",
			`container_id:"c1" cmd:"ls" cmd:"-l x" stdin:true stdout:true stderr:true`},
		{"/exec/ns/p/uid-p/c?command=sh&input=1&output=1&error=1&tty=1", "websocket",
			`container_id:"c1" cmd:"sh" tty:true stdin:true stdout:true`},
		{"/attach/ns/p/c?output=1&error=1", "SPDY/3.1", `container_id:"c1" tty:true stdout:true`},
		{"/portForward/ns/p", "SPDY/3.1", `pod_sandbox_id:"sandbox"`},
		{"/portForward/ns/p/uid-p?port=80&port=81", "websocket", `pod_sandbox_id:"sandbox" port:80 port:81`},
	} {
		t.Run(c.path, func(t *testing.T) {
			conn, head := r.upgrade(t, c.path, c.protocol)
			if !strings.HasPrefix(head, "HTTP/1.1 101 ") || !strings.Contains(head, "Upgrade: "+c.protocol) {
				t.Fatalf("answer %q", head)
			}
			if got := strings.Join(strings.Fields(fmt.Sprint(r.stream.last)), " "); got != c.want {
				t.Errorf("the runtime was asked %s, want %s", got, c.want)
			}
			fmt.Fprint(conn, "then more")
			want := "POST /exec/token v4.channel.k8s.io\nearly then more"
			got := make([]byte, len(want))
			if _, err := io.ReadFull(conn, got); err != nil || string(got) != want {
				t.Errorf("echo is %q, %v; want %q", got, err, want)
			}
		})
	}
	for _, c := range []struct{ path, want string }{
		{"/exec/ns/p/done?output=1", "500 "},
		{"/exec/ns/p/other-uid/c?output=1", "404 "},
		{"/exec/ns/x/c?output=1", "404 "},
		{"/portForward/ns/p/other-uid?port=80", "404 "},
		{"/portForward/ns/p?port=0", "400 "},
		{"/portForward/ns/p?port=70000", "400 "},
	} {
		if _, head := r.upgrade(t, c.path, "websocket"); !strings.HasPrefix(head, "HTTP/1.1 "+c.want) {
			t.Errorf("%s: %q, want %s", c.path, head, c.want)
		}
	}
	r.stream.url = strings.Replace(r.stream.url, "/exec/token", "/refuse", 1)
	if _, head := r.upgrade(t, "/exec/ns/p/c?output=1", "SPDY/3.1"); !strings.HasPrefix(head, "HTTP/1.1 403 ") {
		t.Errorf("refusal of the runtime arrives as %q", head)
	}
	for _, url := range []string{"http://127.0.0.1:1/x", "file:///etc/passwd", ""} {
		r.stream.url = url
		if _, head := r.upgrade(t, "/exec/ns/p/c?output=1", "SPDY/3.1"); !strings.HasPrefix(head, "HTTP/1.1 502 ") {
			t.Errorf("stream at %q: %q", url, head)
		}
	}
}

// Clients that disappear, and a server that stops: no goroutine remains.
func TestNothingStaysBehind(t *testing.T) {
	before := runtime.NumGoroutine()
	t.Run("clients", func(t *testing.T) {
		r := newRig(t, nil)
		r.pods.pods = []*corev1.Pod{testPod("p", "c")}
		r.addLog(t, "ns/p/c", Container{ID: "c1", State: Running}, entry(1, "one"))
		r.do(t, "GET", "/healthz")
		idle := runtime.NumGoroutine()
		var conns []net.Conn
		for range 20 {
			conn, _ := r.upgrade(t, "/exec/ns/p/c?output=1", "SPDY/3.1")
			conns = append(conns, conn)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			request, _ := http.NewRequestWithContext(ctx, "GET", r.base+"/containerLogs/ns/p/c?follow=true", nil)
			response, err := r.client.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			line := make([]byte, 4)
			if _, err := io.ReadFull(response.Body, line); err != nil || string(line) != "one\n" {
				t.Fatalf("follower shows %q, %v", line, err)
			}
			cancel()
			response.Body.Close()
		}
		for _, c := range conns {
			c.Close()
		}
		await(t, idle+5) // connections of the client's pool come and go
	})
	await(t, before)

	r := newRig(t, nil)
	r.pods.pods = []*corev1.Pod{testPod("p", "c")}
	r.pods.set("ns/p/c", Container{ID: "c1", State: Running})
	conn, _ := r.upgrade(t, "/exec/ns/p/c?output=1", "SPDY/3.1")
	start := time.Now()
	r.stop()
	if err := <-r.done; err != nil {
		t.Errorf("server stops with %v", err)
	}
	if _, err := io.Copy(io.Discard, conn); err != nil && !strings.Contains(err.Error(), "reset") {
		t.Errorf("the stream ends with %v", err)
	}
	if took := time.Since(start); took > stopTime {
		t.Errorf("a stream held the server up for %v", took)
	}
}

func await(t *testing.T, most int) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > most; <-time.After(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			buf := make([]byte, 1<<20)
			t.Fatalf("%d goroutines, want at most %d:\n%s", runtime.NumGoroutine(), most, buf[:runtime.Stack(buf, true)])
		}
	}
}

// A follower receives lines as they are written, and the end of the container.
func TestFollow(t *testing.T) {
	r := newRig(t, nil)
	r.pods.pods = []*corev1.Pod{testPod("p", "c")}
	r.addLog(t, "ns/p/c", Container{ID: "c1", State: Running}, "")
	response, err := r.client.Get(r.base + "/containerLogs/ns/p/c?follow=true") // the header comes before any line
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	c, _ := r.pods.Container("ns", "p", "c", "", false)
	f, err := os.OpenFile(c.LogPath, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for i, text := range []string{"one", "two"} {
		f.WriteString(entry(i, text))
		got := make([]byte, 4)
		if _, err := io.ReadFull(response.Body, got); err != nil || string(got) != text+"\n" {
			t.Fatalf("follower shows %q, %v", got, err)
		}
	}
	r.pods.set("ns/p/c", Container{ID: "c2", State: Running, LogPath: c.LogPath}) // restarted
	if rest, err := io.ReadAll(response.Body); err != nil || len(rest) > 0 {
		t.Errorf("after the container's end: %q, %v", rest, err)
	}
}

func TestCertificates(t *testing.T) {
	r := newRig(t, nil)
	dir := filepath.Dir(r.o.CertDir)
	for _, name := range []string{"kubelet.crt", "kubelet.key"} {
		if info, err := os.Stat(filepath.Join(dir, "pki", name)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v %v", name, info, err)
		}
	}
	first, err := r.Server.tls.GetCertificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := selfSigned(filepath.Join(dir, "pki/kubelet.crt"), filepath.Join(dir, "pki/kubelet.key"),
		[]string{"n1"}); err != nil {
		t.Fatal(err)
	}
	pair := &serving.KeyPair{CertFile: filepath.Join(dir, "pki/kubelet.crt"), KeyFile: filepath.Join(dir,
		"pki/kubelet.key")}
	again, err := pair.Get(nil)
	if err != nil || !again.Leaf.Equal(first.Leaf) {
		t.Errorf("a good certificate was replaced: %v", err)
	}
}

func TestTLSConfigurationIsChecked(t *testing.T) {
	o := Options{NodeName: "n", CertDir: t.TempDir(), Config: &kubeletconfigv1beta1.KubeletConfiguration{
		TLSMinVersion: "VersionTLS9", TLSCipherSuites: []string{"TLS_X"}, TLSCurvePreferences: []int32{1}, TLSCertFile: "/x",
	}}
	_, err := tlsConfig(o)
	for _, want := range []string{`tlsMinVersion: "VersionTLS9"`, `tlsCipherSuites: "TLS_X"`, "tlsCurvePreferences: 1",
		"set both or neither"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name %s", err, want)
		}
	}
	o.Config = &kubeletconfigv1beta1.KubeletConfiguration{TLSMinVersion: "VersionTLS13",
		TLSCipherSuites: []string{"TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"}}
	c, err := tlsConfig(o)
	if err != nil || c.MinVersion != tls.VersionTLS13 || len(c.CipherSuites) != 1 {
		t.Errorf("%+v, %v", c, err)
	}
}

func TestPortInUse(t *testing.T) {
	r := newRig(t, nil)
	host, port, _ := net.SplitHostPort(strings.TrimPrefix(r.base, "https://"))
	r.o.Config.Address = host
	fmt.Sscan(port, &r.o.Config.Port)
	err := r.Run(t.Context())
	if err == nil || !strings.Contains(err.Error(), "127.0.0.1:"+port) ||
		!strings.Contains(err.Error(), "KubeletConfiguration") {
		t.Errorf("a port in use is reported as %v", err)
	}
}

// healthzPort answers without TLS and authentication, and serves nothing else.
func TestHealthzPort(t *testing.T) {
	r := newRig(t, nil)
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port, no := int32(free.Addr().(*net.TCPAddr).Port), false
	free.Close()
	r.o.Config.EnableServer = &no
	r.o.Config.HealthzPort = &port
	r.o.Config.HealthzBindAddress = "127.0.0.1"
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	get := func(path string) (int, string) {
		for deadline := time.Now().Add(5 * time.Second); ; <-time.After(2 * time.Millisecond) {
			response, err := client.Get(fmt.Sprintf("http://127.0.0.1:%d%s", port, path))
			if err != nil && time.Now().Before(deadline) {
				continue
			} else if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			body, _ := io.ReadAll(response.Body)
			return response.StatusCode, string(body)
		}
	}
	if status, body := get("/healthz"); status != 200 || body != "ok" {
		t.Errorf("/healthz: %d %q", status, body)
	}
	if status, _ := get("/pods"); status != 404 {
		t.Errorf("/pods without a guard: %d", status)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("ends with %v", err)
	}
}

func TestLogs(t *testing.T) {
	r := newRig(t, nil)
	over := testPod("over", "c")
	over.Status.Phase = corev1.PodFailed
	r.pods.pods = []*corev1.Pod{testPod("p", "c", "d"), testPod("q", "c"), testPod("crashes", "c"), over}
	r.pods.set("ns/crashes/c", Container{ID: "c4", State: Exited, LogPath: "/logs/crashes/c/7.log"})
	r.pods.set("ns/over/c", Container{ID: "c5", State: Exited, LogPath: "/logs/over/c/0.log"})
	r.pods.set("ns/p/c", Container{ID: "c1", State: Running, LogPath: "/l1"})
	r.pods.set("ns/p/d", Container{ID: "c2", State: Exited, LogPath: "/l2"})
	r.pods.set("ns/q/c", Container{ID: "c3", State: Running, LogPath: "/l3"})
	want := fmt.Sprint([]podlog.Log{{Container: "c1", Path: "/l1"}, {Container: "c3", Path: "/l3"}})
	if got := fmt.Sprint(Logs(r.pods)); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	group := func(p *corev1.Pod) string { return "/kubepods/pod" + string(p.UID) }
	list := StatsPods(r.pods, group, func(group, id string) string { return group + "/" + id }, "/agent")
	pods := list()
	r.pods.pods = append(r.pods.pods, testPod("waits", "c"))
	if all := list(); len(all) != 4 || !all[3].Idle || all[3].VolumeDir != "/agent/pods/uid-waits/volumes" ||
		pods[2].Idle {
		t.Errorf("a pod of which the runtime has nothing, and one of which it has: %+v", all)
	}
	// its files on the disk stay while it waits
	if len(pods) != 3 || len(pods[2].Containers) != 0 || pods[2].LogDir != "/logs/crashes" {
		t.Errorf("a pod whose container waits to be started again: %+v", pods)
	}
	if pods[0].Containers[0].Group != "/kubepods/poduid-p/c1" || pods[1].VolumeDir != "/agent/pods/uid-q/volumes" ||
		len(pods[0].Containers) != 1 {
		t.Errorf("%+v", pods)
	}
}

func FuzzLogOptions(f *testing.F) {
	cost.Attack(f, "follow=true&tailLines=3&sinceSeconds=9223372036854775807&limitBytes=1&stream=Stdout&tail=all")
	cost.Attack(f, "sinceTime=2026-11-20T10:00:00Z&previous&timestamps=0")
	f.Fuzz(func(t *testing.T, query string) {
		defer cost.Spend(t, len(query))()
		q, err := url.ParseQuery(query)
		if err != nil {
			return
		}
		o, problems := logOptionsOf(q, time.Now())
		if len(problems) == 0 && (o.LimitBytes < 0 || o.Tail != nil && *o.Tail < 0 ||
			o.Since.After(time.Now()) && q.Get("sinceTime") == "") {
			t.Errorf("%q is taken as %+v", query, o)
		}
	})
}
