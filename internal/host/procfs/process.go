package procfs

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// tick is the unit of CPU time in /proc: USER_HZ is 100 on every architecture that Go supports (proc_pid_stat(5)).
const tick = time.Second / 100

// BusyTime returns the CPU time since boot during which the machine's CPUs were not idle, from the first line of
// /proc/stat: "cpu  user nice system idle iowait irq softirq steal guest guest_nice" (proc_stat(5)). Time that the
// hypervisor took (steal) is not counted, and guest time is part of user.
func (fs FS) BusyTime() (time.Duration, error) {
	text, err := fs.text("stat")
	if err != nil {
		return 0, fmt.Errorf("read CPU time: %w", err)
	}
	busy, err := parseBusy(text)
	if err != nil {
		return 0, fmt.Errorf("read CPU time: %s: %w", fs.path("stat"), err)
	}
	return busy, nil
}

func parseBusy(text string) (time.Duration, error) {
	line, _, _ := strings.Cut(text, "\n")
	words := strings.Fields(line)
	if len(words) < 8 || words[0] != "cpu" {
		return 0, fmt.Errorf("line 1: %.80q: want cpu and 7 numbers or more", line)
	}
	var total time.Duration
	for _, i := range []int{1, 2, 3, 6, 7} { // user, nice, system, irq, softirq
		t, err := parseTicks(words[i])
		if err != nil {
			return 0, fmt.Errorf("line 1: %.80q: %w", line, err)
		}
		total += t
	}
	return total, nil
}

// ticksMost bounds CPU times, in ticks. Chosen: more than a machine of 8192 CPUs uses in a century, and small enough
// that sums do not overflow.
const ticksMost = 1 << 45

func parseTicks(word string) (time.Duration, error) {
	n, err := strconv.ParseUint(word, 10, 63)
	if err != nil || n > ticksMost {
		return 0, fmt.Errorf("%.20q: want a number of hundredths of a second", word)
	}
	return time.Duration(n) * tick, nil
}

// Unreclaimable returns the memory that reclaim cannot free without swap: the used memory minus what the kernel counts
// as available. Huge pages are not part of it, since they are reserved.
func (m Memory) Unreclaimable() unit.Bytes {
	available, ok := m.Available.Get()
	if !ok {
		available = m.Free // before Linux 3.14
	}
	return max(0, m.Total-available-m.HugePages)
}

// Process is what /proc/<pid>/stat has about a process, which is cheap to read.
type Process struct {
	PID     int
	Name    string // cut by the kernel to 15 characters
	Start   int64  // in ticks after boot; together with PID it identifies the process
	CPU     time.Duration
	Threads int64
}

// ProcessIDs returns the present processes, in no particular order.
func (fs FS) ProcessIDs() ([]int, error) {
	dir, err := os.Open(string(fs))
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var pids []int
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil && pid > 0 {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// IsGone reports whether an error about a process means that the process has ended, which is not a failure.
func IsGone(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH)
}

// Process reads /proc/<pid>/stat.
func (fs FS) Process(pid int) (Process, error) {
	name := strconv.Itoa(pid) + "/stat"
	text, err := fs.text(name)
	if err != nil {
		return Process{}, fmt.Errorf("read process: %w", err)
	}
	p, err := parseProcess(text)
	if err != nil {
		return Process{}, fmt.Errorf("read process: %s: %w", fs.path(name), err)
	}
	return p, nil
}

// parseProcess reads "pid (name) state ppid ...". The name may contain anything, including parentheses and line breaks,
// so it ends with the last parenthesis. Fields are numbered as in proc_pid_stat(5): 14 and 15 are CPU time, 20 threads,
// 22 the start.
func parseProcess(text string) (Process, error) {
	open, end := strings.IndexByte(text, '('), strings.LastIndexByte(text, ')')
	if open < 0 || end < open {
		return Process{}, fmt.Errorf("%.80q: want a name in parentheses", text)
	}
	words := strings.Fields(text[end+1:])
	if len(words) < 20 {
		return Process{}, fmt.Errorf("%.80q: want 22 fields or more", text)
	}
	field := func(n int) string { return words[n-3] }
	pid, pidErr := strconv.Atoi(strings.TrimSpace(text[:open]))
	user, userErr := parseTicks(field(14))
	system, systemErr := parseTicks(field(15))
	threads, threadsErr := strconv.ParseInt(field(20), 10, 64)
	start, startErr := strconv.ParseInt(field(22), 10, 64)
	if err := errors.Join(pidErr, userErr, systemErr, threadsErr, startErr); err != nil || pid <= 0 || threads < 0 ||
		start < 0 {
		return Process{}, fmt.Errorf("%.80q: a numeric field is not a number, or is negative", text)
	}
	return Process{PID: pid, Name: text[open+1 : end], Start: start, CPU: user + system, Threads: threads}, nil
}

// Groups returns the paths of a process's control groups, one per hierarchy: lines are like "4:memory:/kubepods/pod7"
// on cgroup v1 and "0::/kubepods/pod7" on v2 (cgroups(7)).
func (fs FS) Groups(pid int) ([]string, error) {
	text, err := fs.text(strconv.Itoa(pid) + "/cgroup")
	if err != nil {
		return nil, fmt.Errorf("read groups of process: %w", err)
	}
	return parseGroups(text), nil
}

func parseGroups(text string) []string {
	var groups []string
	for line := range strings.Lines(text) {
		if parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3); len(parts) == 3 {
			groups = append(groups, parts[2])
		}
	}
	return groups
}

// argumentsMax bounds how much of a command line is read, in bytes, because a process can make its own as long as its
// address space (prctl(2), PR_SET_MM). Chosen: half of the longest possible single argument (MAX_ARG_STRLEN,
// execve(2)). The expected command lines have some KiB.
const argumentsMax = 64 << 10

// Arguments returns the command line of a process, or the first 64 KiB of a longer one; none for the kernel's own
// threads.
func (fs FS) Arguments(pid int) ([]string, error) {
	file, err := os.Open(fs.path(strconv.Itoa(pid) + "/cmdline"))
	if err != nil {
		return nil, fmt.Errorf("read arguments of process: %w", err)
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, argumentsMax))
	if err != nil {
		return nil, fmt.Errorf("read arguments of process: %w", err)
	}
	if len(data) == 0 {
		return nil, nil
	}
	return strings.Split(strings.TrimSuffix(string(data), "\x00"), "\x00"), nil
}

// Footprint is a process's share of memory.
type Footprint struct {
	Resident unit.Bytes // its own pages, and its share of shared ones (Pss)
	Private  unit.Bytes // the part of Resident that is not pages of files
}

// Footprint reads /proc/<pid>/smaps_rollup (since Linux 4.14). It needs the permission to trace the process, and walks
// its pages: some tenths of a millisecond.
func (fs FS) Footprint(pid int) (Footprint, error) {
	name := strconv.Itoa(pid) + "/smaps_rollup"
	text, err := fs.text(name)
	if err != nil {
		return Footprint{}, fmt.Errorf("read footprint of process: %w", err)
	}
	p, err := parseFootprint(text)
	if err != nil {
		return Footprint{}, fmt.Errorf("read footprint of process: %s: %w", fs.path(name), err)
	}
	return p, nil
}

// parseFootprint reads lines like "Pss:   1234 kB". The split into Pss_Anon, Pss_File and Pss_Shmem exists since Linux
// 5.4; without it everything counts as private.
func parseFootprint(text string) (Footprint, error) {
	found := map[string]unit.Bytes{}
	for number, line := range strings.Split(text, "\n") {
		key, rest, _ := strings.Cut(line, ":")
		if !strings.HasPrefix(key, "Pss") {
			continue
		}
		digits, isKB := strings.CutSuffix(strings.TrimSpace(rest), " kB")
		n, err := strconv.ParseUint(digits, 10, 50)
		if err != nil || !isKB {
			return Footprint{}, fmt.Errorf("line %d: %.80q: want a number of kB", number+1, line)
		}
		found[key] = unit.Bytes(n) * unit.KiB
	}
	p := Footprint{Resident: found["Pss"], Private: found["Pss"]}
	if anonymous, ok := found["Pss_Anon"]; ok {
		p.Private = anonymous + found["Pss_Shmem"]
	}
	return p, nil
}

// Resident returns the pages of a process that are in memory, including shared ones in full. Every process may read
// that (proc_pid_statm(5)).
func (fs FS) Resident(pid int) (unit.Bytes, error) {
	name := strconv.Itoa(pid) + "/statm"
	text, err := fs.text(name)
	if err != nil {
		return 0, fmt.Errorf("read memory of process: %w", err)
	}
	words := strings.Fields(text)
	if len(words) < 2 {
		return 0, fmt.Errorf("read memory of process: %s: %.80q: want 2 fields or more", fs.path(name), text)
	}
	n, err := strconv.ParseUint(words[1], 10, 40)
	if err != nil {
		return 0, fmt.Errorf("read memory of process: %s: %.80q: want a number of pages", fs.path(name), text)
	}
	return unit.Bytes(n) * unit.Bytes(os.Getpagesize()), nil
}
