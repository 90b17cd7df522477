package kubeletconfig

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/plimsoll-dev/plimsoll/internal/core/allocatable"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/qos"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Kernel is what the values of cgroups depend on in addition to the machine.
type Kernel struct {
	Unified      bool       // cgroup v2
	AccountsSwap bool       // there is a swap controller
	PageSize     unit.Bytes // of memory
}

// QoSPolicy translates the parts of a loaded configuration that determine the values of the cgroups of pods and
// containers on a machine. unreserved is the memory that is not reserved.
func QoSPolicy(c *kubeletconfigv1beta1.KubeletConfiguration, m machine.Machine, unreserved unit.Bytes,
	k Kernel) qos.Policy {
	return qos.Policy{
		CFSQuota: *c.CPUCFSQuota, CFSPeriod: c.CPUCFSQuotaPeriod.Duration, PodPIDs: *c.PodPidsLimit,
		Memory: memoryPolicy(c, unreserved, k),
		Swap: qos.SwapPolicy{
			Accounted: k.AccountsSwap, Unified: k.Unified, Limited: c.MemorySwap.SwapBehavior == limitedSwap, Machine: m.Memory,
			Total: m.Swap,
		},
	}
}

// limitedSwap allows Burstable pods to swap. With any other behaviour no pod may swap.
const limitedSwap = "LimitedSwap"

func memoryPolicy(c *kubeletconfigv1beta1.KubeletConfiguration, unreserved unit.Bytes, k Kernel) qos.MemoryPolicy {
	return qos.MemoryPolicy{
		On:      enabled(c, gateMemoryQoS) && k.Unified,
		Tiered:  c.MemoryReservationPolicy == kubeletconfigv1beta1.TieredReservationMemoryReservationPolicy,
		Factor:  *c.MemoryThrottlingFactor,
		NoLimit: unreserved, PageSize: k.PageSize,
	}
}

// TierPolicy translates the parts of a loaded configuration that determine the values of the cgroups of QoS classes.
func TierPolicy(c *kubeletconfigv1beta1.KubeletConfiguration, unreserved unit.Bytes, k Kernel) qos.TierPolicy {
	policy := qos.TierPolicy{Memory: memoryPolicy(c, unreserved, k), Allocatable: unreserved}
	if text, ok := c.QOSReserved[string(corev1.ResourceMemory)]; ok && enabled(c, gateQOSReserved) && unreserved > 0 {
		if percent, err := parsePercent(text); err == nil {
			policy.ReservesMemory, policy.ReservedPercent = true, percent
		}
	}
	return policy
}

// parsePercent reads a whole percentage, like 50%.
func parsePercent(text string) (int64, error) {
	digits, ok := strings.CutSuffix(text, "%")
	percent, err := strconv.ParseInt(digits, 10, 64)
	if !ok || err != nil || percent < 0 || percent > 100 {
		return 0, fmt.Errorf("%q: want whole percents from 0%% to 100%%", text)
	}
	return percent, nil
}

// Reservation is a reserved cgroup whose reservation the configuration wants enforced.
type Reservation struct {
	Group        allocatable.Group
	Field        string // the field of the configuration that names the cgroup
	Cgroup       string // the value of that field
	Compressible bool   // enforce CPU only
}

// Reservations returns the reserved cgroups to enforce: those with an entry in enforceNodeAllocatable.
func Reservations(c *kubeletconfigv1beta1.KubeletConfiguration) []Reservation {
	var out []Reservation
	for _, r := range []struct {
		whole, compressible string
		Reservation
	}{
		{enforceSystem, enforceSystemCompressible, Reservation{Group: allocatable.SystemReserved,
			Field: "systemReservedCgroup", Cgroup: c.SystemReservedCgroup}},
		{enforceKube, enforceKubeCompressible, Reservation{Group: allocatable.KubeReserved, Field: "kubeReservedCgroup",
			Cgroup: c.KubeReservedCgroup}},
	} {
		r.Compressible = slices.Contains(c.EnforceNodeAllocatable, r.compressible)
		if r.Compressible || slices.Contains(c.EnforceNodeAllocatable, r.whole) {
			out = append(out, r.Reservation)
		}
	}
	return out
}

// ProtectsMemory reports whether the kernel shall protect reserved memory from reclaim.
func ProtectsMemory(c *kubeletconfigv1beta1.KubeletConfiguration, k Kernel) bool {
	return enabled(c, gateMemoryQoS) && k.Unified
}

// kernelMemoryHigh is the first kernel version on which memory.high throttles without livelock (the kubelet's bound,
// KEP-2570).
var kernelMemoryHigh = [2]int{5, 9}

// MachineWarnings returns a warning for each setting of a configuration that has no effect, or a bad one, on this
// machine.
func MachineWarnings(c *kubeletconfigv1beta1.KubeletConfiguration, m machine.Machine, k Kernel) []string {
	var warnings []string
	if enabled(c, gateMemoryQoS) && !k.Unified {
		warnings = append(warnings, "featureGates."+gateMemoryQoS+": true: does nothing on cgroup v1")
	}
	var version [2]int
	if _, err := fmt.Sscanf(m.Identity.KernelVersion, "%d.%d", &version[0], &version[1]); err == nil &&
		enabled(c, gateMemoryQoS) && k.Unified && slices.Compare(version[:], kernelMemoryHigh[:]) < 0 {
		warnings = append(warnings,
			fmt.Sprintf("featureGates.%s: true: kernel %s may hang processes that memory.high throttles: want %d.%d",
				gateMemoryQoS, m.Identity.KernelVersion, kernelMemoryHigh[0], kernelMemoryHigh[1]))
	}
	if c.MemorySwap.SwapBehavior == limitedSwap && !k.Unified {
		warnings = append(warnings, "memorySwap.swapBehavior: LimitedSwap: does nothing on cgroup v1")
	}
	if c.MemorySwap.SwapBehavior == limitedSwap && k.Unified && !k.AccountsSwap {
		warnings = append(warnings,
			"memorySwap.swapBehavior: LimitedSwap: does nothing: this kernel does not account for swap")
	}
	return warnings
}
