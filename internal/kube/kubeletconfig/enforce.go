package kubeletconfig

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/plimsoll-dev/plimsoll/internal/core/loadline"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/qos"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Kernel is what the values of cgroups depend on beside the machine.
type Kernel struct {
	Unified      bool       // cgroup v2
	AccountsSwap bool       // there is a swap controller
	PageSize     unit.Bytes // of memory
}

// QoSPolicy translates what a loaded configuration says about the values of pods' and containers' cgroups on a machine.
// unreserved is the memory that is reserved for nobody.
func QoSPolicy(c *kubeletconfigv1beta1.KubeletConfiguration, m machine.Machine, unreserved unit.Bytes, k Kernel) qos.Policy {
	return qos.Policy{
		CFSQuota: *c.CPUCFSQuota, CFSPeriod: c.CPUCFSQuotaPeriod.Duration, PodPIDs: *c.PodPidsLimit,
		Memory: memoryPolicy(c, unreserved, k),
		Swap: qos.SwapPolicy{
			Accounted: k.AccountsSwap, Unified: k.Unified, Limited: c.MemorySwap.SwapBehavior == limitedSwap, Machine: m.Memory, Total: m.Swap,
		},
	}
}

// limitedSwap lets Burstable pods swap; any other behaviour lets none.
const limitedSwap = "LimitedSwap"

func memoryPolicy(c *kubeletconfigv1beta1.KubeletConfiguration, unreserved unit.Bytes, k Kernel) qos.MemoryPolicy {
	return qos.MemoryPolicy{
		On:      enabled(c, gateMemoryQoS) && k.Unified,
		Tiered:  c.MemoryReservationPolicy == kubeletconfigv1beta1.TieredReservationMemoryReservationPolicy,
		Factor:  *c.MemoryThrottlingFactor,
		NoLimit: unreserved, PageSize: k.PageSize,
	}
}

// TierPolicy translates what a loaded configuration says about the groups of QoS classes.
func TierPolicy(c *kubeletconfigv1beta1.KubeletConfiguration, unreserved unit.Bytes, k Kernel) qos.TierPolicy {
	policy := qos.TierPolicy{Memory: memoryPolicy(c, unreserved, k), Allocatable: unreserved}
	if text, ok := c.QOSReserved[string(corev1.ResourceMemory)]; ok && enabled(c, gateQOSReserved) && unreserved > 0 {
		if percent, err := parsePercent(text); err == nil {
			policy.ReservesMemory, policy.ReservedPercent = true, percent
		}
	}
	return policy
}

// parsePercent reads whole percents, like 50%.
func parsePercent(text string) (int64, error) {
	digits, ok := strings.CutSuffix(text, "%")
	percent, err := strconv.ParseInt(digits, 10, 64)
	if !ok || err != nil || percent < 0 || percent > 100 {
		return 0, fmt.Errorf("%q: want whole percents from 0%% to 100%%", text)
	}
	return percent, nil
}

// Reservation is a reserved group that the configuration wants held to its reservation.
type Reservation struct {
	Group        loadline.Group
	Field        string // of the configuration, that names the cgroup
	Cgroup       string // as written there
	Compressible bool   // CPU only
}

// Reservations returns the reserved groups to enforce, none without an entry for them in enforceNodeAllocatable.
func Reservations(c *kubeletconfigv1beta1.KubeletConfiguration) []Reservation {
	var out []Reservation
	for _, r := range []struct {
		whole, compressible string
		Reservation
	}{
		{enforceSystem, enforceSystemCompressible, Reservation{loadline.SystemReserved, "systemReservedCgroup", c.SystemReservedCgroup, false}},
		{enforceKube, enforceKubeCompressible, Reservation{loadline.KubeReserved, "kubeReservedCgroup", c.KubeReservedCgroup, false}},
	} {
		r.Compressible = slices.Contains(c.EnforceNodeAllocatable, r.compressible)
		if r.Compressible || slices.Contains(c.EnforceNodeAllocatable, r.whole) {
			out = append(out, r.Reservation)
		}
	}
	return out
}

// ProtectsMemory reports whether the kernel is to keep reserved memory from reclaim.
func ProtectsMemory(c *kubeletconfigv1beta1.KubeletConfiguration, k Kernel) bool {
	return enabled(c, gateMemoryQoS) && k.Unified
}
