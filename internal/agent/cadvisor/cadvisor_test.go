package cadvisor

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/stats"
	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/qos"
	"github.com/plimsoll-dev/plimsoll/internal/host/cgroup"
	"github.com/plimsoll-dev/plimsoll/test/cost"
)

func fill(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		file := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
}

// group has the files of one cgroup of v2. processes are one per line.
func group(files map[string]string, name, processes, quota string) {
	for file, text := range map[string]string{
		"cgroup.procs": processes, "cgroup.events": "populated 1\n",
		"cpu.stat": "usage_usec 1500000\nuser_usec 1000000\nsystem_usec 500000\nnr_periods 10\nnr_throttled 2\n" +
			"throttled_usec 2500\n",
		"cpu.weight": "59\n", "cpu.max": quota +
			" 100000\n", "cpu.pressure": "some avg10=0 avg60=0 avg300=0 total=11\nfull avg10=0 avg60=0 avg300=0 total=7\n",
		"memory.current": "1000\n", "memory.max": "max\n",
		"memory.stat": "anon 300\nfile 500\ninactive_file 200\npgfault 77\npgmajfault 3\n",
		"io.stat":     "8:1 rbytes=4096 wbytes=8192 rios=1 wios=2\n", "pids.current": "4\n", "pids.max": "max\n",
	} {
		files[filepath.Join("cgroup", name, file)] = text
	}
}

const (
	netDev = "Inter-| x\n face |x\n    lo: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n" +
		"  eth0: 100 3 1 2 0 0 0 0 200 4 5 6 0 0 0 0\n"
	limits = "Limit                     Soft Limit           Hard Limit           Units\n" +
		"Max open files            1024                 4096                 files\n"
	diskstats = "   8       1 sda1 85 4 4658 60 9 0 72 40 0 44 60 0 0 0 0 0 0\n" +
		"   7       0 loop0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n"
)

// testCollector is a node of cgroup v2 with one pod: a sandbox (process 40) and a container (process 41, with two open
// files, of which one is a socket).
func testCollector(t *testing.T, change func(*Options)) *Collector {
	t.Helper()
	dir := t.TempDir()
	files := map[string]string{
		"cgroup/cgroup.controllers": "cpu io memory pids\n", "cgroup/cgroup.procs": "1\n",
		"cgroup/cpu.stat": "usage_usec 9000000\n",
		"proc/meminfo": "MemTotal: 1000 kB\nMemFree: 400 kB\nInactive(file): 100 kB\nAnonPages: 50 kB\n" +
			"SwapTotal: 10 kB\nSwapFree: 4 kB\n",
		"proc/stat":      "cpu 1 2 3\nbtime 1000000000\n",
		"proc/1/net/dev": netDev, "proc/40/net/dev": netDev, "proc/diskstats": diskstats, "proc/40/limits": limits,
		"proc/41/limits": limits,
	}
	group(files, "kubepods", "", "max")
	group(files, "kubepods/podu", "", "max")
	group(files, "kubepods/podu/s1", "40\n", "max")
	group(files, "kubepods/podu/c1", "41\n", "50000")
	fill(t, dir, files)
	fds := filepath.Join(dir, "proc/41/fd")
	if err := errors.Join(os.MkdirAll(fds, 0o755), os.Symlink("socket:[7]", fds+"/0"), os.Symlink("/dev/null",
		fds+"/1")); err != nil {
		t.Fatal(err)
	}
	tree, err := cgroup.Open(filepath.Join(dir, "cgroup"))
	if err != nil {
		t.Fatal(err)
	}
	at := time.Unix(1_700_000_000, 0)
	o := Options{
		Tree: tree,
		Pods: func() []stats.Pod {
			return []stats.Pod{{
				Ref: statsapi.PodReference{Name: "p", Namespace: "ns"}, Started: at, Group: "/kubepods/podu",
				SandboxID: "s1", SandboxGroup: "/kubepods/podu/s1",
				Containers: []stats.Container{
					{Name: "c", ID: "c1", Image: `example.org/"a"\b`, Group: "/kubepods/podu/c1", Started: at},
					{Name: "ended", ID: "c2", Group: "/kubepods/podu/c2", Started: at},
				},
			}, {Ref: statsapi.PodReference{Name: "idle"}, Idle: true}}
		},
		Groups:       []string{"/kubepods"},
		SandboxImage: func() string { return "pause:1" },
		Machine: machine.Machine{
			CPUs: idset.Of(0, 1), Cores: []idset.Set{idset.Of(0, 1)}, Memory: 1000 << 10,
			Identity: machine.Identity{MachineID: "m", BootID: "b", SystemUUID: "u", KernelVersion: "6.1", OSImage: "Debian"},
		},
		Dirs: []string{dir, dir},
		Proc: filepath.Join(dir, "proc"),
		Now:  func() time.Time { return at.Add(time.Minute) },
	}
	if change != nil {
		change(&o)
	}
	return New(o)
}

func write(t *testing.T, c *Collector) string {
	t.Helper()
	var out strings.Builder
	if err := c.Write(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

const (
	rootRow      = `container="",id="/",image="",name="",namespace="",pod=""`
	kubepodsRow  = `container="",id="/kubepods",image="",name="",namespace="",pod=""`
	podRow       = `container="",id="/kubepods/podu",image="",name="",namespace="ns",pod="p"`
	sandboxRow   = `container="",id="/kubepods/podu/s1",image="pause:1",name="s1",namespace="ns",pod="p"`
	containerRow = `container="c",id="/kubepods/podu/c1",image="example.org/\"a\"\\b",name="c1",namespace="ns",pod="p"`
)

// Every kind of row has the labels and the numbers that the kubelet shows for it.
func TestRows(t *testing.T) {
	c := testCollector(t, nil)
	write(t, c)
	text := write(t, c) // the second time into used buffers
	for _, want := range []string{
		`container_cpu_usage_seconds_total{` + rootRow + `,cpu="total"} 9`,
		`container_memory_usage_bytes{` + rootRow + `} 614400`,
		`container_memory_working_set_bytes{` + rootRow + `} 512000`,
		`container_memory_swap{` + rootRow + `} 6144`,
		`container_spec_memory_limit_bytes{` + rootRow + `} 1024000`,
		`container_spec_memory_swap_limit_bytes{` + rootRow + `} 10240`,
		`container_network_receive_bytes_total{` + rootRow + `,interface="eth0"} 100`,
		`container_start_time_seconds{` + rootRow + `} 1000000000`,
		`container_fs_reads_merged_total{` + rootRow + `,device="/dev/sda1"} 4`,
		`container_fs_reads_total{` + rootRow + `,device="/dev/sda1"} 85`,
		`container_fs_writes_total{` + rootRow + `,device="/dev/sda1"} 9`,
		`container_fs_reads_bytes_total{` + rootRow + `,device="/dev/sda1"} 2384896`,
		`container_fs_writes_bytes_total{` + rootRow + `,device="/dev/sda1"} 36864`,
		`container_blkio_device_usage_total{` + rootRow + `,device="/dev/sda1",major="8",minor="1",operation="Read"} 2384896`,
		`container_fs_read_seconds_total{` + rootRow + `,device="/dev/sda1"} 0.06`,
		`container_fs_write_seconds_total{` + rootRow + `,device="/dev/sda1"} 0.04`,
		`container_memory_working_set_bytes{` + kubepodsRow + `} 800`,
		`container_cpu_usage_seconds_total{` + podRow + `,cpu="total"} 1.5`,
		`container_pressure_cpu_waiting_seconds_total{` + podRow + `} 1.1e-05`,
		`container_threads{` + podRow + `} 4`,
		`container_network_receive_packets_total{` + sandboxRow + `,interface="eth0"} 3`,
		`container_network_receive_errors_total{` + sandboxRow + `,interface="eth0"} 1`,
		`container_network_receive_packets_dropped_total{` + sandboxRow + `,interface="eth0"} 2`,
		`container_network_transmit_bytes_total{` + sandboxRow + `,interface="eth0"} 200`,
		`container_network_transmit_packets_total{` + sandboxRow + `,interface="eth0"} 4`,
		`container_network_transmit_errors_total{` + sandboxRow + `,interface="eth0"} 5`,
		`container_network_transmit_packets_dropped_total{` + sandboxRow + `,interface="eth0"} 6`,
		`container_processes{` + sandboxRow + `} 1`,
		`container_cpu_user_seconds_total{` + containerRow + `} 1`,
		`container_cpu_system_seconds_total{` + containerRow + `} 0.5`,
		`container_cpu_cfs_periods_total{` + containerRow + `} 10`,
		`container_cpu_cfs_throttled_periods_total{` + containerRow + `} 2`,
		`container_cpu_cfs_throttled_seconds_total{` + containerRow + `} 0.0025`,
		`container_spec_cpu_quota{` + containerRow + `} 50000`,
		`container_spec_cpu_period{` + containerRow + `} 100000`,
		`container_spec_cpu_shares{` + containerRow + `} 1522`,
		`container_spec_memory_limit_bytes{` + containerRow + `} 0`,
		`container_memory_rss{` + containerRow + `} 300`,
		`container_memory_cache{` + containerRow + `} 500`,
		`container_memory_failures_total{` + containerRow + `,failure_type="pgmajfault",scope="hierarchy"} 3`,
		`container_fs_reads_bytes_total{` + containerRow + `,device="/dev/sda1"} 4096`,
		`container_fs_writes_total{` + containerRow + `,device="/dev/sda1"} 2`,
		`container_blkio_device_usage_total{` + containerRow +
			`,device="/dev/sda1",major="8",minor="1",operation="Write"} 8192`,
		`container_file_descriptors{` + containerRow + `} 2`,
		`container_sockets{` + containerRow + `} 1`,
		`container_ulimits_soft{` + containerRow + `,ulimit="max_open_files"} 1024`,
		`container_threads_max{` + containerRow + `} 0`,
		`container_start_time_seconds{` + containerRow + `} 1700000000`,
		`container_last_seen{` + containerRow + `} 1700000060`,
		`machine_cpu_cores{boot_id="b",machine_id="m",system_uuid="u"} 2`,
		`machine_cpu_physical_cores{boot_id="b",machine_id="m",system_uuid="u"} 1`,
		`machine_memory_bytes{boot_id="b",machine_id="m",system_uuid="u"} 1024000`,
		`cadvisor_version_info{cadvisorRevision="",cadvisorVersion="",dockerVersion="",kernelVersion="6.1",osVersion="Debian"} 1`,
		"container_scrape_error 0",
	} {
		if !strings.Contains(text, "\n"+want+"\n") {
			t.Errorf("missing: %s", want)
		}
	}
	for _, not := range []string{
		`"/kubepods/podu/c2"`, // has ended
		`pod="idle"`,          // nothing of it runs
		`container_cpu_cfs_periods_total{` + podRow,             // has no quota
		`container_spec_cpu_quota{` + podRow,                    // likewise
		`container_processes{` + podRow,                         // counted by its containers
		`container_memory_max_usage_bytes`,                      // this kernel does not count it
		`device="/dev/loop0"`,                                   // was never used
		`container_network_receive_bytes_total{` + containerRow, // shares its sandbox's
	} {
		if strings.Contains(text, not) {
			t.Errorf("there is a sample with %s", not)
		}
	}
}

// The samples of a family follow each other, after its type; no sample is there twice.
func TestFormat(t *testing.T) {
	seen, family := map[string]bool{}, ""
	for line := range strings.Lines(write(t, testCollector(t, nil))) {
		line = strings.TrimSuffix(line, "\n")
		if kind, ok := strings.CutPrefix(line, "# TYPE "); ok {
			family, _, _ = strings.Cut(kind, " ")
			if seen["# "+family] {
				t.Errorf("%s begins twice", family)
			}
			seen["# "+family] = true
			continue
		} else if strings.HasPrefix(line, "#") {
			continue
		}
		name, _, _ := strings.Cut(line, " ")
		name, _, _ = strings.Cut(name, "{")
		if name != family {
			t.Errorf("a sample of %s among those of %s", name, family)
		}
		series := line[:strings.LastIndexByte(line, ' ')]
		if seen[series] {
			t.Errorf("twice: %s", series)
		}
		seen[series] = true
	}
	for i := range families[1:] {
		if families[i].name >= families[i+1].name {
			t.Errorf("%s comes before %s", families[i].name, families[i+1].name)
		}
	}
}

// A node whose cgroups cannot be read says so. A client that goes away ends the scrape.
func TestFailures(t *testing.T) {
	c := testCollector(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.Write(ctx, io.Discard); !errors.Is(err, context.Canceled) {
		t.Errorf("a context that has ended: %v", err)
	}
	gone := errors.New("gone")
	if err := c.Write(t.Context(), failing{gone}); !errors.Is(err, gone) {
		t.Errorf("a client that is gone: %v", err)
	}
	if err := os.RemoveAll(filepath.Join(filepath.Dir(c.o.Proc), "cgroup")); err != nil {
		t.Fatal(err)
	}
	text := write(t, c)
	if !strings.Contains(text, "\ncontainer_scrape_error 1\n") || strings.Contains(text, podRow) {
		t.Errorf("a node without cgroups: %s", text)
	}
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

// Containers may open more files than a scrape looks at. Then the numbers are left out, not wrong.
func TestOpenFilesAreBounded(t *testing.T) {
	dir := t.TempDir()
	for i := range 50 {
		if err := os.Symlink("/dev/null", filepath.Join(dir, fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	budget := 60
	if open, _ := countDescriptors(dir, &budget); open != 50 || budget != 10 {
		t.Errorf("%d files, %d left", open, budget)
	}
	if countDescriptors(dir, &budget); budget > 0 {
		t.Errorf("%d left", budget)
	}
	before := budget
	if open, _ := countDescriptors(dir, &budget); open != 0 || budget != before {
		t.Errorf("%d files were looked at beyond the bound", open)
	}
}

func FuzzParse(f *testing.F) {
	cost.Attack(f, netDev)
	cost.Attack(f, limits)
	cost.Attack(f, diskstats)
	cost.Attack(f, "MemTotal: 1000 kB\nMemFree: 400 kB\n")
	f.Fuzz(func(t *testing.T, text string) {
		defer cost.Spend(t, len(text))()
		lines := strings.Count(text, "\n") + 1
		found := 0
		parseNetDev([]byte(text), func([]byte, *[networkCounters]int64) { found++ })
		parseDiskstats([]byte(text), func(uint32, uint32, []byte, *[diskFields]int64) { found++ })
		if found > 2*lines {
			t.Errorf("%d found in %d lines", found, lines)
		}
		if m := parseMeminfo([]byte(text)); m.total < cgroup.Absent {
			t.Errorf("memory: %d", m.total)
		}
		if n := parseFilesLimit([]byte(text)); n < cgroup.Absent {
			t.Errorf("open files: %d", n)
		}
	})
}

// Whatever a label has in it, a line stays one line and its quotes are balanced.
func FuzzLabel(f *testing.F) {
	cost.Attack(f, `a"b\c`)
	f.Fuzz(func(t *testing.T, value string) {
		defer cost.Spend(t, len(value))()
		out := appendLabel(nil, "x", value)
		inner := bytes.TrimSuffix(bytes.TrimPrefix(out, []byte(`x="`)), []byte(`"`))
		unescaped := strings.NewReplacer(`\\`, `\`, `\"`, `"`, `\n`, "\n").Replace(string(inner))
		if unescaped != value || bytes.ContainsRune(inner, '\n') {
			t.Errorf("%q became %q", value, out)
		}
	})
}

// BenchmarkWrite writes the metrics of 110 pods of one container each, from real cgroups.
func BenchmarkWrite(b *testing.B) {
	tree, err := cgroup.Open("/sys/fs/cgroup")
	if err != nil || os.Geteuid() != 0 {
		b.Skipf("needs root and cgroups: %v", err)
	}
	const root = "/plimsoll-cadvisor-bench"
	var made []string
	defer func() {
		for _, group := range slices.Backward(made) {
			if err := tree.Remove(group); err != nil {
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
	var pods []stats.Pod
	for i := range 110 {
		group := fmt.Sprintf("%s/pod%d", root, i)
		pod := stats.Pod{
			Ref: statsapi.PodReference{Name: fmt.Sprintf("deployment-5d4f8c7b9d-%05d", i), Namespace: "default"}, Group: group,
			SandboxID: strings.Repeat("0", 64), SandboxGroup: group + "/s",
			Containers: []stats.Container{{Name: "app", ID: strings.Repeat("1", 64), Image: "registry.example/app:v1",
				Group: group + "/c"}},
		}
		add(group)
		add(pod.SandboxGroup)
		add(pod.Containers[0].Group)
		pods = append(pods, pod)
	}
	c := New(Options{Tree: tree, Pods: func() []stats.Pod { return pods }, Groups: []string{root}, Dirs: []string{"/"}})
	var size counting
	b.ReportAllocs()
	for b.Loop() {
		size = 0
		to := bufio.NewWriter(&size)
		if err := c.Write(b.Context(), to); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(size), "B/scrape")
}

type counting int

func (c *counting) Write(p []byte) (int, error) { *c += counting(len(p)); return len(p), nil }
