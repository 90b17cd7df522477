package numa

import (
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// admissionBuckets are the kubelet's for the duration of an admission, in milliseconds: 0.05 to 819.2, doubling.
var admissionBuckets = prometheus.ExponentialBuckets(.05, 2, 15)

// counts are the metrics of the kubelet's CPU, memory and topology managers, under its names.
type counts struct {
	k                        *Manager
	admissions, rejections   prometheus.Counter
	duration                 prometheus.Histogram
	cpuPins, cpuErrors       prometheus.Counter
	memoryPins, memoryErrors prometheus.Counter
	// by scope: container, pod; and boundary: numa_node, physical_cpu
	aligned, misaligned              *prometheus.CounterVec
	poolSize, exclusive, exclusiveOn *prometheus.Desc

	// These the kubelet does not have.
	offers               *prometheus.CounterVec // by result
	freeCPUs, freeMemory *prometheus.Desc       // by NUMA node
}

// The results of an offer: its resources were assigned; there was none for the pod; the pod did not fit otherwise; the
// state changed in between, and another offer was made.
const (
	offerAssigned = "assigned"
	offerRejected = "rejected"
	offerUnused   = "unused"
	offerStale    = "stale"
)

const (
	scopeContainer = "container"
	scopePod       = "pod"
	onNUMANode     = "numa_node"
	onCores        = "physical_cpu"
)

func newCounts(k *Manager) *counts {
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Subsystem: "kubelet", Name: name, Help: help})
		k.Metrics.Registry.MustRegister(c)
		return c
	}
	vector := func(name, help string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Subsystem: "kubelet", Name: name, Help: help},
			[]string{"scope", "boundary"})
		k.Metrics.Registry.MustRegister(c)
		return c
	}
	c := &counts{
		k:          k,
		admissions: counter("topology_manager_admission_requests_total", "Pods whose resources had to be aligned"),
		rejections: counter("topology_manager_admission_errors_total",
			"Pods whose resources could not be assigned as requested"),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{Subsystem: "kubelet",
			Name: "topology_manager_admission_duration_ms", Help: "Milliseconds to decide on a pod's resources",
			Buckets: admissionBuckets}),
		cpuPins:    counter("cpu_manager_pinning_requests_total", "Containers that requested exclusive CPUs"),
		cpuErrors:  counter("cpu_manager_pinning_errors_total", "Containers that requested exclusive CPUs and got none"),
		memoryPins: counter("memory_manager_pinning_requests_total", "Containers that requested memory assigned to them"),
		memoryErrors: counter("memory_manager_pinning_errors_total",
			"Containers that requested memory assigned to them and got none"),
		aligned: vector("container_aligned_compute_resources_count",
			"Containers or pods whose resources are aligned, by boundary"),
		misaligned: vector("container_aligned_compute_resources_failure_count",
			"Containers or pods whose resources could not be aligned, by boundary"),
		poolSize: prometheus.NewDesc("kubelet_cpu_manager_shared_pool_size_millicores",
			"CPUs of the shared pool, in millicores", nil, nil),
		exclusive: prometheus.NewDesc("kubelet_cpu_manager_exclusive_cpu_allocation_count",
			"CPUs assigned exclusively to containers", nil, nil),
		exclusiveOn: prometheus.NewDesc("kubelet_cpu_manager_allocation_per_numa",
			"CPUs assigned exclusively to containers, by NUMA node", []string{onNUMANode}, nil),
		offers: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "plimsoll_numa_offers_total",
			Help: "Offers of CPUs, memory and devices to pods, by what became of them: assigned, rejected (nothing can be " +
				"offered), unused (the pod does not fit otherwise), stale (made again, because the state had changed)",
		}, []string{"result"}),
		freeCPUs: prometheus.NewDesc("plimsoll_numa_cpus_free",
			"CPUs that can be assigned exclusively, by NUMA node", []string{onNUMANode}, nil),
		freeMemory: prometheus.NewDesc("plimsoll_numa_memory_free_bytes",
			"Memory that can be assigned, by NUMA node and resource: memory, hugepages-2Mi, ...",
			[]string{onNUMANode, "resource"}, nil),
	}
	k.Metrics.Registry.MustRegister(c.duration, c.offers, c)
	for _, result := range []string{offerAssigned, offerRejected, offerUnused, offerStale} {
		c.offers.WithLabelValues(result)
	}
	for _, v := range []*prometheus.CounterVec{c.aligned, c.misaligned} { // present from the start, as in the kubelet
		v.WithLabelValues(scopeContainer, onNUMANode)
		v.WithLabelValues(scopePod, onNUMANode)
		v.WithLabelValues(scopeContainer, onCores)
	}
	return c
}

// Describe implements prometheus.Collector.
func (c *counts) Describe(out chan<- *prometheus.Desc) {
	out <- c.poolSize
	out <- c.exclusive
	out <- c.exclusiveOn
	out <- c.freeCPUs
	out <- c.freeMemory
}

// Collect implements prometheus.Collector.
func (c *counts) Collect(out chan<- prometheus.Metric) {
	c.k.mu.Lock()
	pool := c.k.shared()
	var own idset.Set
	for _, a := range c.k.state.Assignments() {
		own = own.Union(cpusOf(a))
	}
	free := c.k.state.Free()
	c.k.mu.Unlock()
	gauge := func(d *prometheus.Desc, n int, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), labels...)
	}
	gauge(c.poolSize, pool.Len()*int(unit.CPU))
	gauge(c.exclusive, own.Len())
	for _, n := range c.k.Machine.NUMANodes {
		gauge(c.exclusiveOn, own.Intersect(n.CPUs).Len(), strconv.Itoa(int(n.ID)))
	}
	for _, f := range free {
		node := strconv.Itoa(int(f.Node))
		gauge(c.freeCPUs, f.CPUs.Len(), node)
		for _, m := range f.Memory {
			gauge(c.freeMemory, int(m.Bytes), node, numa.KindName(m.PageSize))
		}
	}
}

// admission measures one admission and counts its outcome.
func (c *counts) admission() func(numa.Pod, *numa.Rejection) {
	begun := time.Now()
	return func(p numa.Pod, rejection *numa.Rejection) {
		c.admissions.Inc()
		c.duration.Observe(float64(time.Since(begun).Microseconds()) / 1000)
		if rejection != nil {
			c.rejected(rejection)
			return
		}
		if a, has := c.k.Assignment(p.UID); has {
			c.given(a)
		}
	}
}

func (c *counts) rejected(r *numa.Rejection) {
	c.rejections.Inc()
	switch {
	case r.Reason == numa.TopologyAffinity && !c.guaranteed(): // the kubelet counts only what a policy guarantees
	case r.Reason == numa.TopologyAffinity:
		scope := scopeContainer
		if c.k.Config.Topology.PodScope {
			scope = scopePod
		}
		c.misaligned.WithLabelValues(scope, onNUMANode).Inc()
	case r.Reason == numa.SMTAlignment:
		c.cpuPins.Inc()
		c.cpuErrors.Inc()
		c.misaligned.WithLabelValues(scopeContainer, onCores).Inc()
	case strings.Contains(r.Upstream, "cpus"):
		c.cpuPins.Inc()
		c.cpuErrors.Inc()
	case strings.Contains(r.Upstream, "memory"):
		c.memoryPins.Inc()
		c.memoryErrors.Inc()
	}
}

func (c *counts) given(a numa.Assignment) {
	together := true
	for _, h := range a.Containers {
		if !h.CPUs.IsEmpty() {
			c.cpuPins.Inc()
			if c.k.Config.CPU.FullPCPUsOnly {
				c.aligned.WithLabelValues(scopeContainer, onCores).Inc()
			}
		}
		if len(h.Memory) > 0 {
			c.memoryPins.Inc()
		}
		one := c.guaranteed() && len(h.Nodes) == 1
		together = together && one
		if one && !c.k.Config.Topology.PodScope {
			c.aligned.WithLabelValues(scopeContainer, onNUMANode).Inc()
		}
	}
	if c.k.Config.Topology.PodScope && together && len(a.Containers) > 0 {
		c.aligned.WithLabelValues(scopePod, onNUMANode).Inc()
	}
}

// guaranteed reports whether the policy guarantees aligned resources.
func (c *counts) guaranteed() bool { return c.k.Config.Topology.Policy == numa.PolicySingleNUMANode }
