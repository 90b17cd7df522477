package lab

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube/machinefile"
)

// TestBoards runs testdata/boards.txt. Its commands, each on a machine's spec:
//
//	build [withhold=(MiB, ...)]   prints QEMU's arguments, the kernel's, and where memory is withheld; or what is in the way
func TestBoards(t *testing.T) {
	datadriven.RunTest(t, "testdata/boards.txt", func(t *testing.T, d *datadriven.TestData) string {
		file, err := machinefile.Decode([]byte("apiVersion: plimsoll.dev/v1alpha1\nkind: Machine\nspec:\n  " +
			strings.ReplaceAll(d.Input, "\n", "\n  ")))
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
		b, err := newBoard(file.Machine)
		if err != nil {
			return strings.ReplaceAll(err.Error(), "; ", "\n") + "\n"
		}
		var out strings.Builder
		args := b.qemu()
		for i := 0; i < len(args); i += 2 {
			fmt.Fprintln(&out, args[i], args[i+1])
		}
		fmt.Fprintln(&out, "kernel:", strings.Join(b.kernel(), " "))
		for _, arg := range d.CmdArgs {
			var amounts []unit.Bytes
			for _, text := range arg.Vals {
				var mib unit.Bytes
				if _, err := fmt.Sscan(text, &mib); err != nil || arg.Key != "withhold" {
					d.Fatalf(t, "%s=%s: want withhold=(MiB, ...)", arg.Key, text)
				}
				amounts = append(amounts, mib*unit.MiB)
			}
			fmt.Fprintln(&out, "withhold:", strings.Join(b.withhold(amounts), " "))
		}
		return out.String()
	})
}

// TestReadyMadeMachinesCanBeBuilt checks the descriptions alone, on any host.
func TestReadyMadeMachinesCanBeBuilt(t *testing.T) {
	for _, name := range Names() {
		file, err := Describe(name)
		if err != nil {
			t.Error(err)
			continue
		}
		if file.Name != name {
			t.Errorf("%s calls itself %s", name, file.Name)
		}
		if _, err := newBoard(file.Machine); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Describe("nowhere"); err == nil || !strings.Contains(err.Error(), "two-socket") {
		t.Errorf("a name that is none: %v", err)
	}
}

func TestMemoryIsMeasuredOnce(t *testing.T) {
	s := store{t.TempDir()}
	b := board{nodes: []boardNode{{memory: unit.GiB, installed: unit.GiB + memoryBlock}, {}}}
	m, err := openMemory(s, b, "x")
	if err != nil {
		t.Fatal(err)
	}
	if err := m.judge([]int64{int64(unit.GiB + 5*unit.MiB), 0}); err != errOtherMemory || m.withheld[0] != 5*unit.MiB {
		t.Fatalf("first boot: %v, withheld %v", err, m.withheld)
	}
	if err := m.judge([]int64{int64(unit.GiB), 0}); err != nil {
		t.Fatalf("second boot: %v", err)
	}
	if err := m.keep(); err != nil {
		t.Fatal(err)
	}
	again, err := openMemory(s, b, "x")
	if err != nil || !again.known || again.withheld[0] != 5*unit.MiB {
		t.Errorf("kept: %+v, %v", again, err)
	}
	for has, want := range map[unit.Bytes]string{unit.GiB - 20*unit.MiB: "describe less memory, or more installed",
		unit.GiB + memoryBlock: "describe more memory, or less installed"} {
		if err := again.judge([]int64{int64(has), 0}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %s", has, err, want)
		}
		again.withheld[0] = 5 * unit.MiB
	}
	if err := again.judge([]int64{1}); err == nil || !strings.Contains(err.Error(), "1 NUMA nodes, 2 are described") {
		t.Errorf("another number of nodes: %v", err)
	}
}

// A machine that lost memory is another machine; what is known of the whole one is kept.
func TestShrink(t *testing.T) {
	s := store{t.TempDir()}
	b := board{nodes: []boardNode{{memory: unit.GiB, installed: unit.GiB + memoryBlock}}}
	m, err := openMemory(s, b, "x")
	if err != nil {
		t.Fatal(err)
	}
	m.withheld[0] = 5 * unit.MiB
	if err := m.keep(); err != nil {
		t.Fatal(err)
	}
	for _, wrong := range []unit.Bytes{0, 3, memoryBlock} {
		if err := m.shrink(0, wrong); err == nil || !strings.Contains(err.Error(), "below 123Mi") {
			t.Errorf("%v less: %v", wrong, err)
		}
	}
	if err := m.shrink(0, 16*unit.MiB); err != nil {
		t.Fatal(err)
	}
	if err := m.judge([]int64{int64(unit.GiB - 16*unit.MiB)}); err != nil || m.withheld[0] != 21*unit.MiB {
		t.Errorf("shrunk: %v, withheld %v", err, m.withheld)
	}
	if err := m.keep(); err != nil {
		t.Fatal(err)
	}
	if again, err := openMemory(s, b, "x"); err != nil || again.withheld[0] != 5*unit.MiB ||
		b.nodes[0].memory != unit.GiB {
		t.Errorf("the whole machine: %+v, %v", again, err)
	}
}
