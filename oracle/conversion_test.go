package oracle

import (
	"flag"
	"math/rand/v2"
	"testing"
	"time"
	_ "unsafe" // go:linkname

	"k8s.io/kubernetes/pkg/kubelet/cm"

	"github.com/plimsoll-dev/plimsoll/internal/core/qos"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

var (
	conversions = flag.Int("conversion.amounts", 1_000_000,
		"random amounts of CPU whose shares, weight and quota are judged")
	conversionSeed = flag.Uint64("conversion.seed", 1, "seed of the random amounts")
)

//go:linkname upstreamWeight k8s.io/kubernetes/pkg/kubelet/cm.getCPUWeight
func upstreamWeight(shares *uint64) uint64

// TestConversions compares shares, weight and quota of an amount of CPU with the kubelet's own functions: every small
// amount, then random ones of all magnitudes. The quota is read from a pod with that limit.
func TestConversions(t *testing.T) {
	random := rand.New(rand.NewPCG(*conversionSeed, 0))
	periods := []time.Duration{time.Millisecond, 5 * time.Millisecond, 10 * time.Millisecond, 100 * time.Millisecond,
		time.Second}
	judge := func(cpu unit.MilliCPU, period time.Duration) {
		shares := qos.SharesOf(cpu)
		if want := cm.MilliCPUToShares(int64(cpu)); uint64(shares) != want {
			t.Errorf("%dm: shares %d, want %d", cpu, shares, want)
		}
		asNumber := uint64(shares)
		if want := upstreamWeight(&asNumber); uint64(shares.Weight()) != want {
			t.Errorf("%d shares: weight %d, want %d", shares, shares.Weight(), want)
		}
		limit := qos.Resources{Requests: qos.Amounts{CPU: unit.Of(cpu)}, Limits: qos.Amounts{CPU: unit.Of(cpu)}}
		got := qos.PodValues(qos.Pod{Containers: []qos.Container{{Resources: limit}}}, qos.Policy{CFSQuota: true,
			CFSPeriod: period})
		quota, bound := got.CPUQuota.Get()
		if want := cm.MilliCPUToQuota(int64(cpu), period.Microseconds()); quota.Microseconds() != want ||
			bound != (want > 0) {
			t.Errorf("%dm of %v: quota %v, want %d microseconds", cpu, period, got.CPUQuota, want)
		}
	}
	const small = 300_000 // more than the maximum of shares, at 256 CPUs
	for n := range *conversions {
		cpu := unit.MilliCPU(n)
		if n >= small {
			cpu = unit.MilliCPU(random.Int64N(1 << random.IntN(40)))
		}
		if judge(cpu, periods[random.IntN(len(periods))]); t.Failed() {
			t.Fatalf("seed %d, amount %d", *conversionSeed, n)
		}
	}
}
