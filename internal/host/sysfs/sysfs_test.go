package sysfs

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/test/cost"
)

func tree(t *testing.T, files map[string]string) FS {
	t.Helper()
	from := fstest.MapFS{}
	for name, text := range files {
		from[name] = &fstest.MapFile{Data: []byte(text), Mode: 0o644}
	}
	dir := t.TempDir()
	if err := os.CopyFS(dir, from); err != nil {
		t.Fatal(err)
	}
	return FS(dir)
}

func TestCPUs(t *testing.T) {
	cpus, err := tree(t, map[string]string{"devices/system/cpu/online": "0-3,8\n"}).CPUs()
	if err != nil || cpus.Online.String() != "0-3,8" || !cpus.Offline.IsEmpty() {
		t.Errorf("%v, %v", cpus, err)
	}
	for text, want := range map[string]string{"\n": "empty", "0-\n": "not a number"} {
		if _, err := tree(t, map[string]string{"devices/system/cpu/online": text}).CPUs(); err == nil ||
			!strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "cpu/online") {
			t.Errorf("%q: %v", text, err)
		}
	}
	if cpus, err := Default.CPUs(); err != nil || cpus.Online.IsEmpty() {
		t.Errorf("this machine: %v, %v", cpus, err)
	}
}

func TestThermalThrottles(t *testing.T) {
	fs := tree(t, map[string]string{
		"devices/system/cpu/cpu0/thermal_throttle/core_throttle_count":  "0",
		"devices/system/cpu/cpu12/thermal_throttle/core_throttle_count": "7",
		"devices/system/cpu/cpu3/online":                                "0",
		"devices/system/cpu/cpufreq/thermal_throttle/x":                 "0",
	})
	want := []string{fs.path(cpuDir, "cpu0", "thermal_throttle"), fs.path(cpuDir, "cpu12", "thermal_throttle")}
	if got := fs.ThermalThrottles(); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestHugePages(t *testing.T) {
	got, err := tree(t, map[string]string{
		"kernel/mm/hugepages/hugepages-2048kB/nr_hugepages":    "512\n",
		"kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages": "0\n",
		"kernel/mm/hugepages/README":                           "",
	}).HugePages()
	if want := map[unit.Bytes]int64{2 * unit.MiB: 512, unit.GiB: 0}; err != nil || !maps.Equal(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
	if got, err := tree(t, nil).HugePages(); err != nil || len(got) != 0 {
		t.Errorf("kernel without: %v, %v", got, err)
	}
	if _, err := tree(t,
		map[string]string{"kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "-1"}).HugePages(); err == nil ||
		!strings.Contains(err.Error(), "nr_hugepages") {
		t.Errorf("negative: %v", err)
	}
}

func TestSystemUUID(t *testing.T) {
	if got := tree(t, map[string]string{"class/dmi/id/product_uuid": "ABC-1\n"}).SystemUUID(); got != "abc-1" {
		t.Errorf("got %q", got)
	}
	if got := tree(t, nil).SystemUUID(); got != "" {
		t.Errorf("firmware without: %q", got)
	}
}

func FuzzParseHugePageDir(f *testing.F) {
	for _, seed := range []string{"hugepages-2048kB", "hugepages-", "kB", "hugepages-0kB", "hugepages-4294967295kB"} {
		cost.Attack(f, seed)
	}
	f.Fuzz(func(t *testing.T, name string) {
		defer cost.Spend(t, len(name))()
		if size, ok := parseHugePageDir(name); ok && size <= 0 {
			t.Errorf("%q: %d", name, size)
		}
	})
}

func FuzzNodeFiles(f *testing.F) {
	for _, seed := range []string{"Node 0 MemTotal:       21457108 kB\n", "\nNode 3 MemTotal: -1 kB", "10 21", "10 20 256",
		"8000000", "0x10", "0x020000", "FFFFFFFFFFFFFFFF"} {
		cost.Attack(f, seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		defer cost.Spend(t, len(text))()
		if memory, err := parseNodeMemory(text); err == nil && memory < 0 {
			t.Errorf("%q: memory %d", text, memory)
		}
		ids := idset.Of(0, 2)
		if d, err := parseDistances(text, ids); err == nil && (len(d) != 2 || d[0] < 0 || d[2] < 0) {
			t.Errorf("%q: distances %v", text, d)
		}
		if size, err := parseBlockSize(text); err == nil && (size <= 0 || size > blockSizeMax) {
			t.Errorf("%q: block size %d", text, size)
		}
		if n, err := parseHex(text, 16); err == nil && n >= 1<<16 {
			t.Errorf("%q: %#x has more than 16 bits", text, n)
		}
	})
}

// TestThisMachine reads the real files: those that exist must be readable and consistent.
func TestThisMachine(t *testing.T) {
	cpus, err := Default.CPUs()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Default.Topology(cpus.Online); err != nil {
		t.Error(err)
	}
	if _, err := Default.NUMANodes(); err != nil {
		t.Error(err)
	}
	if _, err := Default.PCIDevices(); err != nil {
		t.Error(err)
	}
}
