package agent

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/plimsoll-dev/plimsoll/internal/core/allocatable"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// TestResourceMetrics: the terms of each resource are in kube-state-metrics' units, and a resource that the node does
// not report is left out.
func TestResourceMetrics(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(resourceMetrics{allocatable.Resources{
		CPU:              allocatable.Row[unit.MilliCPU]{Capacity: 4000, System: 500, Kube: 250, Allocatable: 3250},
		Memory:           allocatable.Row[unit.Bytes]{Capacity: 1000, Eviction: 100, Allocatable: 900},
		HugePages:        []allocatable.HugePages{{Size: 2 * unit.MiB}},
		StorageUncounted: true,
	}})
	families, err := registry.Gather()
	if err != nil || len(families) != 1 {
		t.Fatalf("%d families, %v", len(families), err)
	}
	got := map[string]float64{}
	for _, m := range families[0].GetMetric() {
		name := ""
		for _, l := range m.GetLabel() { // in the order of their names: part, resource, unit
			name += l.GetValue() + " "
		}
		got[name] = m.GetGauge().GetValue()
	}
	for name, want := range map[string]float64{
		"capacity cpu core ":           4,
		"system cpu core ":             0.5,
		"kube cpu core ":               0.25,
		"eviction cpu core ":           0,
		"allocatable cpu core ":        3.25,
		"allocatable memory byte ":     900,
		"capacity hugepages_2Mi byte ": 0,
		"allocatable pods integer ":    0,
	} {
		if has, is := got[name]; !is || has != want {
			t.Errorf("%s: %v (%v), want %v", name, has, is, want)
		}
	}
	if len(got) != 4*5 {
		t.Errorf("%d values, want 5 of each of cpu, memory, pods and huge pages: %v", len(got), got)
	}
}

// TestStallMetrics: what the kernel does not count is absent.
func TestStallMetrics(t *testing.T) {
	dir := t.TempDir()
	const text = "some avg10=0.00 avg60=0.00 avg300=0.00 total=1500000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n"
	if err := os.WriteFile(filepath.Join(dir, "memory"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(stallMetrics{dir})
	families, err := registry.Gather()
	if err != nil || len(families) != 1 {
		t.Fatalf("%d families, %v", len(families), err)
	}
	full, some := families[0].GetMetric()[0], families[0].GetMetric()[1]
	if len(families[0].GetMetric()) != 2 || full.GetCounter().GetValue() != 7e-6 || some.GetCounter().GetValue() != 1.5 {
		t.Errorf("got %v", families[0])
	}
}
