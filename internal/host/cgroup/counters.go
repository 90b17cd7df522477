package cgroup

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Counter names a number that the kernel has for a group: what the group has used, or what is set on it. Times are in
// nanoseconds, sizes in bytes.
type Counter uint8

// Counters of a group. Those that only one kind of hierarchy has say so.
const (
	CPUTime Counter = iota
	CPUUser
	CPUSystem
	CPUPeriods          // of the quota, that have passed
	CPUThrottledPeriods // in which the quota was used up
	CPUThrottledTime
	CPUBurstPeriods
	CPUBurstTime
	CPUShares     // v1; on v2 see CPUWeight
	CPUWeight     // v2
	CPUQuota      // absent: no quota
	CPUPeriod     // for which the quota is
	CPUStallSome  // v2, and absent without CONFIG_PSI; likewise the other stalls
	CPUStallFull  // all tasks of the group waited at the same time
	MemoryCharged // anonymous memory, page cache, kernel memory
	MemoryPeak    // the largest MemoryCharged; v2 since Linux 5.19
	MemoryLimit
	MemorySoftLimit // v1 memory.soft_limit_in_bytes, v2 memory.min
	SwapLimit       // v1 of memory and swap together, v2 of swap
	MemoryLimitHits // how often MemoryCharged reached the limit
	MemoryKernel    // v2 since Linux 5.18
	MemoryOOMKills  // v1 of the group alone, v2 with the groups below it
	MemoryCache
	MemoryAnonymous
	MemoryMapped
	MemoryActiveFile
	MemoryInactiveFile
	MemorySwapped
	PageFaults
	MajorPageFaults
	OwnPageFaults // v1, without the groups below; likewise OwnMajorPageFaults
	OwnMajorPageFaults
	MemoryStallSome
	MemoryStallFull
	IOStallSome
	IOStallFull
	Threads
	ThreadsLimit
	counterEnd
)

const (
	// Absent is the value of a counter that the kernel does not have. It is not zero.
	Absent int64 = -1
	// NoLimit is the value of a limit that is not set.
	NoLimit int64 = math.MaxInt64
)

// Counters are the counters of one group, by Counter.
type Counters [counterEnd]int64

// Get returns a counter, and false if it is absent.
func (c *Counters) Get(which Counter) (int64, bool) { return c[which], c[which] != Absent }

// Device is what a group has read from and written to one block device.
type Device struct {
	Major, Minor          uint32
	ReadBytes, WriteBytes int64
	Reads, Writes         int64
}

// CounterReader reads the counters of many groups one after the other with few allocations: it opens a group's
// directory once for each hierarchy, and reads all files into one buffer. It is not safe for concurrent use.
type CounterReader struct {
	hierarchies []counterHierarchy
	procs       string   // the hierarchy in which processes are looked up
	buffer      []byte   // the file that was read last
	devices     []Device // of the group that is being read
}

// counterHierarchy are the files that are read below one root.
type counterHierarchy struct {
	dir   string
	files []counterFile
}

// counterFile is one file of a group. read gets its text, which it must not keep.
type counterFile struct {
	controller string // that has it; empty: every group has it
	name       string
	read       func(text []byte, c *Counters, d *[]Device) error
}

// NewCounterReader returns a reader of t's groups.
func (t *Tree) NewCounterReader() *CounterReader {
	r := &CounterReader{buffer: make([]byte, 8<<10), procs: t.procsRoot()}
	files := filesV1
	if t.mode == V2 {
		files = filesV2
	}
	for _, f := range files {
		dir := t.mount
		if t.mode != V2 {
			if t.of[f.controller] == nil {
				continue
			}
			dir = t.of[f.controller].dir
		}
		h := r.hierarchy(dir)
		h.files = append(h.files, f)
	}
	return r
}

// hierarchy returns the entry of a root, made if there is none.
func (r *CounterReader) hierarchy(dir string) *counterHierarchy {
	for i := range r.hierarchies {
		if r.hierarchies[i].dir == dir {
			return &r.hierarchies[i]
		}
	}
	r.hierarchies = append(r.hierarchies, counterHierarchy{dir: dir})
	return &r.hierarchies[len(r.hierarchies)-1]
}

// Read sets c to the counters of group, and appends to devices what it did with each block device. What the kernel
// does not have is Absent. The error is fs.ErrNotExist if no hierarchy has the group; a file that cannot be understood
// is an error too, and the other files are read all the same.
func (r *CounterReader) Read(group string, c *Counters, devices []Device) ([]Device, error) {
	for i := range c {
		c[i] = Absent
	}
	if group != "/" {
		if err := check(group); err != nil {
			return devices, fmt.Errorf("read counters: %w", err)
		}
	}
	r.devices = r.devices[:0]
	found := false
	var failed error
	for i := range r.hierarchies {
		h := &r.hierarchies[i]
		dir, err := unix.Open(h.dir+group, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			continue // another hierarchy may have the group
		}
		found = true
		for j := range h.files {
			text, err := r.text(dir, h.files[j].name)
			if err != nil {
				continue // older kernels, and the root group, have fewer files
			}
			if err := h.files[j].read(text, c, &r.devices); err != nil && failed == nil {
				failed = fmt.Errorf("read counters of cgroup %s: %s: %w", group, h.files[j].name, err)
			}
		}
		unix.Close(dir)
	}
	if !found {
		return devices, fmt.Errorf("read counters of cgroup %s: %w", group, os.ErrNotExist)
	}
	return append(devices, r.devices...), failed
}

// Processes appends the process ids of group itself, without those of the groups below it. A group that does not exist
// has none.
func (r *CounterReader) Processes(group string, pids []int) []int {
	dir, err := unix.Open(r.procs+group, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return pids
	}
	defer unix.Close(dir)
	text, err := r.text(dir, procsFile)
	if err != nil {
		return pids
	}
	for len(text) > 0 {
		var line []byte
		line, text, _ = bytes.Cut(text, []byte{'\n'})
		if pid, ok := ParseNumber(line); ok && pid > 0 && pid <= math.MaxInt32 { // 0: of another pid namespace
			pids = append(pids, int(pid))
		}
	}
	return pids
}

// Created returns when group was made: the time of a file in it that nothing writes to.
func (t *Tree) Created(group string) (time.Time, error) {
	file := filepath.Join(t.procsRoot(), group, "cgroup.clone_children")
	if t.mode == V2 {
		file = filepath.Join(t.mount, group, "cgroup.events")
	}
	info, err := os.Stat(file)
	if err != nil {
		return time.Time{}, fmt.Errorf("read age of cgroup: %w", err)
	}
	return info.ModTime(), nil
}

// text reads a file of an open directory. The result is valid until the next call.
func (r *CounterReader) text(dir int, name string) ([]byte, error) {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	for length := 0; ; {
		if length == len(r.buffer) {
			r.buffer = append(r.buffer, make([]byte, len(r.buffer))...)
		}
		n, err := unix.Read(fd, r.buffer[length:])
		if err == unix.EINTR {
			continue
		} else if err != nil {
			return nil, err
		}
		if n <= 0 {
			return r.buffer[:length], nil
		}
		length += n
	}
}

const (
	perTick  = int64(time.Second / 100) // USER_HZ, in which v1 counts user and system time: 100 wherever Go runs
	perMicro = int64(time.Microsecond)
)

// filesV1 are the files of Documentation/admin-guide/cgroup-v1 (cpuacct.rst, memory.rst, pids.rst,
// blkio-controller.rst) and Documentation/scheduler/sched-bwc.rst.
var filesV1 = []counterFile{
	{"cpuacct", "cpuacct.usage", number(CPUTime, 1)},
	{"cpuacct", "cpuacct.stat", keyed(key{"user", CPUUser, perTick}, key{"system", CPUSystem, perTick})},
	{"cpu", "cpu.stat", keyed(key{"nr_periods", CPUPeriods, 1}, key{"nr_throttled", CPUThrottledPeriods, 1},
		key{"throttled_time", CPUThrottledTime, 1}, key{"nr_bursts", CPUBurstPeriods, 1}, key{"burst_time", CPUBurstTime, 1})},
	{"cpu", "cpu.shares", number(CPUShares, 1)},
	{"cpu", "cpu.cfs_quota_us", number(CPUQuota, perMicro)}, // -1: none
	{"cpu", "cpu.cfs_period_us", number(CPUPeriod, perMicro)},
	{"memory", "memory.usage_in_bytes", number(MemoryCharged, 1)},
	{"memory", "memory.max_usage_in_bytes", number(MemoryPeak, 1)},
	{"memory", "memory.failcnt", number(MemoryLimitHits, 1)},
	{"memory", "memory.kmem.usage_in_bytes", number(MemoryKernel, 1)},
	{"memory", "memory.limit_in_bytes", limitV1(MemoryLimit)},
	{"memory", "memory.soft_limit_in_bytes", limitV1(MemorySoftLimit)},
	{"memory", "memory.memsw.limit_in_bytes", limitV1(SwapLimit)},
	{"memory", "memory.oom_control", keyed(key{"oom_kill", MemoryOOMKills, 1})},
	{"memory", "memory.stat", keyed(key{"total_cache", MemoryCache, 1}, key{"total_rss", MemoryAnonymous, 1},
		key{"total_mapped_file", MemoryMapped, 1}, key{"total_swap", MemorySwapped, 1},
		key{"total_active_file", MemoryActiveFile, 1}, key{"total_inactive_file", MemoryInactiveFile, 1},
		key{"total_pgfault", PageFaults, 1}, key{"total_pgmajfault", MajorPageFaults, 1},
		key{"pgfault", OwnPageFaults, 1}, key{"pgmajfault", OwnMajorPageFaults, 1})},
	{"pids", "pids.current", number(Threads, 1)},
	{"pids", "pids.max", number(ThreadsLimit, 1)},
	{"blkio", "blkio.throttle.io_service_bytes_recursive", blkio(true)},
	{"blkio", "blkio.throttle.io_serviced_recursive", blkio(false)},
}

// filesV2 are the files of Documentation/admin-guide/cgroup-v2.rst.
var filesV2 = []counterFile{
	{"cpu", "cpu.stat", keyed(key{"usage_usec", CPUTime, perMicro}, key{"user_usec", CPUUser, perMicro},
		key{"system_usec", CPUSystem, perMicro}, key{"nr_periods", CPUPeriods, 1}, key{"nr_throttled", CPUThrottledPeriods, 1},
		key{"throttled_usec", CPUThrottledTime, perMicro}, key{"nr_bursts", CPUBurstPeriods, 1},
		key{"burst_usec", CPUBurstTime, perMicro})},
	{"cpu", "cpu.weight", number(CPUWeight, 1)},
	{"cpu", "cpu.max", cpuMax},
	{"cpu", "cpu.pressure", pressure(CPUStallSome, CPUStallFull)},
	{"memory", "memory.current", number(MemoryCharged, 1)},
	{"memory", "memory.peak", number(MemoryPeak, 1)},
	{"memory", "memory.max", number(MemoryLimit, 1)},
	{"memory", "memory.min", number(MemorySoftLimit, 1)},
	{"memory", "memory.swap.current", number(MemorySwapped, 1)},
	{"memory", "memory.swap.max", number(SwapLimit, 1)},
	{"memory", "memory.events", keyed(key{"max", MemoryLimitHits, 1}, key{"oom_kill", MemoryOOMKills, 1})},
	{"memory", "memory.stat", keyed(key{"file", MemoryCache, 1}, key{"anon", MemoryAnonymous, 1},
		key{"file_mapped", MemoryMapped, 1}, key{"kernel", MemoryKernel, 1},
		key{"active_file", MemoryActiveFile, 1}, key{"inactive_file", MemoryInactiveFile, 1},
		key{"pgfault", PageFaults, 1}, key{"pgmajfault", MajorPageFaults, 1})},
	{"memory", "memory.pressure", pressure(MemoryStallSome, MemoryStallFull)},
	{"io", "io.pressure", pressure(IOStallSome, IOStallFull)},
	{"io", "io.stat", ioStat},
	{"pids", "pids.current", number(Threads, 1)},
	{"pids", "pids.max", number(ThreadsLimit, 1)},
}

// number reads a file with one number, which is multiplied by factor, or "max". A negative number leaves the counter
// absent.
func number(to Counter, factor int64) func([]byte, *Counters, *[]Device) error {
	return func(text []byte, c *Counters, _ *[]Device) error {
		text = bytes.TrimSpace(text)
		switch n, ok := ParseNumber(text); {
		case string(text) == "max":
			c[to] = NoLimit
		case ok:
			c[to] = times(n, factor)
		case len(text) == 0 || text[0] != '-':
			return fmt.Errorf("%.80q: not a number", text)
		}
		return nil
	}
}

// limitV1 reads a limit of v1, which shows a missing one as a very large number.
func limitV1(to Counter) func([]byte, *Counters, *[]Device) error {
	plain := number(to, 1)
	return func(text []byte, c *Counters, d *[]Device) error {
		err := plain(text, c, d)
		if c[to] != Absent && noLimitV1(c[to]) {
			c[to] = NoLimit
		}
		return err
	}
}

// key is a line "name number" of a file. The number is multiplied by factor.
type key struct {
	name   string
	to     Counter
	factor int64
}

// keyed reads a flat keyed file. Lines with other names are skipped.
func keyed(keys ...key) func([]byte, *Counters, *[]Device) error {
	return func(text []byte, c *Counters, _ *[]Device) error {
		for len(text) > 0 {
			var line []byte
			line, text, _ = bytes.Cut(text, []byte{'\n'})
			name, value, _ := bytes.Cut(line, []byte{' '})
			for i := range keys {
				if string(name) != keys[i].name {
					continue
				}
				n, ok := ParseNumber(bytes.TrimSpace(value))
				if !ok {
					return fmt.Errorf("%s: %.80q: not a number", name, value)
				}
				c[keys[i].to] = times(n, keys[i].factor)
			}
		}
		return nil
	}
}

// cpuMax reads "max 100000" or "50000 100000": quota and period in microseconds.
func cpuMax(text []byte, c *Counters, _ *[]Device) error {
	quota, period, _ := bytes.Cut(bytes.TrimSpace(text), []byte{' '})
	n, ok := ParseNumber(period)
	if !ok {
		return fmt.Errorf("%.80q: want two words, like \"max 100000\"", text)
	}
	c[CPUPeriod] = times(n, perMicro)
	if n, ok := ParseNumber(quota); ok {
		c[CPUQuota] = times(n, perMicro)
	}
	return nil
}

// pressure reads the totals of a pressure file (package psi has its form), which are in microseconds.
func pressure(some, full Counter) func([]byte, *Counters, *[]Device) error {
	return func(text []byte, c *Counters, _ *[]Device) error {
		for len(text) > 0 {
			var line []byte
			line, text, _ = bytes.Cut(text, []byte{'\n'})
			if len(line) == 0 {
				continue
			}
			_, total, _ := bytes.Cut(line, []byte("total="))
			n, ok := ParseNumber(bytes.TrimSpace(total))
			if !ok {
				return fmt.Errorf("%.80q: want a total in microseconds", line)
			}
			switch {
			case bytes.HasPrefix(line, []byte("some ")):
				c[some] = times(n, perMicro)
			case bytes.HasPrefix(line, []byte("full ")):
				c[full] = times(n, perMicro)
			}
		}
		return nil
	}
}

// blkio reads lines like "8:0 Read 4096", in bytes or in operations. Other words than Read and Write are skipped, and
// so is the last line, the sum of all devices.
func blkio(inBytes bool) func([]byte, *Counters, *[]Device) error {
	return func(text []byte, _ *Counters, devices *[]Device) error {
		for len(text) > 0 {
			var line []byte
			line, text, _ = bytes.Cut(text, []byte{'\n'})
			number, rest, _ := bytes.Cut(line, []byte{' '})
			word, value, _ := bytes.Cut(rest, []byte{' '})
			read, write := string(word) == "Read", string(word) == "Write"
			if !read && !write {
				continue
			}
			n, ok := ParseNumber(bytes.TrimSpace(value))
			d := deviceOf(devices, number)
			if !ok || d == nil {
				return fmt.Errorf("%.80q: want a line like \"8:0 Read 4096\"", line)
			}
			switch {
			case inBytes && read:
				d.ReadBytes = n
			case inBytes:
				d.WriteBytes = n
			case read:
				d.Reads = n
			default:
				d.Writes = n
			}
		}
		return nil
	}
}

// ioStat reads lines like "8:0 rbytes=4096 wbytes=0 rios=1 wios=0 dbytes=0 dios=0".
func ioStat(text []byte, _ *Counters, devices *[]Device) error {
	for len(text) > 0 {
		var line []byte
		line, text, _ = bytes.Cut(text, []byte{'\n'})
		number, pairs, _ := bytes.Cut(line, []byte{' '})
		if len(pairs) == 0 {
			continue // a device that the group has not used yet
		}
		d := deviceOf(devices, number)
		if d == nil {
			return fmt.Errorf("%.80q: want a line like \"8:0 rbytes=4096\"", line)
		}
		for len(pairs) > 0 {
			var pair []byte
			pair, pairs, _ = bytes.Cut(pairs, []byte{' '})
			name, value, _ := bytes.Cut(pair, []byte{'='})
			n, ok := ParseNumber(value)
			if !ok {
				continue // not of ours: cost.* of other kernels
			}
			switch string(name) {
			case "rbytes":
				d.ReadBytes = n
			case "wbytes":
				d.WriteBytes = n
			case "rios":
				d.Reads = n
			case "wios":
				d.Writes = n
			}
		}
	}
	return nil
}

// devicesMax is how many devices of one group are counted. Chosen: no machine of ours has as many, and they are
// searched one after the other.
const devicesMax = 1000

// deviceOf returns the device with a number like "8:0", appended if there is none; nil: that is no number of a device,
// or there are too many.
func deviceOf(devices *[]Device, number []byte) *Device {
	first, second, _ := bytes.Cut(number, []byte{':'})
	major, ok1 := ParseNumber(first)
	minor, ok2 := ParseNumber(second)
	if !ok1 || !ok2 || major > math.MaxUint32 || minor > math.MaxUint32 {
		return nil
	}
	list := *devices
	for i := range list {
		if list[i].Major == uint32(major) && list[i].Minor == uint32(minor) {
			return &list[i]
		}
	}
	if len(list) == devicesMax {
		return nil
	}
	*devices = append(list, Device{Major: uint32(major), Minor: uint32(minor)})
	return &(*devices)[len(*devices)-1]
}

// ParseNumber reads a decimal number as the kernel writes them: digits and nothing else; false if text is not one. One
// that does not fit becomes the largest int64.
func ParseNumber(text []byte) (int64, bool) {
	if len(text) == 0 {
		return 0, false
	}
	var n int64
	for _, c := range text {
		if c < '0' || c > '9' {
			return 0, false
		}
		if n > (math.MaxInt64-9)/10 {
			n = math.MaxInt64 / 10 * 10 // saturated: the loop only checks the rest
			continue
		}
		n = n*10 + int64(c-'0')
	}
	if n >= math.MaxInt64/10*10 {
		return math.MaxInt64, true
	}
	return n, true
}

// times multiplies and saturates: an absurd value in a file must not turn a large number into a small one.
func times(n, factor int64) int64 {
	if n > math.MaxInt64/factor {
		return math.MaxInt64
	}
	return n * factor
}
