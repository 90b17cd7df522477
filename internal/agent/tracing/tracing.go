// Package tracing sends spans about the agent's work to an OpenTelemetry collector, as the KubeletConfiguration's
// tracing says. The kubelet 1.36 has the same spans:
//
//	server     a request to the agent's server, named by its route; a child of the client's span
//	client     a request to the API server, or a call to the container runtime (CRI); it takes its span along
//	syncPod    one round of work on a pod, the parent of its calls; syncTerminatingPod while the pod is stopped
//
// A span is recorded if its parent is, else samplingRatePerMillion decides. The other side of a request decides in the
// same way, so one trace leads from a client through the API server and the agent to the runtime.
//
// Spans are sent in batches by OTLP over gRPC without TLS, and dropped when the collector cannot take them: nothing
// waits for it. A query string is in no span of the server, since it may have a command of exec. Without tracing in the
// configuration (a nil *Tracing) nothing is wrapped, so that it costs nothing.
package tracing

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/sdk/resource"
	semconv "go.opentelemetry.io/otel/semconv/v1.12.0"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	componenttracing "k8s.io/component-base/tracing"
	tracingapi "k8s.io/component-base/tracing/api/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/failurelog"
)

const (
	// serviceName is the kubelet's, since users' queries look for it.
	serviceName = "kubelet"
	// scope names the code that makes the spans about pods (the kubelet: k8s.io/kubernetes/pkg/kubelet).
	scope = "github.com/plimsoll-dev/plimsoll/internal/agent"
	// closeMax bounds how long an agent that stops waits for the collector to take its last spans. Chosen: a collector
	// that works answers in milliseconds, and a restart of the agent must not wait for one that does not.
	closeMax = time.Second
)

// Tracing makes spans and sends them. A nil one makes none.
type Tracing struct {
	provider interface {
		trace.TracerProvider
		Shutdown(context.Context) error
	}
	tracer trace.Tracer
}

// New prepares tracing for the node of that name. It does not wait for the collector. It returns nil if the
// configuration is nil.
func New(ctx context.Context, c *tracingapi.TracingConfiguration, nodeName string) (*Tracing, error) {
	if c == nil {
		return nil, nil
	}
	about := []resource.Option{resource.WithAttributes(semconv.ServiceNameKey.String(serviceName),
		semconv.HostNameKey.String(nodeName))}
	provider, err := componenttracing.NewProvider(ctx, c, []otlptracegrpc.Option{}, about)
	if err != nil {
		return nil, fmt.Errorf("read kubelet configuration: tracing: %w", err)
	}
	var failures failurelog.Log
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		failures.Failed("spans are lost", err, "help", "tracing.endpoint of the KubeletConfiguration, and its collector")
	}))
	return &Tracing{provider: provider, tracer: provider.Tracer(scope)}, nil
}

// Close sends the spans that have ended, for at most closeMax.
func (t *Tracing) Close(ctx context.Context) error {
	if t == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeMax)
	defer cancel()
	if err := t.provider.Shutdown(ctx); err != nil {
		return fmt.Errorf("send the last spans: %w", err)
	}
	return nil
}

// Handler returns next with a span for each request. The route is what http.ServeMux, further in, finds for it.
func (t *Tracing) Handler(next http.Handler) http.Handler {
	if t == nil {
		return next
	}
	routed := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r)
		if route := routeOf(r); route != "" {
			trace.SpanFromContext(r.Context()).SetAttributes(semconv.HTTPRouteKey.String(route))
		}
	})
	return otelhttp.NewHandler(routed, serviceName,
		otelhttp.WithSpanNameFormatter(func(operation string, r *http.Request) string {
			if route := routeOf(r); route != "" {
				return route
			}
			return operation
		}),
		otelhttp.WithPropagators(componenttracing.Propagators()),
		otelhttp.WithTracerProvider(t.provider),
		otelhttp.WithMeterProvider(noop.NewMeterProvider()))
}

// routeOf returns the path of the route that serves a request: of "GET /pods/{$}", /pods/{$}.
func routeOf(r *http.Request) string {
	_, path, found := strings.Cut(r.Pattern, " ")
	if !found {
		return r.Pattern
	}
	return path
}

// Requests returns next with a span for each request to the API server.
func (t *Tracing) Requests(next http.RoundTripper) http.RoundTripper {
	if t == nil {
		return next
	}
	return otelhttp.NewTransport(next,
		otelhttp.WithPropagators(componenttracing.Propagators()),
		otelhttp.WithTracerProvider(t.provider),
		otelhttp.WithMeterProvider(noop.NewMeterProvider()))
}

// RuntimeCalls returns options with which a connection to the container runtime has a span for each call.
func (t *Tracing) RuntimeCalls() []grpc.DialOption {
	if t == nil {
		return nil
	}
	handler := otelgrpc.NewClientHandler(
		otelgrpc.WithMessageEvents(otelgrpc.ReceivedEvents, otelgrpc.SentEvents),
		otelgrpc.WithPropagators(componenttracing.Propagators()),
		otelgrpc.WithTracerProvider(t.provider),
		otelgrpc.WithMeterProvider(noop.NewMeterProvider()))
	return []grpc.DialOption{grpc.WithStatsHandler(handler)}
}
