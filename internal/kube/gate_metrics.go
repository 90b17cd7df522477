package kube

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/plimsoll-dev/plimsoll/internal/core/throttle"
)

// The measurements of a Gate. They tell an administrator why writes to the API server are slow. Upstream has none of
// these: its clients have a fixed rate.
var (
	gateLimit = prometheus.NewDesc("plimsoll_api_writes_limit",
		"Writes to the API server that may be in flight at once; below one: the share of the time in which one may be", nil, nil)
	gateInFlight = prometheus.NewDesc("plimsoll_api_writes_in_flight",
		"Writes to the API server that are in flight", nil, nil)
	gateWaiting = prometheus.NewDesc("plimsoll_api_writes_waiting",
		"Writes to the API server that wait to be sent, by purpose", []string{"kind"}, nil)
	gateTotal = prometheus.NewDesc("plimsoll_api_writes_total",
		"Writes to the API server that have ended, by purpose and result: answered, refused (429), failed (5xx, no answer), withdrawn",
		[]string{"kind", "answer"}, nil)
)

// gateCounts is how many writes have ended, by kind and answer.
type gateCounts map[gateCount]uint64

type gateCount struct {
	kind   throttle.Kind
	answer throttle.Answer
}

// Register exposes the Gate's measurements in a registry until ctx ends.
func (g *Gate) Register(ctx context.Context, registry prometheus.Registerer) error {
	if err := registry.Register(g); err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { registry.Unregister(g) })
	return nil
}

// Describe is part of prometheus.Collector.
func (g *Gate) Describe(out chan<- *prometheus.Desc) {
	out <- gateLimit
	out <- gateInFlight
	out <- gateWaiting
	out <- gateTotal
}

// Collect is part of prometheus.Collector.
func (g *Gate) Collect(out chan<- prometheus.Metric) {
	g.mu.Lock()
	defer g.mu.Unlock()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	gauge(gateLimit, g.limiter.Limit())
	gauge(gateInFlight, float64(g.limiter.InFlight()))
	for _, k := range throttle.Kinds() {
		gauge(gateWaiting, float64(g.limiter.Waiting(k)), k.String())
	}
	for c, n := range g.ended {
		out <- prometheus.MustNewConstMetric(gateTotal, prometheus.CounterValue, float64(n),
			c.kind.String(), c.answer.String())
	}
}
