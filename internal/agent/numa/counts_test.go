package numa

import (
	"strings"
	"testing"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// measured returns the values of our own metrics by name and labels.
func (k *Manager) measured(t *testing.T) map[string]float64 {
	t.Helper()
	families, err := k.Metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), "plimsoll_") {
			continue
		}
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			out[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return out
}

// TestOffersAreCounted: what became of each offer is counted, and what is free on each NUMA node is what is left.
func TestOffersAreCounted(t *testing.T) {
	k := keeper(t, static, newKernel())
	before := k.measured(t)
	k.mustAdmit(t, pod("a", 2))
	if r := k.admitWithPlugins(t, pod("large", 9), fits); r == nil {
		t.Error("a pod of 9 CPUs is on a NUMA node of 8")
	}
	k.admitWithPlugins(t, pod("elsewhere", 1), func() bool { return false })
	meanwhile := true
	k.admitWithPlugins(t, pod("b", 1), func() bool {
		if meanwhile {
			meanwhile = false
			k.mustAdmit(t, pod("c", 1))
		}
		return true
	})
	after := k.measured(t)
	for name, want := range map[string]float64{
		"plimsoll_numa_offers_total assigned": 3,
		"plimsoll_numa_offers_total rejected": 1,
		"plimsoll_numa_offers_total unused":   1,
		"plimsoll_numa_offers_total stale":    1,
	} {
		if has, is := after[name]; !is || has != want {
			t.Errorf("%s: %v (%v), want %v", name, has, is, want)
		}
	}
	const cpus, memory = "plimsoll_numa_cpus_free ", "plimsoll_numa_memory_free_bytes "
	if before[cpus+"0"] != 7 || before[cpus+"1"] != 8 {
		t.Errorf("free CPUs at first: %v", before)
	}
	if used := before[cpus+"0"] + before[cpus+"1"] - after[cpus+"0"] - after[cpus+"1"]; used != 4 {
		t.Errorf("%v CPUs are not free any more, want 4: %v", used, after)
	}
	used := before[memory+"0 memory"] + before[memory+"1 memory"] - after[memory+"0 memory"] - after[memory+"1 memory"]
	if used != 3*float64(unit.GiB) {
		t.Errorf("%v bytes are not free any more, want 3 GiB: %v", used, after)
	}
}
