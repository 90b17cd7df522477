package kubeletconfig

import (
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	logsapi "k8s.io/component-base/logs/api/v1"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/plimsoll-dev/plimsoll/internal/core/allocatable"
	"github.com/plimsoll-dev/plimsoll/internal/core/qos"
)

// defaultEvictionHard is the kubelet's default on Linux (pkg/kubelet/eviction at v1.36.3).
var defaultEvictionHard = map[string]string{
	string(allocatable.MemoryAvailable):   "100Mi",
	string(allocatable.NodeFSAvailable):   "10%",
	string(allocatable.NodeFSInodesFree):  "5%",
	string(allocatable.ImageFSAvailable):  "15%",
	string(allocatable.ImageFSInodesFree): "5%",
}

const (
	cfsPeriodDefault = qos.CFSPeriodDefault

	// memoryThrottlingFactorDefault is the value of KEP-2570. A lower factor throttles earlier.
	memoryThrottlingFactorDefault = 0.9
)

// defaults sets absent fields of the configuration to the kubelet's values at v1.36.3 (pkg/kubelet/apis/config). One
// value differs: failCgroupV1 is false, because Plimsoll supports cgroup v1.
func defaults(c *kubeletconfigv1beta1.KubeletConfiguration) {
	serverDefaults(c)
	apiDefaults(c)
	resourceDefaults(c)
	podDefaults(c)
	imageDefaults(c)
	logsapi.SetRecommendedLoggingConfiguration(&c.Logging)
}

func serverDefaults(c *kubeletconfigv1beta1.KubeletConfiguration) {
	pointer(&c.EnableServer, true)
	value(&c.Address, "0.0.0.0")
	value(&c.Port, 10250)
	pointer(&c.Authentication.Anonymous.Enabled, false)
	pointer(&c.Authentication.Webhook.Enabled, true)
	duration(&c.Authentication.Webhook.CacheTTL, 2*time.Minute)
	value(&c.Authorization.Mode, kubeletconfigv1beta1.KubeletAuthorizationModeWebhook)
	duration(&c.Authorization.Webhook.CacheAuthorizedTTL, 5*time.Minute)
	duration(&c.Authorization.Webhook.CacheUnauthorizedTTL, 30*time.Second)
	pointer(&c.EnableDebuggingHandlers, true)
	pointer(&c.HealthzPort, 10248)
	value(&c.HealthzBindAddress, "127.0.0.1")
	duration(&c.StreamingConnectionIdleTimeout, 4*time.Hour)
	pointer(&c.EnableSystemLogHandler, true)
	pointer(&c.EnableProfilingHandler, true)
	pointer(&c.EnableDebugFlagsHandler, true)
}

func apiDefaults(c *kubeletconfigv1beta1.KubeletConfiguration) {
	duration(&c.SyncFrequency, time.Minute)
	duration(&c.FileCheckFrequency, 20*time.Second)
	duration(&c.HTTPCheckFrequency, 20*time.Second)
	pointer(&c.EventRecordQPS, 50)
	value(&c.EventBurst, 100)
	pointer(&c.KubeAPIQPS, 50)
	value(&c.KubeAPIBurst, 100)
	value(&c.ContentType, "application/vnd.kubernetes.protobuf")
	// If only the interval at which the status is computed is set, it is also the interval at which it is reported.
	if c.NodeStatusReportFrequency.Duration == 0 && c.NodeStatusUpdateFrequency.Duration != 0 {
		c.NodeStatusReportFrequency = c.NodeStatusUpdateFrequency
	}
	duration(&c.NodeStatusReportFrequency, 5*time.Minute)
	duration(&c.NodeStatusUpdateFrequency, 10*time.Second)
	value(&c.NodeLeaseDurationSeconds, 40)
	pointer(&c.NodeStatusMaxImages, 50)
	pointer(&c.RegisterNode, true)
	pointer(&c.EnableControllerAttachDetach, true)
	value(&c.ConfigMapAndSecretChangeDetectionStrategy, kubeletconfigv1beta1.WatchChangeDetectionStrategy)
}

func resourceDefaults(c *kubeletconfigv1beta1.KubeletConfiguration) {
	pointer(&c.OOMScoreAdj, int32(qos.OOMScoreAgent))
	pointer(&c.CgroupsPerQOS, true)
	value(&c.CgroupDriver, "cgroupfs")
	value(&c.CPUManagerPolicy, "none")
	duration(&c.CPUManagerReconcilePeriod, 10*time.Second)
	value(&c.MemoryManagerPolicy, kubeletconfigv1beta1.NoneMemoryManagerPolicy)
	value(&c.TopologyManagerPolicy, kubeletconfigv1beta1.NoneTopologyManagerPolicy)
	value(&c.TopologyManagerScope, kubeletconfigv1beta1.ContainerTopologyManagerScope)
	if c.PodPidsLimit == nil || *c.PodPidsLimit < 0 {
		c.PodPidsLimit = new(int64)
		*c.PodPidsLimit = -1
	}
	pointer(&c.CPUCFSQuota, true)
	pointer(&c.CPUCFSQuotaPeriod, metav1.Duration{Duration: cfsPeriodDefault})
	value(&c.MaxPods, 110)
	value(&c.MaxOpenFiles, 1_000_000)
	duration(&c.EvictionPressureTransitionPeriod, 5*time.Minute)
	pointer(&c.MergeDefaultEvictionSettings, false)
	switch {
	case c.EvictionHard == nil:
		c.EvictionHard = maps.Clone(defaultEvictionHard)
	case *c.MergeDefaultEvictionSettings:
		for _, signal := range dropped(c) {
			c.EvictionHard[string(signal)] = defaultEvictionHard[string(signal)]
		}
	}
	pointer(&c.FailSwapOn, true)
	if c.EnforceNodeAllocatable == nil {
		c.EnforceNodeAllocatable = []string{enforcePods}
	}
	pointer(&c.FailCgroupV1, false)
	pointer(&c.MemoryThrottlingFactor, memoryThrottlingFactorDefault)
	value(&c.MemoryReservationPolicy, kubeletconfigv1beta1.NoneMemoryReservationPolicy)
	pointer(&c.LocalStorageCapacityIsolation, true)
}

// dropped returns the signals with a default that the configuration's evictionHard leaves out, sorted.
func dropped(c *kubeletconfigv1beta1.KubeletConfiguration) []allocatable.Signal {
	var signals []allocatable.Signal
	for _, signal := range slices.Sorted(maps.Keys(defaultEvictionHard)) {
		if _, ok := c.EvictionHard[signal]; !ok {
			signals = append(signals, allocatable.Signal(signal))
		}
	}
	return signals
}

func podDefaults(c *kubeletconfigv1beta1.KubeletConfiguration) {
	duration(&c.RuntimeRequestTimeout, 2*time.Minute)
	value(&c.HairpinMode, kubeletconfigv1beta1.PromiscuousBridge)
	pointer(&c.ResolverConfig, "/etc/resolv.conf")
	pointer(&c.MakeIPTablesUtilChains, true)
	pointer(&c.IPTablesMasqueradeBit, 14)
	pointer(&c.IPTablesDropBit, 15)
	value(&c.ContainerLogMaxSize, "10Mi")
	pointer(&c.ContainerLogMaxFiles, 5)
	pointer(&c.ContainerLogMaxWorkers, 1)
	pointer(&c.ContainerLogMonitorInterval, metav1.Duration{Duration: 10 * time.Second})
	value(&c.PodLogsDir, "/var/log/pods")
	value(&c.VolumePluginDir, "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/")
	duration(&c.VolumeStatsAggPeriod, time.Minute)
	pointer(&c.SeccompDefault, false)
	value(&c.ContainerRuntimeEndpoint, "unix:///run/containerd/containerd.sock")
	pointer(&c.CrashLoopBackOff.MaxContainerRestartPeriod, metav1.Duration{Duration: 300 * time.Second})
}

func imageDefaults(c *kubeletconfigv1beta1.KubeletConfiguration) {
	pointer(&c.RegistryPullQPS, 5)
	value(&c.RegistryBurst, 10)
	duration(&c.ImageMinimumGCAge, 2*time.Minute)
	pointer(&c.ImageGCHighThresholdPercent, 85)
	pointer(&c.ImageGCLowThresholdPercent, 80)
	pointer(&c.SerializeImagePulls, c.MaxParallelImagePulls == nil || *c.MaxParallelImagePulls < 2)
	value(&c.ImagePullCredentialsVerificationPolicy, kubeletconfigv1beta1.NeverVerifyPreloadedImages)
}

func pointer[T any](field **T, byDefault T) {
	if *field == nil {
		*field = &byDefault
	}
}

func value[T comparable](field *T, byDefault T) {
	var zero T
	if *field == zero {
		*field = byDefault
	}
}

func duration(field *metav1.Duration, byDefault time.Duration) {
	if field.Duration == 0 {
		field.Duration = byDefault
	}
}
