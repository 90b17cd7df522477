package agent

import (
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/plimsoll-dev/plimsoll/internal/core/allocatable"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/host/psi"
)

// resourcesDesc is by upstream's names of resource and unit (kube-state-metrics), and by the part: what the node has,
// each amount that is subtracted from it, and what is left to pods.
var resourcesDesc = prometheus.NewDesc("plimsoll_node_resource",
	"What the node has of a resource (capacity), what is subtracted from it (system, kube, eviction), and what pods may "+
		"use (allocatable)",
	[]string{"resource", "unit", "part"}, nil)

// resourceMetrics are the terms of the node's allocatable resources. They do not change after the start.
type resourceMetrics struct{ allocatable.Resources }

// Describe implements prometheus.Collector.
func (resourceMetrics) Describe(out chan<- *prometheus.Desc) { out <- resourcesDesc }

// Collect implements prometheus.Collector.
func (r resourceMetrics) Collect(out chan<- prometheus.Metric) {
	collectRow(out, "cpu", "core", float64(unit.CPU), r.CPU)
	collectRow(out, "memory", "byte", 1, r.Memory)
	collectRow(out, "pods", "integer", 1, r.Pods)
	if !r.StorageUncounted {
		collectRow(out, "ephemeral_storage", "byte", 1, r.EphemeralStorage)
	}
	if r.PIDs.Capacity > 0 {
		collectRow(out, "pids", "integer", 1, r.PIDs)
	}
	for _, h := range r.HugePages {
		collectRow(out, "hugepages_"+h.Size.String(), "byte", 1, h.Row)
	}
}

func collectRow[T ~int64](out chan<- prometheus.Metric, resource, of string, per float64, r allocatable.Row[T]) {
	for _, p := range []struct {
		part  string
		value T
	}{
		{"capacity", r.Capacity},
		{"system", r.System},
		{"kube", r.Kube},
		{"eviction", r.Eviction},
		{"allocatable", r.Allocatable},
	} {
		out <- prometheus.MustNewConstMetric(resourcesDesc, prometheus.GaugeValue, float64(p.value)/per,
			resource, of, p.part)
	}
}

var stallDesc = prometheus.NewDesc("plimsoll_node_stall_seconds_total",
	"Seconds in which processes of the machine waited for a resource (cpu, memory, io): some of them, or all at once "+
		"(full)",
	[]string{"resource", "share"}, nil)

// stallMetrics are the machine's stall times, from files in a directory like /proc/pressure. The kubelet shows them on
// cgroup v2 only. They are absent if the kernel has none (CONFIG_PSI).
type stallMetrics struct{ dir string }

// Describe implements prometheus.Collector.
func (stallMetrics) Describe(out chan<- *prometheus.Desc) { out <- stallDesc }

// Collect implements prometheus.Collector.
func (s stallMetrics) Collect(out chan<- prometheus.Metric) {
	for _, resource := range []string{"cpu", "memory", "io"} {
		read, err := psi.Read(filepath.Join(s.dir, resource))
		if err != nil {
			continue // the Summary logs why
		}
		for share, stall := range map[string]psi.Stall{"some": read.Some, "full": read.Full} {
			out <- prometheus.MustNewConstMetric(stallDesc, prometheus.CounterValue, stall.Total.Seconds(), resource, share)
		}
	}
}
