package stats

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/plimsoll-dev/plimsoll/internal/core/qos"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/host/cgroup"
	"github.com/plimsoll-dev/plimsoll/internal/host/psi"
	"github.com/plimsoll-dev/plimsoll/test/cost"
)

// groups is a cgroup file system with fixed numbers.
type groups map[string]cgroup.Usage

func (g groups) Usage(name string) (cgroup.Usage, error) {
	if u, ok := g[name]; ok {
		return u, nil
	}
	return cgroup.Usage{}, fmt.Errorf("%s: %w", name, fs.ErrNotExist)
}

func (g groups) PIDs(name string) ([]int, error) {
	if name == "/kubepods/podu/c1" {
		return []int{42}, nil
	}
	return nil, nil
}

func (g groups) MemoryLimit(string) (unit.Limit[unit.Bytes], error) {
	return unit.LimitTo(unit.Bytes(450)), nil
}

func (g groups) Swap(name string) (cgroup.Swap, error) {
	if name == "/kubepods/podu/c1" {
		return cgroup.Swap{Used: unit.Of[unit.Bytes](30), Limit: unit.LimitTo(unit.Bytes(40))}, nil
	}
	return cgroup.Swap{Used: unit.Of[unit.Bytes](35), Limit: unit.Unlimited[unit.Bytes]()}, nil
}

func (g groups) Pressure(name, resource string) (psi.Pressure, error) {
	if resource == "io" && name == "/kubepods/podu/c1" {
		return psi.Pressure{}, psi.ErrNone
	}
	return psi.Pressure{Some: psi.Stall{Avg10: 1.5, Total: 3 * time.Second}}, nil
}

func used(cpu time.Duration, memory, working unit.Bytes) cgroup.Usage {
	return cgroup.Usage{CPU: unit.Of(cpu), Memory: unit.Of(memory), WorkingSet: unit.Of(working), PIDs: unit.Of[int64](3)}
}

type runtime struct{ err error }

func (r runtime) ListContainerStats(context.Context, *runtimeapi.ListContainerStatsRequest,
	...grpc.CallOption) (*runtimeapi.ListContainerStatsResponse, error) {
	return &runtimeapi.ListContainerStatsResponse{Stats: []*runtimeapi.ContainerStats{{
		Attributes: &runtimeapi.ContainerAttributes{Id: "c1"},
		WritableLayer: &runtimeapi.FilesystemUsage{UsedBytes: &runtimeapi.UInt64Value{Value: 1000},
			InodesUsed: &runtimeapi.UInt64Value{Value: 5}},
	}}}, r.err
}

func (r runtime) ImageFsInfo(context.Context, *runtimeapi.ImageFsInfoRequest,
	...grpc.CallOption) (*runtimeapi.ImageFsInfoResponse, error) {
	return &runtimeapi.ImageFsInfoResponse{ImageFilesystems: []*runtimeapi.FilesystemUsage{{
		FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: "/"}, UsedBytes: &runtimeapi.UInt64Value{Value: 777},
	}}}, r.err
}

// proc writes a /proc with one agent, one pod process and no pressure files.
func proc(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	stat := func(ticks int) string {
		return fmt.Sprintf("1 (a) b) S 1 1 1 0 -1 4194560 11 0 22 0 %d 0 0 0 20 0 1 0 500 1000000 3 18446744073709551615",
			ticks)
	}
	for name, text := range map[string]string{
		"meminfo": "MemTotal:  1000 kB\nMemFree: 400 kB\nInactive(file):  100 kB\n" +
			"AnonPages: 50 kB\nSwapTotal: 10 kB\nSwapFree: 4 kB\n",
		"stat":                              "cpu 1 2 3\nbtime 1000000000\n",
		"loadavg":                           "0.20 0.18 0.12 1/80 11206\n",
		"sys/kernel/pid_max":                "32768\n",
		"sys/kernel/threads-max":            "1000\n",
		fmt.Sprintf("%d/stat", os.Getpid()): stat(250),
		"self/net/dev": "Inter-| x\n face |x\n    lo: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n" +
			"veth1: 9 1 0 0 0 0 0 0 9 1 0 0 0 0 0 0\n  ens3: 100 1 2 0 0 0 0 0 200 1 3 0 0 0 0 0\n",
		"42/net/dev": "Inter-| x\n face |x\n  eth0:5 1 0 0 0 0 0 0 7 1 0 0 0 0 0 0\n",
		"pressure/memory": "some avg10=1.50 avg60=0.17 avg300=1.11 total=58\n" +
			"full avg10=0.00 avg60=0.13 avg300=0.96 total=57\n",
		"pressure/cpu":                       "some avg10=oops\n",
		"42/unused":                          "",
		filepath.Join("43", "not", "looked"): "",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func testReader(t *testing.T, g groups, now *time.Time, pods ...Pod) *Reader {
	return New(Options{
		NodeName: "n", Pods: func() []Pod { return pods }, Cgroups: g, PodsGroup: "/kubepods",
		Runtime: runtime{}, Images: runtime{}, RootDir: t.TempDir(), Proc: proc(t), Now: func() time.Time { return *now },
	})
}

func value(v *uint64) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprint(*v)
}

// A node with one pod of two containers, one of which has just ended, is read three times.
func TestSummary(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	g := groups{
		"/":                 used(100*time.Second, 900<<10, 700<<10),
		"/kubepods":         used(50*time.Second, 500, 400),
		"/kubepods/podu":    used(20*time.Second, 300, 200),
		"/kubepods/podu/c1": used(10*time.Second, 100, 60),
	}
	pod := Pod{
		Ref: statsapi.PodReference{Name: "p", Namespace: "ns", UID: "u"}, Group: "/kubepods/podu", Started: now,
		Containers: []Container{
			{Name: "one", ID: "c1", Group: "/kubepods/podu/c1", MemoryLimit: 50, Started: now},
			{Name: "two", ID: "c2", Group: "/kubepods/podu/c2"},
		},
	}
	r := testReader(t, g, &now, pod)
	s, err := r.Summary(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	check := func(what, got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
	}
	check("node cpu", value(s.Node.CPU.UsageCoreNanoSeconds), "100000000000")
	check("node rate, first question", value(s.Node.CPU.UsageNanoCores), "-")
	check("node available", value(s.Node.Memory.AvailableBytes), fmt.Sprint(300<<10))
	check("swap", value(s.Node.Swap.SwapUsageBytes), fmt.Sprint(6<<10))
	check("threads", fmt.Sprint(*s.Node.Rlimit.MaxPID, *s.Node.Rlimit.NumOfRunningProcesses), "1000 80")
	check("boot", s.Node.StartTime.UTC().Format(time.RFC3339), "2001-09-09T01:46:40Z")
	check("memory stall", fmt.Sprint(s.Node.Memory.PSI.Some.Avg10, s.Node.Memory.PSI.Some.Total), "1.5 58000")
	if s.Node.CPU.PSI != nil || s.Node.IO != nil || s.Node.Network != nil || s.Node.Fs != nil {
		t.Error("there are parts nobody asked for, or that do not parse")
	}
	check("system containers", s.Node.SystemContainers[0].Name+" "+s.Node.SystemContainers[1].Name, "kubelet pods")
	check("all pods, of their limit left", value(s.Node.SystemContainers[1].Memory.AvailableBytes), "50")
	check("agent's cpu", value(s.Node.SystemContainers[0].CPU.UsageCoreNanoSeconds), "2500000000")
	check("agent's memory", value(s.Node.SystemContainers[0].Memory.RSSBytes), fmt.Sprint(3*os.Getpagesize()))
	one, two := s.Pods[0].Containers[0], s.Pods[0].Containers[1]
	check("container", value(one.Memory.WorkingSetBytes)+" of limit left "+value(one.Memory.AvailableBytes),
		"60 of limit left 0")
	check("container that ended", fmt.Sprint(two.Name, two.CPU, two.Memory), fmt.Sprint("two", (*statsapi.CPUStats)(nil),
		(*statsapi.MemoryStats)(nil)))
	check("pod processes", value(s.Pods[0].ProcessStats.ProcessCount), "3")

	now = now.Add(10 * time.Second)
	g["/kubepods/podu/c1"] = used(15*time.Second, 100, 60)
	g["/kubepods/podu"] = used(time.Second, 300, 200) // created again: its counter started again
	s, err = r.Summary(t.Context(), Everything)
	if err != nil {
		t.Fatal(err)
	}
	check("rate", value(s.Pods[0].Containers[0].CPU.UsageNanoCores), "500000000")
	check("rate of a counter that started again", value(s.Pods[0].CPU.UsageNanoCores), "-")
	check("pod's default interface", s.Pods[0].Network.Name+" "+value(s.Pods[0].Network.RxBytes)+" "+
		value(s.Pods[0].Network.TxBytes), "eth0 5 7")
	check("node's only interface", s.Node.Network.Name+" "+value(s.Node.Network.TxErrors), "ens3 3")
	check("images", value(s.Node.Runtime.ImageFs.UsedBytes), "777")
	check("writable layer", value(s.Pods[0].Containers[0].Rootfs.UsedBytes), "1000")
	if s.Pods[0].Containers[1].Rootfs != nil || *s.Node.Fs.CapacityBytes == 0 {
		t.Error("a layer nobody reported, or no node file system")
	}

	now = now.Add(time.Millisecond) // too soon for a new rate
	s, _ = r.Summary(t.Context(), 0)
	check("rate again", value(s.Pods[0].Containers[0].CPU.UsageNanoCores), "500000000")
	r.o.Pods = func() []Pod { return nil }
	r.Summary(t.Context(), 0)
	if len(r.rates) != 3 { // node, pods, agent
		t.Errorf("%d rates remembered after the pod is gone, want 3: %v", len(r.rates), r.rates)
	}
}

// TestSummaryOfClaims: drivers are asked about volumes for clients, and not for eviction.
func TestSummaryOfClaims(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	r := testReader(t, groups{"/": used(1, 1, 1)}, &now, Pod{Ref: statsapi.PodReference{UID: "u1"}})
	asked := 0
	r.o.Demand = func(context.Context) { asked++ }
	r.o.Volumes = func(uid types.UID) []statsapi.VolumeStats {
		return []statsapi.VolumeStats{{Name: fmt.Sprint(uid, " after ", asked)}}
	}
	for parts, want := range map[Parts]int{Disk | Idle: 0, Swap | Pressure: 0, Everything: 1} {
		asked = 0
		s, err := r.Summary(t.Context(), parts)
		if err != nil {
			t.Fatal(err)
		}
		if got := s.Pods[0].VolumeStats; asked != want || len(got) != want || want == 1 && got[0].Name != "u1 after 1" {
			t.Errorf("parts %b: asked %d times, want %d; volumes %+v", parts, asked, want, got)
		}
	}
}

func TestSummaryOfVolumes(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	dir := t.TempDir()
	write := func(path string, size int) {
		t.Helper()
		path = filepath.Join(dir, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, make([]byte, size),
			0o644)); err != nil {
			t.Fatal(err)
		}
	}
	write("pod/volumes/kubernetes.io~empty-dir/scratch/sub/file", 8192)
	write("pod/volumes/kubernetes.io~configmap/conf/key", 1)
	write("logs/c/0.log", 4096)
	write("logs/c/0.log.20260101-000000.gz", 4096)
	if err := os.Link(filepath.Join(dir, "pod/volumes/kubernetes.io~empty-dir/scratch/sub/file"),
		filepath.Join(dir, "pod/volumes/kubernetes.io~empty-dir/scratch/again")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/usr", filepath.Join(dir, "pod/volumes/kubernetes.io~empty-dir/scratch/away")); err != nil {
		t.Fatal(err)
	}
	write("pod/etc-hosts", 40960) // a container wrote to it
	write("pod/containers/c/0a1b2c3d", 12288)
	write("pod/volume-subpaths/scratch/c/0", 1<<20) // a mount of what is counted as a volume
	write("logs/ended/0.log", 20480)
	pod := Pod{VolumeDir: filepath.Join(dir, "pod/volumes"), LogDir: filepath.Join(dir, "logs"),
		Containers: []Container{{ID: "c1", LogDir: filepath.Join(dir, "logs/c")}}}
	r := testReader(t, groups{"/": used(1, 1, 1)}, &now, pod)
	measured := map[string]int{}
	r.o.Measured = func(source string, _ time.Duration) { measured[source]++ }
	s, err := r.Summary(t.Context(), Disk)
	if err != nil {
		t.Fatal(err)
	}
	if len(measured) != 1 || measured[ByWalk] != 2 {
		t.Errorf("measured %v, want two volumes by walks", measured)
	}
	p := s.Pods[0]
	if len(p.VolumeStats) != 2 || p.VolumeStats[0].Name != "conf" || p.VolumeStats[1].Name != "scratch" {
		t.Fatalf("volumes: %+v", p.VolumeStats)
	}
	scratch := p.VolumeStats[1]
	// two directories, file, symbolic link
	if *scratch.UsedBytes < 8192 || *scratch.UsedBytes > 8192+64<<10 || *scratch.InodesUsed != 4 {
		t.Errorf("scratch: %d bytes, %d inodes", *scratch.UsedBytes, *scratch.InodesUsed)
	}
	if got, want := *p.Containers[0].Logs.UsedBytes, uint64(8192); got != want {
		t.Errorf("logs: %d bytes, want %d", got, want)
	}
	// Directories take a block each if they take any: the pod's, containers, c; logs, ended.
	conf, files := p.VolumeStats[0], uint64(40960+12288+20480)
	least := *scratch.UsedBytes + *conf.UsedBytes + 8192 + 1000 + files
	if got := *p.EphemeralStorage.UsedBytes; got < least || got > least+5*4096 {
		t.Errorf("ephemeral storage: %d bytes, want %d and at most 5 blocks", got, least)
	}
	if got, want := *p.EphemeralStorage.InodesUsed, *scratch.InodesUsed+*conf.InodesUsed+2+5+5+3; got != want {
		t.Errorf("ephemeral storage: %d inodes, want %d", got, want)
	}
	write("pod/volumes/kubernetes.io~empty-dir/scratch/more", 1<<20)
	s, _ = r.Summary(t.Context(), Disk)
	if *s.Pods[0].VolumeStats[1].UsedBytes != *scratch.UsedBytes {
		t.Error("a volume was walked twice at once")
	}
	if measured[ByWalk] != 2 {
		t.Errorf("measured %v: sizes that are used again count as measured", measured)
	}
	now = now.Add(walkLifeMin)
	s, _ = r.Summary(t.Context(), Disk)
	if *s.Pods[0].VolumeStats[1].UsedBytes < 1<<20 {
		t.Error("a small volume was not walked again after a while")
	}
}

// Swap and stall times of pods and containers are read where they are asked for.
func TestSwapAndStalls(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	g := groups{"/": used(1, 1, 1), "/kubepods/podu": used(2, 2, 2), "/kubepods/podu/c1": used(1, 1, 1)}
	pod := Pod{Group: "/kubepods/podu", Containers: []Container{{ID: "c1", Group: "/kubepods/podu/c1"}}}
	r := testReader(t, g, &now, pod)
	s, err := r.Summary(t.Context(), Swap|Pressure)
	if err != nil {
		t.Fatal(err)
	}
	p, c := s.Pods[0], s.Pods[0].Containers[0]
	if value(p.Swap.SwapUsageBytes) != "35" || p.Swap.SwapAvailableBytes != nil {
		t.Errorf("swap of the pod: %s, %s left", value(p.Swap.SwapUsageBytes), value(p.Swap.SwapAvailableBytes))
	}
	if value(c.Swap.SwapUsageBytes) != "30" || value(c.Swap.SwapAvailableBytes) != "10" {
		t.Errorf("swap of the container: %s, %s left", value(c.Swap.SwapUsageBytes), value(c.Swap.SwapAvailableBytes))
	}
	want := statsapi.PSIData{Total: 3_000_000_000, Avg10: 1.5}
	if p.CPU.PSI.Some != want || p.Memory.PSI.Some != want || p.IO.PSI.Some != want || c.Memory.PSI.Some != want {
		t.Errorf("stalls: %+v, %+v, %+v", p.CPU.PSI, p.Memory.PSI, p.IO)
	}
	if c.IO != nil {
		t.Errorf("stalls that the kernel does not measure: %+v", c.IO.PSI)
	}
	if s, err = r.Summary(t.Context(), 0); err != nil || s.Pods[0].Swap != nil || s.Pods[0].CPU.PSI != nil ||
		s.Pods[0].IO != nil {
		t.Errorf("not asked for: %+v, %v", s.Pods[0], err)
	}
}

func TestSummaryWithoutRuntime(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	r := testReader(t, groups{"/": used(1, 1, 1)}, &now, Pod{Containers: []Container{{ID: "c1"}}})
	r.o.Runtime, r.o.Images = runtime{errors.New("away")}, runtime{errors.New("away")}
	s, err := r.Summary(t.Context(), Everything)
	if err != nil || s.Node.Fs == nil || len(s.Pods) != 1 {
		t.Errorf("a runtime that is away spoils the summary: %v", err)
	}
	r.o.Cgroups = groups{}
	if _, err := r.Summary(t.Context(), 0); err == nil {
		t.Error("a node whose usage cannot be read is no error")
	}
	<-r.token // another reading is in progress and does not end
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.Summary(ctx, 0); !errors.Is(err, context.Canceled) {
		t.Errorf("waiting for a reading: %v", err)
	}
}

// The machine on which this test runs.
func TestSummaryOfThisMachine(t *testing.T) {
	tree, err := cgroup.Open("/sys/fs/cgroup")
	if err != nil {
		t.Skipf("no cgroups here: %v", err)
	}
	r := New(Options{NodeName: "n", Pods: func() []Pod { return nil }, Cgroups: tree, PodsGroup: "/no-such-group",
		RootDir: "/"})
	s, err := r.Summary(t.Context(), Everything)
	if err != nil {
		t.Fatal(err)
	}
	if s.Node.CPU == nil || *s.Node.CPU.UsageCoreNanoSeconds == 0 || *s.Node.Memory.WorkingSetBytes == 0 ||
		*s.Node.Fs.CapacityBytes == 0 {
		t.Errorf("node: %+v", s.Node)
	}
	if len(s.Node.SystemContainers) != 1 || *s.Node.SystemContainers[0].Memory.RSSBytes < 1<<20 {
		t.Errorf("system containers: %+v", s.Node.SystemContainers)
	}
	t.Logf("node uses %d MiB, this test %d KiB", *s.Node.Memory.WorkingSetBytes>>20,
		*s.Node.SystemContainers[0].Memory.RSSBytes>>10)
}

func FuzzParseProcessStat(f *testing.F) {
	cost.Attack(f, "1 (a) b) S 1 1 1 0 -1 4194560 11 0 22 0 7 0 0 0 20 0 1 0 500 1000000 3 1")
	cost.Attack(f, ")")
	f.Fuzz(func(t *testing.T, text string) {
		defer cost.Spend(t, len(text))()
		parseProcessStat(text)
	})
}

func FuzzParseNetDev(f *testing.F) {
	cost.Attack(f, "eth0: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n")
	f.Fuzz(func(t *testing.T, text string) {
		defer cost.Spend(t, len(text))()
		list, err := parseNetDev(text)
		if err == nil && len(list) > strings.Count(text, ":") {
			t.Errorf("%d interfaces in %q", len(list), text)
		}
	})
}

// BenchmarkSummary reads 110 pods of one container each from real cgroups.
func BenchmarkSummary(b *testing.B) {
	tree, err := cgroup.Open("/sys/fs/cgroup")
	if err != nil || os.Geteuid() != 0 {
		b.Skipf("needs root and cgroups: %v", err)
	}
	const root = "/plimsoll-stats-bench"
	var pods []Pod
	var made []string
	defer func() {
		for i := range made {
			if err := tree.Remove(made[len(made)-1-i]); err != nil {
				b.Error(err)
			}
		}
	}()
	add := func(group string) {
		made = append(made, group)
		if err := tree.Apply(group, qos.Values{}); err != nil {
			b.Fatal(err)
		}
	}
	add(root)
	for i := range 110 {
		pod := Pod{Ref: statsapi.PodReference{UID: fmt.Sprint(i)}, Group: fmt.Sprintf("%s/pod%d", root, i)}
		pod.Containers = []Container{{Name: "c", ID: "c", Group: pod.Group + "/c"}}
		add(pod.Group)
		add(pod.Group + "/c")
		pods = append(pods, pod)
	}
	r := New(Options{NodeName: "n", Pods: func() []Pod { return pods }, Cgroups: tree, PodsGroup: root, RootDir: "/"})
	b.ReportAllocs()
	for b.Loop() {
		if s, err := r.Summary(b.Context(), 0); err != nil || len(s.Pods) != 110 || s.Pods[109].CPU == nil {
			b.Fatal(err)
		}
	}
}
