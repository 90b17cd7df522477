package server

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/metrics"
	"github.com/plimsoll-dev/plimsoll/internal/agent/podlog"
	"github.com/plimsoll-dev/plimsoll/internal/agent/stats"
)

// table is the pods of a node, in memory.
type table struct {
	mu         sync.Mutex
	pods       []*corev1.Pod
	sandboxes  map[string]string    // by namespace/name
	containers map[string]Container // by namespace/name/container, with -previous for the attempt before
}

func (p *table) List() []*corev1.Pod {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pods
}

func (p *table) Sandbox(namespace, name string, _ types.UID) (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if id, ok := p.sandboxes[namespace+"/"+name]; ok {
		return id, nil
	}
	return "", fmt.Errorf("pod %q has no running sandbox", name)
}

func (p *table) Container(namespace, name, container string, _ types.UID, previous bool) (Container, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	key := namespace + "/" + name + "/" + container
	if previous {
		key += "-previous"
	}
	if c, ok := p.containers[key]; ok {
		return c, nil
	}
	if previous {
		return Container{}, fmt.Errorf("previous terminated container %q in pod %q not found", container, name)
	}
	return Container{}, fmt.Errorf("container %q in pod %q is waiting to start: ContainerCreating", container, name)
}

func (p *table) set(key string, c Container) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.containers[key] = c
}

func testPod(name string, containers ...string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", UID: types.UID("uid-" + name)}}
	for _, c := range containers {
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: c, Image: "i"})
	}
	return pod
}

// streamer is a runtime that streams nothing but echoes, at a real address.
type streamer struct {
	Runtime
	mu   sync.Mutex
	url  string
	err  error
	last any // request
}

func (s *streamer) prepare(request any) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = request
	return s.url, s.err
}

func (s *streamer) Exec(_ context.Context, r *runtimeapi.ExecRequest, _ ...grpc.CallOption) (*runtimeapi.ExecResponse, error) {
	url, err := s.prepare(r)
	return &runtimeapi.ExecResponse{Url: url}, err
}

func (s *streamer) Attach(_ context.Context, r *runtimeapi.AttachRequest, _ ...grpc.CallOption) (*runtimeapi.AttachResponse, error) {
	url, err := s.prepare(r)
	return &runtimeapi.AttachResponse{Url: url}, err
}

func (s *streamer) PortForward(_ context.Context, r *runtimeapi.PortForwardRequest, _ ...grpc.CallOption) (*runtimeapi.PortForwardResponse, error) {
	url, err := s.prepare(r)
	return &runtimeapi.PortForwardResponse{Url: url}, err
}

func (s *streamer) ListContainers(context.Context, *runtimeapi.ListContainersRequest, ...grpc.CallOption) (*runtimeapi.ListContainersResponse, error) {
	return &runtimeapi.ListContainersResponse{Containers: []*runtimeapi.Container{
		{Labels: map[string]string{labelPodUID: "u", labelPodName: "p", labelPodNamespace: "ns", labelContainerName: "b"}, Image: &runtimeapi.ImageSpec{Image: "img"}},
		{Labels: map[string]string{labelPodUID: "u", labelPodName: "p", labelPodNamespace: "ns", labelContainerName: "a"}},
		{},
	}}, nil
}

// echo serves streams as a runtime does: it switches protocols and returns every byte, after what it was asked with.
func echo(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/refuse" {
			http.Error(w, "token is not valid", http.StatusForbidden)
			return
		}
		if r.Header.Get("Authorization") != "" || r.Header.Get("Cookie") != "" {
			http.Error(w, "a credential came along", http.StatusTeapot)
			return
		}
		conn, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		fmt.Fprintf(buffered, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n%s %s %s\n", r.Header.Get("Upgrade"), r.Method, r.URL.Path, r.Header.Get("X-Stream-Protocol-Version"))
		buffered.Flush()
		io.Copy(conn, buffered)
	})}
	go server.Serve(listener)
	t.Cleanup(func() { server.Close() })
	return "http://" + listener.Addr().String()
}

type fixedStats struct{ err error }

func (f fixedStats) Summary(_ context.Context, parts stats.Parts) (*statsapi.Summary, error) {
	n := func(v uint64) *uint64 { return &v }
	at := metav1.NewTime(time.Unix(1_700_000_000, 0))
	s := &statsapi.Summary{
		Node: statsapi.NodeStats{NodeName: "n1", CPU: &statsapi.CPUStats{Time: at, UsageCoreNanoSeconds: n(1_500_000_000)}, Memory: &statsapi.MemoryStats{Time: at, WorkingSetBytes: n(4096)}},
		Pods: []statsapi.PodStats{{
			PodRef: statsapi.PodReference{Name: "p", Namespace: "ns"}, CPU: &statsapi.CPUStats{Time: at, UsageCoreNanoSeconds: n(1e9)},
			Containers: []statsapi.ContainerStats{{Name: "c", StartTime: at, CPU: &statsapi.CPUStats{Time: at, UsageCoreNanoSeconds: n(5e8)}, Memory: &statsapi.MemoryStats{Time: at, WorkingSetBytes: n(10), UsageBytes: n(20)}}},
		}},
	}
	if parts&stats.Network != 0 {
		s.Pods[0].Network = &statsapi.NetworkStats{Time: at, Interfaces: []statsapi.InterfaceStats{{Name: "eth0", RxBytes: n(7), TxBytes: n(8)}}}
	}
	return s, f.err
}

// rig is a server on a real TLS listener with a client CA, and a client whose certificate that CA signed.
type rig struct {
	*Server
	client *http.Client
	tls    *tls.Config
	base   string
	pods   *table
	stream *streamer
	logs   string
	stop   context.CancelFunc
	done   chan error
}

func newRig(t *testing.T, change func(*Options)) *rig {
	t.Helper()
	dir := t.TempDir()
	caCert, caKey := makeCert(t, pkix.Name{CommonName: "ca"}, nil, nil)
	caFile := filepath.Join(dir, "ca.crt")
	if err := os.WriteFile(caFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: caCert.Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	r := &rig{pods: &table{sandboxes: map[string]string{}, containers: map[string]Container{}}, stream: &streamer{url: echo(t) + "/exec/token"}, logs: filepath.Join(dir, "logs")}
	o := Options{
		Config: &kubeletconfigv1beta1.KubeletConfiguration{
			PodLogsDir:     r.logs,
			Authentication: kubeletconfigv1beta1.KubeletAuthentication{X509: kubeletconfigv1beta1.KubeletX509Authentication{ClientCAFile: caFile}},
			Authorization:  kubeletconfigv1beta1.KubeletAuthorization{Mode: kubeletconfigv1beta1.KubeletAuthorizationModeAlwaysAllow},
		},
		NodeName: "n1", Names: []string{"127.0.0.1"}, RootDir: dir, Pods: r.pods, Runtime: r.stream, Stats: fixedStats{}, Metrics: metrics.New("n1"), LogDir: dir,
	}
	if change != nil {
		change(&o)
	}
	var err error
	if r.Server, err = New(o); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.base, r.stop, r.done = "https://"+listener.Addr().String(), cancel, make(chan error, 1)
	go func() { r.done <- r.Serve(ctx, listener); close(r.done) }()
	t.Cleanup(func() { cancel(); <-r.done })

	leaf, key := makeCert(t, pkix.Name{CommonName: "admin", Organization: []string{"system:masters"}}, caCert, caKey)
	roots := x509.NewCertPool()
	self, err := os.ReadFile(filepath.Join(dir, "pki", "kubelet.crt"))
	if err != nil || !roots.AppendCertsFromPEM(self) {
		t.Fatalf("self-signed certificate: %v", err)
	}
	r.tls = &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{{Certificate: [][]byte{leaf.Raw}, PrivateKey: key}}}
	r.client = &http.Client{Transport: &http.Transport{TLSClientConfig: r.tls, ForceAttemptHTTP2: true}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	t.Cleanup(r.client.CloseIdleConnections)
	return r
}

func makeCert(t *testing.T, subject pkix.Name, parent *x509.Certificate, parentKey *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: subject, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if parent == nil {
		parent, parentKey = template, key
		template.IsCA, template.BasicConstraintsValid, template.KeyUsage, template.ExtKeyUsage = true, true, x509.KeyUsageCertSign, nil
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, parentKey)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert, key
}

func (r *rig) do(t *testing.T, method, path string) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, r.base+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := r.client.Do(request)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	return response.StatusCode, string(body)
}

func (r *rig) addLog(t *testing.T, key string, c Container, text string) {
	t.Helper()
	c.LogPath = filepath.Join(r.logs, strings.ReplaceAll(key, "/", "_"), fmt.Sprint(c.Attempt)+".log")
	if err := errors.Join(os.MkdirAll(filepath.Dir(c.LogPath), 0o755), os.WriteFile(c.LogPath, []byte(text), 0o644)); err != nil {
		t.Fatal(err)
	}
	r.pods.set(key, c)
}

func entry(second int, text string) string {
	return fmt.Sprintf("2026-11-20T10:00:%02d.000000001Z stdout F %s\n", second, text)
}

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
		{"GET", "/stats/summary", 200, `"rxBytes":7`},
		{"POST", "/stats/summary", 200, `"usageCoreNanoSeconds":1500000000`},
		{"GET", "/metrics", 200, "kubelet_running_pods 1\n"},
		{"GET", "/metrics", 200, `kubelet_running_containers{container_state="exited"} 1` + "\n"},
		{"GET", "/metrics", 200, `kubelet_node_name{node="n1"} 1`},
		{"GET", "/metrics", 200, `kubelet_http_requests_total{long_running="false",method="GET",path="healthz",server_type="readwrite"} `},
		{"GET", "/metrics", 200, "process_resident_memory_bytes "},
		{"GET", "/metrics/probes", 200, ""},
		{"GET", "/metrics/resource", 200, "node_cpu_usage_seconds_total 1.5 1700000000000\n"},
		{"GET", "/metrics/resource", 200, `container_memory_working_set_bytes{container="c",namespace="ns",pod="p"} 10 1700000000000`},
		{"GET", "/metrics/resource", 200, `container_start_time_seconds{container="c",namespace="ns",pod="p"} 1.7e+09` + "\n"},
		{"GET", "/metrics/resource", 200, "resource_scrape_error 0\n"},
		{"GET", "/metrics/cadvisor", 200, `container_network_receive_bytes_total{interface="eth0",namespace="ns",pod="p"} 7 1700000000000`},
		{"GET", "/containerLogs/ns/p/c", 200, "one\ntwo\n"},
		{"GET", "/containerLogs/ns/p/c?tailLines=1&timestamps=true", 200, "2026-11-20T10:00:02.000000001Z two\n"},
		{"GET", "/containerLogs/ns/p/c?tail=all", 200, "one\n"},
		{"GET", "/containerLogs/ns/p/c?sinceTime=2026-11-20T10:00:02Z", 200, "two\n"},
		{"GET", "/containerLogs/ns/p/c?limitBytes=2", 200, "on"},
		{"GET", "/containerLogs/ns/p/c?previous=true", 200, "zero\n"},
		{"GET", "/containerLogs/ns/p/c?tailLines=-1&sinceSeconds=x&stream=no", 422, `tailLines: "-1": want a number of at least 0; sinceSeconds: "x": want a number of at least 1; stream: "no"`},
		{"GET", "/containerLogs/ns/p/c?sinceSeconds=1&sinceTime=yesterday", 422, `sinceTime: "yesterday": want RFC 3339; at most one`},
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
	if err := json.Unmarshal([]byte(body), &list); err != nil || len(list.Items) != 2 || list.Items[1].Spec.Containers[0].Name != "c" {
		t.Errorf("/pods is not a list of two pods: %v", err)
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

func TestNobodyPassesUnknown(t *testing.T) {
	r := newRig(t, nil)
	r.tls.Certificates = nil
	for _, path := range []string{"/healthz", "/pods", "/metrics", "/exec/a/b/c", "/nothing", "/stats/summary", "/logs/", "/debug/pprof/"} {
		if status, _ := r.do(t, "GET", path); status != 401 {
			t.Errorf("%s: status %d without a credential, want 401", path, status)
		}
	}
}

// upgrade asks for a stream as kube-apiserver does and returns the connection and the answer's head.
func (r *rig) upgrade(t *testing.T, path, protocol string) (net.Conn, string) {
	t.Helper()
	config := r.tls.Clone()
	config.NextProtos = []string{"http/1.1"}
	conn, err := tls.Dial("tcp", strings.TrimPrefix(r.base, "https://"), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(10 * time.Second))
	// Sent in one packet with the first bytes of the stream, which must not be lost.
	fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: n1\r\nConnection: Upgrade\r\nUpgrade: %s\r\nX-Stream-Protocol-Version: v4.channel.k8s.io\r\nAuthorization: Basic x\r\nCookie: x\r\nContent-Length: 0\r\n\r\nearly ", path, protocol)
	var head strings.Builder
	for b := make([]byte, 1); !strings.HasSuffix(head.String(), "\r\n\r\n"); {
		if _, err := io.ReadFull(conn, b); err != nil {
			t.Fatalf("read head: %v after %q", err, head.String())
		}
		head.Write(b)
	}
	return conn, head.String()
}

func TestStreams(t *testing.T) {
	r := newRig(t, nil)
	r.pods.pods = []*corev1.Pod{testPod("p", "c", "done")}
	r.pods.set("ns/p/c", Container{ID: "c1", State: Running, Tty: true, Stdin: true})
	r.pods.set("ns/p/done", Container{ID: "c2", State: Exited})
	r.pods.sandboxes["ns/p"] = "sandbox"
	for _, c := range []struct{ path, protocol, want string }{
		{"/exec/ns/p/c?command=ls&command=-l+x&input=1&output=1&error=1", "SPDY/3.1", `container_id:"c1" cmd:"ls" cmd:"-l x" stdin:true stdout:true stderr:true`},
		{"/exec/ns/p/uid-p/c?command=sh&input=1&output=1&error=1&tty=1", "websocket", `container_id:"c1" cmd:"sh" tty:true stdin:true stdout:true`},
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

// Clients that vanish, and a server that stops: nothing stays behind.
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
	for deadline := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > most; runtime.Gosched() {
		if time.Now().After(deadline) {
			buf := make([]byte, 1<<20)
			t.Fatalf("%d goroutines, want at most %d:\n%s", runtime.NumGoroutine(), most, buf[:runtime.Stack(buf, true)])
		}
	}
}

// A follower sees lines as they are written, and the end of the container.
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
	dir := r.o.RootDir
	for _, name := range []string{"kubelet.crt", "kubelet.key"} {
		if info, err := os.Stat(filepath.Join(dir, "pki", name)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v %v", name, info, err)
		}
	}
	first, err := r.TLS().GetCertificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := selfSigned(filepath.Join(dir, "pki/kubelet.crt"), filepath.Join(dir, "pki/kubelet.key"), []string{"n1"}); err != nil {
		t.Fatal(err)
	}
	pair := &keyPair{cert: filepath.Join(dir, "pki/kubelet.crt"), key: filepath.Join(dir, "pki/kubelet.key")}
	again, err := pair.get(nil)
	if err != nil || !again.Leaf.Equal(first.Leaf) {
		t.Errorf("a good certificate was replaced: %v", err)
	}
	// A rotation that is half done keeps the old pair; a whole one is taken up.
	pair.checked = time.Time{}
	if err := os.WriteFile(pair.cert, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if half, err := pair.get(nil); err != nil || !half.Leaf.Equal(first.Leaf) {
		t.Errorf("half a rotation: %v", err)
	}
	if err := selfSigned(pair.cert, pair.key, []string{"n2"}); err != nil {
		t.Fatal(err)
	}
	pair.checked = time.Time{}
	if whole, err := pair.get(nil); err != nil || whole.Leaf.DNSNames[0] != "n2" {
		t.Errorf("a rotated certificate is not used: %v", err)
	}
}

func TestTLSConfigurationIsChecked(t *testing.T) {
	o := Options{NodeName: "n", RootDir: t.TempDir(), Config: &kubeletconfigv1beta1.KubeletConfiguration{
		TLSMinVersion: "VersionTLS9", TLSCipherSuites: []string{"TLS_X"}, TLSCurvePreferences: []int32{1}, TLSCertFile: "/x",
	}}
	_, err := tlsConfig(o)
	for _, want := range []string{`tlsMinVersion: "VersionTLS9"`, `tlsCipherSuites: "TLS_X"`, "tlsCurvePreferences: 1", "give both or neither"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name %s", err, want)
		}
	}
	o.Config = &kubeletconfigv1beta1.KubeletConfiguration{TLSMinVersion: "VersionTLS13", TLSCipherSuites: []string{"TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"}}
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
	if err == nil || !strings.Contains(err.Error(), "127.0.0.1:"+port) || !strings.Contains(err.Error(), "KubeletConfiguration") {
		t.Errorf("a port in use is reported as %v", err)
	}
}

// healthzPort answers without TLS, to anybody, and nothing else.
func TestHealthzPort(t *testing.T) {
	r := newRig(t, nil)
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port, no := int32(free.Addr().(*net.TCPAddr).Port), false
	free.Close()
	r.o.Config.EnableServer, r.o.Config.HealthzPort, r.o.Config.HealthzBindAddress = &no, &port, "127.0.0.1"
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	get := func(path string) (int, string) {
		for deadline := time.Now().Add(5 * time.Second); ; runtime.Gosched() {
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
	r.pods.pods = []*corev1.Pod{testPod("p", "c", "d"), testPod("q", "c")}
	r.pods.set("ns/p/c", Container{ID: "c1", State: Running, LogPath: "/l1"})
	r.pods.set("ns/p/d", Container{ID: "c2", State: Exited, LogPath: "/l2"})
	r.pods.set("ns/q/c", Container{ID: "c3", State: Running, LogPath: "/l3"})
	want := fmt.Sprint([]podlog.Log{{Container: "c1", Path: "/l1"}, {Container: "c3", Path: "/l3"}})
	if got := fmt.Sprint(Logs(r.pods)); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	pods := StatsPods(r.pods, func(p *corev1.Pod) string { return "/kubepods/pod" + string(p.UID) }, "/root")()
	if len(pods) != 2 || pods[0].Containers[0].Group != "/kubepods/poduid-p/c1" || pods[1].VolumeDir != "/root/pods/uid-q/volumes" || len(pods[0].Containers) != 1 {
		t.Errorf("%+v", pods)
	}
}
