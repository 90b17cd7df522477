package kubeletconfig

import (
	"fmt"
	"maps"
	"slices"

	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
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

// gate is a feature gate of the kubelet at v1.36.3 (pkg/features).
type gate struct {
	on     bool // the default
	locked bool // setting it to another value than the default is an error
}

var gates = map[string]gate{
	gateMemoryQoS:                {},
	gateQOSReserved:              {},
	gateTrustBundles:             {},
	gatePodCertificates:          {},
	gateVolumeHealth:             {},
	gateCFSPeriod:                {on: true},
	gateNoQuota:                  {on: true},
	gateServing:                  {on: true},
	gateShutdown:                 {on: true},
	gateShutdownByPriority:       {on: true},
	"KubeletCgroupDriverFromCRI": {on: true, locked: true},
	"NodeSwap":                   {on: true, locked: true},
}

// enabled reports whether a gate in gates is on.
func enabled(c *kubeletconfigv1beta1.KubeletConfiguration, name string) bool {
	if on, set := c.FeatureGates[name]; set {
		return on
	}
	return gates[name].on
}

func validateGates(c *kubeletconfigv1beta1.KubeletConfiguration, p *problems) {
	for name, on := range c.FeatureGates {
		if g := gates[name]; g.locked && on != g.on {
			p.add("featureGates."+name, on, fmt.Sprintf("is locked to %v", g.on))
		}
	}
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

// gateWarnings returns a warning for each gate that has no effect here, and for each field that has no effect because
// its gate is off, as in the kubelet.
func gateWarnings(asked *kubeletconfigv1beta1.KubeletConfiguration) []string {
	var warnings []string
	for _, name := range slices.Sorted(maps.Keys(asked.FeatureGates)) {
		if _, known := gates[name]; !known {
			warnings = append(warnings, fmt.Sprintf("featureGates.%s: %v: not honoured: each gate has upstream's default", name,
				asked.FeatureGates[name]))
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
