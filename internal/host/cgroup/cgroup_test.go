package cgroup

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/qos"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/test/cost"
)

const pod7 = "/kubepods/burstable/pod7"

func open(t *testing.T, mount string) *Tree {
	t.Helper()
	tree, err := Open(mount)
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

func TestOpenDetectsTheMode(t *testing.T) {
	v2 := open(t, "testdata/v2")
	if v2.Mode() != V2 || v2.Require() != nil {
		t.Errorf("v2: mode %s, %v", v2.Mode(), v2.Require())
	}
	v1 := open(t, "testdata/v1-comounted")
	if v1.Mode() != Hybrid || len(v1.hierarchies) != 6 {
		t.Errorf("v1: mode %s, %d hierarchies, want hybrid and 6 (cpu and cpuacct are one, hugetlb is not mounted)",
			v1.Mode(), len(v1.hierarchies))
	}
	if want := []string{"cpu", "cpuacct", "cpuset", "memory", "pids", "systemd"}; !slices.Equal(v1.Controllers(), want) {
		t.Errorf("v1: controllers %v, want %v", v1.Controllers(), want)
	}
}

func TestOpenSaysWhatIsMissing(t *testing.T) {
	if _, err := Open(t.TempDir()); err == nil || !strings.Contains(err.Error(), "neither cgroup v2") {
		t.Errorf("empty directory: %v", err)
	}
	dir := t.TempDir()
	fill(t, dir, map[string]string{"cpu/cgroup.procs": "", "freezer/cgroup.procs": ""})
	err := open(t, dir).Require()
	if err == nil || !strings.Contains(err.Error(), "missing controllers: cpuset, memory, cpuacct") {
		t.Errorf("incomplete: %v", err)
	}
}

func TestUsage(t *testing.T) {
	want := Usage{
		CPU: unit.Of(1500 * time.Millisecond), Memory: unit.Of(10 * unit.MiB), WorkingSet: unit.Of(8 * unit.MiB),
		RSS:        unit.Of(4 * unit.MiB),
		PageFaults: unit.Of(int64(1001)), MajorPageFaults: unit.Of(int64(7)), PIDs: unit.Of(int64(3)),
	}
	got, err := open(t, "testdata/v2").Usage(pod7)
	if err != nil || got != want {
		t.Errorf("v2: %+v, %v\nwant %+v", got, err, want)
	}
	// The v1 tree was read between two charges: inactive_file exceeds the usage, and the working set is zero, not
	// negative.
	want.CPU, want.WorkingSet = unit.Of(time.Duration(1500000123)), unit.Of(unit.Bytes(0))
	got, err = open(t, "testdata/v1-comounted").Usage(pod7)
	if err != nil || got != want {
		t.Errorf("v1: %+v, %v\nwant %+v", got, err, want)
	}
	root, err := open(t, "testdata/v2").Usage("/")
	if err != nil || root.CPU.OrZero() != 812345678*time.Microsecond || root.Memory.IsSet() || root.PIDs.IsSet() {
		t.Errorf("v2 root: %+v, %v; want CPU only", root, err)
	}
	if _, err := open(t, "testdata/v2").Usage("/kubepods/gone"); !errors.Is(err, os.ErrNotExist) ||
		!strings.Contains(err.Error(), "/kubepods/gone") {
		t.Errorf("group that is not there: %v", err)
	}
}

func TestValuesTellUnlimitedFromNumbers(t *testing.T) {
	v, err := open(t, "testdata/v2").Values(pod7)
	want := qos.Values{
		CPUQuota: unit.LimitTo(50 * time.Millisecond), CPUPeriod: 100 * time.Millisecond,
		Memory: unit.LimitTo(128 * unit.MiB), PIDs: unit.Unlimited[int64](),
	}
	if err != nil || !reflect.DeepEqual(v, want) {
		t.Errorf("v2: %+v, %v", v, err)
	}
	v, err = open(t, "testdata/v1-comounted").Values(pod7)
	want = qos.Values{
		CPUShares: unit.Of(qos.Shares(512)), CPUQuota: unit.Unlimited[time.Duration](), CPUPeriod: 100 * time.Millisecond,
		Memory: unit.Unlimited[unit.Bytes](), PIDs: unit.LimitTo(int64(100)),
	}
	if err != nil || !reflect.DeepEqual(v, want) {
		t.Errorf("v1: %+v, %v", v, err)
	}
}

func TestPIDs(t *testing.T) {
	for mount, want := range map[string][]int{"testdata/v2": {4711, 4712, 4713}, "testdata/v1-comounted": {4711}} {
		if got, err := open(t, mount).PIDs(pod7); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v, %v, want %v", mount, got, err, want)
		}
	}
	if got, err := open(t, "testdata/v2").PIDs("/kubepods/gone"); err != nil || len(got) != 0 {
		t.Errorf("group that is not there: %v, %v", got, err)
	}
}

func TestChildren(t *testing.T) {
	if got, err := open(t, "testdata/v1-comounted").Children("/kubepods/burstable"); err != nil ||
		!slices.Equal(got, []string{"pod7"}) {
		t.Errorf("children %v, %v", got, err)
	}
	if got, err := open(t, "testdata/v2").Children("/gone"); err != nil || got != nil {
		t.Errorf("children of nothing: %v, %v", got, err)
	}
}

func TestNamesOfGroupsAreChecked(t *testing.T) {
	tree := open(t, "testdata/v2")
	for _, group := range []string{"", "/", "kubepods", "/kubepods/", "/../etc", "/a//b", "/a/.."} {
		if tree.Apply(group, qos.Values{}) == nil || tree.Remove(group) == nil {
			t.Errorf("%q was accepted", group)
		}
	}
}

// kernel2 simulates the kernel of cgroup v2 over plain directories: a new group gets the files of the controllers that
// are enabled in its parent.
type kernel2 struct{ t *testing.T }

func (k kernel2) makeDir(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	enabled, err := readWords(filepath.Join(filepath.Dir(dir), "cgroup.subtree_control"))
	if err != nil {
		return err
	}
	files := map[string]string{"cgroup.controllers": "", "cgroup.subtree_control": "", "cgroup.procs": ""}
	for _, c := range enabled {
		c = strings.TrimPrefix(c, "+") // the real file accepts +cpu and shows cpu; a plain one shows what was written
		files["cgroup.controllers"] += c + " "
		switch c {
		case "cpu":
			files["cpu.weight"], files["cpu.max"] = "100", "max 100000"
		case "cpuset":
			files["cpuset.cpus"] = ""
		case "memory":
			files["memory.max"], files["memory.high"], files["memory.min"], files["memory.low"],
				files["memory.swap.max"] = "max", "max", "0", "0", "max"
		case "pids":
			files["pids.max"] = "max"
		case "hugetlb":
			files["hugetlb.2MB.max"], files["hugetlb.2MB.rsvd.max"], files["hugetlb.1GB.max"] = "max", "max", "max"
		}
	}
	fill(k.t, dir, files)
	return nil
}

func (k kernel2) removeDir(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			return errors.New("has children")
		}
	}
	return os.RemoveAll(dir)
}

func fill(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func TestApplyOnV2EnablesControllersTopDown(t *testing.T) {
	dir := t.TempDir()
	fill(t, dir, map[string]string{"cgroup.controllers": "cpuset cpu io memory hugetlb pids rdma\n",
		"cgroup.subtree_control": "", "cgroup.procs": "1\n"})
	tree := open(t, dir)
	tree.makeDir, tree.removeDir = kernel2{t}.makeDir, kernel2{t}.removeDir
	v := qos.Values{
		CPUShares: unit.Of(qos.Shares(512)), CPUQuota: unit.LimitTo(50 * time.Millisecond), CPUPeriod: 100 * time.Millisecond,
		Memory: unit.LimitTo(128 * unit.MiB), PIDs: unit.LimitTo(int64(100)),
		HugePages: map[unit.Bytes]unit.Bytes{2 * unit.MiB: 4 * unit.MiB}, CPUs: idset.Of(0, 1, 3),
		MemoryMin: unit.Of(64 * unit.MiB), MemoryLow: unit.Of(32 * unit.MiB), MemoryHigh: unit.LimitTo(96 * unit.MiB),
		Swap: unit.LimitTo(unit.Bytes(0)),
	}
	for range 2 { // the second time over the existing groups
		if err := tree.Apply(pod7, v); err != nil {
			t.Fatal(err)
		}
	}
	for file, want := range map[string]string{
		"cgroup.subtree_control":             "+cpu +cpuset +memory +pids +hugetlb +io",
		"kubepods/cgroup.subtree_control":    "+cpu +cpuset +memory +pids +hugetlb +io",
		"kubepods/burstable/pod7/cpu.weight": "20",
		"kubepods/burstable/pod7/cpu.max":    "50000 100000",
		"kubepods/burstable/pod7/memory.max": "134217728",
		"kubepods/burstable/pod7/pids.max":   "100",
		pod7 + "/cpuset.cpus":                "0-1,3",
		pod7 + "/memory.min":                 "67108864",
		pod7 + "/memory.low":                 "33554432",
		pod7 + "/memory.high":                "100663296",
		pod7 + "/memory.swap.max":            "0",
		"kubepods/burstable/cpu.weight":      "100",
		pod7 + "/hugetlb.2MB.max":            "4194304",
		pod7 + "/hugetlb.1GB.max":            "0",
		pod7 + "/hugetlb.2MB.rsvd.max":       "max",
		pod7 + "/cgroup.subtree_control":     "",
	} {
		if got, err := readText(filepath.Join(dir, file)); err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", file, got, err, want)
		}
	}
	if err := tree.Apply(pod7, qos.Values{CPUQuota: unit.Unlimited[time.Duration](),
		Memory: unit.Unlimited[unit.Bytes]()}); err != nil {
		t.Fatal(err)
	}
	got, err := tree.Values(pod7)
	if err != nil || !got.CPUQuota.IsUnlimited() || !got.Memory.IsUnlimited() {
		t.Errorf("after lifting: %+v, %v", got, err)
	}
	if pids, _ := got.PIDs.Get(); pids != 100 {
		t.Errorf("a limit that was not stated changed: %v", got.PIDs)
	}
	if err := tree.Remove("/kubepods"); err != nil || tree.Exists("/kubepods") {
		t.Errorf("remove: %v", err)
	}
}

func TestMissingControllerIsNamedOnlyWhenItMatters(t *testing.T) {
	dir := t.TempDir()
	fill(t, dir, map[string]string{"cgroup.controllers": "cpu\n", "cgroup.subtree_control": "", "cgroup.procs": ""})
	tree := open(t, dir)
	tree.makeDir = kernel2{t}.makeDir
	if err := tree.Apply("/a", qos.Values{Memory: unit.Unlimited[unit.Bytes](), PIDs: unit.Unlimited[int64](),
		HugePages: map[unit.Bytes]unit.Bytes{}}); err != nil {
		t.Errorf("no bound without a controller: %v", err)
	}
	err := tree.Apply("/a", qos.Values{Memory: unit.LimitTo(unit.MiB)})
	if err == nil || !strings.Contains(err.Error(), "controller memory: not available") {
		t.Errorf("a bound without a controller: %v", err)
	}
}

func TestReadersSayFileLineAndReason(t *testing.T) {
	dir := t.TempDir()
	fill(t, dir, map[string]string{
		"cgroup.controllers": "cpu memory pids", "g/cpu.stat": "user_usec 1\nusage_usec x\n", "g/cgroup.procs": "12\nabc\n",
		"h/cpu.stat": "usage_usec 1\n", "h/memory.current": "max\n",
	})
	tree := open(t, dir)
	_, err := tree.Usage("/g")
	if err == nil || !strings.Contains(err.Error(), `g/cpu.stat: line 2: usage_usec: "x": not a number`) {
		t.Errorf("cpu.stat: %v", err)
	}
	if _, err = tree.PIDs("/g"); err == nil ||
		!strings.Contains(err.Error(), `g/cgroup.procs: line 2: "abc": not a process id`) {
		t.Errorf("cgroup.procs: %v", err)
	}
	if _, err = tree.Usage("/h"); err == nil || !strings.Contains(err.Error(), `h/memory.current: "max": not a number`) {
		t.Errorf("memory.current: %v", err)
	}
}

func FuzzParsers(f *testing.F) {
	for _, seed := range []string{"usage_usec 1\nuser_usec 2\n", "max 100000", "50000 100000", "18446744073709551615",
		"-1", "2MB", "4294967295GB", "a", " ", "\n\n", "usage_usec", "0 0"} {
		cost.Attack(f, seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		defer cost.Spend(t, len(s))()
		v := []int64{-1}
		if err := parseKeys([]byte(s), []string{"usage_usec"}, v); err != nil && !strings.Contains(err.Error(), "line ") {
			t.Errorf("%q: no line in %v", s, err)
		}
		if quota, period, err := parseCPUMax(strings.Fields(s)); err == nil {
			if q, ok := quota.Get(); period <= 0 || (ok && q < 0) || quota.IsKept() {
				t.Errorf("cpu.max %q: %v of %v", s, quota, period)
			}
		}
		if size, err := parsePageSize(s); err == nil && size <= 0 {
			t.Errorf("page size %q: %d", s, size)
		}
		if _, err := parseNumber(s); err != nil && !strings.Contains(err.Error(), "not a number") {
			t.Errorf("%q: %v", s, err)
		}
	})
}
