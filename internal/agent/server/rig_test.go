package server

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
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
	"github.com/plimsoll-dev/plimsoll/internal/agent/stats"
	"github.com/plimsoll-dev/plimsoll/internal/host/cri"
)

// table has the pods of a node, in memory.
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

// streamer is a runtime whose streams only echo, at a real address.
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

func (s *streamer) Exec(_ context.Context, r *runtimeapi.ExecRequest,
	_ ...grpc.CallOption) (*runtimeapi.ExecResponse, error) {
	url, err := s.prepare(r)
	return &runtimeapi.ExecResponse{Url: url}, err
}

func (s *streamer) Attach(_ context.Context, r *runtimeapi.AttachRequest,
	_ ...grpc.CallOption) (*runtimeapi.AttachResponse, error) {
	url, err := s.prepare(r)
	return &runtimeapi.AttachResponse{Url: url}, err
}

func (s *streamer) PortForward(_ context.Context, r *runtimeapi.PortForwardRequest,
	_ ...grpc.CallOption) (*runtimeapi.PortForwardResponse, error) {
	url, err := s.prepare(r)
	return &runtimeapi.PortForwardResponse{Url: url}, err
}

func (s *streamer) ListContainers(context.Context, *runtimeapi.ListContainersRequest,
	...grpc.CallOption) (*runtimeapi.ListContainersResponse, error) {
	return &runtimeapi.ListContainersResponse{Containers: []*runtimeapi.Container{
		{Labels: map[string]string{cri.LabelPodUID: "u", cri.LabelPodName: "p", cri.LabelPodNamespace: "ns",
			cri.LabelContainerName: "b"}, Image: &runtimeapi.ImageSpec{Image: "img"}},
		{Labels: map[string]string{cri.LabelPodUID: "u", cri.LabelPodName: "p", cri.LabelPodNamespace: "ns",
			cri.LabelContainerName: "a"}},
		{},
	}}, nil
}

// CheckpointContainer writes the file, as a runtime does.
func (s *streamer) CheckpointContainer(_ context.Context, r *runtimeapi.CheckpointContainerRequest,
	_ ...grpc.CallOption) (*runtimeapi.CheckpointContainerResponse, error) {
	if _, err := s.prepare(r); err != nil {
		return nil, err
	}
	return &runtimeapi.CheckpointContainerResponse{}, os.WriteFile(r.Location, []byte(r.ContainerId), 0o600)
}

// echo serves streams as a runtime does: it switches protocols, sends the request that it got, and then returns every
// byte.
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
		fmt.Fprintf(buffered, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n%s %s %s\n",
			r.Header.Get("Upgrade"), r.Method, r.URL.Path, r.Header.Get("X-Stream-Protocol-Version"))
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
		Node: statsapi.NodeStats{NodeName: "n1", CPU: &statsapi.CPUStats{Time: at, UsageCoreNanoSeconds: n(1_500_000_000)},
			Memory: &statsapi.MemoryStats{Time: at, WorkingSetBytes: n(4096)}},
		Pods: []statsapi.PodStats{{
			PodRef: statsapi.PodReference{Name: "p", Namespace: "ns"}, CPU: &statsapi.CPUStats{Time: at,
				UsageCoreNanoSeconds: n(1e9)},
			Containers: []statsapi.ContainerStats{{Name: "c", StartTime: at, CPU: &statsapi.CPUStats{Time: at,
				UsageCoreNanoSeconds: n(5e8)}, Memory: &statsapi.MemoryStats{Time: at, WorkingSetBytes: n(10), UsageBytes: n(20)}}},
		}},
	}
	if parts&stats.Network != 0 {
		s.Pods[0].Network = &statsapi.NetworkStats{Time: at, Interfaces: []statsapi.InterfaceStats{{Name: "eth0",
			RxBytes: n(7), TxBytes: n(8)}}}
	}
	if parts&stats.Swap != 0 {
		s.Pods[0].Swap = &statsapi.SwapStats{Time: at, SwapUsageBytes: n(3)}
		s.Pods[0].Containers[0].Swap = &statsapi.SwapStats{Time: at, SwapUsageBytes: n(3), SwapAvailableBytes: n(4)}
	}
	return s, f.err
}

// fixedCgroups are metrics of cgroups.
type fixedCgroups struct{}

func (fixedCgroups) Write(_ context.Context, w io.Writer) error {
	_, err := io.WriteString(w, "container_cpu_usage_seconds_total{container=\"c\"} 1\n")
	return err
}

// rig is a server on a real TLS listener with a client CA, and a client whose certificate is signed by that CA.
type rig struct {
	*Server
	client *http.Client
	tls    *tls.Config
	base   string
	pods   *table
	stream *streamer
	logs   string
	level  atomic.Int64 // as set by a request
	stop   context.CancelFunc
	done   chan error
}

func newRig(t *testing.T, change func(*Options)) *rig {
	t.Helper()
	dir := t.TempDir()
	caCert, caKey := makeCert(t, pkix.Name{CommonName: "ca"}, nil, nil)
	caFile := filepath.Join(dir, "ca.crt")
	if err := os.WriteFile(caFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: caCert.Raw}),
		0o600); err != nil {
		t.Fatal(err)
	}
	r := &rig{pods: &table{sandboxes: map[string]string{}, containers: map[string]Container{}},
		stream: &streamer{url: echo(t) + "/exec/token"}, logs: filepath.Join(dir, "logs")}
	o := Options{
		Config: &kubeletconfigv1beta1.KubeletConfiguration{
			PodLogsDir: r.logs,
			Authentication: kubeletconfigv1beta1.KubeletAuthentication{
				X509: kubeletconfigv1beta1.KubeletX509Authentication{ClientCAFile: caFile},
			},
			Authorization: kubeletconfigv1beta1.KubeletAuthorization{
				Mode: kubeletconfigv1beta1.KubeletAuthorizationModeAlwaysAllow,
			},
		},
		NodeName: "n1", Names: []string{"127.0.0.1"}, CertDir: filepath.Join(dir,
			"pki"), Pods: r.pods, Runtime: r.stream, Stats: fixedStats{}, Cgroups: fixedCgroups{}, Metrics: metrics.New("n1"),
		LogDir:       dir,
		RootDir:      filepath.Join(dir, "root"),
		Flags:        map[string]string{"v": "2", "node-ip": "192.0.2.1"},
		SetVerbosity: func(n int) { r.level.Store(int64(n)) },
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
	r.base = "https://" + listener.Addr().String()
	r.stop = cancel
	r.done = make(chan error, 1)
	go func() { r.done <- r.Serve(ctx, listener); close(r.done) }()
	t.Cleanup(func() { cancel(); <-r.done })

	leaf, key := makeCert(t, pkix.Name{CommonName: "admin", Organization: []string{"system:masters"}}, caCert, caKey)
	roots := x509.NewCertPool()
	self, err := os.ReadFile(filepath.Join(dir, "pki", "kubelet.crt"))
	if err != nil || !roots.AppendCertsFromPEM(self) {
		t.Fatalf("self-signed certificate: %v", err)
	}
	r.tls = &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{{Certificate: [][]byte{leaf.Raw},
		PrivateKey: key}}}
	r.client = &http.Client{Transport: &http.Transport{TLSClientConfig: r.tls, ForceAttemptHTTP2: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	t.Cleanup(r.client.CloseIdleConnections)
	return r
}

func makeCert(t *testing.T, subject pkix.Name, parent *x509.Certificate,
	parentKey *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: subject, NotBefore: time.Now().Add(-time.Hour),
		NotAfter:    time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if parent == nil {
		parent, parentKey = template, key
		template.IsCA = true
		template.BasicConstraintsValid = true
		template.KeyUsage = x509.KeyUsageCertSign
		template.ExtKeyUsage = nil
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
	if err := errors.Join(os.MkdirAll(filepath.Dir(c.LogPath), 0o755), os.WriteFile(c.LogPath, []byte(text),
		0o644)); err != nil {
		t.Fatal(err)
	}
	r.pods.set(key, c)
}

func entry(second int, text string) string {
	return fmt.Sprintf("2026-11-20T10:00:%02d.000000001Z stdout F %s\n", second, text)
}

// upgrade requests a stream as kube-apiserver does, and returns the connection and the header of the answer.
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
	fmt.Fprintf(conn,
		"POST %s HTTP/1.1\r\nHost: n1\r\nConnection: Upgrade\r\nUpgrade: %s\r\n"+
			"X-Stream-Protocol-Version: v4.channel.k8s.io\r\nAuthorization: Basic x\r\nCookie: x\r\nContent-Length: 0\r\n\r\n"+
			"early ", path, protocol)
	var head strings.Builder
	for b := make([]byte, 1); !strings.HasSuffix(head.String(), "\r\n\r\n"); {
		if _, err := io.ReadFull(conn, b); err != nil {
			t.Fatalf("read head: %v after %q", err, head.String())
		}
		head.Write(b)
	}
	return conn, head.String()
}
