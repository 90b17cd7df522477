package kube

import (
	"context"
	"net/url"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/tools/metrics"
)

// ClientMetrics registers measurements of the requests of all clients of this process, under the names that upstream's
// components use. Call it once, before the first request: client-go accepts only the first registration.
func ClientMetrics(r *prometheus.Registry) {
	requests := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "rest_client_requests_total",
		Help: "Requests to the API server, by status or error, method and host"}, []string{"code", "method", "host"})
	latency := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "rest_client_request_duration_seconds",
		Help: "Seconds of a request to the API server", Buckets: []float64{0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30,
			60}}, []string{"verb", "host"})
	r.MustRegister(requests, latency)
	metrics.Register(metrics.RegisterOpts{RequestResult: requestResult{requests}, RequestLatency: requestLatency{latency}})
}

type requestResult struct{ *prometheus.CounterVec }

// Increment is part of metrics.ResultMetric.
func (m requestResult) Increment(_ context.Context, code, method, host string) {
	m.WithLabelValues(code, method, host).Inc()
}

type requestLatency struct{ *prometheus.HistogramVec }

// Observe is part of metrics.LatencyMetric.
func (m requestLatency) Observe(_ context.Context, verb string, u url.URL, took time.Duration) {
	m.WithLabelValues(verb, u.Host).Observe(took.Seconds())
}
