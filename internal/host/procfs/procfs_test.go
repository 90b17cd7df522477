package procfs

import (
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

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

const meminfo = `MemTotal:        4039556 kB
MemFree:          200000 kB
MemAvailable:          0 kB
Buffers:           10000 kB
SwapTotal:       1048576 kB
SwapFree:        1048572 kB
HugePages_Total:       0
Hugepagesize:       2048 kB
`

func TestMemory(t *testing.T) {
	m, err := tree(t, map[string]string{"meminfo": meminfo}).Memory()
	if err != nil || m.Total != 4039556*unit.KiB || m.SwapTotal != unit.GiB || m.Free != 200000*unit.KiB {
		t.Errorf("got %+v, %v", m, err)
	}
	if available, ok := m.Available.Get(); !ok || available != 0 {
		t.Errorf("available %v: a stated zero is not absent", m.Available)
	}
	m, err = tree(t, map[string]string{"meminfo": "MemTotal: 1 kB\n"}).Memory()
	if err != nil || m.Available.IsSet() {
		t.Errorf("an old kernel: %+v, %v", m, err)
	}
	for text, want := range map[string]string{
		"": "MemTotal: missing", "MemTotal: x kB\n": "line 1", "MemFree: 1 kB\nMemTotal: 5\n": "line 2",
		"MemTotal: 9223372036854775807 kB": "line 1",
	} {
		if _, err := tree(t, map[string]string{"meminfo": text}).Memory(); err == nil ||
			!strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "meminfo") {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func TestFacts(t *testing.T) {
	fs := tree(t, map[string]string{"sys/kernel/pid_max": "32768\n", "sys/kernel/threads-max": "31000\n",
		"sys/kernel/random/boot_id": "b-1\n", "sys/kernel/osrelease": "\n"})
	if n, err := fs.PIDs(); err != nil || n != 31000 {
		t.Errorf("pids %d, %v", n, err)
	}
	if id, err := fs.BootID(); err != nil || id != "b-1" {
		t.Errorf("boot id %q, %v", id, err)
	}
	if _, err := fs.KernelVersion(); err == nil || !strings.Contains(err.Error(), "osrelease: empty") {
		t.Errorf("kernel version: %v", err)
	}
	if _, err := tree(t, map[string]string{"sys/kernel/pid_max": "many"}).PIDs(); err == nil ||
		!strings.Contains(err.Error(), `pid_max: "many"`) {
		t.Errorf("pids: %v", err)
	}
}

const routes4 = `Iface	Destination	Gateway 	Flags	RefCnt	Use	Metric	Mask		MTU	Window	IRTT
wlan0	00000000	0101A8C0	0003	0	0	600	00000000	0	0	0
eth0	00000000	0101A8C0	0003	0	0	100	00000000	0	0	0
eth1	00000000	0101A8C0	0002	0	0	1	00000000	0	0	0
eth0	0001A8C0	00000000	0001	0	0	100	00FFFFFF	0	0	0
`

const routes6 = `fe800000000000000000000000000000 40 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 00000001 00000000 00000001     eth0
00000000000000000000000000000000 00 00000000000000000000000000000000 00 fe800000000000000000000000000001 00000400 00000001 00000000 00000003     eth6
00000000000000000000000000000000 00 00000000000000000000000000000000 00 00000000000000000000000000000000 ffffffff 00000001 00000000 00200200       lo
`

func TestDefaultInterfaces(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  []string
	}{
		"by metric, those up, IPv4 first": {map[string]string{"net/route": routes4, "net/ipv6_route": routes6},
			[]string{"eth0", "wlan0", "eth6"}},
		"IPv6 only":  {map[string]string{"net/ipv6_route": routes6}, []string{"eth6"}},
		"no way out": {map[string]string{"net/route": routes4[:strings.Index(routes4, "\n")+1]}, nil},
		"no network": {nil, nil},
	} {
		got, err := tree(t, c.files).DefaultInterfaces()
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, %v, want %v", name, got, err, c.want)
		}
	}
	if _, err := tree(t, map[string]string{"net/route": "head\neth0 0\n"}).DefaultInterfaces(); err == nil ||
		!strings.Contains(err.Error(), "route: line 2") {
		t.Errorf("short line: %v", err)
	}
}

// TestThisMachine reads the real files: every Linux has them.
func TestThisMachine(t *testing.T) {
	if m, err := Default.Memory(); err != nil || m.Total < unit.MiB {
		t.Errorf("memory %+v, %v", m, err)
	}
	if n, err := Default.PIDs(); err != nil || n < 100 {
		t.Errorf("pids %d, %v", n, err)
	}
	if _, err := Default.DefaultInterfaces(); err != nil {
		t.Error(err)
	}
}

func TestThreads(t *testing.T) {
	fs := tree(t, map[string]string{"loadavg": "0.20 0.18 0.12 1/80 11206\n"})
	if n, err := fs.Threads(); err != nil || n != 80 {
		t.Errorf("%d, %v, want 80", n, err)
	}
	for _, bad := range []string{"", "0.20 0.18 0.12", "0.20 0.18 0.12 1-80 11206", "0.20 0.18 0.12 1/0 11206"} {
		if n, err := tree(t, map[string]string{"loadavg": bad}).Threads(); err == nil {
			t.Errorf("%q: %d", bad, n)
		}
	}
}

func FuzzParsers(f *testing.F) {
	for _, seed := range []string{meminfo, routes4, routes6, "", "MemTotal:", "MemTotal: -1 kB", "h\na b c d e f g h"} {
		cost.Attack(f, seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		defer cost.Spend(t, len(text))()
		if n, ok := parseThreads(text); ok && n <= 0 {
			t.Errorf("%q: %d threads", text, n)
		}
		if m, err := parseMemory(text); err == nil && m.Total <= 0 {
			t.Errorf("%q: total %v", text, m.Total)
		}
		for _, parse := range []func(string) ([]route, error){parseRoutes4, parseRoutes6} {
			if routes, err := parse(text); err == nil {
				defaults(routes)
			} else if !strings.Contains(err.Error(), "line ") {
				t.Errorf("%q: no line in %v", text, err)
			}
		}
	})
}
