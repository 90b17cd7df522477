package eviction

import (
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/plimsoll-dev/plimsoll/internal/core/allocatable"
	"github.com/plimsoll-dev/plimsoll/internal/core/eviction"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// measured returns the values of the Guard's metrics by name and labels; of a histogram, how many values it has.
func (g *Guard) measured(t *testing.T) map[string]float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(g.Measurements())
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			out[name] = m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return out
}

// TestMeasurements: after a check, its signals, the thresholds in the signals' units and the conditions are there.
func TestMeasurements(t *testing.T) {
	b := newBench(t, 200*unit.MiB)
	soft := eviction.Threshold{
		Signal: allocatable.AllocatableMemory,
		Value:  allocatable.Threshold{Share: 0.5},
		Grace:  time.Minute,
	}
	o := b.options(t.TempDir(), hard(100*unit.MiB), hard(20*unit.MiB), soft)
	g, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	if got := g.measured(t)["plimsoll_node_pressure MemoryPressure"]; got != 0 {
		t.Errorf("pressure before the first check: %v", got)
	}
	g.check(t.Context(), nil)
	got := g.measured(t)
	limit := float64(b.limit)
	for name, want := range map[string]float64{
		"plimsoll_eviction_signal_capacity allocatableMemory.available":  limit,
		"plimsoll_eviction_threshold allocatableMemory.available hard":   float64(100 * unit.MiB),
		"plimsoll_eviction_threshold allocatableMemory.available soft":   limit / 2,
		"plimsoll_eviction_check_duration_seconds signals":               1,
		"plimsoll_eviction_check_duration_seconds pods":                  0,
		"plimsoll_eviction_reaction_seconds allocatableMemory.available": 0,
		"plimsoll_node_pressure MemoryPressure":                          0,
		"plimsoll_node_pressure DiskPressure":                            0,
		"plimsoll_node_pressure PIDPressure":                             0,
	} {
		if has, is := got[name]; !is || has != want {
			t.Errorf("%s: %v (%v), want %v", name, has, is, want)
		}
	}
	for _, signal := range []allocatable.Signal{allocatable.AllocatableMemory, allocatable.PIDAvailable} {
		if got[fmt.Sprint("plimsoll_eviction_signal_available ", signal)] <= 0 {
			t.Errorf("%s: there is nothing: %v", signal, got)
		}
	}
}
