package pods

import (
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	crierrors "k8s.io/cri-api/pkg/errors"

	"github.com/plimsoll-dev/plimsoll/internal/agent/podstatus"
	"github.com/plimsoll-dev/plimsoll/internal/agent/userns"
	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
)

// This file has the metrics of pods and their workers, under the kubelet's names.

// countSync counts a sync: the first of a pod (create), one after its object changed (update), one of a pod that is to
// end or has ended (terminated), or another (sync).
func (w *worker) countSync(began time.Time) {
	m := &w.measured
	pod, ends := w.e.Ending()
	if !m.synced {
		w.r.Metrics.PodWorkerStart.Observe(max(0, began.Sub(m.known)).Seconds())
	}
	version := ""
	if pod != nil {
		version = pod.ResourceVersion
	}
	kind := "sync"
	switch {
	case pod == nil || ends:
		kind = "terminated"
	case !m.synced:
		kind = "create"
	case version != m.version:
		kind = "update"
	}
	m.synced = true
	m.version = version
	w.r.Metrics.PodWorker.WithLabelValues(kind).Observe(time.Since(began).Seconds())
}

// countFailure counts a start that failed. reason is that of the waiting container.
func (w *worker) countFailure(pod *corev1.Pod, a podlife.Action, reason string) {
	switch {
	case a.Kind == podlife.CreateSandbox:
		w.r.Metrics.StartedPodsErrors.Inc()
		if pod != nil && userns.Wants(pod) {
			w.r.Metrics.UserNamespacedPodsErrors.Inc()
		}
	case a.Kind == podlife.StartContainer && pod != nil:
		w.r.Metrics.StartErrors.WithLabelValues(containerType(pod, a.Container), reason).Inc()
	}
}

// countImageVolumes counts the image volumes of a container. err is the result of its creation.
func (w *worker) countImageVolumes(c *corev1.Container, images map[string]*runtimeapi.ImageSpec, err error) {
	w.r.Metrics.ImageVolumesRequested.Add(float64(len(images)))
	refused := strings.HasPrefix(status.Convert(err).Message(), crierrors.ErrImageVolumeMountFailed.Error())
	for _, m := range c.VolumeMounts {
		switch _, isImage := images[m.Name]; {
		case !isImage:
		case err == nil:
			w.r.Metrics.ImageVolumesMounted.Inc()
		case refused: // after any other failure it is not known whether they were mounted
			w.r.Metrics.ImageVolumesErrors.Inc()
		}
	}
}

// countRequestedResizes counts the resources that a pod requests now and did not request before.
func (r *Runner) countRequestedResizes(before, after *corev1.Pod) {
	if before == nil || before.Generation == after.Generation {
		return
	}
	for _, lists := range [][2][]corev1.Container{
		{before.Spec.InitContainers, after.Spec.InitContainers}, {before.Spec.Containers, after.Spec.Containers},
	} {
		for i := range min(len(lists[0]), len(lists[1])) { // the API does not allow to add or remove containers
			was, is := &lists[0][i].Resources, &lists[1][i].Resources
			for _, name := range []corev1.ResourceName{corev1.ResourceMemory, corev1.ResourceCPU} {
				r.countResize(name, "requests", was.Requests[name], is.Requests[name])
				r.countResize(name, "limits", was.Limits[name], is.Limits[name])
			}
		}
	}
}

func (r *Runner) countResize(name corev1.ResourceName, requirement string, was, is resource.Quantity) {
	operation := ""
	switch more := is.Cmp(was); {
	case more == 0:
		return
	case was.IsZero():
		operation = "add"
	case is.IsZero():
		operation = "remove"
	case more > 0:
		operation = "increase"
	default:
		operation = "decrease"
	}
	r.Metrics.RequestedResizes.WithLabelValues(string(name), requirement, operation).Inc()
}

// infeasible returns the label reason_detail for a resize that the node can never allocate (admission.Never).
func infeasible(message string) string {
	switch {
	case strings.Contains(message, "CPU Manager"):
		return "guaranteed_pod_cpu_manager_static_policy"
	case strings.Contains(message, "Memory Manager"):
		return "guaranteed_pod_memory_manager_static_policy"
	}
	return "swap_limitation"
}

// containerType returns the label container_type of a container. Sidecars are init containers, as in the kubelet.
func containerType(pod *corev1.Pod, name string) string {
	isEphemeral := func(c corev1.EphemeralContainer) bool { return c.Name == name }
	switch {
	case isInit(pod, name):
		return podstatus.InitContainer
	case slices.ContainsFunc(pod.Spec.EphemeralContainers, isEphemeral):
		return podstatus.EphemeralContainer
	}
	return podstatus.Container
}

// initTime returns how long the init containers ran that have succeeded, one after the other. Sidecars do not count.
func initTime(s *corev1.PodStatus) (sum time.Duration) {
	for i := range s.InitContainerStatuses {
		if end := s.InitContainerStatuses[i].State.Terminated; end != nil {
			sum += max(0, end.FinishedAt.Sub(end.StartedAt.Time))
		}
	}
	return sum
}

// podCounts counts the pods of the node when metrics are collected.
type podCounts struct{ r *Runner }

var (
	activePods = prometheus.NewDesc(
		"kubelet_active_pods",
		"Pods that count when another is admitted; static is true for those that are not from the API server",
		[]string{"static"}, nil,
	)
	mirrorPods = prometheus.NewDesc("kubelet_mirror_pods", "Mirror pods, one for each static pod", nil, nil)

	workingPods = prometheus.NewDesc(
		"kubelet_working_pods",
		"Pods with a worker: lifecycle is sync, terminating or terminated; config is desired, "+
			"orphan (no source has it any more) or runtime_only",
		[]string{"lifecycle", "config", "static"}, nil,
	)
	ephemeralContainers = prometheus.NewDesc("kubelet_managed_ephemeral_containers",
		"Ephemeral containers of the node's pods", nil, nil)
)

// Describe implements prometheus.Collector.
func (podCounts) Describe(out chan<- *prometheus.Desc) {
	out <- activePods
	out <- mirrorPods
	out <- workingPods
	out <- ephemeralContainers
}

// Collect implements prometheus.Collector.
func (c podCounts) Collect(out chan<- prometheus.Metric) {
	type work struct{ lifecycle, config, static string }
	working := map[work]int{}
	active := map[string]int{"": 0, "true": 0}
	mirrors, ephemeral := 0, 0
	for _, e := range c.r.entries() {
		p := e.Place()
		static := ""
		if p.Static {
			static = "true"
			mirrors++
		}
		if p.Active {
			active[static]++
		}
		working[work{p.Lifecycle, p.Config, static}]++
		ephemeral += p.Ephemeral
	}
	gauge := func(d *prometheus.Desc, n int, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), labels...)
	}
	for static, n := range active {
		gauge(activePods, n, static)
	}
	gauge(mirrorPods, mirrors)
	for w, n := range working {
		gauge(workingPods, n, w.lifecycle, w.config, w.static)
	}
	gauge(ephemeralContainers, ephemeral)
}
