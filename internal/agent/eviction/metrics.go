package eviction

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/plimsoll-dev/plimsoll/internal/core/allocatable"
	"github.com/plimsoll-dev/plimsoll/internal/core/eviction"
)

// checkBuckets are for the duration of a check, in seconds: 0.05 ms to 1.6 s, doubling. Chosen: a check takes about
// 0.1 ms.
var checkBuckets = prometheus.ExponentialBuckets(0.00005, 2, 16)

// counts are the Guard's measurements that the kubelet does not have. What the last check has seen is collected when
// somebody asks.
type counts struct {
	g                              *Guard
	checks, reaction               *prometheus.HistogramVec
	quick, full                    prometheus.Observer // of checks: those that read signals only, and pods too
	available, capacity, threshold *prometheus.Desc
	pressure                       *prometheus.Desc
}

func newCounts(g *Guard) *counts {
	checks := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "plimsoll_eviction_check_duration_seconds",
		Help:    "Seconds of a check of the eviction signals, by what it read: signals only, or pods too",
		Buckets: checkBuckets,
	}, []string{"read"})
	c := &counts{
		g:      g,
		checks: checks,
		quick:  checks.WithLabelValues("signals"),
		full:   checks.WithLabelValues("pods"),
		reaction: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "plimsoll_eviction_reaction_seconds",
			Help:    "Seconds from the beginning of a check until SIGKILL was sent to its victim's cgroup, by signal",
			Buckets: checkBuckets,
		}, []string{"eviction_signal"}),
		available: prometheus.NewDesc("plimsoll_eviction_signal_available",
			"What the node has left, as the last check read it, in bytes, inodes or process ids",
			[]string{"eviction_signal"}, nil),
		capacity: prometheus.NewDesc("plimsoll_eviction_signal_capacity",
			"What the node has in all of what a signal measures, in bytes, inodes or process ids",
			[]string{"eviction_signal"}, nil),
		threshold: prometheus.NewDesc("plimsoll_eviction_threshold",
			"The highest hard and the highest soft threshold of a signal, in its unit", []string{"eviction_signal", "kind"},
			nil),
		pressure: prometheus.NewDesc("plimsoll_node_pressure",
			"1: the agent reports this condition; 0: it does not", []string{"condition"}, nil),
	}
	for _, cause := range causes(g.o.Config) { // from zero, so that the first eviction is an increase
		g.o.Metrics.Evictions.WithLabelValues(cause)
		c.reaction.WithLabelValues(cause)
	}
	return c
}

// causes are for what the node can evict.
func causes(c eviction.Config) (all []string) {
	for _, t := range c.Thresholds {
		all = append(all, string(t.Signal))
	}
	if c.LocalStorage {
		all = append(all, string(eviction.CauseEmptyDir), string(eviction.CausePodStorage),
			string(eviction.CauseContainerStorage))
	}
	return all
}

// Measurements returns what the Guard measures beside the fields of Options.Metrics.
func (g *Guard) Measurements() prometheus.Collector { return g.counts }

// Describe implements prometheus.Collector.
func (c *counts) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.available, c.capacity, c.threshold, c.pressure} {
		out <- d
	}
	c.checks.Describe(out)
	c.reaction.Describe(out)
}

// Collect implements prometheus.Collector.
func (c *counts) Collect(out chan<- prometheus.Metric) {
	c.checks.Collect(out)
	c.reaction.Collect(out)
	c.g.mu.Lock()
	seen, now := c.g.seen, c.g.conditions // neither is changed in place
	c.g.mu.Unlock()
	gauge := func(d *prometheus.Desc, v int64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), labels...)
	}
	for signal, o := range seen {
		gauge(c.available, o.Available, string(signal))
		gauge(c.capacity, o.Capacity, string(signal))
	}
	for of, v := range highest(c.g.o.Config.Thresholds, seen) {
		gauge(c.threshold, v, string(of.signal), of.kind)
	}
	for _, condition := range []eviction.Condition{eviction.MemoryPressure, eviction.DiskPressure, eviction.PIDPressure} {
		var is int64
		if slices.Contains(now, condition) {
			is = 1
		}
		gauge(c.pressure, is, string(condition))
	}
}

// kindOf is a signal and the kind of its thresholds: hard or soft.
type kindOf struct {
	signal allocatable.Signal
	kind   string
}

// highest returns the highest threshold of each kind, of the signals that were read.
func highest(all []eviction.Threshold, seen map[allocatable.Signal]eviction.Observation) map[kindOf]int64 {
	out := map[kindOf]int64{}
	for _, t := range all {
		o, read := seen[t.Signal]
		if !read {
			continue
		}
		of := kindOf{t.Signal, "soft"}
		if t.IsHard() {
			of.kind = "hard"
		}
		out[of] = max(out[of], t.Value.Of(o.Capacity))
	}
	return out
}
