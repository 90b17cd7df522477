package kubeletconfig

import (
	"maps"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/loadline"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// resourcePIDs is how reservations name process ids.
const resourcePIDs = "pid"

// LoadLine translates what a loaded configuration says about capacity.
func LoadLine(c *kubeletconfigv1beta1.KubeletConfiguration) (loadline.Settings, error) {
	var p problems
	s := loadline.Settings{
		System:       parseReserved("systemReserved", c.SystemReserved, &p),
		Kube:         parseReserved("kubeReserved", c.KubeReserved, &p),
		EvictionHard: parseThresholds("evictionHard", c.EvictionHard, false, &p),
		MaxPods:      int64(c.MaxPods),
		PodsPerCore:  int64(c.PodsPerCore),
		EnforcePods:  slices.Contains(c.EnforceNodeAllocatable, enforcePods),
		Dropped:      dropped(c),

		StorageUncounted: !*c.LocalStorageCapacityIsolation,
	}
	cpus, err := idset.Parse(c.ReservedSystemCPUs)
	if err != nil {
		p.add("reservedSystemCPUs", nil, err.Error())
	}
	s.ReservedCPUs = int64(cpus.Len())
	if len(p) > 0 {
		return loadline.Settings{}, p.err()
	}
	return s, nil
}

// parseReserved reads systemReserved or kubeReserved.
func parseReserved(path string, list map[string]string, p *problems) loadline.Reserved {
	var r loadline.Reserved
	for _, name := range slices.Sorted(maps.Keys(list)) {
		text := list[name]
		quantity, err := resource.ParseQuantity(text)
		if err != nil || quantity.Sign() < 0 {
			p.add(path+"."+name, text, "want a quantity that is not negative, like 500Mi or 250m")
			continue
		}
		if quantity.CmpInt64(math.MaxInt64/1000) > 0 { // more overflows when it is counted in thousandths
			p.add(path+"."+name, text, "is more than can be counted")
			continue
		}
		switch name {
		case string(corev1.ResourceCPU):
			r.CPU = unit.MilliCPU(quantity.MilliValue())
		case string(corev1.ResourceMemory):
			r.Memory = unit.Bytes(quantity.Value())
		case string(corev1.ResourceEphemeralStorage):
			r.EphemeralStorage = unit.Bytes(quantity.Value())
		case resourcePIDs:
			r.PIDs = quantity.Value()
		default:
			p.add(path+"."+name, text, "cannot be reserved: want cpu, memory, ephemeral-storage or pid")
		}
	}
	return r
}

// parseThresholds reads evictionHard and its like. 0% and 100% are the absence of a threshold; a zero quantity is so
// only where zero says that it is allowed.
func parseThresholds(path string, list map[string]string, zero bool, p *problems) map[loadline.Signal]loadline.Threshold {
	out := map[loadline.Signal]loadline.Threshold{}
	for _, name := range slices.Sorted(maps.Keys(list)) {
		text, signal := list[name], loadline.Signal(name)
		if !slices.Contains(loadline.Signals(), signal) {
			p.add(path+"."+name, text, "is not an eviction signal")
			continue
		}
		if strings.HasSuffix(text, "%") {
			threshold, err := loadline.ParseShare(text)
			if err != nil {
				p.add(path+"."+name, text, "want a quantity like 100Mi, or a percentage from 0% to 100%")
			} else if text != "0%" && text != "100%" {
				out[signal] = threshold
			}
			continue
		}
		quantity, err := resource.ParseQuantity(text)
		if err != nil || quantity.Sign() < 0 || quantity.IsZero() && !zero || quantity.CmpInt64(math.MaxInt64) >= 0 {
			p.add(path+"."+name, text, "want a quantity above zero like 100Mi, or a percentage from 0% to 100%")
			continue
		}
		out[signal] = loadline.Threshold{Amount: quantity.Value()}
	}
	return out
}
