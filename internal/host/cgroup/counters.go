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

// Counter names a number that the kernel has for a group: what the group has used, or a value that is set on it. Times
// are in nanoseconds, sizes in bytes.
type Counter uint8

// Counters of a group. Those that only one kind of hierarchy has say so.
const (
	CPUTime Counter = iota
	CPUUser
	CPUSystem
	CPUPeriods          // periods of the quota that have passed
	CPUThrottledPeriods // periods in which the quota was used up
	CPUThrottledTime
	CPUBurstPeriods
	CPUBurstTime
	CPUShares     // v1; on v2 see CPUWeight
	CPUWeight     // v2
	CPUQuota      // absent: no quota
	CPUPeriod     // the period that the quota is for
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

// hierarchy returns the entry of a root. It makes one if there is none.
func (r *CounterReader) hierarchy(dir string) *counterHierarchy {
	for i := range r.hierarchies {
		if r.hierarchies[i].dir == dir {
			return &r.hierarchies[i]
		}
	}
	r.hierarchies = append(r.hierarchies, counterHierarchy{dir: dir})
	return &r.hierarchies[len(r.hierarchies)-1]
}

// Read sets c to the counters of group, and appends to devices what the group has read from and written to each block
// device. Counters that the kernel does not have are Absent. The error is fs.ErrNotExist if no hierarchy has the group.
// A file that cannot be parsed is an error too, but the other files are still read.
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
