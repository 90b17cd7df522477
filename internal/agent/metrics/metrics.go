// Package metrics holds the agent's own metrics, under the kubelet's names, so that existing dashboards and alerts
// work.
//
// There is no global registry: New makes one set per agent. Other packages count into its fields, and register their
// own collectors with Registry (served at /metrics) or Probes (/metrics/probes). Values that can be read at the time of
// a request are not stored here; they are collected then.
//
// Usage of pods and containers is not here; see internal/agent/stats.
package metrics

import (
	"context"
	"path"
	"runtime"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"google.golang.org/grpc"

	"github.com/plimsoll-dev/plimsoll/internal/version"
)

const subsystem = "kubelet"

// podStartBuckets are the kubelet's for pod starts, in seconds.
var podStartBuckets = []float64{0.5, 1, 2, 3, 4, 5, 6, 8, 10, 20, 30, 45, 60, 120, 180, 240, 300, 360, 480, 600, 900,
	1200, 1800, 2700, 3600}

// imagePullBuckets and storageBuckets are the kubelet's, in seconds.
var (
	imagePullBuckets = []float64{1, 5, 10, 20, 30, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600}
	storageBuckets   = []float64{.1, .25, .5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600}
)

// Set is the measurements of one agent. All its fields are safe for concurrent use.
type Set struct {
	Registry *prometheus.Registry // /metrics
	Probes   *prometheus.Registry // /metrics/probes

	PodStart          prometheus.Histogram     // first seen to running
	PodStartSLI       prometheus.Histogram     // created to running, without image pulls and init containers
	PodStartTotal     prometheus.Histogram     // created to running, with them
	PodWorker         *prometheus.HistogramVec // one sync of a pod, by operation_type: create, update, sync
	PodWorkerStart    prometheus.Histogram     // first seen to first sync
	PodStatusSync     prometheus.Histogram     // status changed to accepted by the API server
	StartedPods       prometheus.Counter
	StartedPodsErrors prometheus.Counter
	StartedContainers *prometheus.CounterVec // by container_type: container, init_container, ephemeral_container

	UserNamespacedPods       prometheus.Counter // sandboxes that were tried with hostUsers: false
	UserNamespacedPodsErrors prometheus.Counter
	FirstNetworkPodStart     prometheus.Gauge   // as PodStartSLI, of the first pod with a network of its own
	ImageVolumesRequested    prometheus.Counter // by containers that are made
	ImageVolumesMounted      prometheus.Counter
	ImageVolumesErrors       prometheus.Counter
	HookHTTPFallbacks        prometheus.Counter       // hooks over HTTPS that were answered in HTTP
	HookSleepsCut            prometheus.Counter       // sleep hooks that ended before their time
	RequestedResizes         *prometheus.CounterVec   // by resource, requirement: requests, limits; and operation
	InfeasibleResizes        *prometheus.CounterVec   // by reason_detail
	ImageRequests            *prometheus.CounterVec   // by pull_policy, present_locally, pull_required
	MustPullChecks           *prometheus.CounterVec   // by result: whether a pod may use an image that is present
	CredentialPlugin         *prometheus.HistogramVec // seconds of a credential provider plugin's run, by plugin_name
	CredentialPluginErrors   *prometheus.CounterVec   // likewise
	CredentialConfig         *prometheus.GaugeVec     // always 1, by the hash of the configuration of credential providers
	Startup                  *Startup

	TerminatedContainers *prometheus.CounterVec // by container_type, exit_code, reason
	StartErrors          *prometheus.CounterVec // by container_type and code (the error's reason)
	Relist               prometheus.Histogram
	RelistInterval       prometheus.Histogram
	RelistLast           prometheus.Gauge         // unix seconds
	OrphanedRuntimePods  prometheus.Counter       // pods that the runtime had, and no source
	RuntimeOperations    *prometheus.CounterVec   // by operation_type
	RuntimeErrors        *prometheus.CounterVec   // by operation_type
	RuntimeDuration      *prometheus.HistogramVec // by operation_type
	RunSandbox           *prometheus.HistogramVec // by runtime_handler
	RunSandboxErrors     *prometheus.CounterVec   // by runtime_handler
	ContainersPerPod     prometheus.Histogram     // of pods when they came
	ImagePull            *prometheus.HistogramVec // seconds of a pull, by image_size_in_bytes (ImageSize)
	CgroupVersion        prometheus.Gauge         // 1 or 2
	CgroupDuration       *prometheus.HistogramVec // by operation_type: create, update, destroy
	StorageDuration      *prometheus.HistogramVec // by volume_plugin, operation_name, status and migrated
	// by driver_name, method_name, grpc_status_code and migrated
	CSIOperations     *prometheus.HistogramVec
	VolumeMeasurement *prometheus.HistogramVec // seconds to measure a volume, or to ask how full it is, by metric_source
	Evictions         *prometheus.CounterVec   // by eviction_signal
	Preemptions       *prometheus.CounterVec   // by preemption_signal: the resource that a critical pod lacked
	ImagesCollected   *prometheus.CounterVec   // by reason: space, age
	// from reading what pods use to SIGKILL, or to the stop order, by eviction_signal
	EvictionStatsAge    *prometheus.HistogramVec
	AdmissionRejections *prometheus.CounterVec   // by reason
	PluginRegistrations *prometheus.CounterVec   // by resource_name
	PluginAllocation    *prometheus.HistogramVec // seconds of a device plugin's Allocate, by resource_name
	PodResources        PodResources
	// milliseconds of writing the values of a resize, by success: true, false
	ResizeDuration *prometheus.HistogramVec
	LimitExcess    *prometheus.GaugeVec // by cgroup, while its memory limit is being lowered

	HTTPRequests *prometheus.CounterVec   // by method, path, server_type, long_running
	HTTPDuration *prometheus.HistogramVec // likewise
	HTTPInFlight *prometheus.GaugeVec     // likewise

	Streams            *prometheus.GaugeVec   // open, by path
	StreamsRefused     *prometheus.CounterVec // by path and by the limit that was reached: node, pod
	ConnectionsRefused prometheus.Counter     // closed at once, since all allowed connections were busy
}

// PodResources counts requests to the pod-resources API.
type PodResources struct {
	Requests            *prometheus.CounterVec // all, by server_api_version
	List, Get, GetWrong *prometheus.CounterVec // likewise
	GetAllocatable      *prometheus.CounterVec // likewise
}

// New returns a set for the agent of the named node.
func New(nodeName string) *Set {
	s := &Set{Registry: prometheus.NewRegistry(), Probes: prometheus.NewRegistry()}
	s.Registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	s.gauges("node_name", "The node's name. The count is always 1.", "node").WithLabelValues(nodeName).Set(1)
	s.Registry.MustRegister(buildInfo())
	s.podMetrics()
	s.runtimeMetrics()
	s.decisionMetrics()
	s.serverMetrics()
	return s
}

// podMetrics creates the metrics of pods: their starts, hooks, resizes and images.
func (s *Set) podMetrics() {
	s.PodStart = s.histogram("pod_start_duration_seconds",
		"Seconds from the agent seeing a pod for the first time to the pod running", podStartBuckets)
	s.PodStartSLI = s.histogram("pod_start_sli_duration_seconds",
		"Seconds from a pod's creation to its containers running, without image pulls and init containers", podStartBuckets)
	s.PodStartTotal = s.histogram("pod_start_total_duration_seconds",
		"Seconds from a pod's creation to its containers running", podStartBuckets)
	s.PodWorker = s.histograms("pod_worker_duration_seconds", "Seconds of one sync of a pod: create, update or sync",
		prometheus.DefBuckets, "operation_type")
	s.PodWorkerStart = s.histogram("pod_worker_start_duration_seconds",
		"Seconds from the agent seeing a pod to its first sync", prometheus.DefBuckets)
	s.PodStatusSync = s.histogram("pod_status_sync_duration_seconds",
		"Seconds from a change of a pod's status until the API server has accepted it", []float64{.01, .05, .1, .5, 1, 5, 10,
			20, 30, 45, 60})
	s.StartedPods = s.counter("started_pods_total", "Pods started")
	s.StartedPodsErrors = s.counter("started_pods_errors_total", "Errors when starting pods")
	s.StartedContainers = s.counters("started_containers_total", "Containers started", "container_type")
	s.UserNamespacedPods = s.counter("started_user_namespaced_pods_total", "Pods with user namespaces started")
	s.UserNamespacedPodsErrors = s.counter("started_user_namespaced_pods_errors_total",
		"Errors when starting pods with user namespaces")
	s.FirstNetworkPodStart = s.gauge("first_network_pod_start_sli_duration_seconds",
		"Seconds from the creation of the first pod with a network of its own to its containers running, "+
			"without image pulls and init containers")
	s.ImageVolumesRequested = s.counter("image_volume_requested_total", "Image volumes of containers that were to be made")
	s.ImageVolumesMounted = s.counter("image_volume_mounted_succeed_total", "Image volumes that were mounted")
	s.ImageVolumesErrors = s.counter("image_volume_mounted_errors_total", "Image volumes that the runtime could not mount")
	s.HookHTTPFallbacks = s.counter("lifecycle_handler_http_fallbacks_total",
		"Lifecycle hooks that were sent over HTTP because HTTPS was answered in HTTP")
	s.HookSleepsCut = s.counter("sleep_action_terminated_early_total", "Sleep hooks that ended before their time")
	s.RequestedResizes = s.counters("container_requested_resizes_total",
		"Changes that resizes ask for, by resource, requirement (requests, limits) and operation (add, remove, "+
			"increase, decrease)", "resource", "requirement", "operation")
	s.InfeasibleResizes = s.counters("pod_infeasible_resizes_total", "Resizes that the node can never allocate",
		"reason_detail")
	s.ImageRequests = s.counters("image_manager_ensure_image_requests_total", "Requests to make an image present",
		"pull_policy", "present_locally", "pull_required")
	s.MustPullChecks = s.counters("imagemanager_image_mustpull_checks_total",
		"Checks whether a pod may use an image that is present", "result")
	s.CredentialPlugin = s.histograms("credential_provider_plugin_duration",
		"Seconds of a credential provider plugin's run", prometheus.DefBuckets, "plugin_name")
	s.CredentialPluginErrors = s.counters("credential_provider_plugin_errors_total",
		"Runs of credential provider plugins that failed", "plugin_name")
	s.CredentialConfig = s.gauges("credential_provider_config_info",
		"The configuration of credential providers, by its hash. The value is always 1.", "hash")
	s.Startup = newStartup(s)
}

// runtimeMetrics creates the metrics of containers, of calls to the runtime, and of cgroups and volumes.
func (s *Set) runtimeMetrics() {
	s.TerminatedContainers = s.counters("terminated_containers_total", "Containers that ended", "container_type",
		"exit_code", "reason")
	s.StartErrors = s.counters("started_containers_errors_total", "Errors when starting containers", "container_type",
		"code")
	s.Relist = s.histogram("pleg_relist_duration_seconds", "Seconds to list the runtime's pods and containers",
		prometheus.DefBuckets)
	s.RelistInterval = s.histogram("pleg_relist_interval_seconds", "Seconds between listings of the runtime",
		prometheus.DefBuckets)
	s.RelistLast = s.gauges("pleg_last_seen_seconds", "Unix time of the last listing of the runtime").WithLabelValues()

	s.OrphanedRuntimePods = s.counter("orphaned_runtime_pods_total", "Pods that the runtime had while no source had them")

	s.RuntimeOperations = s.counters("runtime_operations_total", "Calls to the container runtime", "operation_type")
	s.RuntimeErrors = s.counters("runtime_operations_errors_total", "Calls to the container runtime that failed",
		"operation_type")
	s.RuntimeDuration = s.histograms("runtime_operations_duration_seconds", "Seconds of calls to the container runtime",
		prometheus.ExponentialBuckets(.005, 2.5, 14), "operation_type")
	s.RunSandbox = s.histograms("run_podsandbox_duration_seconds", "Seconds to run a pod sandbox", prometheus.DefBuckets,
		"runtime_handler")
	s.RunSandboxErrors = s.counters("run_podsandbox_errors_total", "Pod sandboxes that did not run", "runtime_handler")
	s.ContainersPerPod = s.histogram("containers_per_pod_count", "Containers of pods that came to the node",
		prometheus.ExponentialBuckets(1, 2, 5))
	s.ImagePull = s.histograms("image_pull_duration_seconds", "Seconds to pull an image, by its size", imagePullBuckets,
		"image_size_in_bytes")
	s.CgroupVersion = s.gauges("cgroup_version", "Version of the machine's cgroups: 1 or 2").WithLabelValues()
	s.CgroupDuration = s.histograms("cgroup_manager_duration_seconds",
		"Seconds to create, update and remove cgroups of pods", prometheus.DefBuckets, "operation_type")
	s.StorageDuration = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "storage_operation_duration_seconds",
		Help:    "Seconds to set up and take down volumes",
		Buckets: storageBuckets,
	}, []string{"volume_plugin", "operation_name", "status", "migrated"})
	s.Registry.MustRegister(s.StorageDuration)
	s.CSIOperations = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "csi_operations_seconds",
		Help:    "Seconds of calls to CSI drivers",
		Buckets: storageBuckets,
	}, []string{"driver_name", "method_name", "grpc_status_code", "migrated"})
	s.Registry.MustRegister(s.CSIOperations)
	s.VolumeMeasurement = s.histograms("volume_metric_collection_duration_seconds",
		"Seconds to find out how full a volume is: by the kernel's project quota (fsquota), by reading its directories "+
			"(du), by its file system (statfs), or by asking the CSI driver of that name",
		prometheus.DefBuckets, "metric_source")
}

// decisionMetrics creates the metrics of what the node decides about pods: evictions, rejections, devices, resizes.
func (s *Set) decisionMetrics() {
	s.Evictions = s.counters("evictions", "Pods evicted, by the signal that met its threshold", "eviction_signal")
	s.Preemptions = s.counters("preemptions",
		"Pods that ended to make room for a critical one, by the resource that it lacked", "preemption_signal")
	s.ImagesCollected = s.counters("image_garbage_collected_total", "Unused images removed, by reason", "reason")
	s.EvictionStatsAge = s.histograms("eviction_stats_age_seconds",
		"Seconds from reading what pods use to evicting one of them, by the signal that met its threshold",
		prometheus.DefBuckets, "eviction_signal")
	s.AdmissionRejections = s.counters("admission_rejections_total", "Pods rejected by the node", "reason")
	s.PluginRegistrations = s.counters("device_plugin_registration_total", "Registrations of device plugins",
		"resource_name")
	s.PluginAllocation = s.histograms("device_plugin_alloc_duration_seconds",
		"Seconds of device plugins' answers to Allocate", prometheus.DefBuckets, "resource_name")
	s.PodResources = PodResources{
		Requests: s.counters("pod_resources_endpoint_requests_total", "Requests to the pod-resources API",
			"server_api_version"),
		List: s.counters("pod_resources_endpoint_requests_list", "List requests to the pod-resources API",
			"server_api_version"),
		Get: s.counters("pod_resources_endpoint_requests_get", "Get requests to the pod-resources API",
			"server_api_version"),
		GetWrong: s.counters("pod_resources_endpoint_errors_get",
			"Get requests to the pod-resources API for pods that are not on this node", "server_api_version"),
		GetAllocatable: s.counters("pod_resources_endpoint_requests_get_allocatable",
			"GetAllocatableResources requests to the pod-resources API", "server_api_version"),
	}
	s.ResizeDuration = s.histograms("pod_resize_duration_milliseconds",
		"Milliseconds to set the cgroups of a pod to its allocated resources",
		[]float64{10, 50, 100, 500, 1000, 2000, 5000, 10000, 20000, 30000, 60000, 120000, 300000, 600000}, "success")
	s.LimitExcess = s.gauges("cgroup_memory_limit_excess_bytes",
		"Memory that a cgroup uses above the limit to which it is being lowered", "cgroup")
}

// serverMetrics creates the metrics of the agent's server.
func (s *Set) serverMetrics() {
	labels := []string{"method", "path", "server_type", "long_running"}
	s.HTTPRequests = s.counters("http_requests_total", "Requests to the agent's server", labels...)
	s.HTTPDuration = s.histograms("http_requests_duration_seconds", "Seconds to answer requests to the agent's server",
		prometheus.DefBuckets, labels...)
	s.HTTPInFlight = s.gauges("http_inflight_requests", "Requests to the agent's server being answered", labels...)
	s.Streams = s.gauges("http_streams", "Open streams of the agent's server: logs, exec, attach, port-forward, profiles",
		"path")
	s.StreamsRefused = s.counters("http_streams_refused_total",
		"Streams refused, by the limit that was reached: of the node or of one pod", "path", "limit")
	s.ConnectionsRefused = s.counter("http_connections_refused_total",
		"Connections closed at once because all allowed connections were busy")
}

// ImageSize returns the label image_size_in_bytes of an image of that many bytes. The ranges are the kubelet's.
func ImageSize(bytes uint64) string {
	for _, r := range imageSizes {
		if bytes >= r.least {
			return r.label
		}
	}
	return ""
}

// imageSizes are ranges of sizes in bytes, the largest first.
var imageSizes = []struct {
	least uint64
	label string
}{
	{100 << 30, "GT100GB"},
	{60 << 30, "60GB-100GB"},
	{40 << 30, "40GB-60GB"},
	{30 << 30, "30GB-40GB"},
	{20 << 30, "20GB-30GB"},
	{10 << 30, "10GB-20GB"},
	{5 << 30, "5GB-10GB"},
	{1 << 30, "1GB-5GB"},
	{500 << 20, "500MB-1GB"},
	{100 << 20, "100MB-500MB"},
	{10 << 20, "10MB-100MB"}, {0, "0-10MB"},
}

// ObserveStorage records a storage operation under the kubelet's names: plugin like kubernetes.io/secret, operation
// like volume_mount. migrated: the volume is of a kind that was migrated to CSI drivers.
func (s *Set) ObserveStorage(plugin, operation string, migrated bool, took time.Duration, err error) {
	status := "success"
	if err != nil {
		status = "fail-unknown"
	}
	s.StorageDuration.WithLabelValues(plugin, operation, status, strconv.FormatBool(migrated)).Observe(took.Seconds())
}

// ObserveCSI records a call to a CSI driver under the kubelet's names: method like /csi.v1.Node/NodeStageVolume, code
// like DeadlineExceeded.
func (s *Set) ObserveCSI(driver, method, code string, migrated bool, took time.Duration) {
	s.CSIOperations.WithLabelValues(driver, method, code, strconv.FormatBool(migrated)).Observe(took.Seconds())
}

// buildInfo is kubernetes_build_info, by which alerts compare the versions of a cluster's components. It has the
// release that the Node reports too.
func buildInfo() prometheus.Collector {
	major, rest, _ := strings.Cut(strings.TrimPrefix(version.Kubernetes, "v"), ".")
	minor, _, _ := strings.Cut(rest, ".")
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "kubernetes_build_info",
		Help: "The release of Kubernetes that the agent follows. The value is always 1.",
		ConstLabels: prometheus.Labels{
			"build_date": "", "git_commit": "", "git_tree_state": "", "major": major, "minor": minor,
			"git_version": version.Kubernetes, "go_version": runtime.Version(), "compiler": runtime.Compiler,
			"platform": runtime.GOOS + "/" + runtime.GOARCH,
		},
	}, func() float64 { return 1 })
}

func (s *Set) counters(name, help string, labels ...string) *prometheus.CounterVec {
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Subsystem: subsystem, Name: name, Help: help}, labels)
	s.Registry.MustRegister(v)
	return v
}

func (s *Set) counter(name, help string) prometheus.Counter {
	return s.counters(name, help).WithLabelValues()
}

func (s *Set) gauges(name, help string, labels ...string) *prometheus.GaugeVec {
	v := prometheus.NewGaugeVec(prometheus.GaugeOpts{Subsystem: subsystem, Name: name, Help: help}, labels)
	s.Registry.MustRegister(v)
	return v
}

func (s *Set) gauge(name, help string) prometheus.Gauge {
	return s.gauges(name, help).WithLabelValues()
}

func (s *Set) histograms(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Subsystem: subsystem, Name: name, Help: help,
		Buckets: buckets}, labels)
	s.Registry.MustRegister(v)
	return v
}

func (s *Set) histogram(name, help string, buckets []float64) prometheus.Histogram {
	h := prometheus.NewHistogram(prometheus.HistogramOpts{Subsystem: subsystem, Name: name, Help: help, Buckets: buckets})
	s.Registry.MustRegister(h)
	return h
}

// RuntimeCalls counts and times every call of a connection to the runtime; pass it to cri.Dial.
func (s *Set) RuntimeCalls() grpc.DialOption {
	return grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn,
		invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		operation, start := operationType(method), time.Now()
		err := invoke(ctx, method, req, reply, cc, opts...)
		s.RuntimeOperations.WithLabelValues(operation).Inc()
		s.RuntimeDuration.WithLabelValues(operation).Observe(time.Since(start).Seconds())
		if err != nil {
			s.RuntimeErrors.WithLabelValues(operation).Inc()
		}
		return err
	})
}

// operationType spells a CRI method as the kubelet does: /runtime.v1.RuntimeService/RunPodSandbox is run_podsandbox.
func operationType(method string) string {
	name := strings.Replace(path.Base(method), "PodSandbox", "Podsandbox", 1)
	var b strings.Builder
	for i, r := range name {
		if unicode.IsUpper(r) && i > 0 {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}
