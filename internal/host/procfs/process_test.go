package procfs

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/test/cost"
)

const (
	stat    = "cpu  100 20 300 40000 50 6 7 80 9 10\ncpu0 1 2 3 4 5 6 7 8 9 10\nintr 5\n"
	pidStat = "42 (a (b) c\n) S 1 42 42 0 -1 4194304 100 0 0 0 150 50 7 8 20 0 9 0 12345 1000 200 18446744073709551615\n"
	rollup  = "55d0-7ffc ---p 00000000 00:00 0 [rollup]\nRss:   900 kB\nPss:   500 kB\nPss_Dirty: 1 kB\n" +
		"Pss_Anon:  300 kB\nPss_File:  150 kB\nPss_Shmem: 50 kB\nSwap: 0 kB\n"
)

func TestProcessFiles(t *testing.T) {
	fs := tree(t, map[string]string{
		"stat": stat, "42/stat": pidStat, "42/cgroup": "4:memory:/kubepods/pod7\n1:name=systemd:/a:b\n0::/\n",
		"42/cmdline": "/usr/bin/kubelet\x00--config\x00\x00", "42/smaps_rollup": rollup, "42/statm": "1000 25 3 1 0 20 0\n",
		"self/x": "", "7/cmdline": "",
	})
	if busy, err := fs.BusyTime(); err != nil || busy != 433*10*time.Millisecond {
		t.Errorf("busy %v, %v", busy, err)
	}
	p, err := fs.Process(42)
	if want := (Process{42, "a (b) c\n", 12345, 2 * time.Second, 9}); err != nil || p != want {
		t.Errorf("%+v, %v, want %+v", p, err, want)
	}
	if groups, err := fs.Groups(42); err != nil || !slices.Equal(groups, []string{"/kubepods/pod7", "/a:b", "/"}) {
		t.Errorf("%q, %v", groups, err)
	}
	if args, err := fs.Arguments(42); err != nil || !slices.Equal(args, []string{"/usr/bin/kubelet", "--config", ""}) {
		t.Errorf("%q, %v", args, err)
	}
	if args, err := fs.Arguments(7); err != nil || args != nil {
		t.Errorf("%q, %v", args, err)
	}
	if f, err := fs.Footprint(42); err != nil || f != (Footprint{500 * unit.KiB, 350 * unit.KiB}) {
		t.Errorf("%+v, %v", f, err)
	}
	if r, err := fs.Resident(42); err != nil || r != 25*unit.Bytes(os.Getpagesize()) {
		t.Errorf("%v, %v", r, err)
	}
	pids, err := fs.ProcessIDs()
	if slices.Sort(pids); err != nil || !slices.Equal(pids, []int{7, 42}) {
		t.Errorf("%v, %v", pids, err)
	}
	if _, err := fs.Process(8); !IsGone(err) {
		t.Errorf("a process that is not there: %v", err)
	}
}

// A process can make its command line as long as its memory, but only the first 64 KiB are read.
func TestLongCommandLineIsCut(t *testing.T) {
	fs := tree(t, map[string]string{"42/cmdline": "a\x00" + strings.Repeat("b", 1<<20)})
	args, err := fs.Arguments(42)
	if err != nil || len(args) != 2 || args[0] != "a" || len(args[1]) != argumentsMax-2 {
		t.Errorf("%d arguments of %d bytes, %v; want 2 of %d", len(args), len(strings.Join(args, "\x00")), err, argumentsMax)
	}
}

func TestBadProcessFiles(t *testing.T) {
	for name, c := range map[string]struct {
		read func(FS) error
		want string
	}{
		"stat":            {func(fs FS) error { _, err := fs.BusyTime(); return err }, "want cpu and 7 numbers"},
		"42/stat":         {func(fs FS) error { _, err := fs.Process(42); return err }, "want a name in parentheses"},
		"42/statm":        {func(fs FS) error { _, err := fs.Resident(42); return err }, "want 2 fields"},
		"42/smaps_rollup": {func(fs FS) error { _, err := fs.Footprint(42); return err }, "want a number of kB"},
	} {
		err := c.read(tree(t, map[string]string{name: "Pss:1"}))
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), name) || IsGone(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestUnreclaimable(t *testing.T) {
	m := Memory{Total: 10, Free: 3, Available: unit.Of(unit.Bytes(6))}
	if m.Unreclaimable() != 4 {
		t.Errorf("got %v", m.Unreclaimable())
	}
	if m.Available = (unit.Amount[unit.Bytes]{}); m.Unreclaimable() != 7 {
		t.Errorf("an old kernel: %v", m.Unreclaimable())
	}
	m, err := parseMemory("MemTotal: 100 kB\nMemAvailable: 50 kB\nHugetlb: 20 kB\n")
	if err != nil || m.Unreclaimable() != 30*unit.KiB {
		t.Errorf("with huge pages: %v, %v", m.Unreclaimable(), err)
	}
}

// TestThisProcess reads the test's own files: every Linux has them.
func TestThisProcess(t *testing.T) {
	p, err := Default.Process(os.Getpid())
	if err != nil || p.PID != os.Getpid() || p.Threads < 1 || p.Start <= 0 {
		t.Errorf("%+v, %v", p, err)
	}
	if f, err := Default.Footprint(os.Getpid()); err != nil || f.Private <= 0 || f.Private > f.Resident {
		t.Errorf("%+v, %v", f, err)
	}
	if r, err := Default.Resident(os.Getpid()); err != nil || r < unit.MiB {
		t.Errorf("%v, %v", r, err)
	}
	if busy, err := Default.BusyTime(); err != nil || busy <= 0 {
		t.Errorf("%v, %v", busy, err)
	}
}

func FuzzProcessFiles(f *testing.F) {
	for _, seed := range []string{stat, pidStat, rollup, "", "1 () ", ")(", "cpu 1 2 3 4 5 6 -7 8", "0::/kubepods",
		"Pss: 99999999999999999999 kB"} {
		cost.Attack(f, seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		defer cost.Spend(t, len(text))()
		if busy, err := parseBusy(text); err == nil && busy < 0 {
			t.Errorf("%q: busy for %v", text, busy)
		}
		if p, err := parseProcess(text); err == nil && (p.PID <= 0 || p.CPU < 0 || p.Start < 0 || p.Threads < 0) {
			t.Errorf("%q: %+v", text, p)
		}
		if p, err := parseFootprint(text); err == nil && (p.Resident < 0 || p.Private < 0) {
			t.Errorf("%q: %+v", text, p)
		}
		parseGroups(text)
	})
}
