package tracing

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	tracingapi "k8s.io/component-base/tracing/api/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/host/cri"
	"github.com/plimsoll-dev/plimsoll/test/otlp"
)

// rig is tracing, and the collector that gets its spans when close was called.
type rig struct {
	*Tracing
	collector *otlp.Collector
}

func traced(t *testing.T, network string, rate int32) *rig {
	t.Helper()
	address := "127.0.0.1:0"
	if network == "unix" {
		address = filepath.Join(t.TempDir(), "s")
	}
	collector, endpoint := otlp.Start(t, network, address)
	if network == "unix" {
		endpoint = "unix://" + endpoint
	}
	tracing, err := New(t.Context(), &tracingapi.TracingConfiguration{Endpoint: &endpoint, SamplingRatePerMillion: &rate},
		"node-1")
	if err != nil {
		t.Fatal(err)
	}
	return &rig{tracing, collector}
}

// close ends the tracing and returns its spans by name.
func (r *rig) close(t *testing.T) map[string]otlp.Span {
	t.Helper()
	if err := r.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	named := map[string]otlp.Span{}
	for _, s := range r.collector.Spans() {
		if s.Resource["service.name"] != "kubelet" || s.Resource["host.name"] != "node-1" {
			t.Errorf("span %s is of %v, want the kubelet of node-1", s.Name, s.Resource)
		}
		if _, twice := named[s.Name]; twice {
			t.Errorf("two spans %s", s.Name)
		}
		named[s.Name] = s
	}
	return named
}

const (
	parentTrace = "4bf92f3577b34da6a3ce929d0e0e4736"
	parentSpan  = "00f067aa0ba902b7"
)

// TestServer: a request has a span with the name of its route, below the client's span if there is one. If the client's
// span is not recorded, this one is not either. The query string, which may have a command, is nowhere.
func TestServer(t *testing.T) {
	for name, c := range map[string]struct {
		rate    int32
		parent  string // header traceparent
		network string
		spans   bool
	}{
		"all":              {1_000_000, "", "tcp", true},
		"none":             {0, "", "tcp", false},
		"recorded parent":  {0, "00-" + parentTrace + "-" + parentSpan + "-01", "unix", true},
		"parent apart":     {1_000_000, "00-" + parentTrace + "-" + parentSpan + "-00", "unix", false},
		"malformed parent": {1_000_000, "00-zz-" + parentSpan + "-01", "tcp", true},
	} {
		t.Run(name, func(t *testing.T) {
			r := traced(t, c.network, c.rate)
			mux := http.NewServeMux()
			mux.HandleFunc("POST /exec/{pod}/{container}", func(w http.ResponseWriter, r *http.Request) {
				conn, _, err := http.NewResponseController(w).Hijack()
				if err != nil {
					http.Error(w, err.Error(), http.StatusInternalServerError)
					return
				}
				_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\n\r\n")
				_ = conn.Close()
			})
			mux.HandleFunc("GET /pods", func(w http.ResponseWriter, r *http.Request) {
				control := http.NewResponseController(w)
				if err := errors.Join(control.SetWriteDeadline(time.Now().Add(time.Hour)), control.Flush()); err != nil {
					t.Error(err)
				}
			})
			// Close does not wait for a handler that has hijacked its connection, and a span ends with its handler.
			var handlers sync.WaitGroup
			handler := r.Handler(mux)
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				handlers.Add(1)
				defer handlers.Done()
				handler.ServeHTTP(w, r)
			}))
			defer server.Close()
			for path, want := range map[string]int{"POST /exec/p/c?command=s3cret": 101, "GET /pods": 200,
				"GET /no": 404} {
				method, target, _ := strings.Cut(path, " ")
				request, err := http.NewRequestWithContext(t.Context(), method, server.URL+target, nil)
				if err != nil {
					t.Fatal(err)
				}
				request.Header.Set("Traceparent", c.parent)
				answer, err := http.DefaultTransport.RoundTrip(request)
				if err != nil {
					t.Fatal(err)
				}
				if _ = answer.Body.Close(); answer.StatusCode != want {
					t.Errorf("%s: %s, want %d", path, answer.Status, want)
				}
			}
			server.Close()
			handlers.Wait()
			spans := r.close(t)
			if !c.spans {
				if len(spans) > 0 {
					t.Errorf("got spans: %v", spans)
				}
				return
			}
			for _, name := range []string{"/exec/{pod}/{container}", "/pods", "kubelet"} {
				s, ok := spans[name]
				if !ok || s.Kind != tracev1.Span_SPAN_KIND_SERVER {
					t.Errorf("no span %s of a server in %v", name, spans)
				}
				if route := s.Attributes["http.route"]; name != "kubelet" && route != name {
					t.Errorf("%s: route %q", name, route)
				}
				if below := s.Trace == parentTrace && s.Parent == parentSpan; below != (c.rate == 0) {
					t.Errorf("%s: trace %s, parent %q", name, s.Trace, s.Parent)
				}
				for key, value := range s.Attributes {
					if strings.Contains(value, "s3cret") {
						t.Errorf("%s: %s has the query: %s", name, key, value)
					}
				}
			}
		})
	}
}

// runtime is a container runtime that notes whose child a call is.
type runtime struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	parents chan []string
}

func (r runtime) Version(ctx context.Context, _ *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	head, _ := metadata.FromIncomingContext(ctx)
	r.parents <- head.Get("traceparent")
	return &runtimeapi.VersionResponse{RuntimeApiVersion: "v1"}, nil
}

// TestPod: calls to the runtime, also those that go on when their pod must stop, and requests to the API server are
// below the span of the pod, and take their own span along.
func TestPod(t *testing.T) {
	r := traced(t, "tcp", 1_000_000)
	socket := filepath.Join(t.TempDir(), "cri")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	node := runtime{parents: make(chan []string, 2)}
	server := grpc.NewServer()
	runtimeapi.RegisterRuntimeServiceServer(server, node)
	go func() { _ = server.Serve(l) }()
	defer server.Stop()
	client, err := cri.Dial(socket, r.RuntimeCalls()...)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	}()
	api := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		node.parents <- r.Header["Traceparent"]
	}))
	defer api.Close()

	ctx, end := r.SyncPod(t.Context(), Pod{Namespace: "ns", Name: "p", UID: "u1"})
	if _, err := client.Handshake(context.WithoutCancel(ctx)); err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, api.URL+"/api/v1/pods", nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := r.Requests(http.DefaultTransport).RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
	_, endStop := r.SyncPod(t.Context(), Pod{Namespace: "ns", Name: "p", UID: "u1", Stops: true})
	endStop()
	end()

	spans := r.close(t)
	pod := spans["syncPod"]
	for key, want := range map[string]string{"k8s.pod": "ns/p", "k8s.pod.name": "p", "k8s.namespace.name": "ns",
		"k8s.pod.uid": "u1"} {
		if pod.Attributes[key] != want {
			t.Errorf("syncPod: %s %q, want %q", key, pod.Attributes[key], want)
		}
	}
	if s, ok := spans["syncTerminatingPod"]; !ok || s.Trace == pod.Trace {
		t.Errorf("the stop has no trace of its own: %v", spans)
	}
	for _, name := range []string{"runtime.v1.RuntimeService/Version", "HTTP GET"} {
		s := spans[name]
		if s.Kind != tracev1.Span_SPAN_KIND_CLIENT || s.Trace != pod.Trace || s.Parent != pod.ID {
			t.Errorf("%s: %+v is not a client's below %+v", name, s, pod)
		}
		if got, want := strings.Join(<-node.parents, ","), "00-"+s.Trace+"-"+s.ID+"-01"; got != want {
			t.Errorf("%s took %q along, want %q", name, got, want)
		}
	}
}

// TestOff: without tracing in the configuration nothing is wrapped.
func TestOff(t *testing.T) {
	off, err := New(t.Context(), nil, "node-1")
	if err != nil || off != nil {
		t.Fatal(off, err)
	}
	mux := http.NewServeMux()
	if off.Handler(mux) != http.Handler(mux) || off.Requests(http.DefaultTransport) != http.DefaultTransport ||
		off.RuntimeCalls() != nil {
		t.Error("something is wrapped")
	}
	ctx, end := off.SyncPod(t.Context(), Pod{})
	end()
	if trace.SpanContextFromContext(ctx).IsValid() {
		t.Error("there is a span")
	}
	if err := off.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// lines gets what is logged.
type lines chan string

func (l lines) Write(line []byte) (int, error) {
	select {
	case l <- string(line):
	default:
	}
	return len(line), nil
}

// TestNoCollector: without a collector work goes on. A log tells what is lost and what to do, and the end does not wait
// for the collector.
func TestNoCollector(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "100") // ms for a batch, in place of 10 s
	logged := make(lines, 1)
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(logged, nil)))
	t.Cleanup(func() { slog.SetDefault(before) })
	socket := filepath.Join(t.TempDir(), "nobody")
	endpoint, rate := "unix://"+socket, int32(1_000_000)
	tracing, err := New(t.Context(), &tracingapi.TracingConfiguration{Endpoint: &endpoint, SamplingRatePerMillion: &rate},
		"node-1")
	if err != nil {
		t.Fatal(err)
	}
	for range 10_000 { // more than are kept
		_, end := tracing.SyncPod(t.Context(), Pod{Name: "p"})
		end()
	}
	line := <-logged
	for _, want := range []string{"spans are lost", socket, "tracing.endpoint of the KubeletConfiguration"} {
		if !strings.Contains(line, want) {
			t.Errorf("the log says %s, want %s", line, want)
		}
	}
	_ = tracing.Close(t.Context()) // whether spans are left is chance
	t.Setenv("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "3600000")
	if tracing, err = New(t.Context(), &tracingapi.TracingConfiguration{Endpoint: &endpoint,
		SamplingRatePerMillion: &rate}, "node-1"); err != nil {
		t.Fatal(err)
	}
	_, end := tracing.SyncPod(t.Context(), Pod{Name: "p"})
	end()
	began := time.Now()
	if err := tracing.Close(t.Context()); err == nil || !strings.Contains(err.Error(), "last spans") {
		t.Errorf("Close returned %v", err)
	}
	if took := time.Since(began); took > time.Minute {
		t.Errorf("Close took %v", took)
	}
}
