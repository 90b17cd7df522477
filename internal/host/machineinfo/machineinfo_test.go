package machineinfo

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/test/cost"
)

// plain is a machine that has everything.
func plain() map[string]string {
	return map[string]string{
		"proc/meminfo": "MemTotal: 4039556 kB\nSwapTotal: 1024 kB\n", "proc/sys/kernel/pid_max": "32768",
		"proc/sys/kernel/threads-max":    "31000",
		"proc/sys/kernel/random/boot_id": "boot-1", "proc/sys/kernel/osrelease": "6.1.0",
		"sys/devices/system/cpu/online": "0-1",
		"sys/class/dmi/id/product_uuid": "4C4C4544-0001\n", "etc/machine-id": "0123456789abcdef0123456789abcdef\n",
		"etc/os-release": "NAME=Debian\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n",
		"state/.keep":    "",
	}
}

func host(t *testing.T, files map[string]string) Host {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return Host{Root: root, StateDir: filepath.Join(root, "state")}
}

func TestMachine(t *testing.T) {
	m, notes, err := host(t, plain()).Machine()
	if err != nil || len(notes) > 0 {
		t.Fatalf("%v, %v", notes, err)
	}
	id := m.Identity
	if m.CPUs.Len() != 2 || m.Memory != 4039556*unit.KiB || m.Swap != unit.MiB || m.PIDs != 31000 ||
		m.NodeFS.Capacity <= 0 || m.ImageFS != m.NodeFS ||
		id.MachineID != "0123456789abcdef0123456789abcdef" || id.SystemUUID != "4c4c4544-0001" || id.BootID != "boot-1" ||
		id.KernelVersion != "6.1.0" ||
		id.OSImage != "Debian GNU/Linux 12 (bookworm)" {
		t.Errorf("got %+v", m)
	}
}

func TestMachineIDFallsBack(t *testing.T) {
	files := plain()
	files["etc/machine-id"] = "uninitialized\n"
	m, notes, err := host(t, files).Machine()
	if err != nil || m.Identity.MachineID != "4c4c45440001" || len(notes) != 1 || !strings.Contains(notes[0], "firmware") {
		t.Errorf("firmware's: %q, %v, %v", m.Identity.MachineID, notes, err)
	}
	delete(files, "etc/machine-id")
	delete(files, "sys/class/dmi/id/product_uuid")
	h := host(t, files)
	first, notes, err := h.Machine()
	if err != nil || len(first.Identity.MachineID) != 32 || len(notes) != 1 || !strings.Contains(notes[0], "using ") {
		t.Fatalf("our own: %q, %v, %v", first.Identity.MachineID, notes, err)
	}
	again, _, err := h.Machine()
	if err != nil || again.Identity.MachineID != first.Identity.MachineID ||
		again.Identity.SystemUUID != first.Identity.MachineID {
		t.Errorf("our own id changed: %q, %q, %v", first.Identity.MachineID, again.Identity.MachineID, err)
	}
}

func TestWhatIsMissing(t *testing.T) {
	for _, name := range []string{"proc/meminfo", "sys/devices/system/cpu/online"} {
		files := plain()
		delete(files, name)
		if _, _, err := host(t, files).Machine(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("without %s: %v", name, err)
		}
	}
	files := plain()
	delete(files, "etc/os-release")
	delete(files, "proc/sys/kernel/pid_max")
	m, notes, err := host(t, files).Machine()
	if err != nil || len(notes) != 2 || m.PIDs != 0 {
		t.Errorf("description only: %v, %v", notes, err)
	}
	h := host(t, plain())
	h.ImageDir = filepath.Join(h.Root, "gone")
	if m, notes, err := h.Machine(); err != nil || m.ImageFS != m.NodeFS || len(notes) != 1 {
		t.Errorf("image directory that is gone: %v, %v", notes, err)
	}
}

// TestThisMachine reads the machine on which the test runs.
func TestThisMachine(t *testing.T) {
	m, notes, err := Host{Root: "/", StateDir: t.TempDir()}.Machine()
	if err != nil {
		t.Fatal(err)
	}
	if m.Identity.MachineID == "" || m.Identity.OSImage == "" || m.Identity.KernelVersion == "" ||
		m.Identity.BootID == "" {
		t.Errorf("identity %+v, notes %v", m.Identity, notes)
	}
}

func FuzzParseOSRelease(f *testing.F) {
	for _, seed := range []string{"PRETTY_NAME=\"a\"", "PRETTY_NAME='a b'", "PRETTY_NAME=", "X=1\n\nPRETTY_NAME=\"\\\"\"",
		strings.Repeat("x", 70000)} {
		cost.Attack(f, seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		defer cost.Spend(t, len(text))()
		parseOSRelease(text)
	})
}
