package kubeletconfig

import (
	"crypto/tls"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/plimsoll-dev/plimsoll/internal/core/admission"
	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
)

// Values of enforceNodeAllocatable.
const (
	enforcePods               = "pods"
	enforceSystem             = "system-reserved"
	enforceSystemCompressible = "system-reserved-compressible"
	enforceKube               = "kube-reserved"
	enforceKubeCompressible   = "kube-reserved-compressible"
	enforceNone               = "none"
)

// idsPerPodUnit is the least number of ids in a pod's user namespace. A larger number must be a multiple of it
// (upstream).
const idsPerPodUnit = 65536

// validate checks a configuration with its defaults set. The rules are the kubelet's at v1.36.3, including those that
// the kubelet checks only after its start.
func validate(c *kubeletconfigv1beta1.KubeletConfiguration, p *problems) {
	validateNumbers(c, p)
	validateDurations(c, p)
	validateChoices(c, p)
	validateServer(c, p)
	validatePaths(c, p)
	validateReservations(c, p)
	validateEnforcement(c, p)
	evictionThresholds(c, p)
	validateImages(c, p)
	validateShutdown(c, p)
	validateGates(c, p)
	validateLogging(c, p)
	validateTracing(c, p)
	for i, pattern := range c.AllowedUnsafeSysctls {
		if problem := admission.CheckSysctlPattern(pattern); problem != "" {
			p.add(fmt.Sprintf("allowedUnsafeSysctls[%d]", i), pattern, problem)
		}
	}
	for i := range c.RegisterWithTaints {
		for _, problem := range CheckTaint(c.RegisterWithTaints[i]) {
			p.add(fmt.Sprintf("registerWithTaints[%d]", i), c.RegisterWithTaints[i].ToString(), problem)
		}
	}
}

func validateNumbers(c *kubeletconfigv1beta1.KubeletConfiguration, p *problems) {
	const most = math.MaxInt64
	for _, r := range []struct {
		path            string
		value           int64
		least, greatest int64
	}{
		{"nodeLeaseDurationSeconds", int64(c.NodeLeaseDurationSeconds), 1, math.MaxInt32},
		{"eventBurst", int64(c.EventBurst), 0, most},
		{"eventRecordQPS", int64(*c.EventRecordQPS), 0, most},
		{"kubeAPIBurst", int64(c.KubeAPIBurst), 0, most},
		{"kubeAPIQPS", int64(*c.KubeAPIQPS), 0, most},
		{"healthzPort", int64(*c.HealthzPort), 0, 65535},
		{"port", int64(c.Port), 1, 65535},
		{"readOnlyPort", int64(c.ReadOnlyPort), 0, 65535},
		{"imageGCHighThresholdPercent", int64(*c.ImageGCHighThresholdPercent), 0, 100},
		{"imageGCLowThresholdPercent", int64(*c.ImageGCLowThresholdPercent), 0, 100},
		{"iptablesMasqueradeBit", int64(*c.IPTablesMasqueradeBit), 0, 31},
		{"iptablesDropBit", int64(*c.IPTablesDropBit), 0, 31},
		{"nodeStatusMaxImages", int64(*c.NodeStatusMaxImages), -1, most},
		{"maxOpenFiles", c.MaxOpenFiles, 0, most},
		{"maxPods", int64(c.MaxPods), 0, most},
		{"podsPerCore", int64(c.PodsPerCore), 0, most},
		{"oomScoreAdj", int64(*c.OOMScoreAdj), -1000, 1000},
		{"registryBurst", int64(c.RegistryBurst), 0, most},
		{"registryPullQPS", int64(*c.RegistryPullQPS), 0, most},
		{"containerLogMaxWorkers", int64(*c.ContainerLogMaxWorkers), 1, most},
		{"containerLogMaxFiles", int64(*c.ContainerLogMaxFiles), 2, most},
		{"evictionMaxPodGracePeriod", int64(c.EvictionMaxPodGracePeriod), 0, most},
	} {
		switch {
		case r.value >= r.least && r.value <= r.greatest:
		case r.greatest == most:
			p.add(r.path, r.value, fmt.Sprintf("want %d or more", r.least))
		default:
			p.add(r.path, r.value, fmt.Sprintf("want %d to %d", r.least, r.greatest))
		}
	}
	if f := *c.MemoryThrottlingFactor; !(f > 0 && f <= 1) {
		p.add("memoryThrottlingFactor", f, "want more than 0 and at most 1")
	}
	if c.MaxParallelImagePulls != nil && *c.MaxParallelImagePulls < 1 {
		p.add("maxParallelImagePulls", *c.MaxParallelImagePulls, "want 1 or more")
	}
	if u := c.UserNamespaces; u != nil && u.IDsPerPod != nil {
		if n := *u.IDsPerPod; n < idsPerPodUnit || n%idsPerPodUnit != 0 || n > math.MaxUint32 {
			p.add("userNamespaces.idsPerPod", n, fmt.Sprintf("want a multiple of %d below 2^32", idsPerPodUnit))
		}
	}
	if size, err := resource.ParseQuantity(c.ContainerLogMaxSize); err != nil {
		p.add("containerLogMaxSize", c.ContainerLogMaxSize, "want a quantity, like 10Mi")
	} else if size.Sign() == 0 {
		p.add("containerLogMaxSize", c.ContainerLogMaxSize, "want more than 0; a negative size turns rotation off")
	}
}

func validateDurations(c *kubeletconfigv1beta1.KubeletConfiguration, p *problems) {
	for _, r := range []struct {
		path            string
		value           metav1.Duration
		least, greatest time.Duration // greatest 0: no upper bound
	}{
		{"syncFrequency", c.SyncFrequency, 0, 0},
		{"fileCheckFrequency", c.FileCheckFrequency, 0, 0},
		{"httpCheckFrequency", c.HTTPCheckFrequency, 0, 0},
		{"streamingConnectionIdleTimeout", c.StreamingConnectionIdleTimeout, 0, 0},
		{"nodeStatusUpdateFrequency", c.NodeStatusUpdateFrequency, 0, 0},
		{"nodeStatusReportFrequency", c.NodeStatusReportFrequency, 0, 0},
		{"imageMinimumGCAge", c.ImageMinimumGCAge, 0, 0},
		{"imageMaximumGCAge", c.ImageMaximumGCAge, 0, 0},
		{"runtimeRequestTimeout", c.RuntimeRequestTimeout, 0, 0},
		{"evictionPressureTransitionPeriod", c.EvictionPressureTransitionPeriod, 0, 0},
		{"cpuCFSQuotaPeriod", *c.CPUCFSQuotaPeriod, time.Millisecond, time.Second},
		{"containerLogMonitorInterval", *c.ContainerLogMonitorInterval, 3 * time.Second, 0},
		{"crashLoopBackOff.maxContainerRestartPeriod", *c.CrashLoopBackOff.MaxContainerRestartPeriod, time.Second,
			300 * time.Second},
	} {
		switch d := r.value.Duration; {
		case d < 0 && r.least == 0:
			p.add(r.path, d, "want a duration that is not negative")
		case d < r.least || r.greatest > 0 && d > r.greatest:
			rule := fmt.Sprintf("want %v or more", r.least)
			if r.greatest > 0 {
				rule = fmt.Sprintf("want %v to %v", r.least, r.greatest)
			}
			p.add(r.path, d, rule)
		}
	}
}

func validateChoices(c *kubeletconfigv1beta1.KubeletConfiguration, p *problems) {
	for _, r := range []struct {
		path, value string
		choices     []string
	}{
		{"cgroupDriver", c.CgroupDriver, []string{"cgroupfs", "systemd"}},
		{"cpuManagerPolicy", c.CPUManagerPolicy, []string{"none", "static"}},
		{"memoryManagerPolicy", c.MemoryManagerPolicy, []string{kubeletconfigv1beta1.NoneMemoryManagerPolicy,
			kubeletconfigv1beta1.StaticMemoryManagerPolicy}},
		{"topologyManagerPolicy", c.TopologyManagerPolicy, []string{kubeletconfigv1beta1.NoneTopologyManagerPolicy,
			kubeletconfigv1beta1.BestEffortTopologyManagerPolicy,
			kubeletconfigv1beta1.RestrictedTopologyManagerPolicy, kubeletconfigv1beta1.SingleNumaNodeTopologyManagerPolicy}},
		{"topologyManagerScope", c.TopologyManagerScope, []string{kubeletconfigv1beta1.ContainerTopologyManagerScope,
			kubeletconfigv1beta1.PodTopologyManagerScope}},
		{"memorySwap.swapBehavior", c.MemorySwap.SwapBehavior, []string{"", "NoSwap", "LimitedSwap"}},
		{"hairpinMode", c.HairpinMode, []string{kubeletconfigv1beta1.HairpinNone, kubeletconfigv1beta1.HairpinVeth,
			kubeletconfigv1beta1.PromiscuousBridge}},
		{"memoryReservationPolicy", string(c.MemoryReservationPolicy),
			[]string{string(kubeletconfigv1beta1.NoneMemoryReservationPolicy),
				string(kubeletconfigv1beta1.TieredReservationMemoryReservationPolicy)}},
		{"authorization.mode", string(c.Authorization.Mode),
			[]string{string(kubeletconfigv1beta1.KubeletAuthorizationModeAlwaysAllow),
				string(kubeletconfigv1beta1.KubeletAuthorizationModeWebhook)}},
		{"configMapAndSecretChangeDetectionStrategy", string(c.ConfigMapAndSecretChangeDetectionStrategy), []string{
			string(kubeletconfigv1beta1.GetChangeDetectionStrategy),
			string(kubeletconfigv1beta1.TTLCacheChangeDetectionStrategy),
			string(kubeletconfigv1beta1.WatchChangeDetectionStrategy)}},
		{"imagePullCredentialsVerificationPolicy", string(c.ImagePullCredentialsVerificationPolicy), []string{
			string(kubeletconfigv1beta1.NeverVerify), string(kubeletconfigv1beta1.NeverVerifyPreloadedImages),
			string(kubeletconfigv1beta1.NeverVerifyAllowlistedImages), string(kubeletconfigv1beta1.AlwaysVerify)}},
		{"tlsMinVersion", c.TLSMinVersion, []string{"", "VersionTLS10", "VersionTLS11", "VersionTLS12", "VersionTLS13"}},
	} {
		if !slices.Contains(r.choices, r.value) {
			p.add(r.path, r.value, "want one of "+strings.TrimPrefix(strings.Join(r.choices, ", "), ", "))
		}
	}
	if c.RunOnce {
		p.add("runOnce", true, "is deprecated and must not be set")
	}
}

func validateServer(c *kubeletconfigv1beta1.KubeletConfiguration, p *problems) {
	for path, address := range map[string]string{"address": c.Address, "healthzBindAddress": c.HealthzBindAddress} {
		if _, err := netip.ParseAddr(address); err != nil {
			p.add(path, address, "want an IP address")
		}
	}
	for i, address := range c.ClusterDNS {
		if _, err := netip.ParseAddr(address); err != nil {
			p.add(fmt.Sprintf("clusterDNS[%d]", i), address, "want an IP address")
		}
	}
	if (c.TLSCertFile == "") != (c.TLSPrivateKeyFile == "") {
		p.add("tlsCertFile, tlsPrivateKeyFile", c.TLSCertFile+", "+c.TLSPrivateKeyFile, "want both or neither")
	}
	known := map[string]bool{}
	for _, suite := range slices.Concat(tls.CipherSuites(), tls.InsecureCipherSuites()) {
		known[suite.Name] = true
	}
	for i, name := range c.TLSCipherSuites {
		if !known[name] {
			p.add(fmt.Sprintf("tlsCipherSuites[%d]", i), name, "is not a cipher suite of this build")
		}
	}
	if c.EnableSystemLogQuery != nil && *c.EnableSystemLogQuery && !*c.EnableSystemLogHandler {
		p.add("enableSystemLogQuery", true, "needs enableSystemLogHandler")
	}
	if c.ContainerRuntimeEndpoint == "" {
		p.add("containerRuntimeEndpoint", "", "want the runtime's socket")
	}
}

func validatePaths(c *kubeletconfigv1beta1.KubeletConfiguration, p *problems) {
	if dir := c.PodLogsDir; !filepath.IsAbs(dir) || filepath.Clean(dir) != dir {
		p.add("podLogsDir", dir, "want an absolute path in its shortest form")
	}
	if strings.ContainsFunc(c.PodLogsDir, func(r rune) bool { return r > 127 }) {
		p.add("podLogsDir", c.PodLogsDir, "want ASCII: the path is part of log file names and metrics")
	}
	for path, group := range map[string]string{"cgroupRoot": c.CgroupRoot, "systemReservedCgroup": c.SystemReservedCgroup,
		"kubeReservedCgroup": c.KubeReservedCgroup, "kubeletCgroups": c.KubeletCgroups} {
		if group != "" && slices.Contains(strings.Split(group, "/"), "..") {
			p.add(path, group, "must not contain ..")
		}
	}
	for path, group := range map[string]string{"systemReservedCgroup": c.SystemReservedCgroup,
		"kubeReservedCgroup": c.KubeReservedCgroup, "kubeletCgroups": c.KubeletCgroups} {
		if group != "" && strings.Trim(group, "/") == "" {
			p.add(path, group, "cannot be the machine's root")
		}
	}
	if c.SystemCgroups != "" && c.CgroupRoot == "" {
		p.add("systemCgroups", c.SystemCgroups, "needs cgroupRoot")
	}
}

func validateReservations(c *kubeletconfigv1beta1.KubeletConfiguration, p *problems) {
	for path, list := range map[string]map[string]string{"systemReserved": c.SystemReserved,
		"kubeReserved": c.KubeReserved} {
		parseReserved(path, list, p)
	}
	if c.ReservedSystemCPUs != "" {
		if _, err := idset.Parse(c.ReservedSystemCPUs); err != nil {
			p.add("reservedSystemCPUs", nil, err.Error())
		}
		if c.SystemReservedCgroup != "" || c.KubeReservedCgroup != "" {
			p.add("reservedSystemCPUs", c.ReservedSystemCPUs, "cannot be used with systemReservedCgroup or kubeReservedCgroup")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.QOSReserved)) {
		if _, err := parsePercent(c.QOSReserved[name]); err != nil {
			p.add("qosReserved."+name, c.QOSReserved[name], "want whole percents from 0% to 100%, like 50%")
		}
		if name != string(corev1.ResourceMemory) {
			p.add("qosReserved."+name, c.QOSReserved[name], "cannot be reserved: want memory")
		}
	}
	seen := map[string]bool{}
	for i, r := range c.ReservedMemory {
		for _, name := range slices.Sorted(maps.Keys(r.Limits)) {
			path := fmt.Sprintf("reservedMemory[%d].limits.%s", i, name)
			quantity := r.Limits[name]
			if name != corev1.ResourceMemory && !strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix) {
				p.add(path, quantity.String(), "want memory or hugepages-<size>")
			}
			if quantity.Sign() <= 0 {
				p.add(path, quantity.String(), "want more than 0")
			}
			key := fmt.Sprintf("%d %s", r.NumaNode, name)
			if seen[key] {
				p.add(path, quantity.String(), fmt.Sprintf("is listed twice for NUMA node %d", r.NumaNode))
			}
			seen[key] = true
		}
	}
}

func validateEnforcement(c *kubeletconfigv1beta1.KubeletConfiguration, p *problems) {
	const path = "enforceNodeAllocatable"
	all := c.EnforceNodeAllocatable
	for i, v := range all {
		if slices.Contains(all[:i], v) {
			p.add(path, v, "is listed twice")
			continue
		}
		switch v {
		case enforcePods:
		case enforceSystem, enforceSystemCompressible:
			if c.SystemReservedCgroup == "" {
				p.add(path, v, "needs systemReservedCgroup")
			}
			if len(c.SystemReserved) == 0 {
				p.add(path, v, "needs systemReserved: nothing is reserved that could be enforced")
			}
		case enforceKube, enforceKubeCompressible:
			if c.KubeReservedCgroup == "" {
				p.add(path, v, "needs kubeReservedCgroup")
			}
			if len(c.KubeReserved) == 0 {
				p.add(path, v, "needs kubeReserved: nothing is reserved that could be enforced")
			}
		case enforceNone:
			if len(all) > 1 {
				p.add(path, strings.Join(all, ", "), "none cannot be combined with other values")
			}
			continue
		default:
			p.add(path, v, "want some of "+strings.Join([]string{enforcePods, enforceSystem, enforceSystemCompressible,
				enforceKube, enforceKubeCompressible, enforceNone}, ", "))
			continue
		}
		if !*c.CgroupsPerQOS {
			p.add(path, v, "needs cgroupsPerQOS")
		}
	}
	for _, pair := range [][2]string{{enforceSystem, enforceSystemCompressible}, {enforceKube, enforceKubeCompressible}} {
		if slices.Contains(all, pair[0]) && slices.Contains(all, pair[1]) {
			p.add(path, strings.Join(pair[:], ", "), "exclude each other")
		}
	}
}

func validateImages(c *kubeletconfigv1beta1.KubeletConfiguration, p *problems) {
	if low, high := *c.ImageGCLowThresholdPercent, *c.ImageGCHighThresholdPercent; low >= high {
		p.add("imageGCLowThresholdPercent", low, fmt.Sprintf("want less than imageGCHighThresholdPercent %d", high))
	}
	if oldest, youngest := c.ImageMaximumGCAge.Duration, c.ImageMinimumGCAge.Duration; oldest > 0 && oldest <= youngest {
		p.add("imageMaximumGCAge", oldest, fmt.Sprintf("want more than imageMinimumGCAge %v", youngest))
	}
	if *c.SerializeImagePulls && c.MaxParallelImagePulls != nil && *c.MaxParallelImagePulls > 1 {
		p.add("maxParallelImagePulls", *c.MaxParallelImagePulls, "needs serializeImagePulls: false")
	}
	if len(c.PreloadedImagesVerificationAllowlist) > 0 &&
		c.ImagePullCredentialsVerificationPolicy != kubeletconfigv1beta1.NeverVerifyAllowlistedImages {
		p.add("preloadedImagesVerificationAllowlist", len(c.PreloadedImagesVerificationAllowlist),
			"needs imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages")
	}
}

func validateShutdown(c *kubeletconfigv1beta1.KubeletConfiguration, p *problems) {
	all, critical := c.ShutdownGracePeriod.Duration, c.ShutdownGracePeriodCriticalPods.Duration
	for path, d := range map[string]time.Duration{"shutdownGracePeriod": all,
		"shutdownGracePeriodCriticalPods": critical} {
		if d < 0 || d > 0 && d < time.Second {
			p.add(path, d, "want 0s, or 1s or more")
		}
	}
	for i, period := range c.ShutdownGracePeriodByPodPriority {
		if s := period.ShutdownGracePeriodSeconds; s < 0 {
			p.add(fmt.Sprintf("shutdownGracePeriodByPodPriority[%d].shutdownGracePeriodSeconds", i), s, "want 0 or more")
		}
	}
	if (all > 0 || critical > 0) && !enabled(c, gateShutdown) {
		p.add("shutdownGracePeriod", all, "needs featureGates."+gateShutdown+": true, the default")
	}
	if n := len(c.ShutdownGracePeriodByPodPriority); n > 0 && !(enabled(c, gateShutdown) &&
		enabled(c, gateShutdownByPriority)) {
		p.add("shutdownGracePeriodByPodPriority", n,
			"needs featureGates."+gateShutdown+" and "+gateShutdownByPriority+": true, the default")
	}
	if critical > all {
		p.add("shutdownGracePeriodCriticalPods", critical,
			fmt.Sprintf("is part of shutdownGracePeriod %v and cannot be longer", all))
	}
	if len(c.ShutdownGracePeriodByPodPriority) > 0 && (all > 0 || critical > 0) {
		p.add("shutdownGracePeriodByPodPriority", len(c.ShutdownGracePeriodByPodPriority),
			"excludes shutdownGracePeriod and shutdownGracePeriodCriticalPods")
	}
}

// CheckMachine returns, in one error, what a loaded configuration requires and this machine does not provide. unified
// says that the machine has cgroup v2.
func CheckMachine(c *kubeletconfigv1beta1.KubeletConfiguration, m machine.Machine, unified bool) error {
	var p problems
	if *c.FailSwapOn && m.Swap > 0 {
		p.add("failSwapOn", true,
			fmt.Sprintf("this machine has %v of swap: turn it off (swapoff -a), or set failSwapOn: false", m.Swap))
	}
	if *c.FailCgroupV1 && !unified {
		p.add("failCgroupV1", true, "this machine has cgroup v1: boot it with cgroup v2, or leave failCgroupV1 out")
	}
	if !unified && c.SingleProcessOOMKill != nil && !*c.SingleProcessOOMKill {
		p.add("singleProcessOOMKill", false, "needs cgroup v2")
	}
	reserved, err := idset.Parse(c.ReservedSystemCPUs)
	if offline := reserved.Minus(m.CPUs); err == nil && !offline.IsEmpty() {
		p.add("reservedSystemCPUs", c.ReservedSystemCPUs, fmt.Sprintf("CPUs %v are not online here: %v are", offline, m.CPUs))
	}
	if len(p) == 0 {
		return nil
	}
	return fmt.Errorf("check kubelet configuration against this machine: %w", p.err())
}

// CheckTaint returns what is wrong with a taint with which a node registers.
func CheckTaint(t corev1.Taint) []string {
	found := validation.IsQualifiedName(t.Key)
	if t.Value != "" {
		found = append(found, validation.IsValidLabelValue(t.Value)...)
	}
	switch t.Effect {
	case corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute:
	default:
		found = append(found, fmt.Sprintf("effect %q: want NoSchedule, PreferNoSchedule or NoExecute", t.Effect))
	}
	if t.TimeAdded != nil {
		found = append(found, "timeAdded must not be set")
	}
	return found
}
