package lifecycle

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	corelifecycle "github.com/plimsoll-dev/plimsoll/internal/core/lifecycle"
)

// Metrics are the controller's metrics. They have the names of those of upstream's node lifecycle, taint eviction and
// pod garbage collection controllers, so that existing dashboards and alerts work.
type Metrics struct {
	Registry *prometheus.Registry

	nodeEvictions   *prometheus.CounterVec // by zone
	node            prometheus.Histogram   // duration of writing one node
	decision        prometheus.Histogram   // duration of one decision
	reaction        prometheus.Histogram
	podDeletions    prometheus.Counter
	podDeletionTime prometheus.Histogram
	podsCollected   *prometheus.CounterVec // by namespace and reason

	mu       sync.Mutex                  // guards askZones
	askZones func() []corelifecycle.Zone // nil: this process does not lead
	gauges   [3]*prometheus.Desc         // health, size, down
}

// NewMetrics returns metrics with a new registry.
func NewMetrics() *Metrics {
	const nodes, taints = "node_collector", "taint_eviction_controller"
	gauge := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName("", nodes, name), help, []string{"zone"}, nil)
	}
	m := &Metrics{
		Registry: prometheus.NewRegistry(),
		nodeEvictions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Subsystem: nodes,
			Name:      "evictions_total",
			Help:      "Nodes whose pods were evicted because the node is down, since this process became the leader",
		}, []string{"zone"}),
		node: prometheus.NewHistogram(prometheus.HistogramOpts{
			Subsystem: nodes,
			Name:      "update_node_health_duration_seconds",
			Help:      "Seconds to write what was decided about one node",
			Buckets:   prometheus.ExponentialBuckets(0.001, 4, 8),
		}),
		decision: prometheus.NewHistogram(prometheus.HistogramOpts{
			Subsystem: nodes,
			Name:      "update_all_nodes_health_duration_seconds",
			Help:      "Seconds of one decision about all changes since the previous one",
			Buckets:   prometheus.ExponentialBuckets(0.00001, 4, 8),
		}),
		reaction: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "plimsoll_lifecycle_silent_node_reaction_seconds",
			Help:    "Seconds from the end of a silent node's grace period until its conditions and taints were written",
			Buckets: prometheus.ExponentialBuckets(0.01, 2, 14),
		}),
		podDeletions: prometheus.NewCounter(prometheus.CounterOpts{
			Subsystem: taints,
			Name:      "pod_deletions_total",
			Help:      "Pods deleted because of NoExecute taints",
		}),
		podDeletionTime: prometheus.NewHistogram(prometheus.HistogramOpts{
			Subsystem: taints,
			Name:      "pod_deletion_duration_seconds",
			Help:      "Seconds from the end of a pod's tolerations to its deletion",
			Buckets:   []float64{0.005, 0.025, 0.1, 0.5, 1, 2.5, 10, 30, 60, 120, 180, 240},
		}),
		podsCollected: prometheus.NewCounterVec(prometheus.CounterOpts{
			Subsystem: "pod_gc_collector",
			Name:      "force_delete_pods_total",
			Help:      "Pods removed because their node is gone or out of service",
		}, []string{"namespace", "reason"}),
		gauges: [3]*prometheus.Desc{
			gauge("zone_health", "Percentage of a zone's nodes that are up"),
			gauge("zone_size", "Nodes of a zone"),
			gauge("unhealthy_nodes_in_zone", "Nodes of a zone that are down"),
		},
	}
	m.Registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		m.nodeEvictions, m.node, m.decision, m.reaction, m.podDeletions, m.podDeletionTime, m.podsCollected, m)
	return m
}

// zones sets the function that returns the zones when the metrics are collected.
func (m *Metrics) zones(ask func() []corelifecycle.Zone) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.askZones = ask
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(out chan<- *prometheus.Desc) {
	for _, g := range m.gauges {
		out <- g
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(out chan<- prometheus.Metric) {
	m.mu.Lock()
	ask := m.askZones
	m.mu.Unlock()
	if ask == nil {
		return
	}
	for _, z := range ask() {
		up := 100.0
		if z.Size > 0 {
			up = 100 * float64(z.Size-z.Down) / float64(z.Size)
		}
		for i, v := range []float64{up, float64(z.Size), float64(z.Down)} {
			out <- prometheus.MustNewConstMetric(m.gauges[i], prometheus.GaugeValue, v, z.Key)
		}
	}
}
