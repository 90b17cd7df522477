package kubeletconfig

import (
	"maps"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/plimsoll-dev/plimsoll/internal/core/allocatable"
	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// resourcePIDs is the name of process ids in reservations.
const resourcePIDs = "pid"

// Allocatable translates the parts of a loaded configuration that determine a node's allocatable resources.
func Allocatable(c *kubeletconfigv1beta1.KubeletConfiguration) (allocatable.Settings, error) {
	var p problems
	s := allocatable.Settings{
		System:       parseReserved("systemReserved", c.SystemReserved, &p),
		Kube:         parseReserved("kubeReserved", c.KubeReserved, &p),
		EvictionHard: values(parseThresholds("evictionHard", c.EvictionHard, &p)),
		MaxPods:      int64(c.MaxPods),
		PodsPerCore:  int64(c.PodsPerCore),
		EnforcePods:  slices.Contains(c.EnforceNodeAllocatable, enforcePods),
		Dropped:      omittedSignals(c),

		StorageUncounted: !*c.LocalStorageCapacityIsolation,
	}
	cpus, err := idset.Parse(c.ReservedSystemCPUs)
	if err != nil {
		p.add("reservedSystemCPUs", nil, err.Error())
	}
	s.ReservedCPUs = int64(cpus.Len())
	if len(p) > 0 {
		return allocatable.Settings{}, p.err()
	}
	return s, nil
}

// parseReserved reads systemReserved or kubeReserved.
func parseReserved(path string, list map[string]string, p *problems) allocatable.Reserved {
	var r allocatable.Reserved
	for _, name := range slices.Sorted(maps.Keys(list)) {
		text := list[name]
		quantity, err := resource.ParseQuantity(text)
		if err != nil || quantity.Sign() < 0 {
			p.add(path+"."+name, text, "want a quantity that is not negative, like 500Mi or 250m")
			continue
		}
		if quantity.CmpInt64(math.MaxInt64/1000) > 0 { // a greater one overflows when it is counted in thousandths
			p.add(path+"."+name, text, "is too large")
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
