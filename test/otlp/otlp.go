// Package otlp is an OpenTelemetry collector in the process of a test. It takes spans by OTLP over gRPC, and keeps
// them.
package otlp

import (
	"context"
	"encoding/hex"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
)

// Span is a span as it was received. IDs are in hexadecimal; Parent is empty if it has none.
type Span struct {
	Name, Scope       string
	Kind              tracev1.Span_SpanKind
	Trace, ID, Parent string
	Failed            bool
	Attributes        map[string]string // those of the span that are texts
	Resource          map[string]string // likewise, of what made it
}

// Collector takes spans.
type Collector struct {
	collector.UnimplementedTraceServiceServer
	mu      sync.Mutex
	spans   []Span
	changed chan struct{} // closed when spans come
}

// Start serves a collector until the test ends. network and address are as for net.Listen; address is returned as it
// became.
func Start(t testing.TB, network, address string) (*Collector, string) {
	t.Helper()
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	c := &Collector{changed: make(chan struct{})}
	server := grpc.NewServer()
	collector.RegisterTraceServiceServer(server, c)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-ended; err != nil {
			t.Errorf("serve spans: %v", err)
		}
	})
	return c, l.Addr().String()
}

// Export takes a batch of spans.
func (c *Collector) Export(_ context.Context, r *collector.ExportTraceServiceRequest) (
	*collector.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, of := range r.ResourceSpans {
		for _, scope := range of.ScopeSpans {
			for _, s := range scope.Spans {
				c.spans = append(c.spans, Span{
					Name:       s.Name,
					Scope:      scope.Scope.GetName(),
					Kind:       s.Kind,
					Trace:      hex.EncodeToString(s.TraceId),
					ID:         hex.EncodeToString(s.SpanId),
					Parent:     hex.EncodeToString(s.ParentSpanId),
					Failed:     s.Status.GetCode() == tracev1.Status_STATUS_CODE_ERROR,
					Attributes: texts(s.Attributes),
					Resource:   texts(of.Resource.GetAttributes()),
				})
			}
		}
	}
	close(c.changed)
	c.changed = make(chan struct{})
	return &collector.ExportTraceServiceResponse{}, nil
}

func texts(list []*common.KeyValue) map[string]string {
	out := map[string]string{}
	for _, kv := range list {
		if text, ok := kv.Value.GetValue().(*common.AnyValue_StringValue); ok {
			out[kv.Key] = text.StringValue
		}
	}
	return out
}

// Spans returns the spans that have come.
func (c *Collector) Spans() []Span {
	spans, _ := c.now()
	return spans
}

func (c *Collector) now() ([]Span, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.spans), c.changed
}

// Wait waits until a span comes for which is returns true, and returns it. It fails the test after within.
func (c *Collector) Wait(t testing.TB, within time.Duration, what string, is func(Span) bool) Span {
	t.Helper()
	end := time.After(within)
	for {
		spans, changed := c.now()
		if i := slices.IndexFunc(spans, is); i >= 0 {
			return spans[i]
		}
		select {
		case <-changed:
		case <-end:
			t.Fatalf("no span of %s within %v; %d others came:\n%s", what, within, len(spans), list(spans))
		}
	}
}

// list writes the names of spans, each once.
func list(spans []Span) (out string) {
	names := map[string]bool{}
	for _, s := range spans {
		names[s.Kind.String()+" "+s.Name] = true
	}
	sorted := make([]string, 0, len(names))
	for name := range names {
		sorted = append(sorted, name)
	}
	slices.Sort(sorted)
	for _, name := range sorted {
		out += "  " + name + "\n"
	}
	return out
}
