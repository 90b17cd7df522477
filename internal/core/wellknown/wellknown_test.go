package wellknown_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/wellknown"
)

// TestNames compares the names with those of upstream's API package.
func TestNames(t *testing.T) {
	for ours, upstream := range map[string]string{
		wellknown.LabelHostname:           corev1.LabelHostname,
		wellknown.LabelZone:               corev1.LabelTopologyZone,
		wellknown.LabelRegion:             corev1.LabelTopologyRegion,
		wellknown.LabelZoneBeta:           corev1.LabelFailureDomainBetaZone,
		wellknown.LabelRegionBeta:         corev1.LabelFailureDomainBetaRegion,
		wellknown.TaintNotReady:           corev1.TaintNodeNotReady,
		wellknown.TaintUnreachable:        corev1.TaintNodeUnreachable,
		wellknown.TaintMemoryPressure:     corev1.TaintNodeMemoryPressure,
		wellknown.TaintDiskPressure:       corev1.TaintNodeDiskPressure,
		wellknown.TaintPIDPressure:        corev1.TaintNodePIDPressure,
		wellknown.TaintNetworkUnavailable: corev1.TaintNodeNetworkUnavailable,
		wellknown.TaintUnschedulable:      corev1.TaintNodeUnschedulable,
		wellknown.TaintOutOfService:       corev1.TaintNodeOutOfService,

		wellknown.EffectNoSchedule:            string(corev1.TaintEffectNoSchedule),
		wellknown.EffectPreferNoSchedule:      string(corev1.TaintEffectPreferNoSchedule),
		wellknown.EffectNoExecute:             string(corev1.TaintEffectNoExecute),
		wellknown.ConditionReady:              string(corev1.NodeReady),
		wellknown.ConditionMemoryPressure:     string(corev1.NodeMemoryPressure),
		wellknown.ConditionDiskPressure:       string(corev1.NodeDiskPressure),
		wellknown.ConditionPIDPressure:        string(corev1.NodePIDPressure),
		wellknown.ConditionNetworkUnavailable: string(corev1.NodeNetworkUnavailable),
	} {
		if ours != upstream {
			t.Errorf("%q, upstream %q", ours, upstream)
		}
	}
}
