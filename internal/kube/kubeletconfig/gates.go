package kubeletconfig

import (
	"fmt"
	"maps"
	"slices"

	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/plimsoll-dev/plimsoll/internal/kube/featuregate"
)

// Feature gates that guard a field of the configuration.
const (
	gateMemoryQoS   = "MemoryQoS"               // memoryThrottlingFactor, memoryReservationPolicy
	gateQOSReserved = "QOSReserved"             // qosReserved
	gateCFSPeriod   = "CustomCPUCFSQuotaPeriod" // cpuCFSQuotaPeriod

	gateTrustBundles    = "ClusterTrustBundleProjection" // projected volumes with a source clusterTrustBundle
	gatePodCertificates = "PodCertificateRequest"        // projected volumes with a source podCertificate
	gateVolumeHealth    = "CSIVolumeHealth"              // what CSI drivers say about the condition of volumes

	gateShutdown           = "GracefulNodeShutdown"                   // shutdownGracePeriod
	gateShutdownByPriority = "GracefulNodeShutdownBasedOnPodPriority" // shutdownGracePeriodByPodPriority

	gateServing = "RotateKubeletServerCertificate" // serverTLSBootstrap

	gateNoQuota = "DisableCPUQuotaWithExclusiveCPUs" // off: containers with exclusive CPUs keep their CFS quota
)

// switches are the gates that switch something here. All others have upstream's default.
var switches = map[string]bool{
	gateMemoryQoS:          true,
	gateQOSReserved:        true,
	gateTrustBundles:       true,
	gatePodCertificates:    true,
	gateVolumeHealth:       true,
	gateCFSPeriod:          true,
	gateNoQuota:            true,
	gateServing:            true,
	gateShutdown:           true,
	gateShutdownByPriority: true,
}

// Gates returns the gates that switch something on a node.
func Gates() map[string]bool { return maps.Clone(switches) }

// enabled reports whether a gate is on.
func enabled(c *kubeletconfigv1beta1.KubeletConfiguration, name string) bool {
	return featuregate.Set(c.FeatureGates).On(name)
}

// checkGates reports gates that do not exist, and locked ones that are set to another value.
func checkGates(c *kubeletconfigv1beta1.KubeletConfiguration, p *problems) {
	for name, on := range c.FeatureGates {
		gate, known := featuregate.All()[name]
		switch {
		case !known:
			p.add("featureGates."+name, on, "no feature gate of Kubernetes 1.36: remove it")
		case gate.Locked && on != gate.On:
			p.add("featureGates."+name, on, fmt.Sprintf("is locked to %v", gate.On))
		}
	}
}

func validateGates(c *kubeletconfigv1beta1.KubeletConfiguration, p *problems) {
	checkGates(c, p)
	if !enabled(c, gateCFSPeriod) && c.CPUCFSQuotaPeriod.Duration != cfsPeriodDefault {
		p.add("cpuCFSQuotaPeriod", c.CPUCFSQuotaPeriod.Duration, "needs featureGates."+gateCFSPeriod+": true")
	}
	if c.ServerTLSBootstrap && !enabled(c, gateServing) {
		p.add("serverTLSBootstrap", true, "needs featureGates."+gateServing+": true, the default")
	}
	if !enabled(c, gateMemoryQoS) &&
		c.MemoryReservationPolicy == kubeletconfigv1beta1.TieredReservationMemoryReservationPolicy {
		p.add("memoryReservationPolicy", string(c.MemoryReservationPolicy), "needs featureGates."+gateMemoryQoS+": true")
	}
}

// KeepsQuota reports whether containers with exclusive CPUs keep their CFS quota.
func KeepsQuota(c *kubeletconfigv1beta1.KubeletConfiguration) bool { return !enabled(c, gateNoQuota) }

// ReadsTrustBundles reports whether projected volumes may have certificates of ClusterTrustBundles.
func ReadsTrustBundles(c *kubeletconfigv1beta1.KubeletConfiguration) bool {
	return enabled(c, gateTrustBundles)
}

// RequestsPodCertificates reports whether projected volumes may have certificates that the agent requests for the pod.
func RequestsPodCertificates(c *kubeletconfigv1beta1.KubeletConfiguration) bool {
	return enabled(c, gatePodCertificates)
}

// ShowsVolumeHealth reports whether what CSI drivers say about the condition of volumes is shown.
func ShowsVolumeHealth(c *kubeletconfigv1beta1.KubeletConfiguration) bool {
	return enabled(c, gateVolumeHealth)
}

// whyFixed says what holds on this node whatever a gate's value is.
func whyFixed(name string) string {
	if why := featuregate.OnNodes()[name]; why != "" {
		return why
	}
	return "it has no effect on a node"
}

// gateWarnings returns a warning for each gate that has no effect here, and for each field that has no effect because
// its gate is off, as in the kubelet.
func gateWarnings(asked *kubeletconfigv1beta1.KubeletConfiguration) []string {
	var warnings []string
	for _, name := range slices.Sorted(maps.Keys(asked.FeatureGates)) {
		if on := asked.FeatureGates[name]; on != featuregate.All()[name].On && !switches[name] {
			warnings = append(warnings, fmt.Sprintf("featureGates.%s: %v: cannot be changed here: %s", name, on, whyFixed(name)))
		}
	}
	if f := asked.MemoryThrottlingFactor; f != nil && *f != memoryThrottlingFactorDefault &&
		!enabled(asked, gateMemoryQoS) {
		warnings = append(warnings, fmt.Sprintf("memoryThrottlingFactor: %v: does nothing without featureGates.%s: true", *f,
			gateMemoryQoS))
	}
	if len(asked.QOSReserved) > 0 && !enabled(asked, gateQOSReserved) {
		warnings = append(warnings, fmt.Sprintf("qosReserved: %v: does nothing without featureGates.%s: true",
			asked.QOSReserved, gateQOSReserved))
	}
	return warnings
}
