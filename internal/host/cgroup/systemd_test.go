package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/qos"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/test/cost"
)

func TestProperties(t *testing.T) {
	pod := qos.Values{
		CPUShares: unit.Of(qos.Shares(512)), CPUQuota: unit.LimitTo(50 * time.Millisecond), CPUPeriod: 100 * time.Millisecond,
		Memory: unit.LimitTo(128 * unit.MiB), PIDs: unit.LimitTo(int64(100)), CPUs: idset.Of(0, 1, 9),
		MemoryMin: unit.Of(unit.Bytes(1)), MemoryLow: unit.Of(unit.Bytes(2)), MemoryHigh: unit.LimitTo(unit.Bytes(3)),
		Swap: unit.LimitTo(unit.Bytes(0)),
	}
	lifted := qos.Values{CPUQuota: unit.Unlimited[time.Duration](), CPUPeriod: 100 * time.Millisecond,
		Memory: unit.Unlimited[unit.Bytes](), PIDs: unit.Unlimited[int64]()}
	for name, c := range map[string]struct {
		v       qos.Values
		mode    Mode
		version int
		want    string
	}{
		"v2": {pod, V2, 252, "CPUWeight=20 MemoryMax=134217728 MemoryHigh=3 MemorySwapMax=0 MemoryMin=1 MemoryLow=2 " +
			"CPUQuotaPeriodUSec=100000 CPUQuotaPerSecUSec=500000 TasksMax=100 AllowedCPUs=[3 2]"},
		"v2, an old systemd": {pod, V2, 241,
			"CPUWeight=20 MemoryMax=134217728 MemoryHigh=3 MemorySwapMax=0 MemoryMin=1 MemoryLow=2 CPUQuotaPerSecUSec=500000 " +
				"TasksMax=100"},
		"v1": {pod, Hybrid, 252,
			"CPUShares=512 MemoryLimit=134217728 CPUQuotaPeriodUSec=100000 CPUQuotaPerSecUSec=500000 TasksMax=100 " +
				"AllowedCPUs=[3 2]"},
		"lifted":       {lifted, V2, 252, "MemoryMax=∞ CPUQuotaPeriodUSec=100000 CPUQuotaPerSecUSec=∞ TasksMax=∞"},
		"no processes": {qos.Values{PIDs: unit.LimitTo(int64(0))}, V2, 252, "TasksMax=1"},
		"nothing":      {qos.Values{}, V2, 252, ""},
	} {
		if got := spell(properties(c.v, c.mode, c.version)); got != c.want {
			t.Errorf("%s:\n%s, want\n%s", name, got, c.want)
		}
	}
}

func spell(properties []Property) string {
	var words []string
	for _, p := range properties {
		words = append(words, strings.ReplaceAll(fmt.Sprintf("%s=%v", p.Name, p.Value), fmt.Sprint(infinity), "∞"))
	}
	return strings.Join(words, " ")
}

// systemd stores whole percents of a CPU: other quotas are rounded up, in the kernel's file too.
func TestQuotaIsRoundedUpToPercents(t *testing.T) {
	for _, c := range []struct{ quota, period, want time.Duration }{
		{50 * time.Millisecond, 100 * time.Millisecond, 50 * time.Millisecond},
		{25500 * time.Microsecond, 100 * time.Millisecond, 26 * time.Millisecond},
		{time.Millisecond, 100 * time.Millisecond, time.Millisecond},
		{2550 * time.Microsecond, 10 * time.Millisecond, 2600 * time.Microsecond},
		{1001 * time.Microsecond, time.Second, 10 * time.Millisecond},
		{50 * time.Millisecond, 0, 50 * time.Millisecond},
	} {
		got := roundQuota(qos.Values{CPUQuota: unit.LimitTo(c.quota), CPUPeriod: c.period})
		if quota, _ := got.CPUQuota.Get(); quota != c.want {
			t.Errorf("%v of %v: %v, want %v", c.quota, c.period, quota, c.want)
		}
	}
}

// fakeUnits simulates systemd over the directories of a kernel2. It shows which calls are made. The lab tests how a
// real systemd behaves.
type fakeUnits struct {
	kernel2
	mount string
	asked []string
}

func (f *fakeUnits) Version() (int, error) { return 252, nil }

func (f *fakeUnits) Start(name string, properties []Property) error {
	f.asked = append(f.asked, "start "+name+" "+spell(properties[1:]))
	parts := strings.Split(strings.TrimSuffix(name, ".slice"), "-")
	dir := f.mount
	for i := range parts {
		if err := enable(dir); err != nil { // a real kernel also shows the files in existing groups
			return err
		}
		dir = path.Join(dir, strings.Join(parts[:i+1], "-")+".slice")
		if err := f.makeDir(dir); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	return nil
}

func (f *fakeUnits) Set(name string, properties []Property) error {
	f.asked = append(f.asked, "set "+name+" "+spell(properties))
	return nil
}

func (f *fakeUnits) Stop(name string) error {
	f.asked = append(f.asked, "stop "+name)
	return nil
}

func TestSlicesAreMadeBySystemd(t *testing.T) {
	dir := t.TempDir()
	fill(t, dir, map[string]string{"cgroup.controllers": "cpuset cpu io memory hugetlb pids\n",
		"cgroup.subtree_control": "", "cgroup.procs": "1\n"})
	tree := open(t, dir)
	k := kernel2{t}
	tree.makeDir, tree.removeDir = k.makeDir, k.removeDir
	units := &fakeUnits{kernel2: k, mount: dir}
	tree.UseSystemd(units)
	const pod = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod7_8.slice"
	v := qos.Values{CPUShares: unit.Of(qos.Shares(512)), CPUQuota: unit.LimitTo(25500 * time.Microsecond),
		CPUPeriod: 100 * time.Millisecond, Memory: unit.LimitTo(128 * unit.MiB)}
	for range 2 {
		if err := tree.Apply(pod, v); err != nil {
			t.Fatal(err)
		}
	}
	set := "set kubepods-burstable-pod7_8.slice CPUWeight=20 MemoryMax=134217728 CPUQuotaPeriodUSec=100000 " +
		"CPUQuotaPerSecUSec=260000"
	want := []string{
		"start kubepods-burstable-pod7_8.slice MemoryAccounting=true CPUAccounting=true IOAccounting=true " +
			"TasksAccounting=true DefaultDependencies=false Wants=[kubepods-burstable.slice]",
		set, set, // started once
	}
	if !slices.Equal(units.asked, want) {
		t.Errorf("asked:\n%s\nwant:\n%s", strings.Join(units.asked, "\n"), strings.Join(want, "\n"))
	}
	for file, want := range map[string]string{
		"cpu.max": "26000 100000", "memory.max": "134217728", "cpu.weight": "20",
	} {
		if got, err := readText(filepath.Join(dir, pod, file)); err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", file, got, err, want)
		}
	}
	// A slice with processes is not stopped: systemd would end them.
	fill(t, filepath.Join(dir, pod), map[string]string{"cgroup.procs": "4711\n"})
	if err := tree.Remove(pod); !errors.Is(err, ErrBusy) {
		t.Errorf("remove a busy slice: %v", err)
	}
	fill(t, filepath.Join(dir, pod), map[string]string{"cgroup.procs": ""})
	units.asked = nil
	for range 2 { // the second time there is no call
		if err := tree.Remove(pod); err != nil {
			t.Error(err)
		}
	}
	if !slices.Equal(units.asked, []string{"stop kubepods-burstable-pod7_8.slice"}) || tree.Exists(pod) {
		t.Errorf("asked %v, there %v", units.asked, tree.Exists(pod))
	}
	// A unit of another program is set, not started. systemd does not manage a group below a unit.
	units.asked = nil
	fill(t, dir, map[string]string{"system.slice/a.service/memory.max": "max",
		"system.slice/a.service/x/memory.max": "max"})
	for _, group := range []string{"/system.slice/a.service", "/system.slice/a.service/x"} {
		if err := tree.Set(group, qos.Values{Memory: unit.LimitTo(unit.MiB)}); err != nil {
			t.Error(err)
		}
	}
	if !slices.Equal(units.asked, []string{"set a.service MemoryMax=1048576"}) {
		t.Errorf("asked %v", units.asked)
	}
}

func TestDialSystemdSaysThatThereIsNone(t *testing.T) {
	if _, err := os.Stat("/run/systemd/system"); err == nil {
		t.Skip("this machine has a systemd")
	}
	if _, err := DialSystemd(); !errors.Is(err, ErrNoSystemd) {
		t.Errorf("%v", err)
	}
}

func FuzzParseSystemdVersion(f *testing.F) {
	for _, seed := range []string{`"252.39-1~deb12u1"`, "v255-rc1", "245", "", "v", `"`, "-1", "99999999999999999999"} {
		cost.Attack(f, seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		defer cost.Spend(t, len(text))()
		if n, err := parseSystemdVersion(text); err == nil && n <= 0 {
			t.Errorf("%q: %d", text, n)
		}
	})
}

func TestParseSystemdVersion(t *testing.T) {
	for text, want := range map[string]int{`"252.39-1~deb12u1"`: 252, "v255-rc1": 255, "245": 245} {
		if got, err := parseSystemdVersion(text); err != nil || got != want {
			t.Errorf("%s: %d, %v", text, got, err)
		}
	}
}
