package server

import (
	"compress/gzip"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/poddir"
	"github.com/plimsoll-dev/plimsoll/internal/agent/stats"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// summary answers with the Summary API: complete, or, with only_cpu_and_memory=true, without the parts that must read
// disks.
func (s *Server) summary(w http.ResponseWriter, r *http.Request) {
	parts := stats.Everything
	if r.FormValue("only_cpu_and_memory") == "true" {
		parts = stats.Swap | stats.Pressure
	}
	summary, err := s.o.Stats.Summary(r.Context(), parts)
	if err != nil {
		http.Error(w, "Internal Error: "+err.Error(), http.StatusInternalServerError)
		return
	}
	writeJSON(w, summary)
}

// cadvisor answers with the metrics of the node's cgroups. They are compressed if the client accepts that, as
// Prometheus does: labels repeat, and a node with many pods has megabytes of them.
func (s *Server) cadvisor(w http.ResponseWriter, r *http.Request) {
	if s.o.Cgroups == nil {
		http.Error(w, "this node has no metrics of cgroups", http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	var to io.Writer = w
	if acceptsGzip(r) {
		w.Header().Set("Content-Encoding", "gzip")
		packed := compressors.Get().(*gzip.Writer)
		packed.Reset(w)
		defer func() {
			_ = packed.Close() // an error means that the client is gone
			compressors.Put(packed)
		}()
		to = packed
	}
	if err := s.o.Cgroups.Write(r.Context(), to); err != nil {
		slog.Info("answer ends early", "path", r.URL.Path, "err", err)
	}
}

// compressors are used again, since each has a buffer of a megabyte. The fastest level is chosen: the agent's CPU is
// scarcer than the network between it and Prometheus.
var compressors = sync.Pool{New: func() any {
	w, _ := gzip.NewWriterLevel(io.Discard, gzip.BestSpeed) // an error is a level that does not exist
	return w
}}

// acceptsGzip reports whether the client asks for gzip.
func acceptsGzip(r *http.Request) bool {
	for part := range strings.SplitSeq(r.Header.Get("Accept-Encoding"), ",") {
		name, quality, _ := strings.Cut(strings.TrimSpace(part), ";")
		if name == "gzip" && strings.TrimSpace(quality) != "q=0" {
			return true
		}
	}
	return false
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
	nodeCPUDesc             = prometheus.NewDesc("node_cpu_usage_seconds_total", "CPU time of the node in core-seconds",
		nil, nil)
	nodeMemoryDesc = prometheus.NewDesc("node_memory_working_set_bytes", "Working set of the node in bytes", nil,
		nil)
	nodeSwapDesc       = prometheus.NewDesc("node_swap_usage_bytes", "Swap in use on the node in bytes", nil, nil)
	containerStartDesc = prometheus.NewDesc("container_start_time_seconds", "Start of the container in unix seconds",
		ofContainer, nil)
	containerCPUDesc = prometheus.NewDesc("container_cpu_usage_seconds_total",
		"CPU time of the container in core-seconds", ofContainer, nil)
	containerMemoryDesc = prometheus.NewDesc("container_memory_working_set_bytes",
		"Working set of the container in bytes", ofContainer, nil)
	containerSwapDesc = prometheus.NewDesc("container_swap_usage_bytes", "Swap in use by the container in bytes",
		ofContainer, nil)
	containerSwapLimitDesc = prometheus.NewDesc("container_swap_limit_bytes", "Swap that the container may use in bytes",
		ofContainer, nil)
	podCPUDesc = prometheus.NewDesc("pod_cpu_usage_seconds_total", "CPU time of the pod in core-seconds",
		ofPod, nil)
	podMemoryDesc = prometheus.NewDesc("pod_memory_working_set_bytes", "Working set of the pod in bytes", ofPod,
		nil)
	podSwapDesc = prometheus.NewDesc("pod_swap_usage_bytes", "Swap in use by the pod in bytes", ofPod, nil)
)

const seconds = float64(time.Second)

// cpu, memory, swap and swapLimit send a sample if the summary has the number.
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

func (put sink) swap(d *prometheus.Desc, s *statsapi.SwapStats, labels ...string) {
	if s != nil && s.SwapUsageBytes != nil {
		put(d, prometheus.GaugeValue, s.Time, float64(*s.SwapUsageBytes), labels...)
	}
}

// swapLimit sends what may be swapped in all; no sample: there is no limit.
func (put sink) swapLimit(d *prometheus.Desc, s *statsapi.SwapStats, labels ...string) {
	if s != nil && s.SwapUsageBytes != nil && s.SwapAvailableBytes != nil {
		put(d, prometheus.GaugeValue, s.Time, float64(*s.SwapUsageBytes+*s.SwapAvailableBytes), labels...)
	}
}

// resourceFamilies are the metrics of /metrics/resource, which metrics-server reads.
func resourceFamilies(s *statsapi.Summary, put sink) {
	put.cpu(nodeCPUDesc, s.Node.CPU)
	put.memory(nodeMemoryDesc, s.Node.Memory)
	put.swap(nodeSwapDesc, s.Node.Swap)
	for _, p := range s.Pods {
		for _, c := range p.Containers {
			labels := []string{c.Name, p.PodRef.Name, p.PodRef.Namespace}
			if !c.StartTime.IsZero() {
				put(containerStartDesc, prometheus.GaugeValue, metav1.Time{}, float64(c.StartTime.UnixNano())/seconds, labels...)
			}
			put.cpu(containerCPUDesc, c.CPU, labels...)
			put.memory(containerMemoryDesc, c.Memory, labels...)
			put.swap(containerSwapDesc, c.Swap, labels...)
			put.swapLimit(containerSwapLimitDesc, c.Swap, labels...)
		}
		put.cpu(podCPUDesc, p.CPU, p.PodRef.Name, p.PodRef.Namespace)
		put.memory(podMemoryDesc, p.Memory, p.PodRef.Name, p.PodRef.Namespace)
		put.swap(podSwapDesc, p.Swap, p.PodRef.Name, p.PodRef.Namespace)
	}
}

// StatsPods lists the node's pods for a stats.Reader: those with running containers, and those whose containers wait to
// be restarted, since their files stay on the disk. Pods without a container in the runtime come last, as Idle: on a
// full disk the runtime creates nothing, and files from an earlier run of the pod may be what fills the disk. group
// returns a pod's cgroup, empty if it has none; inner returns the cgroup that the runtime made below it for a
// container. rootDir is the agent's directory.
func StatsPods(pods Pods, group func(*corev1.Pod) string, inner func(group, id string) string,
	rootDir string) func() []stats.Pod {
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
				Name:        name,
				ID:          c.ID,
				Image:       imageOf(pod, name),
				Group:       inner(last.Group, c.ID),
				Started:     c.StartedAt,
				MemoryLimit: memoryLimit(pod, name),
				LogDir:      filepath.Dir(c.LogPath),
			})
		})
		for i := range out {
			ref := &out[i].Ref
			if id, err := pods.Sandbox(ref.Namespace, ref.Name, types.UID(ref.UID)); err == nil {
				out[i].SandboxID, out[i].SandboxGroup = id, inner(out[i].Group, id)
			}
		}
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
		VolumeDir: filepath.Join(poddir.Of(rootDir, pod.UID), poddir.Volumes),
	}
}

// imageOf returns the image of a container: as its status names it, else as its specification does.
func imageOf(pod *corev1.Pod, name string) string {
	s := &pod.Status
	for _, list := range [][]corev1.ContainerStatus{s.ContainerStatuses, s.InitContainerStatuses,
		s.EphemeralContainerStatuses} {
		for i := range list {
			if list[i].Name == name && list[i].Image != "" {
				return list[i].Image
			}
		}
	}
	if c := translate.ContainerNamed(pod, name); c != nil {
		return c.Image
	}
	return ""
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
