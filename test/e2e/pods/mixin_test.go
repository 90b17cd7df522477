//go:build e2e

package pods

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/metrics"
	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// mixin is what the rules, alerts and dashboards of github.com/kubernetes-monitoring/kubernetes-mixin select of the
// kubelet's metrics, one selector a line. The labels that Prometheus adds (cluster, job, instance) are left out,
// except metrics_path, the path of the scrape. DISK stands for the mixin's diskDevices.
const mixin = `
# rules/apps, k8s.rules.*
container_cpu_usage_seconds_total{metrics_path="/metrics/cadvisor", image!=""}
container_memory_working_set_bytes{metrics_path="/metrics/cadvisor", image!=""}
container_memory_rss{metrics_path="/metrics/cadvisor", image!=""}
container_memory_cache{metrics_path="/metrics/cadvisor", image!=""}
container_memory_swap{metrics_path="/metrics/cadvisor", image!=""}
# rules/kubelet
kubelet_node_name{metrics_path="/metrics"}
kubelet_pleg_relist_duration_seconds_bucket{metrics_path="/metrics", le="+Inf"}
# alerts/resource
container_cpu_cfs_throttled_periods_total{metrics_path="/metrics/cadvisor", container!=""}
container_cpu_cfs_periods_total{metrics_path="/metrics/cadvisor", container!=""}
# alerts/storage
kubelet_volume_stats_available_bytes{namespace=~".*", metrics_path="/metrics", persistentvolumeclaim!=""}
kubelet_volume_stats_capacity_bytes{namespace=~".*", metrics_path="/metrics", persistentvolumeclaim!=""}
kubelet_volume_stats_used_bytes{namespace=~".*", metrics_path="/metrics", persistentvolumeclaim!=""}
kubelet_volume_stats_inodes_free{namespace=~".*", metrics_path="/metrics", persistentvolumeclaim!=""}
kubelet_volume_stats_inodes{namespace=~".*", metrics_path="/metrics", persistentvolumeclaim!=""}
kubelet_volume_stats_inodes_used{namespace=~".*", metrics_path="/metrics", persistentvolumeclaim!=""}
# alerts/system, alerts/kubelet
kubernetes_build_info{git_version=~"v1[.].*"}
rest_client_requests_total{code=~"2.."}
kubelet_pod_worker_duration_seconds_bucket{metrics_path="/metrics"}
kubelet_certificate_manager_client_ttl_seconds
kubelet_certificate_manager_server_ttl_seconds
# dashboards/kubelet
kubelet_running_pods{metrics_path="/metrics"}
kubelet_running_containers{metrics_path="/metrics"}
volume_manager_total_volumes{metrics_path="/metrics", state="actual_state_of_world"}
volume_manager_total_volumes{metrics_path="/metrics", state="desired_state_of_world"}
kubelet_runtime_operations_total{metrics_path="/metrics"}
kubelet_runtime_operations_errors_total{metrics_path="/metrics"}
kubelet_runtime_operations_duration_seconds_bucket{metrics_path="/metrics"}
kubelet_pod_start_duration_seconds_count{metrics_path="/metrics"}
kubelet_pod_start_duration_seconds_bucket{metrics_path="/metrics"}
kubelet_pod_worker_duration_seconds_count{metrics_path="/metrics"}
storage_operation_duration_seconds_count{metrics_path="/metrics"}
storage_operation_duration_seconds_bucket{metrics_path="/metrics"}
kubelet_cgroup_manager_duration_seconds_count{metrics_path="/metrics", operation_type="create"}
kubelet_cgroup_manager_duration_seconds_bucket{metrics_path="/metrics"}
kubelet_pleg_relist_duration_seconds_count{metrics_path="/metrics"}
kubelet_pleg_relist_interval_seconds_bucket{metrics_path="/metrics"}
rest_client_request_duration_seconds_bucket{metrics_path="/metrics", verb="GET"}
process_resident_memory_bytes{metrics_path="/metrics"}
process_cpu_seconds_total{metrics_path="/metrics"}
go_goroutines{metrics_path="/metrics"}
# dashboards/network-usage, dashboards/resources
container_network_receive_bytes_total{metrics_path="/metrics/cadvisor", namespace=~".+", pod=~".+"}
container_network_transmit_bytes_total{metrics_path="/metrics/cadvisor", namespace=~".+", pod=~".+"}
container_network_receive_packets_total{metrics_path="/metrics/cadvisor", namespace=~".+"}
container_network_transmit_packets_total{metrics_path="/metrics/cadvisor", namespace=~".+"}
container_network_receive_packets_dropped_total{metrics_path="/metrics/cadvisor", namespace=~".+"}
container_network_transmit_packets_dropped_total{metrics_path="/metrics/cadvisor", namespace=~".+"}
container_fs_reads_total{metrics_path="/metrics/cadvisor", device=~"DISK"}
container_fs_writes_total{metrics_path="/metrics/cadvisor", device=~"DISK"}
container_fs_reads_bytes_total{metrics_path="/metrics/cadvisor", device=~"DISK"}
container_fs_writes_bytes_total{metrics_path="/metrics/cadvisor", device=~"DISK"}
container_memory_working_set_bytes{metrics_path="/metrics/cadvisor", namespace=~".+", container!="", image!=""}
container_spec_cpu_quota{metrics_path="/metrics/cadvisor", container!=""}
machine_cpu_cores{metrics_path="/metrics/cadvisor"}
machine_memory_bytes{metrics_path="/metrics/cadvisor"}
`

// diskDevices are the names of disks in the mixin's configuration.
const diskDevices = "(/dev/)?(mmcblk.p.+|nvme.+|rbd.+|sd.+|vd.+|xvd.+|dm-.+|md.+|dasd.+)"

// meaningless are selectors of the mixin that find nothing on this agent, and why.
var meaningless = map[string]string{
	"kubelet_node_config_error": "dynamic configuration of kubelets ended with " +
		"Kubernetes 1.24",
	"storage_operation_errors_total": "ended with Kubernetes 1.23: " +
		"storage_operation_duration_seconds_count has a label status",
	"kubelet_certificate_manager_client_expiration_renew_errors": "the agent of up does not renew its client certificate",
	"kubelet_server_expiration_renew_errors":                     "the agent of up has its serving certificate from up",
}

// unprovoked are the measurements of the agent whose events TestMetrics does not cause, with the reasons.
var unprovoked = map[string]string{
	"kubelet_evictions": "needs a node that is short of something; " +
		"see test/e2e/disk",
	"kubelet_eviction_stats_age_seconds":                      "likewise",
	"kubelet_preemptions":                                     "needs a node without room; see TestCritical",
	"kubelet_image_garbage_collected_total":                   "needs a full disk; see agent/imagegc",
	"csi_operations_seconds":                                  "needs a CSI driver; see TestCSIDrivers",
	"kubelet_device_plugin_registration_total":                "needs a device plugin; see test/e2e/resize",
	"kubelet_device_plugin_alloc_duration_seconds":            "likewise",
	"kubelet_pod_resources_endpoint_requests_total":           "needs a client of that API; see agent/podresources",
	"kubelet_pod_resources_endpoint_requests_list":            "likewise",
	"kubelet_pod_resources_endpoint_requests_get":             "likewise",
	"kubelet_pod_resources_endpoint_errors_get":               "likewise",
	"kubelet_pod_resources_endpoint_requests_get_allocatable": "likewise",
	"kubelet_cgroup_memory_limit_excess_bytes": "needs pods above a limit of the node; " +
		"see test/e2e/enforce",
	"kubelet_started_user_namespaced_pods_total":        "needs Linux 6.3 and containerd 2; see agent/pods",
	"kubelet_started_user_namespaced_pods_errors_total": "likewise",
	"kubelet_image_volume_requested_total":              "needs containerd 2.1; see agent/pods",
	"kubelet_image_volume_mounted_succeed_total":        "likewise",
	"kubelet_image_volume_mounted_errors_total":         "likewise",
	"kubelet_lifecycle_handler_http_fallbacks_total": "needs a hook that is answered in another protocol; " +
		"see agent/hook",
	"kubelet_sleep_action_terminated_early_total":     "needs a pod that ends too early; see agent/hook",
	"kubelet_pod_infeasible_resizes_total":            "needs a node with a static policy; see agent/pods",
	"kubelet_credential_provider_plugin_duration":     "needs a plugin; see TestCredentialPlugins",
	"kubelet_credential_provider_plugin_errors_total": "likewise",
	"kubelet_credential_provider_config_info":         "likewise",
	"kubelet_http_streams":                            "a gauge that is back at zero when it is read",
	"kubelet_http_inflight_requests":                  "likewise, but for the request that reads it",
	"kubelet_http_streams_refused_total":              "needs a thousand streams; see agent/server",
	"kubelet_http_connections_refused_total":          "needs thousands of connections; see agent/server",
	"kubelet_orphaned_runtime_pods_total": "needs a pod that somebody else makes in the runtime; " +
		"see agent/pods",
}

// TestMetrics finds every series that kubernetes-mixin selects, and every measurement that the agent declares, after
// pods were started in every way that is measured: with limits, probes, claims, init containers, images of a registry,
// failures and a resize.
func TestMetrics(t *testing.T) {
	b := at(t)
	b.busy()
	rig.Eventually(t, soon, "every series of kubernetes-mixin, and of the agent", func(context.Context) error {
		found := b.scrape("/metrics", "/metrics/cadvisor", "/metrics/resource", "/metrics/probes", "/metrics/slis")
		var problems []error
		for line := range strings.Lines(mixin) {
			if selector := strings.TrimSpace(line); selector != "" && !strings.HasPrefix(selector, "#") &&
				!found.has(t, selector, false) {
				problems = append(problems, fmt.Errorf("nothing is selected by %s", selector))
			}
		}
		for _, name := range declared(t) {
			if unprovoked[name] == "" && !found.has(t, name, true) && !found.has(t, name+"_count", true) {
				problems = append(problems, fmt.Errorf("%s is declared and did not move", name))
			}
		}
		for _, selector := range []string{ // other series that users' rules need
			`container_memory_working_set_bytes{id="/", container="", image=""}`, `container_start_time_seconds{container!=""}`,
			`container_oom_events_total{container!=""}`, `container_processes{container!=""}`,
			`container_last_seen{container!=""}`,
			`container_fs_usage_bytes{id="/"}`, `container_spec_memory_limit_bytes{container!=""}`, `container_scrape_error`,
			`node_cpu_usage_seconds_total{metrics_path="/metrics/resource"}`, `pod_cpu_usage_seconds_total{namespace!=""}`,
			`prober_probe_total{probe_type="Readiness", result="successful"}`,
			`prober_probe_duration_seconds_count{probe_type="Readiness"}`,
			`kubernetes_healthcheck{name="syncloop", type="healthz"}`,
			`kubelet_working_pods{lifecycle="sync", config="desired"}`,
			`kubelet_mirror_pods`, `kubelet_active_pods{static="true"}`, `kubelet_desired_pods{static=""}`,
			`kubelet_started_containers_total{container_type="init_container"}`,
		} {
			if !found.has(t, selector, false) {
				problems = append(problems, fmt.Errorf("nothing is selected by %s", selector))
			}
		}
		return errors.Join(problems...)
	})
	found := b.scrape("/metrics", "/metrics/cadvisor")
	for selector, reason := range meaningless {
		if found.has(t, selector, false) {
			t.Errorf("%s is there, although it has no meaning here: %s", selector, reason)
		}
	}
}

// busy makes pods that move what the agent measures.
func (b bench) busy() {
	b.t.Helper()
	class, mode := b.ns+"-local", storagev1.VolumeBindingWaitForFirstConsumer
	_, err := b.API.StorageV1().StorageClasses().Create(b.t.Context(), &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: class}, Provisioner: "kubernetes.io/no-provisioner", VolumeBindingMode: &mode,
	}, metav1.CreateOptions{})
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() {
		_ = b.API.StorageV1().StorageClasses().Delete(context.Background(), class, metav1.DeleteOptions{})
	})
	b.localVolume(class, "a")
	b.claim(class, "a")
	main := workload("c", "run", "write /data/file hello", "http")
	main.ReadinessProbe = probe(corev1.ProbeHandler{HTTPGet: get("/", 8080)})
	main.Resources.Limits = resources("500m", "64Mi")
	main.VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
	spec := lasting(main)
	spec.InitContainers = []corev1.Container{workload("init", "exit", "--code", "0")}
	spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "a"},
	}}}
	b.create("all", spec)
	b.manifest("static", "http")
	r := newRegistry(b.t)
	b.secret("registry", corev1.SecretTypeDockerConfigJson, corev1.DockerConfigJsonKey, fmt.Sprintf(
		`{"auths":{%q:{"username":%q,"password":%q}}}`, r.Listener.Addr().String(), registryUser, registryPassword))
	b.create("pulled", pulls(r.name("app"), "registry"))
	b.create("no-image", pulls("127.0.0.1:1/none:1")) // nothing listens there
	b.create("fails", brief(workload("c", "exit", "--code", "3")))
	b.noSandbox()
	elsewhere := brief(workload("c", "http"))
	elsewhere.NodeName, elsewhere.NodeSelector = b.NodeName, map[string]string{"plimsoll.dev/none": "here"}
	b.create("rejected", elsewhere)

	b.ready("all")
	b.ended("pulled", corev1.PodSucceeded)
	b.ended("fails", corev1.PodFailed)
	b.kubectl("patch", "pod", "all", "--subresource", "resize", "--patch",
		`{"spec":{"containers":[{"name":"c","resources":{"requests":{"cpu":"400m"},"limits":{"cpu":"400m"}}}]}}`)
	b.event("all", "ResizeCompleted")
	b.delete("fails", 0, soon)
}

// noSandbox makes a pod whose sandbox cannot be made: the runtime has no such handler.
func (b bench) noSandbox() {
	b.t.Helper()
	class := b.ns + "-none"
	_, err := b.API.NodeV1().RuntimeClasses().Create(b.t.Context(), &nodev1.RuntimeClass{
		ObjectMeta: metav1.ObjectMeta{Name: class}, Handler: "none",
	}, metav1.CreateOptions{})
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() {
		_ = b.API.NodeV1().RuntimeClasses().Delete(context.Background(), class, metav1.DeleteOptions{})
	})
	spec := brief(workload("c", "http"))
	spec.RuntimeClassName = &class
	b.create("no-sandbox", spec)
}

// declared are the names of the measurements of metrics.Set.
func declared(t *testing.T) []string {
	t.Helper()
	nameOf := regexp.MustCompile(`fqName: "([^"]*)"`)
	var names []string
	var list func(v reflect.Value)
	list = func(v reflect.Value) {
		for i := range v.NumField() {
			if v.Field(i).Kind() == reflect.Struct {
				list(v.Field(i))
				continue
			}
			c, ok := v.Field(i).Interface().(prometheus.Collector)
			if _, registry := v.Field(i).Interface().(*prometheus.Registry); !ok || registry {
				continue
			}
			descriptions := make(chan *prometheus.Desc, 1)
			c.Describe(descriptions)
			names = append(names, nameOf.FindStringSubmatch((<-descriptions).String())[1])
		}
	}
	list(reflect.ValueOf(*metrics.New("n")))
	if len(names) < 40 {
		t.Fatalf("only %d measurements: %q", len(names), names)
	}
	return names
}

// sample is one line of an answer.
type sample struct {
	labels map[string]string
	zero   bool
}

// samples are the samples of one or more paths, by the name of the metric.
type samples map[string][]sample

var labelOf = regexp.MustCompile(`([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"`)

// scrape reads the samples of some paths.
func (b bench) scrape(paths ...string) samples {
	b.t.Helper()
	all := samples{}
	for _, path := range paths {
		text := b.ReadAgent(b.t, path)
		for line := range strings.Lines(text) {
			line = strings.TrimSpace(line)
			if line == "" || strings.HasPrefix(line, "#") {
				continue
			}
			head, rest, _ := strings.Cut(line, "{")
			labels, value := "", ""
			if rest != "" {
				end := strings.LastIndex(rest, "} ")
				labels, value = rest[:end], rest[end+2:]
			} else {
				head, value, _ = strings.Cut(line, " ")
			}
			s := sample{labels: map[string]string{"metrics_path": path}}
			for _, m := range labelOf.FindAllStringSubmatch(labels, -1) {
				s.labels[m[1]] = m[2]
			}
			value, _, _ = strings.Cut(value, " ")
			s.zero = value == "0"
			all[head] = append(all[head], s)
		}
	}
	return all
}

var matcherOf = regexp.MustCompile(`(\w+)(=~|!=|=)"([^"]*)"`)

// has reports whether a selector finds a series; moved wants one that is not zero.
func (s samples) has(t *testing.T, selector string, moved bool) bool {
	t.Helper()
	name, rest, _ := strings.Cut(selector, "{")
	for _, one := range s[name] {
		fits := !moved || !one.zero
		for _, m := range matcherOf.FindAllStringSubmatch(rest, -1) {
			value := one.labels[m[1]]
			switch m[2] {
			case "=":
				fits = fits && value == m[3]
			case "!=":
				fits = fits && value != m[3]
			default:
				pattern := strings.ReplaceAll(m[3], "DISK", diskDevices)
				fits = fits && regexp.MustCompile("^(?:"+pattern+")$").MatchString(value)
			}
		}
		if fits {
			return true
		}
	}
	return false
}
