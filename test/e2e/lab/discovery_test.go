//go:build e2e

package lab

import (
	"testing"

	"github.com/plimsoll-dev/plimsoll/internal/kube/machinefile"
	"github.com/plimsoll-dev/plimsoll/lab"
)

// TestMachinesComeBack boots every ready-made machine and runs `plimsoll machine` there. The output must be the
// description, to the byte. That tests both sides, which share nothing: the lab builds the machine from the
// description, and discovery reads what the kernel made of QEMU's firmware tables.
func TestMachinesComeBack(t *testing.T) {
	t.Parallel() // in parallel with tests that mostly wait
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
