package pods

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	crierrors "k8s.io/cri-api/pkg/errors"

	"github.com/plimsoll-dev/plimsoll/internal/agent/metrics"
	"github.com/plimsoll-dev/plimsoll/internal/agent/podentry"
	"github.com/plimsoll-dev/plimsoll/internal/agent/volume"
	"github.com/plimsoll-dev/plimsoll/internal/core/admission"
	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/core/qos"
)

// measuredValues returns the series of one family that are not zero, by the values of their labels. For a histogram the
// value is the number of observations.
func measuredValues(t *testing.T, registry *prometheus.Registry, family string) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, f := range families {
		if f.GetName() != family {
			continue
		}
		for _, m := range f.Metric {
			key := ""
			for _, l := range m.Label {
				key += l.GetValue() + " "
			}
			v := m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			if v != 0 {
				values[key] = v
			}
		}
	}
	return values
}

func measuredRunner() *Runner {
	r := testRunner()
	r.Metrics = metrics.New("n")
	r.pods, r.Volumes = map[types.UID]*podentry.Entry{}, &volume.Manager{}
	return r
}

// A worker's syncs are labelled as the kubelet's, and only the first counts as the worker's start.
func TestSyncsAreCounted(t *testing.T) {
	r := measuredRunner()
	e := r.take(testPod(), false)
	w := e.Wake().(*worker)
	count := func() { w.countSync(time.Now()) }
	count()
	count()
	later := testPod()
	later.ResourceVersion = "11"
	r.take(later, false)
	count()
	count()
	now, _ := r.now()
	e.Vanish(now)
	count()
	want := map[string]float64{"create ": 1, "sync ": 2, "update ": 1, "terminated ": 1}
	if got := measuredValues(t, r.Metrics.Registry, "kubelet_pod_worker_duration_seconds"); !maps.Equal(got, want) {
		t.Errorf("syncs %v, want %v", got, want)
	}
	if got := measuredValues(t, r.Metrics.Registry, "kubelet_pod_worker_start_duration_seconds"); got[""] != 1 {
		t.Errorf("starts of workers: %v, want one", got)
	}
	if got := measuredValues(t, r.Metrics.Registry, "kubelet_containers_per_pod_count"); got[""] != 1 {
		t.Errorf("pods that came: %v, want one", got)
	}
}

// Failed starts are counted by the kind of container and by the reason that users see; other failures are not.
func TestFailedStartsAreCounted(t *testing.T) {
	r := measuredRunner()
	pod := testPod()
	pod.Spec.InitContainers = []corev1.Container{{Name: "first"}}
	pod.Spec.EphemeralContainers = []corev1.EphemeralContainer{
		{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug"}},
	}
	w := r.take(pod, false).Wake().(*worker)
	main := pod.Spec.Containers[0].Name
	for _, a := range []podlife.Action{
		{Kind: podlife.CreateSandbox},
		{Kind: podlife.StopContainer, Container: main},
		{Kind: podlife.StartContainer, Container: main},
		{Kind: podlife.StartContainer, Container: "first"}, {Kind: podlife.StartContainer, Container: "debug"},
	} {
		w.countFailure(pod, a, "ErrImagePull")
	}
	if got := measuredValues(t, r.Metrics.Registry, "kubelet_started_pods_errors_total"); got[""] != 1 {
		t.Errorf("failed sandboxes: %v, want one", got)
	}
	want := map[string]float64{"ErrImagePull container ": 1, "ErrImagePull init_container ": 1,
		"ErrImagePull ephemeral_container ": 1}
	if got := measuredValues(t, r.Metrics.Registry, "kubelet_started_containers_errors_total"); !maps.Equal(got, want) {
		t.Errorf("failed containers: %v, want %v", got, want)
	}
}

// A sandbox that cannot be created counts as an error of its pod, and once more if the pod has a user namespace.
func TestFailuresOfPodsWithUserNamespaces(t *testing.T) {
	r := measuredRunner()
	no := false
	pod := testPod()
	pod.Spec.HostUsers = &no
	r.take(pod, false).Wake().(*worker).countFailure(pod, podlife.Action{Kind: podlife.CreateSandbox},
		"FailedCreatePodSandBox")
	for _, name := range []string{"kubelet_started_pods_errors_total",
		"kubelet_started_user_namespaced_pods_errors_total"} {
		if got := measuredValues(t, r.Metrics.Registry, name); got[""] != 1 {
			t.Errorf("%s: %v, want one", name, got)
		}
	}
}

// Image volumes of a container count as mounted when the container was created, as failed when the runtime says so, and
// as neither when the creation failed for another reason.
func TestImageVolumesAreCounted(t *testing.T) {
	r := measuredRunner()
	w := r.take(testPod(), false).Wake().(*worker)
	c := &corev1.Container{VolumeMounts: []corev1.VolumeMount{{Name: "i"}, {Name: "disk"}, {Name: "i", SubPath: "part"}}}
	images := map[string]*runtimeapi.ImageSpec{"i": {}}
	w.countImageVolumes(c, images, nil)
	w.countImageVolumes(c, images, status.Error(codes.Unknown, crierrors.ErrImageVolumeMountFailed.Error()+": no space"))
	w.countImageVolumes(c, images, status.Error(codes.Unknown, "no such program"))
	w.countImageVolumes(c, nil, nil)
	for name, want := range map[string]float64{"requested_total": 3, "mounted_succeed_total": 2,
		"mounted_errors_total": 2} {
		if got := measuredValues(t, r.Metrics.Registry, "kubelet_image_volume_"+name); got[""] != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}

// What a resize requests is counted by container, resource and requirement. An update of something else is not counted.
func TestRequestedResizesAreCounted(t *testing.T) {
	r := measuredRunner()
	sized := func(generation int64, requests, limits corev1.ResourceList) *corev1.Pod {
		pod := sizedPod("a", 100, generation)
		pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: requests, Limits: limits}
		return pod
	}
	q := resource.MustParse
	few := corev1.ResourceList{"cpu": q("100m"), "memory": q("1Gi")}
	r.take(sized(1, few, nil), false)
	r.take(sized(2, corev1.ResourceList{"cpu": q("200m"), "memory": q("512Mi")}, corev1.ResourceList{"cpu": q("1")}),
		false)
	r.take(sized(3, few, nil), false)
	r.take(sized(4, corev1.ResourceList{"cpu": q("0.1"), "memory": q("1024Mi")}, nil), false)
	want := map[string]float64{
		"increase requests cpu ": 1, "decrease requests memory ": 1, "add limits cpu ": 1,
		"decrease requests cpu ": 1, "increase requests memory ": 1, "remove limits cpu ": 1,
	}
	if got := measuredValues(t, r.Metrics.Registry, "kubelet_container_requested_resizes_total"); !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// The label of a resize that can never be allocated is derived from the core's text.
func TestInfeasibleResizesAreLabelled(t *testing.T) {
	for want, c := range map[string]admission.Change{
		"swap_limitation":                             {Swap: true},
		"guaranteed_pod_cpu_manager_static_policy":    {Class: qos.Guaranteed, StaticCPUs: true, CPU: true},
		"guaranteed_pod_memory_manager_static_policy": {Class: qos.Guaranteed, StaticMemory: true, Memory: true},
	} {
		if got := infeasible(admission.Never(c)); got != want {
			t.Errorf("%q is %s, want %s", admission.Never(c), got, want)
		}
	}
}

// The SLI of a pod's start does not count pulls and init containers that have ended.
func TestStartSLILeavesOutPullsAndInit(t *testing.T) {
	at := func(second int64) metav1.Time { return metav1.Unix(second, 0) }
	ended := func(from, to int64) corev1.ContainerStatus {
		return corev1.ContainerStatus{
			State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{StartedAt: at(from), FinishedAt: at(to)}},
		}
	}
	sidecar := corev1.ContainerStatus{
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: at(1)}},
	}
	s := corev1.PodStatus{InitContainerStatuses: []corev1.ContainerStatus{ended(10, 13), sidecar, ended(20, 21),
		ended(30, 29)}}
	if got := initTime(&s); got != 4*time.Second {
		t.Errorf("init containers ran %v, want 4s", got)
	}
	var m measured
	present := m.pull()
	present.ended()
	if m.pulling != 0 {
		t.Errorf("an image that was there took %v to pull", m.pulling)
	}
	missing := m.pull()
	missing.began()
	missing.begun = missing.begun.Add(-time.Minute)
	missing.ended()
	if m.pulling < time.Minute {
		t.Errorf("a pull of a minute took %v", m.pulling)
	}
}

// Pods are counted by their lifecycle and by their source.
func TestPodsAreCounted(t *testing.T) {
	r := measuredRunner()
	r.Metrics.Registry.MustRegister(podCounts{r})
	named := func(n int) *corev1.Pod {
		pod := testPod()
		pod.UID, pod.Name = types.UID(fmt.Sprint("u", n)), fmt.Sprint("p", n)
		return pod
	}
	debugged := named(1)
	debugged.Spec.EphemeralContainers = make([]corev1.EphemeralContainer, 2)
	r.take(debugged, false)
	r.take(named(2), true)
	now, _ := r.now()
	r.take(named(3), false).Vanish(now)
	ended := corev1.PodStatus{Phase: corev1.PodSucceeded}
	r.take(named(4), false).SetStatus(named(4), ended, podlife.Observation{}, podlife.Status{})
	unknown := r.newEntry("u5")
	unknown.FoundInRuntime(podentry.Identity{}, nil)
	r.pods["u5"] = unknown
	for family, want := range map[string]map[string]float64{
		"kubelet_active_pods":                  {" ": 2, "true ": 1},
		"kubelet_mirror_pods":                  {"": 1},
		"kubelet_managed_ephemeral_containers": {"": 2},
		"kubelet_working_pods": {
			"desired sync  ": 1, "desired sync true ": 1, "orphan terminating  ": 1, "desired terminated  ": 1,
			"runtime_only terminating  ": 1,
		},
	} {
		if got := measuredValues(t, r.Metrics.Registry, family); !maps.Equal(got, want) {
			t.Errorf("%s: %v, want %v", family, got, want)
		}
	}
}

// A pod that only the runtime has is an orphan once the sources have delivered all pods.
func TestOrphansAreCounted(t *testing.T) {
	r := measuredRunner()
	r.merge(inventory{"u1": {states: map[string]int32{}}})
	r.synced = true
	r.merge(inventory{"u1": {states: map[string]int32{}}, "u2": {states: map[string]int32{}}})
	if got := measuredValues(t, r.Metrics.Registry, "kubelet_orphaned_runtime_pods_total"); got[""] != 1 {
		t.Errorf("orphans: %v, want one", got)
	}
}
