package scheduler

import (
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// Metrics are the scheduler's metrics, by upstream's names, so that existing dashboards and alerts work.
// docs/scheduler.md lists upstream's metrics without counterpart, and why.
type Metrics struct {
	Registry *prometheus.Registry

	attempts     *prometheus.CounterVec   // by result, profile
	attemptTime  *prometheus.HistogramVec // by result, profile; decision and bind
	decisionTime prometheus.Histogram
	tries        prometheus.Histogram     // per placed pod
	untilPlaced  *prometheus.HistogramVec // by tries
	preemptions  prometheus.Counter
	victims      prometheus.Histogram
	eventTime    *prometheus.HistogramVec // by event
	points       *prometheus.HistogramVec // by extension point, status, profile
	evictions    *prometheus.CounterVec   // by result
	evictionTime *prometheus.HistogramVec // by result
	calls        *prometheus.CounterVec   // by call type, result
	callTime     *prometheus.HistogramVec // by call type, result
	volumeErrors *prometheus.CounterVec   // by operation
	flushed      prometheus.Counter

	mu  sync.Mutex               // guards ask
	ask func() (loopState, bool) // asks the scheduling loop; nil: no scheduler is running

	// The metrics that are computed from loopState when they are collected.
	pending *prometheus.Desc
	cache   *prometheus.Desc
	by      *prometheus.Desc // pods by the plugin that rejected them
	busy    *prometheus.Desc
	queued  *prometheus.Desc // requests to the API server
}

// loopState is the numbers that the scheduling loop has at one moment.
type loopState struct {
	pending              map[string]int    // pending pods, by upstream's name of the queue
	nodes, pods, assumed int               // see Placer.Sizes
	rejected             map[rejection]int // pods by the plugin that rejected them
	binding              int               // see loop.binding
	calls                map[string]int    // waiting requests, by type
}

// rejection is upstream's name of a plugin that rejected a pod, and the profile.
type rejection struct{ plugin, profile string }

// Results of an attempt, as upstream spells them.
const (
	resultScheduled     = "scheduled"
	resultUnschedulable = "unschedulable"
	resultError         = "error"
)

// Types of requests to the API server, as upstream spells them.
const (
	callStatus = "pod_status_patch"
	callBind   = "pod_binding"
)

// resultOf returns upstream's label for the result of a request.
func resultOf(err error) string {
	if err != nil {
		return resultError
	}
	return "success"
}

// NewMetrics returns metrics with a new registry. Buckets are upstream's, except those for the time of decisions: they
// begin lower, because decisions take less time here.
func NewMetrics() *Metrics {
	const subsystem = "scheduler"
	counter := func(name, help string) prometheus.CounterOpts {
		return prometheus.CounterOpts{Subsystem: subsystem, Name: name, Help: help}
	}
	histogram := func(name string, buckets []float64, help string) prometheus.HistogramOpts {
		return prometheus.HistogramOpts{Subsystem: subsystem, Name: name, Buckets: buckets, Help: help}
	}
	computed := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName("", subsystem, name), help, labels, nil)
	}
	doubled := prometheus.ExponentialBuckets
	m := &Metrics{
		Registry: prometheus.NewRegistry(),
		attempts: prometheus.NewCounterVec(counter("schedule_attempts_total",
			"Attempts to place a pod: scheduled, unschedulable (it fits nowhere) or error (its bind failed)"),
			[]string{"result", "profile"}),
		attemptTime: prometheus.NewHistogramVec(histogram("scheduling_attempt_duration_seconds", doubled(0.001, 2, 15),
			"Seconds of an attempt: the decision and, if there is one, the bind"),
			[]string{"result", "profile"}),
		decisionTime: prometheus.NewHistogram(histogram("scheduling_algorithm_duration_seconds",
			append(doubled(0.000004, 4, 4), doubled(0.001, 2, 15)...),
			"Seconds of a decision")),
		tries: prometheus.NewHistogram(histogram("pod_scheduling_attempts", doubled(1, 2, 5),
			"Attempts per placed pod")),
		untilPlaced: prometheus.NewHistogramVec(histogram("pod_scheduling_sli_duration_seconds", doubled(0.01, 2, 20),
			"Seconds from when a pod was first seen pending until it was bound"),
			[]string{"attempts"}),
		preemptions: prometheus.NewCounter(counter("preemption_attempts_total",
			"Attempts to preempt pods")),
		victims: prometheus.NewHistogram(histogram("preemption_victims", doubled(1, 2, 7),
			"Victims per preemption")),
		eventTime: prometheus.NewHistogramVec(histogram("event_handling_duration_seconds", doubled(0.0001, 2, 12),
			"Seconds that the scheduling loop took for one change in the cluster"),
			[]string{"event"}),
		points: prometheus.NewHistogramVec(histogram("framework_extension_point_duration_seconds", doubled(0.0001, 2, 12),
			"Seconds of PreBind (volume plans) and of Bind"),
			[]string{"extension_point", "status", "profile"}),
		evictions: prometheus.NewCounterVec(counter("preemption_goroutines_execution_total",
			"Times that the victims of one preemption were evicted"),
			[]string{"result"}),
		evictionTime: prometheus.NewHistogramVec(histogram("preemption_goroutines_duration_seconds", doubled(0.01, 2, 20),
			"Seconds that it took to send the evictions of one preemption"),
			[]string{"result"}),
		calls: prometheus.NewCounterVec(counter("async_api_call_execution_total",
			"Binds and status patches sent"),
			[]string{"call_type", "result"}),
		callTime: prometheus.NewHistogramVec(histogram("async_api_call_execution_duration_seconds", doubled(0.001, 2, 15),
			"Seconds of a bind or status patch, with its time in the throttle's queue"),
			[]string{"call_type", "result"}),
		volumeErrors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Subsystem: "scheduler_volume", Name: "scheduling_stage_error_total",
			Help: "Volume plans that failed",
		}, []string{"operation"}),
		flushed: prometheus.NewCounter(counter("pod_scheduled_after_flush_total",
			"Pods placed that only the periodic check of waiting pods found, although they fit: above 0 indicates a bug")),
		by: computed("unschedulable_pods",
			"Unschedulable pods, by each plugin that rejected a node for them", "plugin", "profile"),
		busy: computed("goroutines",
			"Binds in flight, and those that wait for a slot", "operation"),
		queued: computed("pending_async_api_calls",
			"Binds and status patches that wait", "call_type"),
		pending: computed("pending_pods",
			"Pending pods by queue: active, backoff, unschedulable or gated", "queue"),
		cache: computed("cache_size",
			"Nodes, pods on nodes, and the assumed ones among these", "type"),
	}
	m.Registry.MustRegister(
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		m.attempts, m.attemptTime, m.decisionTime, m.tries, m.untilPlaced, m.preemptions, m.victims,
		m.eventTime, m.points, m.evictions, m.evictionTime, m.calls, m.callTime, m.volumeErrors, m.flushed, m)
	return m
}

// attempt records one attempt and its duration.
func (m *Metrics) attempt(result, profile string, took time.Duration) {
	m.attempts.WithLabelValues(result, profile).Inc()
	m.attemptTime.WithLabelValues(result, profile).Observe(took.Seconds())
}

// call records one request that began at began. Withdrawn requests are not recorded.
func (m *Metrics) call(kind string, began time.Time, err error) {
	m.calls.WithLabelValues(kind, resultOf(err)).Inc()
	m.callTime.WithLabelValues(kind, resultOf(err)).Observe(time.Since(began).Seconds())
}

// point records one run of an extension point that began at began.
func (m *Metrics) point(name, profile string, began time.Time, err error) {
	status := "Success"
	if err != nil {
		status = "Error"
	}
	m.points.WithLabelValues(name, status, profile).Observe(time.Since(began).Seconds())
}

// evicted records that the evictions for one preemptor have ended.
func (m *Metrics) evicted(began time.Time, err error) {
	m.evictions.WithLabelValues(resultOf(err)).Inc()
	m.evictionTime.WithLabelValues(resultOf(err)).Observe(time.Since(began).Seconds())
}

// triesShown limits the number of values of a label, as upstream does: from 15 attempts on, the label is "15+".
const triesShown = 15

// bound records that a pod was bound after this many attempts and this wait.
func (m *Metrics) bound(attempts int, waited time.Duration) {
	m.tries.Observe(float64(attempts))
	label := strconv.Itoa(attempts)
	if attempts >= triesShown {
		label = strconv.Itoa(triesShown) + "+"
	}
	m.untilPlaced.WithLabelValues(label).Observe(waited.Seconds())
}

// count sets the function that returns the loopState when metrics are collected.
func (m *Metrics) count(ask func() (loopState, bool)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ask = ask
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.pending, m.cache, m.by, m.busy, m.queued} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
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
	out <- prometheus.MustNewConstMetric(m.busy, prometheus.GaugeValue, float64(c.binding), "binding")
	for kind, n := range c.calls {
		out <- prometheus.MustNewConstMetric(m.queued, prometheus.GaugeValue, float64(n), kind)
	}
	for r, n := range c.rejected {
		out <- prometheus.MustNewConstMetric(m.by, prometheus.GaugeValue, float64(n), r.plugin, r.profile)
	}
	for kind, n := range map[string]int{"nodes": c.nodes, "pods": c.pods, "assumed_pods": c.assumed} {
		out <- prometheus.MustNewConstMetric(m.cache, prometheus.GaugeValue, float64(n), kind)
	}
}
