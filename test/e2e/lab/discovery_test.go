//go:build e2e

package lab

import (
	"testing"

	"github.com/plimsoll-dev/plimsoll/internal/kube/machinefile"
	"github.com/plimsoll-dev/plimsoll/lab"
)

// TestMachinesComeBack boots every ready-made machine and asks `plimsoll machine` there what it is: to the byte what
// was described. It proves both, for they know nothing of each other: the lab builds from the description, the kernel
// reads QEMU's firmware tables, and discovery reads the kernel.
func TestMachinesComeBack(t *testing.T) {
	t.Parallel() // with tests that wait for time to pass
	for _, name := range lab.Names() {
		t.Run(name, func(t *testing.T) {
			wantMachine(t, lab.Boot(t, name, lab.Options{}), describe(t, name))
		})
	}
}

func describe(t *testing.T, name string) machinefile.File {
	t.Helper()
	file, err := lab.Describe(name)
	if err != nil {
		t.Fatal(err)
	}
	return file
}

func wantMachine(t *testing.T, g *lab.Guest, want machinefile.File) {
	t.Helper()
	if got, want := g.Run(t, "plimsoll", "machine", "-o", "yaml")+"\n", string(want.YAML()); got != want {
		t.Errorf("found:\n%s\ndescribed:\n%s", got, want)
	}
}
