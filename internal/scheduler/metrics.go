package scheduler

import (
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// Metrics are the scheduler's own measurements, under upstream's names, so that existing dashboards and alerts read them.
// What upstream measures of its plugins, its queueing hints and its goroutines has no counterpart here.
type Metrics struct {
	Registry *prometheus.Registry

	attempts     *prometheus.CounterVec   // by result, profile
	attemptTime  *prometheus.HistogramVec // likewise; decision and bind
	decisionTime prometheus.Histogram
	tries        prometheus.Histogram     // per placed pod
	untilPlaced  *prometheus.HistogramVec // by tries
	preemptions  prometheus.Counter
	victims      prometheus.Histogram

	mu      sync.Mutex
	ask     func() (census, bool) // nil: nobody schedules here
	pending *prometheus.Desc
	cache   *prometheus.Desc
}

// census is what the mind holds at one moment.
type census struct {
	pending              map[string]int
	nodes, pods, assumed int
}

// Results of an attempt, as upstream spells them.
const (
	resultScheduled     = "scheduled"
	resultUnschedulable = "unschedulable"
	resultError         = "error"
)

// NewMetrics returns a set with a registry of its own. Buckets are upstream's, but for decisions, which are shorter.
func NewMetrics() *Metrics {
	const subsystem = "scheduler"
	name := func(n string) string { return prometheus.BuildFQName("", subsystem, n) }
	m := &Metrics{
		Registry: prometheus.NewRegistry(),
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{Subsystem: subsystem, Name: "schedule_attempts_total",
			Help: "Attempts to place a pod: scheduled, unschedulable (it fits nowhere) or error (its bind failed)"}, []string{"result", "profile"}),
		attemptTime: prometheus.NewHistogramVec(prometheus.HistogramOpts{Subsystem: subsystem, Name: "scheduling_attempt_duration_seconds",
			Help: "Seconds of an attempt: the decision and, if there is one, the bind", Buckets: prometheus.ExponentialBuckets(0.001, 2, 15)}, []string{"result", "profile"}),
		decisionTime: prometheus.NewHistogram(prometheus.HistogramOpts{Subsystem: subsystem, Name: "scheduling_algorithm_duration_seconds",
			Help: "Seconds of a decision", Buckets: append(prometheus.ExponentialBuckets(0.000004, 4, 4), prometheus.ExponentialBuckets(0.001, 2, 15)...)}),
		tries: prometheus.NewHistogram(prometheus.HistogramOpts{Subsystem: subsystem, Name: "pod_scheduling_attempts",
			Help: "Attempts that it took to place a pod", Buckets: prometheus.ExponentialBuckets(1, 2, 5)}),
		untilPlaced: prometheus.NewHistogramVec(prometheus.HistogramOpts{Subsystem: subsystem, Name: "pod_scheduling_sli_duration_seconds",
			Help: "Seconds from when a pod was first seen pending until it was bound", Buckets: prometheus.ExponentialBuckets(0.01, 2, 20)}, []string{"attempts"}),
		preemptions: prometheus.NewCounter(prometheus.CounterOpts{Subsystem: subsystem, Name: "preemption_attempts_total",
			Help: "Attempts to make room for a pod by eviction"}),
		victims: prometheus.NewHistogram(prometheus.HistogramOpts{Subsystem: subsystem, Name: "preemption_victims",
			Help: "Pods evicted to make room for one", Buckets: prometheus.ExponentialBuckets(1, 2, 7)}),
		pending: prometheus.NewDesc(name("pending_pods"), "Pending pods by queue: active, backoff, unschedulable or gated", []string{"queue"}, nil),
		cache:   prometheus.NewDesc(name("cache_size"), "What is counted: nodes, pods on them, and of these the assumed ones", []string{"type"}, nil),
	}
	m.Registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		m.attempts, m.attemptTime, m.decisionTime, m.tries, m.untilPlaced, m.preemptions, m.victims, m)
	return m
}

// attempt notes one attempt that took so long.
func (m *Metrics) attempt(result, profile string, took time.Duration) {
	m.attempts.WithLabelValues(result, profile).Inc()
	m.attemptTime.WithLabelValues(result, profile).Observe(took.Seconds())
}

// triesShown is upstream's bound on distinct values of a label: from 16 attempts on it says "15+".
const triesShown = 15

// bound notes a pod that was bound after so many attempts and so long a wait.
func (m *Metrics) bound(attempts int, waited time.Duration) {
	m.tries.Observe(float64(attempts))
	label := strconv.Itoa(attempts)
	if attempts >= triesShown {
		label = strconv.Itoa(triesShown) + "+"
	}
	m.untilPlaced.WithLabelValues(label).Observe(waited.Seconds())
}

// count sets whom to ask for a census when somebody looks.
func (m *Metrics) count(ask func() (census, bool)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ask = ask
}

// Describe is part of prometheus.Collector.
func (m *Metrics) Describe(out chan<- *prometheus.Desc) { out <- m.pending; out <- m.cache }

// Collect is part of prometheus.Collector.
func (m *Metrics) Collect(out chan<- prometheus.Metric) {
	m.mu.Lock()
	ask := m.ask
	m.mu.Unlock()
	if ask == nil {
		return
	}
	c, ok := ask()
	if !ok {
		return
	}
	for _, queue := range []string{"active", "backoff", "unschedulable", "gated"} {
		out <- prometheus.MustNewConstMetric(m.pending, prometheus.GaugeValue, float64(c.pending[queue]), queue)
	}
	for kind, n := range map[string]int{"nodes": c.nodes, "pods": c.pods, "assumed_pods": c.assumed} {
		out <- prometheus.MustNewConstMetric(m.cache, prometheus.GaugeValue, float64(n), kind)
	}
}
