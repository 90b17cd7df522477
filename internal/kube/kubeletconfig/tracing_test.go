package kubeletconfig

import (
	"fmt"
	"testing"

	validationfield "k8s.io/apimachinery/pkg/util/validation/field"
	tracingapi "k8s.io/component-base/tracing/api/v1"
)

// TestTracing: what the kubelet accepts of tracing is accepted, and nothing else.
func TestTracing(t *testing.T) {
	for _, endpoint := range []string{"", "localhost:4317", "collector", "[::1]:4317", "dns:///collector:4317",
		"dns://8.8.8.8/collector:4317", "unix:///run/otel.sock", "unix://otel.sock", "unix-abstract://otel",
		"http://collector:4317", "https://collector", "dn%2s://collector:4317", "//collector", "host:port:port", "a b"} {
		for _, rate := range []int32{-1, 0, 1, 1_000_000, 1_000_001} {
			upstream := tracingapi.ValidateTracingConfiguration(
				&tracingapi.TracingConfiguration{Endpoint: &endpoint, SamplingRatePerMillion: &rate}, nil,
				validationfield.NewPath("tracing"))
			text := head + "tracing: {endpoint: %q, samplingRatePerMillion: %d}\n"
			_, _, err := Parse(fmt.Appendf(nil, text, endpoint, rate), "/")
			if (err == nil) != (len(upstream) == 0) {
				t.Errorf("endpoint %q, rate %d: %v; upstream: %v", endpoint, rate, err, upstream)
			}
		}
	}
}
