//go:build e2e && lab

package lab

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/lab"
)

// TestMissingCPUs boots a machine with isolated CPUs (isolcpus), and then takes CPUs offline until a socket and its
// NUMA node have none.
func TestMissingCPUs(t *testing.T) {
	want := describe(t, "two-socket")
	want.Machine.Isolated = idset.Of(2, 5, 6)
	path := filepath.Join(t.TempDir(), "isolated.yaml")
	if err := os.WriteFile(path, want.YAML(), 0o600); err != nil {
		t.Fatal(err)
	}
	g := lab.Boot(t, path, lab.Options{})
	wantMachine(t, g, want)
	for _, cpus := range []idset.Set{idset.Of(1), idset.Of(4, 5, 6, 7)} {
		for cpu := range cpus.All() {
			g.OfflineCPU(t, cpu)
		}
		want.Machine = withoutCPUs(want.Machine, cpus)
		wantMachine(t, g, want)
	}
	g.OnlineCPU(t, 1)
	want.Machine.Offline = want.Machine.Offline.Minus(idset.Of(1))
	want.Machine.CPUs = want.Machine.CPUs.Union(idset.Of(1))
	for _, group := range []*idset.Set{&want.Machine.NUMANodes[0].CPUs, &want.Machine.Cores[0], &want.Machine.Dies[0]} {
		*group = group.Union(idset.Of(1))
	}
	want.Machine.Sockets[0], want.Machine.L3[0] = want.Machine.CPUs, want.Machine.CPUs
	wantMachine(t, g, want)
}

// withoutCPUs is m with CPUs taken offline.
func withoutCPUs(m machine.Machine, cpus idset.Set) machine.Machine {
	m.CPUs, m.Offline = m.CPUs.Minus(cpus), m.Offline.Union(cpus)
	for i := range m.NUMANodes {
		m.NUMANodes[i].CPUs = m.NUMANodes[i].CPUs.Minus(cpus)
	}
	for id, group := range m.Sockets {
		if m.Sockets[id] = group.Minus(cpus); m.Sockets[id].IsEmpty() {
			delete(m.Sockets, id)
		}
	}
	for id, group := range m.L3 {
		if m.L3[id] = group.Minus(cpus); m.L3[id].IsEmpty() {
			delete(m.L3, id)
		}
	}
	m.Cores, m.Dies = minus(m.Cores, cpus), minus(m.Dies, cpus)
	return m
}

func minus(groups []idset.Set, cpus idset.Set) (left []idset.Set) {
	for _, group := range groups {
		if rest := group.Minus(cpus); !rest.IsEmpty() {
			left = append(left, rest)
		}
	}
	return left
}
