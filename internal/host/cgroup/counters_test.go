package cgroup

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/plimsoll-dev/plimsoll/test/cost"
)

const counted = "/kubepods/podu"

// v2Counters is a group of cgroup v2 with every file that is read, below a tree.
func v2Counters() map[string]string {
	files := map[string]string{"cgroup.controllers": "cpuset cpu io memory pids\n", "cgroup.procs": "1\n",
		"cpu.stat": "usage_usec 7\n"}
	for name, text := range map[string]string{
		"cgroup.procs": "41\n0\n42\n", "cgroup.events": "populated 1\n",
		"cpu.stat": "usage_usec 1500000\nuser_usec 1000000\nsystem_usec 500000\nnr_periods 10\nnr_throttled 2\n" +
			"throttled_usec 1234\nnr_bursts 1\nburst_usec 5\n",
		"cpu.weight": "59\n", "cpu.max": "50000 100000\n",
		"cpu.pressure":   "some avg10=0.00 avg60=0.00 avg300=0.00 total=11\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n",
		"memory.current": "1000\n", "memory.peak": "3000\n", "memory.max": "4096\n", "memory.min": "512\n",
		"memory.swap.current": "20\n", "memory.swap.max": "max\n",
		"memory.events": "low 0\nhigh 0\nmax 6\noom 2\noom_kill 1\n",
		"memory.stat": "anon 300\nfile 500\nkernel 90\nfile_mapped 40\ninactive_file 200\nactive_file 250\npgfault 77\n" +
			"pgmajfault 3\n",
		"memory.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=21\n" +
			"full avg10=0.00 avg60=0.00 avg300=0.00 total=17\n",
		"io.pressure":  "some avg10=0.00 avg60=0.00 avg300=0.00 total=31\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=27\n",
		"io.stat":      "8:0 rbytes=4096 wbytes=8192 rios=1 wios=2 dbytes=0 dios=0\n254:0 \n",
		"pids.current": "4\n", "pids.max": "max\n",
	} {
		files[filepath.Join(counted, name)] = text
	}
	return files
}

// v1Counters is the same group on cgroup v1.
func v1Counters() map[string]string {
	files := map[string]string{}
	for _, controller := range []string{"cpu", "cpuacct", "memory", "pids", "blkio", "cpuset"} {
		files[controller+"/cgroup.procs"] = "1\n"
	}
	for name, text := range map[string]string{
		"cpuacct/cpuacct.usage": "1500000000\n", "cpuacct/cpuacct.stat": "user 100\nsystem 50\n",
		"cpu/cpu.stat":   "nr_periods 10\nnr_throttled 2\nthrottled_time 1234000\nnr_bursts 1\nburst_time 5000\n",
		"cpu/cpu.shares": "1536\n", "cpu/cpu.cfs_quota_us": "50000\n", "cpu/cpu.cfs_period_us": "100000\n",
		"memory/memory.usage_in_bytes": "1000\n", "memory/memory.max_usage_in_bytes": "3000\n",
		"memory/memory.failcnt":             "6\n",
		"memory/memory.kmem.usage_in_bytes": "90\n", "memory/memory.limit_in_bytes": "4096\n",
		"memory/memory.soft_limit_in_bytes": "512\n", "memory/memory.memsw.limit_in_bytes": "9223372036854771712\n",
		"memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
		"memory/memory.stat": "cache 1\nrss 2\npgfault 70\npgmajfault 2\ntotal_cache 500\ntotal_rss 300\n" +
			"total_mapped_file 40\ntotal_swap 20\n" +
			"total_pgfault 77\ntotal_pgmajfault 3\ntotal_inactive_file 200\ntotal_active_file 250\n",
		"pids/pids.current": "4\n", "pids/pids.max": "max\n", "pids/cgroup.procs": "41\n0\n42\n",
		"pids/cgroup.clone_children": "0\n",
		"blkio/blkio.throttle.io_service_bytes_recursive": "8:0 Read 4096\n8:0 Write 8192\n8:0 Sync 1\n8:0 Total 12288\n" +
			"Total 12288\n",
		"blkio/blkio.throttle.io_serviced_recursive": "8:0 Read 1\n8:0 Write 2\nTotal 3\n",
	} {
		controller, file := filepath.Split(name)
		files[filepath.Join(controller, counted, file)] = text
	}
	return files
}

// Both kinds of hierarchies give the same numbers, except for those that only one of them counts.
func TestCounters(t *testing.T) {
	var want Counters
	for i := range want {
		want[i] = Absent
	}
	for c, v := range map[Counter]int64{
		CPUTime: 1_500_000_000, CPUUser: 1_000_000_000, CPUSystem: 500_000_000, CPUPeriods: 10, CPUThrottledPeriods: 2,
		CPUThrottledTime: 1_234_000, CPUBurstPeriods: 1, CPUBurstTime: 5_000, CPUQuota: 50_000_000, CPUPeriod: 100_000_000,
		MemoryCharged: 1000, MemoryPeak: 3000, MemoryLimit: 4096, MemorySoftLimit: 512, SwapLimit: NoLimit,
		MemoryLimitHits: 6,
		MemoryKernel:    90, MemoryOOMKills: 1, MemoryCache: 500, MemoryAnonymous: 300, MemoryMapped: 40,
		MemoryActiveFile:   250,
		MemoryInactiveFile: 200, MemorySwapped: 20, PageFaults: 77, MajorPageFaults: 3, Threads: 4, ThreadsLimit: NoLimit,
	} {
		want[c] = v
	}
	v1, v2 := want, want
	v1[CPUShares] = 1536
	v1[OwnPageFaults], v1[OwnMajorPageFaults] = 70, 2
	v2[CPUWeight] = 59
	v2[CPUStallSome], v2[CPUStallFull] = 11_000, 7_000
	v2[MemoryStallSome], v2[MemoryStallFull] = 21_000, 17_000
	v2[IOStallSome], v2[IOStallFull] = 31_000, 27_000
	for name, c := range map[string]struct {
		files map[string]string
		want  Counters
	}{"v1": {v1Counters(), v1}, "v2": {v2Counters(), v2}} {
		dir := t.TempDir()
		fill(t, dir, c.files)
		tree := open(t, dir)
		r := tree.NewCounterReader()
		for range 2 { // the second time into used buffers
			var got Counters
			devices, err := r.Read(counted, &got, []Device{{Major: 1}})
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			for i := range got {
				if got[i] != c.want[i] {
					t.Errorf("%s: counter %d: %d, want %d", name, i, got[i], c.want[i])
				}
			}
			if want := []Device{
				{Major: 1},
				{Major: 8, ReadBytes: 4096, WriteBytes: 8192, Reads: 1, Writes: 2},
			}; !slices.Equal(devices, want) {
				t.Errorf("%s: devices %+v, want %+v", name, devices, want)
			}
			var root Counters
			if devices, err = r.Read("/", &root, devices[:0]); err != nil || len(devices) > 0 {
				t.Errorf("%s: devices of the root, which has none: %+v, %v", name, devices, err)
			}
		}
		if pids := r.Processes(counted, nil); !slices.Equal(pids, []int{41, 42}) {
			t.Errorf("%s: processes %v", name, pids)
		}
		if at, err := tree.Created(counted); err != nil || at.IsZero() {
			t.Errorf("%s: created %v, %v", name, at, err)
		}
		var gone Counters
		if _, err := r.Read("/kubepods/gone", &gone, nil); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: a group that is not there: %v", name, err)
		}
		if pids := r.Processes("/kubepods/gone", nil); len(pids) != 0 {
			t.Errorf("%s: processes of a group that is not there: %v", name, pids)
		}
	}
}

// A file that cannot be parsed is named, and the other files are still read.
func TestCountersOfBrokenFiles(t *testing.T) {
	dir := t.TempDir()
	files := v2Counters()
	files[filepath.Join(counted, "memory.max")] = "lots\n"
	fill(t, dir, files)
	var c Counters
	_, err := open(t, dir).NewCounterReader().Read(counted, &c, nil)
	if err == nil || err.Error() != `read counters of cgroup /kubepods/podu: memory.max: "lots": not a number` {
		t.Errorf("error: %v", err)
	}
	if c[MemoryLimit] != Absent || c[MemoryCharged] != 1000 || c[Threads] != 4 {
		t.Errorf("limit %d, memory %d, threads %d", c[MemoryLimit], c[MemoryCharged], c[Threads])
	}
	if _, err := open(t, dir).NewCounterReader().Read("/../etc", &c, nil); err == nil {
		t.Error("a name that leads out of the tree is read")
	}
}

// The files of the real kernel are read, and the numbers agree with Usage.
func TestLiveCounters(t *testing.T) {
	tree, group := enterLive(t)
	var c Counters
	if _, err := tree.NewCounterReader().Read(group, &c, nil); err != nil {
		t.Fatal(err)
	}
	u, err := tree.Usage(group)
	if err != nil {
		t.Fatal(err)
	}
	for name, which := range map[string]Counter{"CPU": CPUTime, "memory": MemoryCharged, "quota period": CPUPeriod,
		"threads": Threads} {
		if c[which] == Absent {
			t.Errorf("%s: absent; usage is %+v", name, u)
		}
	}
	if limit := c[MemoryLimit]; limit != NoLimit {
		t.Errorf("memory limit of a new group: %d, want none", limit)
	}
	var root Counters
	if _, err := tree.NewCounterReader().Read("/", &root, nil); err != nil || root[CPUTime] <= 0 {
		t.Errorf("root: %d ns of CPU, %v", root[CPUTime], err)
	}
}

// FuzzCounters reads any text as each of the files.
func FuzzCounters(f *testing.F) {
	for _, text := range v2Counters() {
		cost.Attack(f, text)
	}
	cost.Attack(f, "8:0 Read 4096\n8:0 Write 8192\nTotal 12288\n")
	f.Fuzz(func(t *testing.T, text string) {
		defer cost.Spend(t, len(text))()
		for _, file := range slices.Concat(filesV1, filesV2) {
			var c Counters
			for i := range c {
				c[i] = Absent
			}
			var devices []Device
			if err := file.read([]byte(text), &c, &devices); err != nil && err.Error() == "" {
				t.Errorf("%s: an error without text", file.name)
			}
			for i, v := range c {
				if v < Absent {
					t.Errorf("%s: counter %d is %d", file.name, i, v)
				}
			}
			if len(devices) > devicesMax {
				t.Errorf("%s: %d devices", file.name, len(devices))
			}
		}
	})
}

// A number that does not fit becomes the largest. A text with other characters at its end is not a number, however long
// it is.
func TestParseNumber(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "42": 42, "007": 7, "9223372036854775807": math.MaxInt64, "99999999999999999999999": math.MaxInt64,
	} {
		if got, ok := ParseNumber([]byte(text)); !ok || got != want {
			t.Errorf("%s: %d, %v, want %d", text, got, ok, want)
		}
	}
	for _, text := range []string{"", "-1", " 1", "1 ", "max", "1k", "99999999999999999999999x"} {
		if got, ok := ParseNumber([]byte(text)); ok {
			t.Errorf("%q: %d, want none", text, got)
		}
	}
}
