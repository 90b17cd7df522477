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
	defaultPointer(&c.EnableServer, true)
	defaultValue(&c.Address, "0.0.0.0")
	defaultValue(&c.Port, 10250)
	defaultPointer(&c.Authentication.Anonymous.Enabled, false)
	defaultPointer(&c.Authentication.Webhook.Enabled, true)
	defaultDuration(&c.Authentication.Webhook.CacheTTL, 2*time.Minute)
	defaultValue(&c.Authorization.Mode, kubeletconfigv1beta1.KubeletAuthorizationModeWebhook)
	defaultDuration(&c.Authorization.Webhook.CacheAuthorizedTTL, 5*time.Minute)
	defaultDuration(&c.Authorization.Webhook.CacheUnauthorizedTTL, 30*time.Second)
	defaultPointer(&c.EnableDebuggingHandlers, true)
	defaultPointer(&c.HealthzPort, 10248)
	defaultValue(&c.HealthzBindAddress, "127.0.0.1")
	defaultDuration(&c.StreamingConnectionIdleTimeout, 4*time.Hour)
	defaultPointer(&c.EnableSystemLogHandler, true)
	defaultPointer(&c.EnableProfilingHandler, true)
	defaultPointer(&c.EnableDebugFlagsHandler, true)
}

func apiDefaults(c *kubeletconfigv1beta1.KubeletConfiguration) {
	defaultDuration(&c.SyncFrequency, time.Minute)
	defaultDuration(&c.FileCheckFrequency, 20*time.Second)
	defaultDuration(&c.HTTPCheckFrequency, 20*time.Second)
	defaultPointer(&c.EventRecordQPS, 50)
	defaultValue(&c.EventBurst, 100)
	defaultPointer(&c.KubeAPIQPS, 50)
	defaultValue(&c.KubeAPIBurst, 100)
	defaultValue(&c.ContentType, "application/vnd.kubernetes.protobuf")
	// If only the interval at which the status is computed is set, it is also the interval at which it is reported.
	if c.NodeStatusReportFrequency.Duration == 0 && c.NodeStatusUpdateFrequency.Duration != 0 {
		c.NodeStatusReportFrequency = c.NodeStatusUpdateFrequency
	}
	defaultDuration(&c.NodeStatusReportFrequency, 5*time.Minute)
	defaultDuration(&c.NodeStatusUpdateFrequency, 10*time.Second)
	defaultValue(&c.NodeLeaseDurationSeconds, 40)
	defaultPointer(&c.NodeStatusMaxImages, 50)
	defaultPointer(&c.RegisterNode, true)
	defaultPointer(&c.EnableControllerAttachDetach, true)
	defaultValue(&c.ConfigMapAndSecretChangeDetectionStrategy, kubeletconfigv1beta1.WatchChangeDetectionStrategy)
}

func resourceDefaults(c *kubeletconfigv1beta1.KubeletConfiguration) {
	defaultPointer(&c.OOMScoreAdj, int32(qos.OOMScoreAgent))
	defaultPointer(&c.CgroupsPerQOS, true)
	defaultValue(&c.CgroupDriver, "cgroupfs")
	defaultValue(&c.CPUManagerPolicy, "none")
	defaultDuration(&c.CPUManagerReconcilePeriod, 10*time.Second)
	defaultValue(&c.MemoryManagerPolicy, kubeletconfigv1beta1.NoneMemoryManagerPolicy)
	defaultValue(&c.TopologyManagerPolicy, kubeletconfigv1beta1.NoneTopologyManagerPolicy)
	defaultValue(&c.TopologyManagerScope, kubeletconfigv1beta1.ContainerTopologyManagerScope)
	if c.PodPidsLimit == nil || *c.PodPidsLimit < 0 {
		c.PodPidsLimit = new(int64)
		*c.PodPidsLimit = -1
	}
	defaultPointer(&c.CPUCFSQuota, true)
	defaultPointer(&c.CPUCFSQuotaPeriod, metav1.Duration{Duration: cfsPeriodDefault})
	defaultValue(&c.MaxPods, 110)
	defaultValue(&c.MaxOpenFiles, 1_000_000)
	defaultDuration(&c.EvictionPressureTransitionPeriod, 5*time.Minute)
	defaultPointer(&c.MergeDefaultEvictionSettings, false)
	defaultPointer(&c.FailSwapOn, true)
	if c.EnforceNodeAllocatable == nil {
		c.EnforceNodeAllocatable = []string{enforcePods}
	}
	defaultPointer(&c.FailCgroupV1, false)
	defaultPointer(&c.MemoryThrottlingFactor, memoryThrottlingFactorDefault)
	defaultValue(&c.MemoryReservationPolicy, kubeletconfigv1beta1.NoneMemoryReservationPolicy)
	defaultPointer(&c.LocalStorageCapacityIsolation, true)
}

// thresholdDefaults sets the default eviction thresholds, in all or for the signals that are left out. As in the
// kubelet, that is done once, for the file.
func thresholdDefaults(c *kubeletconfigv1beta1.KubeletConfiguration) {
	switch {
	case c.EvictionHard == nil:
		c.EvictionHard = maps.Clone(defaultEvictionHard)
	case *c.MergeDefaultEvictionSettings:
		for _, signal := range omittedSignals(c) {
			c.EvictionHard[string(signal)] = defaultEvictionHard[string(signal)]
		}
	}
}

// omittedSignals returns the signals with a default that the configuration's evictionHard leaves out, sorted.
func omittedSignals(c *kubeletconfigv1beta1.KubeletConfiguration) []allocatable.Signal {
	var signals []allocatable.Signal
	for _, signal := range slices.Sorted(maps.Keys(defaultEvictionHard)) {
		if _, ok := c.EvictionHard[signal]; !ok {
			signals = append(signals, allocatable.Signal(signal))
		}
	}
	return signals
}

func podDefaults(c *kubeletconfigv1beta1.KubeletConfiguration) {
	defaultDuration(&c.RuntimeRequestTimeout, 2*time.Minute)
	defaultValue(&c.HairpinMode, kubeletconfigv1beta1.PromiscuousBridge)
	defaultPointer(&c.ResolverConfig, "/etc/resolv.conf")
	defaultPointer(&c.MakeIPTablesUtilChains, true)
	defaultPointer(&c.IPTablesMasqueradeBit, 14)
	defaultPointer(&c.IPTablesDropBit, 15)
	defaultValue(&c.ContainerLogMaxSize, "10Mi")
	defaultPointer(&c.ContainerLogMaxFiles, 5)
	defaultPointer(&c.ContainerLogMaxWorkers, 1)
	defaultPointer(&c.ContainerLogMonitorInterval, metav1.Duration{Duration: 10 * time.Second})
	defaultValue(&c.PodLogsDir, "/var/log/pods")
	defaultValue(&c.VolumePluginDir, "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/")
	defaultDuration(&c.VolumeStatsAggPeriod, time.Minute)
	defaultPointer(&c.SeccompDefault, false)
	defaultValue(&c.ContainerRuntimeEndpoint, "unix:///run/containerd/containerd.sock")
	defaultPointer(&c.CrashLoopBackOff.MaxContainerRestartPeriod, metav1.Duration{Duration: 300 * time.Second})
}

func imageDefaults(c *kubeletconfigv1beta1.KubeletConfiguration) {
	defaultPointer(&c.RegistryPullQPS, 5)
	defaultValue(&c.RegistryBurst, 10)
	defaultDuration(&c.ImageMinimumGCAge, 2*time.Minute)
	defaultPointer(&c.ImageGCHighThresholdPercent, 85)
	defaultPointer(&c.ImageGCLowThresholdPercent, 80)
	defaultPointer(&c.SerializeImagePulls, c.MaxParallelImagePulls == nil || *c.MaxParallelImagePulls < 2)
	defaultValue(&c.ImagePullCredentialsVerificationPolicy, kubeletconfigv1beta1.NeverVerifyPreloadedImages)
}

func defaultPointer[T any](field **T, byDefault T) {
	if *field == nil {
		*field = &byDefault
	}
}

func defaultValue[T comparable](field *T, byDefault T) {
	var zero T
	if *field == zero {
		*field = byDefault
	}
}

func defaultDuration(field *metav1.Duration, byDefault time.Duration) {
	if field.Duration == 0 {
		field.Duration = byDefault
	}
}
