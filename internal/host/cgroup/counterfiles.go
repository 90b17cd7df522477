package cgroup

import (
	"bytes"
	"fmt"
	"math"
	"time"
)

// counterFile is one file of a group. read parses its text, which it must not keep.
type counterFile struct {
	controller string // the controller that has the file; empty: every group has it
	name       string
	read       func(text []byte, c *Counters, d *[]Device) error
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
		key{"throttled_time", CPUThrottledTime, 1}, key{"nr_bursts", CPUBurstPeriods, 1}, key{"burst_time", CPUBurstTime,
			1})},
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
		key{"system_usec", CPUSystem, perMicro}, key{"nr_periods", CPUPeriods, 1}, key{"nr_throttled", CPUThrottledPeriods,
			1},
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

// limitV1 reads a limit of v1, which shows a very large number if there is no limit.
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
				continue // a key that is not read, like cost.* of some kernels
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

// devicesMax is how many devices of one group are counted. Chosen: more than machines have. It is a bound because
// devices are searched one after the other.
const devicesMax = 1000

// deviceOf returns the device with a number like "8:0", and appends it if it is not there yet. It returns nil if that
// is not the number of a device, or if there are too many.
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

// times multiplies. A product that is too large becomes the largest int64, so that an absurd value in a file does not
// become a small number.
func times(n, factor int64) int64 {
	if n > math.MaxInt64/factor {
		return math.MaxInt64
	}
	return n * factor
}
