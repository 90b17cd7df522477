package server

import (
	"log/slog"
	"net/http"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/stats"
)

// summary answers with the Summary API: complete, or, with only_cpu_and_memory=true, without the parts that must read
// disks.
func (s *Server) summary(w http.ResponseWriter, r *http.Request) {
	parts := stats.Everything
	if r.FormValue("only_cpu_and_memory") == "true" {
		parts = 0
	}
	summary, err := s.o.Stats.Summary(r.Context(), parts)
	if err != nil {
		http.Error(w, "Internal Error: "+err.Error(), http.StatusInternalServerError)
		return
	}
	writeJSON(w, summary)
}

// families translate a summary into samples.
type families func(*statsapi.Summary, sink)

// sink receives one sample; the zero time means that it has no timestamp.
type sink func(d *prometheus.Desc, kind prometheus.ValueType, at metav1.Time, value float64, labels ...string)

// usage reads a summary and returns its samples, translated by f.
func (s *Server) usage(r *http.Request, parts stats.Parts, f families) prometheus.Gatherer {
	registry := prometheus.NewRegistry()
	summary, err := s.o.Stats.Summary(r.Context(), parts)
	if err != nil {
		slog.Warn("read usage", "path", r.URL.Path, "err", err)
	}
	registry.MustRegister(usageCollector{summary, err, f})
	return registry
}

// usageCollector describes no metrics in advance, since its samples change with the pods.
type usageCollector struct {
	summary *statsapi.Summary
	err     error
	f       families
}

func (usageCollector) Describe(chan<- *prometheus.Desc) {}

func (c usageCollector) Collect(ch chan<- prometheus.Metric) {
	put := func(d *prometheus.Desc, kind prometheus.ValueType, at metav1.Time, value float64, labels ...string) {
		m := prometheus.MustNewConstMetric(d, kind, value, labels...)
		if !at.IsZero() {
			m = prometheus.NewMetricWithTimestamp(at.Time, m)
		}
		ch <- m
	}
	failed := 0.0
	if c.err != nil || c.summary == nil {
		failed = 1
	} else {
		c.f(c.summary, put)
	}
	put(scrapeErrorDesc, prometheus.GaugeValue, metav1.Time{}, failed)
	put(resourceScrapeErrorDesc, prometheus.GaugeValue, metav1.Time{}, failed)
}

var (
	ofContainer = []string{"container", "pod", "namespace"}
	ofPod       = []string{"pod", "namespace"}

	scrapeErrorDesc         = prometheus.NewDesc("scrape_error", "1 if usage could not be read, else 0", nil, nil)
	resourceScrapeErrorDesc = prometheus.NewDesc("resource_scrape_error", "1 if usage could not be read, else 0", nil, nil)
	nodeCPUDesc             = prometheus.NewDesc("node_cpu_usage_seconds_total", "CPU time of the node in core-seconds", nil, nil)
	nodeMemoryDesc          = prometheus.NewDesc("node_memory_working_set_bytes", "Working set of the node in bytes", nil, nil)
	nodeSwapDesc            = prometheus.NewDesc("node_swap_usage_bytes", "Swap in use on the node in bytes", nil, nil)
	containerStartDesc      = prometheus.NewDesc("container_start_time_seconds", "Start of the container in unix seconds", ofContainer, nil)
	containerCPUDesc        = prometheus.NewDesc("container_cpu_usage_seconds_total", "CPU time of the container in core-seconds", ofContainer, nil)
	containerMemoryDesc     = prometheus.NewDesc("container_memory_working_set_bytes", "Working set of the container in bytes", ofContainer, nil)
	podCPUDesc              = prometheus.NewDesc("pod_cpu_usage_seconds_total", "CPU time of the pod in core-seconds", ofPod, nil)
	podMemoryDesc           = prometheus.NewDesc("pod_memory_working_set_bytes", "Working set of the pod in bytes", ofPod, nil)
)

const seconds = float64(time.Second)

// cpu and memory send a sample if the summary has the number.
func (put sink) cpu(d *prometheus.Desc, c *statsapi.CPUStats, labels ...string) {
	if c != nil && c.UsageCoreNanoSeconds != nil {
		put(d, prometheus.CounterValue, c.Time, float64(*c.UsageCoreNanoSeconds)/seconds, labels...)
	}
}

func (put sink) memory(d *prometheus.Desc, m *statsapi.MemoryStats, labels ...string) {
	if m != nil && m.WorkingSetBytes != nil {
		put(d, prometheus.GaugeValue, m.Time, float64(*m.WorkingSetBytes), labels...)
	}
}

// resourceFamilies are the metrics of /metrics/resource, which metrics-server reads.
func resourceFamilies(s *statsapi.Summary, put sink) {
	put.cpu(nodeCPUDesc, s.Node.CPU)
	put.memory(nodeMemoryDesc, s.Node.Memory)
	if s.Node.Swap != nil && s.Node.Swap.SwapUsageBytes != nil {
		put(nodeSwapDesc, prometheus.GaugeValue, s.Node.Swap.Time, float64(*s.Node.Swap.SwapUsageBytes))
	}
	for _, p := range s.Pods {
		for _, c := range p.Containers {
			labels := []string{c.Name, p.PodRef.Name, p.PodRef.Namespace}
			if !c.StartTime.IsZero() {
				put(containerStartDesc, prometheus.GaugeValue, metav1.Time{}, float64(c.StartTime.UnixNano())/seconds, labels...)
			}
			put.cpu(containerCPUDesc, c.CPU, labels...)
			put.memory(containerMemoryDesc, c.Memory, labels...)
		}
		put.cpu(podCPUDesc, p.CPU, p.PodRef.Name, p.PodRef.Namespace)
		put.memory(podMemoryDesc, p.Memory, p.PodRef.Name, p.PodRef.Namespace)
	}
}

var (
	ofInterface = []string{"interface", "pod", "namespace"}

	containerUsageDesc = prometheus.NewDesc("container_memory_usage_bytes", "Memory charged to the container in bytes, page cache included", ofContainer, nil)
	containerRSSDesc   = prometheus.NewDesc("container_memory_rss", "Anonymous memory of the container in bytes", ofContainer, nil)
	receiveDesc        = prometheus.NewDesc("container_network_receive_bytes_total", "Bytes received by the pod", ofInterface, nil)
	transmitDesc       = prometheus.NewDesc("container_network_transmit_bytes_total", "Bytes sent by the pod", ofInterface, nil)
)

// cadvisorFamilies are the metrics of /metrics/cadvisor that dashboards of pods use: CPU, memory and network under
// cAdvisor's names, with the labels that identify a container. For pods the container label is empty. The rest of
// cAdvisor's metrics (per-CPU, disks, file descriptors, cgroup IDs) is not collected.
func cadvisorFamilies(s *statsapi.Summary, put sink) {
	one := func(cpu *statsapi.CPUStats, memory *statsapi.MemoryStats, labels ...string) {
		put.cpu(containerCPUDesc, cpu, labels...)
		put.memory(containerMemoryDesc, memory, labels...)
		if memory != nil && memory.UsageBytes != nil {
			put(containerUsageDesc, prometheus.GaugeValue, memory.Time, float64(*memory.UsageBytes), labels...)
		}
		if memory != nil && memory.RSSBytes != nil {
			put(containerRSSDesc, prometheus.GaugeValue, memory.Time, float64(*memory.RSSBytes), labels...)
		}
	}
	for _, p := range s.Pods {
		one(p.CPU, p.Memory, "", p.PodRef.Name, p.PodRef.Namespace)
		for _, c := range p.Containers {
			one(c.CPU, c.Memory, c.Name, p.PodRef.Name, p.PodRef.Namespace)
		}
		if p.Network == nil {
			continue
		}
		for _, i := range p.Network.Interfaces {
			if i.RxBytes != nil && i.TxBytes != nil {
				put(receiveDesc, prometheus.CounterValue, p.Network.Time, float64(*i.RxBytes), i.Name, p.PodRef.Name, p.PodRef.Namespace)
				put(transmitDesc, prometheus.CounterValue, p.Network.Time, float64(*i.TxBytes), i.Name, p.PodRef.Name, p.PodRef.Namespace)
			}
		}
	}
}

// StatsPods lists the node's pods for a stats.Reader: those with running containers, and those whose containers wait to
// be restarted, since their files stay on the disk. Pods without a container in the runtime come last, as Idle: on a
// full disk the runtime creates nothing, and files from an earlier run of the pod may be what fills the disk. group
// returns a pod's cgroup, empty if it has none; inner returns the cgroup that the runtime made below it for a
// container. rootDir is the agent's directory.
func StatsPods(pods Pods, group func(*corev1.Pod) string, inner func(group, id string) string, rootDir string) func() []stats.Pod {
	return func() []stats.Pod {
		var out []stats.Pod
		known := map[types.UID]bool{}
		eachContainer(pods, func(pod *corev1.Pod, name string, c Container) {
			if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
				return
			}
			// a pod's containers are listed one after another
			if len(out) == 0 || out[len(out)-1].Ref.UID != string(pod.UID) {
				out = append(out, statsPod(pod, group(pod), rootDir))
			}
			last := &out[len(out)-1]
			known[pod.UID] = true
			if c.LogPath != "" {
				last.LogDir = filepath.Dir(filepath.Dir(c.LogPath))
			}
			if c.State != Running {
				return
			}
			last.Containers = append(last.Containers, stats.Container{
				Name: name, ID: c.ID, Group: inner(last.Group, c.ID), Started: c.StartedAt,
				MemoryLimit: memoryLimit(pod, name), LogDir: filepath.Dir(c.LogPath),
			})
		})
		for _, pod := range pods.List() {
			if !known[pod.UID] && pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed {
				idle := statsPod(pod, "", rootDir)
				idle.Idle = true
				out = append(out, idle)
			}
		}
		return out
	}
}

func statsPod(pod *corev1.Pod, group, rootDir string) stats.Pod {
	started := pod.CreationTimestamp.Time
	if pod.Status.StartTime != nil {
		started = pod.Status.StartTime.Time
	}
	return stats.Pod{
		Ref:     statsapi.PodReference{Name: pod.Name, Namespace: pod.Namespace, UID: string(pod.UID)},
		Started: started, Group: group, HostNetwork: pod.Spec.HostNetwork,
		VolumeDir: filepath.Join(rootDir, "pods", string(pod.UID), "volumes"),
	}
}

// memoryLimit returns a container's memory limit in bytes, 0 if it has none.
func memoryLimit(pod *corev1.Pod, name string) uint64 {
	for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			if limit, ok := list[i].Resources.Limits[corev1.ResourceMemory]; ok && list[i].Name == name && limit.Value() > 0 {
				return uint64(limit.Value())
			}
		}
	}
	return 0
}
