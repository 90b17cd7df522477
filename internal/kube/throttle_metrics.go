package kube

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/plimsoll-dev/plimsoll/internal/core/throttle"
)

// The measurements of a Throttle. They show administrators why writes to the API server are slow. Upstream has none of
// these: its clients have a fixed rate.
var (
	writesLimit = prometheus.NewDesc("plimsoll_api_writes_limit",
		"Writes to the API server that may be in flight at once; below one: the share of the time in which one may be", nil,
		nil)
	writesInFlight = prometheus.NewDesc("plimsoll_api_writes_in_flight",
		"Writes to the API server that are in flight", nil, nil)
	writesWaiting = prometheus.NewDesc("plimsoll_api_writes_waiting",
		"Writes to the API server that wait to be sent, by purpose", []string{"kind"}, nil)
	writesTotal = prometheus.NewDesc("plimsoll_api_writes_total",
		"Writes to the API server that have ended, by purpose and result: answered, refused (429), failed (5xx, "+
			"no answer), withdrawn",
		[]string{"kind", "answer"}, nil)
)

// writeCounts is how many writes have ended, by kind and answer.
type writeCounts map[writeCount]uint64

type writeCount struct {
	kind   throttle.Kind
	answer throttle.Answer
}

// Register exposes the Throttle's measurements in a registry until ctx ends.
func (t *Throttle) Register(ctx context.Context, registry prometheus.Registerer) error {
	if err := registry.Register(t); err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { registry.Unregister(t) })
	return nil
}

// Describe is part of prometheus.Collector.
func (t *Throttle) Describe(out chan<- *prometheus.Desc) {
	out <- writesLimit
	out <- writesInFlight
	out <- writesWaiting
	out <- writesTotal
}

// Collect is part of prometheus.Collector.
func (t *Throttle) Collect(out chan<- prometheus.Metric) {
	t.mu.Lock()
	defer t.mu.Unlock()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	gauge(writesLimit, t.limiter.Limit())
	gauge(writesInFlight, float64(t.limiter.InFlight()))
	for _, k := range throttle.Kinds() {
		gauge(writesWaiting, float64(t.limiter.Waiting(k)), k.String())
	}
	for c, n := range t.ended {
		out <- prometheus.MustNewConstMetric(writesTotal, prometheus.CounterValue, float64(n),
			c.kind.String(), c.answer.String())
	}
}
