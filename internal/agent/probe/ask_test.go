package probe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/probe"
	"github.com/plimsoll-dev/plimsoll/internal/host/cri"
)

// check compares an answer with "ok", "warning", "fails: <part of output>" or "none: <part of error>".
func check(t *testing.T, what string, a answer, want string) {
	t.Helper()
	got := "ok"
	switch {
	case a.err != nil:
		got = "none: " + a.err.Error()
	case a.outcome == probe.Failure:
		got = "fails: " + a.output
	case a.warning:
		got = "warning: " + a.output
	}
	if kind, part, _ := strings.Cut(want, ": "); !strings.HasPrefix(got, kind) || !strings.Contains(got, part) {
		t.Errorf("%s: %q, want %q", what, got, want)
	}
}

func portOfURL(t *testing.T, address string) int {
	t.Helper()
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestHTTP(t *testing.T) {
	release := make(chan struct{})
	handler := probedHandler(release)
	plain := httptest.NewServer(handler)
	defer plain.Close()
	secure := httptest.NewTLSServer(handler)
	defer secure.Close()
	defer close(release)
	port := portOfURL(t, plain.Listener.Addr().String())
	c := &corev1.Container{Name: "c", Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: int32(port)}}}
	for _, x := range []struct {
		action corev1.HTTPGetAction
		want   string
	}{
		{corev1.HTTPGetAction{Path: "/code/200", Port: intstr.FromInt(port)}, "ok"},
		{corev1.HTTPGetAction{Path: "code/200", Port: intstr.FromString("web")}, "ok"},
		{corev1.HTTPGetAction{Path: "/code/200", Port: intstr.FromString("none")},
			`none: port "none": container c has no port of that name`},
		{corev1.HTTPGetAction{Path: "/code/500", Port: intstr.FromInt(port)},
			"fails: HTTP probe failed with statuscode: 500"},
		{corev1.HTTPGetAction{Path: "/echo?q=1", Port: intstr.FromInt(port), HTTPHeaders: []corev1.HTTPHeader{{Name: "Host",
			Value: "example.com"}, {Name: "X-A", Value: "1"}}}, "ok"},
		{corev1.HTTPGetAction{Path: "/here", Port: intstr.FromInt(port)}, "ok"},
		{corev1.HTTPGetAction{Path: "/away", Port: intstr.FromInt(port)}, "warning: Probe terminated redirects"},
		{corev1.HTTPGetAction{Path: "/slow", Port: intstr.FromInt(port)}, "fails: Client.Timeout exceeded"},
		{corev1.HTTPGetAction{Path: "/big", Port: intstr.FromInt(port)}, "ok"},
		{corev1.HTTPGetAction{Path: "/headers/200", Port: intstr.FromInt(port)}, "ok"},
		{corev1.HTTPGetAction{Path: "/headers/300", Port: intstr.FromInt(port)}, "fails: server response headers exceeded"},
		{corev1.HTTPGetAction{Path: "/code/200", Port: intstr.FromInt(portOfURL(t, secure.Listener.Addr().String())),
			Scheme: "HTTPS"}, "ok"},
		{corev1.HTTPGetAction{Path: "/code/200", Port: intstr.FromInt(port), Scheme: "HTTPS"},
			"fails: server gave HTTP response to HTTPS client"},
		{corev1.HTTPGetAction{Path: "/code/200", Port: intstr.FromInt(1)}, "fails: connection refused"},
		{corev1.HTTPGetAction{Path: "/%zz", Port: intstr.FromInt(port)}, "fails: 404"},
		{corev1.HTTPGetAction{Path: "/", Port: intstr.FromInt(0)}, "none: invalid port number: 0"},
	} {
		timeout := 30 * time.Second // long enough not to matter, except for the case that must reach it
		if x.action.Path == "/slow" {
			timeout = 100 * time.Millisecond
		}
		a := askHTTP(context.Background(), &x.action, c, "127.0.0.1", timeout)
		check(t, x.action.String(), a, x.want)
		if strings.Contains(a.output, "a secret") {
			t.Errorf("the body is repeated: %q", a.output)
		}
	}
}

// probedHandler answers probes; those of /slow when release is closed.
func probedHandler(release <-chan struct{}) http.Handler {
	handler := http.NewServeMux()
	handler.HandleFunc("/code/{code}", func(w http.ResponseWriter, r *http.Request) {
		if r.PathValue("code") == "500" {
			w.WriteHeader(500)
			fmt.Fprint(w, "a secret")
		}
	})
	handler.HandleFunc("/echo", func(w http.ResponseWriter, r *http.Request) {
		if r.Host != "example.com" || r.Header.Get("X-A") != "1" || r.Header.Get("User-Agent") != "kube-probe/1.36" ||
			r.URL.RawQuery != "q=1" {
			w.WriteHeader(400)
		}
	})
	handler.HandleFunc("/here", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "/code/200", http.StatusFound)
	})
	handler.HandleFunc("/away", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://192.0.2.1/", http.StatusFound)
	})
	handler.HandleFunc("/slow", func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
	})
	handler.HandleFunc("/big", func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, strings.Repeat("x", 1<<20)) })
	handler.HandleFunc("/headers/{kib}", func(w http.ResponseWriter, r *http.Request) {
		kib, _ := strconv.Atoi(r.PathValue("kib"))
		for n := range kib {
			w.Header().Add("X-Long-"+strconv.Itoa(n), strings.Repeat("x", 1<<10))
		}
	})
	return handler
}

func TestTCP(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := portOfURL(t, listener.Addr().String())
	ask := func() answer {
		return askTCP(context.Background(), &corev1.TCPSocketAction{Port: intstr.FromInt(port)}, &corev1.Container{},
			"127.0.0.1", 30*time.Second)
	}
	check(t, "open", ask(), "ok")
	listener.Close()
	check(t, "closed", ask(), "fails: connection refused")
}

func TestGRPC(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server, checks := grpc.NewServer(), health.NewServer()
	grpc_health_v1.RegisterHealthServer(server, checks)
	checks.SetServingStatus("up", grpc_health_v1.HealthCheckResponse_SERVING)
	checks.SetServingStatus("down", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	go server.Serve(listener)
	defer server.Stop()
	none, err := net.Listen("tcp", "127.0.0.1:0") // accepts connections and never answers
	if err != nil {
		t.Fatal(err)
	}
	defer none.Close()
	bare, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	other := grpc.NewServer()
	go other.Serve(bare)
	defer other.Stop()
	for _, x := range []struct {
		address net.Addr
		service string
		want    string
	}{
		{listener.Addr(), "", "ok"}, {listener.Addr(), "up", "ok"},
		{listener.Addr(), "down", `fails: service unhealthy (responded with "NOT_SERVING")`},
		{listener.Addr(), "unknown", "fails: error: health rpc probe failed"},
		{bare.Addr(), "", "fails: error: this server does not implement the grpc health protocol"},
		{none.Addr(), "", "fails: timeout: failed to connect service"},
		{&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1}, "", "fails: error: failed to connect service at"},
	} {
		timeout := 30 * time.Second
		if x.address == none.Addr() {
			timeout = 100 * time.Millisecond
		}
		a := askGRPC(context.Background(), &corev1.GRPCAction{Port: int32(portOfURL(t, x.address.String())),
			Service: &x.service}, "127.0.0.1", timeout)
		check(t, fmt.Sprint(x.address, x.service), a, x.want)
	}
}

// execs answers ExecSync.
type execs func(ctx context.Context, in *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error)

func (e execs) ExecSync(ctx context.Context, in *runtimeapi.ExecSyncRequest,
	_ ...grpc.CallOption) (*runtimeapi.ExecSyncResponse, error) {
	return e(ctx, in)
}

// saving records how much of a command's output it is asked to keep.
type saving struct{ kept int }

func (s *saving) ExecSync(_ context.Context, _ *runtimeapi.ExecSyncRequest,
	options ...grpc.CallOption) (*runtimeapi.ExecSyncResponse, error) {
	s.kept = cri.KeptOutput(options)
	return &runtimeapi.ExecSyncResponse{}, nil
}

// TestLittleOutputIsKept: no more of a command's output is kept than fits an Event.
func TestLittleOutputIsKept(t *testing.T) {
	s := &saving{kept: -1}
	if a := askExec(t.Context(), s, "id", []string{"x"}, time.Second); a.err != nil || s.kept != outputMax {
		t.Errorf("%d bytes of each output are kept, want %d; %v", s.kept, outputMax, a.err)
	}
}

func TestExec(t *testing.T) {
	var got *runtimeapi.ExecSyncRequest
	for _, x := range []struct {
		response *runtimeapi.ExecSyncResponse
		err      error
		want     string
	}{
		{&runtimeapi.ExecSyncResponse{}, nil, "ok"},
		{&runtimeapi.ExecSyncResponse{ExitCode: 3, Stdout: []byte("out "), Stderr: []byte("err")}, nil, "fails: out err"},
		{nil, status.Error(codes.DeadlineExceeded, "timeout 1s exceeded"),
			`fails: command timed out: "sh -c 1" timed out after 1.5s`},
		{nil, errors.New("no such container"), "none: no such container"},
	} {
		command, err := staticCommand([]string{"sh", "-c", "$(A)"}, []corev1.EnvVar{{Name: "A", Value: "1"}})
		if err != nil {
			t.Fatal(err)
		}
		a := askExec(context.Background(), execs(func(_ context.Context,
			in *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error) {
			got = in
			return x.response, x.err
		}), "id1", command, 1500*time.Millisecond)
		check(t, fmt.Sprint(x.response, x.err), a, x.want)
	}
	if got.ContainerId != "id1" || got.Timeout != 2 {
		t.Errorf("request %v", got)
	}
	if _, err := staticCommand([]string{strings.Repeat("$(A)", 10_000)},
		[]corev1.EnvVar{{Name: "A", Value: strings.Repeat("x", 10_000)}}); err == nil {
		t.Error("a command of 100 MB is built")
	}
	// A runtime that hangs is not the container's failure.
	hung, cancel := context.WithCancel(context.Background())
	cancel()
	a := askExec(hung, execs(func(ctx context.Context, _ *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse,
		error) {
		return nil, status.FromContextError(ctx.Err()).Err()
	}), "id1", []string{"x"}, time.Second)
	check(t, "hung runtime", a, "none: ")
}
