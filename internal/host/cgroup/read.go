package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/qos"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

const procsFile = "cgroup.procs"

// Usage is the usage of a group and those below it. Values that the kernel does not account for are absent, not zero.
type Usage struct {
	CPU             unit.Amount[time.Duration] // CPU time since the group was created
	Memory          unit.Amount[unit.Bytes]    // charged: anonymous memory, page cache, kernel memory
	WorkingSet      unit.Amount[unit.Bytes]    // Memory without the page cache that is cheap to drop (inactive_file)
	RSS             unit.Amount[unit.Bytes]    // anonymous memory (v1 rss, v2 anon)
	PageFaults      unit.Amount[int64]         // since the group was created
	MajorPageFaults unit.Amount[int64]         // those that needed the disk
	PIDs            unit.Amount[int64]         // processes and threads at present
}

// Usage reads the usage of group. The root group "/" is allowed; for it v2 accounts only for CPU time.
func (t *Tree) Usage(group string) (Usage, error) {
	if group != "/" {
		if err := check(group); err != nil {
			return Usage{}, fmt.Errorf("read usage: %w", err)
		}
	}
	var u Usage
	read := t.usageV1
	if t.mode == V2 {
		read = t.usageV2
	}
	if err := read(group, &u); err != nil {
		return Usage{}, fmt.Errorf("read usage of cgroup %s: %w", group, err)
	}
	if t.of["pids"] != nil {
		pids, err := readNumber(filepath.Join(t.dirOf("pids", group), "pids.current"))
		if err != nil && (group != "/" || !errors.Is(err, os.ErrNotExist)) { // the root has no such file
			return Usage{}, fmt.Errorf("read usage of cgroup %s: %w", group, err)
		}
		if err == nil {
			u.PIDs = unit.Of(pids)
		}
	}
	return u, nil
}

func (t *Tree) usageV1(group string, u *Usage) error {
	if t.of["cpuacct"] != nil {
		ns, err := readNumber(filepath.Join(t.dirOf("cpuacct", group), "cpuacct.usage"))
		if err != nil {
			return err
		}
		u.CPU = unit.Of(time.Duration(ns))
	}
	if t.of["memory"] == nil {
		return nil
	}
	dir := t.dirOf("memory", group)
	charged, err := readNumber(filepath.Join(dir, "memory.usage_in_bytes"))
	if err != nil {
		return err
	}
	return u.readMemory(charged, filepath.Join(dir, "memory.stat"), "total_inactive_file", "total_rss", "total_pgfault",
		"total_pgmajfault")
}

func (t *Tree) usageV2(group string, u *Usage) error {
	dir := filepath.Join(t.mount, group)
	stat := []int64{-1}
	if err := readKeys(filepath.Join(dir, "cpu.stat"), []string{"usage_usec"}, stat); err != nil {
		return err
	}
	if stat[0] >= 0 && stat[0] <= math.MaxInt64/1000 {
		u.CPU = unit.Of(time.Duration(stat[0]) * time.Microsecond)
	}
	if t.of["memory"] == nil || group == "/" {
		return nil
	}
	charged, err := readNumber(filepath.Join(dir, "memory.current"))
	if err != nil {
		return err
	}
	return u.readMemory(charged, filepath.Join(dir, "memory.stat"), "inactive_file", "anon", "pgfault", "pgmajfault")
}

// readMemory sets the memory fields from the charged bytes and the named keys of a memory.stat.
func (u *Usage) readMemory(charged int64, file, inactive, rss, faults, major string) error {
	v := []int64{-1, -1, -1, -1}
	if err := readKeys(file, []string{inactive, rss, faults, major}, v); err != nil {
		return err
	}
	u.Memory = unit.Of(unit.Bytes(charged))
	// The two files are read one after the other, so the difference may be negative.
	u.WorkingSet = unit.Of(unit.Bytes(max(0, charged-max(0, v[0]))))
	if v[1] >= 0 {
		u.RSS = unit.Of(unit.Bytes(v[1]))
	}
	if v[2] >= 0 {
		u.PageFaults = unit.Of(v[2])
	}
	if v[3] >= 0 {
		u.MajorPageFaults = unit.Of(v[3])
	}
	return nil
}

// Killed returns how many processes of group the kernel has killed because memory ran out: oom_kill of
// memory.oom_control (v1, Linux 4.13; of the group alone) or of memory.events (v2; including the groups below it).
func (t *Tree) Killed(group string) (int64, error) {
	if err := check(group); err != nil {
		return 0, fmt.Errorf("read kills: %w", err)
	}
	if t.of["memory"] == nil {
		return 0, fmt.Errorf("read kills of cgroup %s: controller memory: not available under %s", group, t.mount)
	}
	file := "memory.oom_control"
	if t.mode == V2 {
		file = "memory.events"
	}
	count := []int64{-1}
	if err := readKeys(filepath.Join(t.dirOf("memory", group), file), []string{"oom_kill"}, count); err != nil {
		return 0, fmt.Errorf("read kills of cgroup %s: %w", group, err)
	}
	if count[0] < 0 {
		return 0, fmt.Errorf("read kills of cgroup %s: %s has no oom_kill: want Linux 4.13 or later", group, file)
	}
	return count[0], nil
}

// PIDs returns the processes in group and in the groups below it, sorted. A group that does not exist has none.
func (t *Tree) PIDs(group string) ([]int, error) {
	if err := check(group); err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	pids, err := walkPIDs(filepath.Join(t.procsRoot(), group), nil)
	if err != nil {
		return nil, fmt.Errorf("list processes of cgroup %s: %w", group, err)
	}
	slices.Sort(pids)
	return slices.Compact(pids), nil // a process that moved meanwhile may be in two lists
}

// procsRoot is the root of the hierarchy in which processes are looked up.
func (t *Tree) procsRoot() string {
	if t.mode != V2 {
		for _, c := range []string{"pids", "memory", "cpu", "devices", "freezer"} {
			if t.of[c] != nil {
				return t.of[c].dir
			}
		}
	}
	return t.mount
}

func walkPIDs(dir string, pids []int) ([]int, error) {
	pids, err := readPIDs(filepath.Join(dir, procsFile), pids)
	if errors.Is(err, os.ErrNotExist) {
		return pids, nil // removed meanwhile
	} else if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return pids, nil
	} else if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if e.IsDir() {
			if pids, err = walkPIDs(filepath.Join(dir, e.Name()), pids); err != nil {
				return nil, err
			}
		}
	}
	return pids, nil
}

// Values reads the values that are set on group, to compare them with those that were applied.
func (t *Tree) Values(group string) (qos.Values, error) {
	if err := check(group); err != nil {
		return qos.Values{}, fmt.Errorf("read values: %w", err)
	}
	var v qos.Values
	read := t.valuesV1
	if t.mode == V2 {
		read = t.valuesV2
	}
	if err := read(group, &v); err != nil {
		return qos.Values{}, fmt.Errorf("read values of cgroup %s: %w", group, err)
	}
	if t.of["pids"] != nil {
		pids, err := readLimit(filepath.Join(t.dirOf("pids", group), "pids.max"))
		if err != nil {
			return qos.Values{}, fmt.Errorf("read values of cgroup %s: %w", group, err)
		}
		v.PIDs = pids
	}
	return v, nil
}

func (t *Tree) valuesV1(group string, v *qos.Values) error {
	if t.of["cpu"] != nil {
		dir := t.dirOf("cpu", group)
		shares, err := readNumber(filepath.Join(dir, "cpu.shares"))
		if err != nil {
			return err
		}
		quota, err := readNumber(filepath.Join(dir, "cpu.cfs_quota_us"))
		if err != nil {
			return err
		}
		period, err := readNumber(filepath.Join(dir, "cpu.cfs_period_us"))
		if err != nil {
			return err
		}
		v.CPUShares = unit.Of(qos.Shares(shares))
		v.CPUPeriod = micros(period)
		v.CPUQuota = unit.Unlimited[time.Duration]()
		if quota >= 0 {
			v.CPUQuota = unit.LimitTo(micros(quota))
		}
	}
	if t.of["memory"] == nil {
		return nil
	}
	limit, err := readNumber(filepath.Join(t.dirOf("memory", group), "memory.limit_in_bytes"))
	if err != nil {
		return err
	}
	v.Memory = unit.LimitTo(unit.Bytes(limit))
	if noLimitV1(limit) {
		v.Memory = unit.Unlimited[unit.Bytes]()
	}
	return nil
}

// noLimitV1 reports whether there is no limit. v1 then shows the largest multiple of the page size that fits in an
// int64 (PAGE_COUNTER_MAX), which is within 64 KiB, the largest page size, of the largest int64.
func noLimitV1(limit int64) bool { return limit < 0 || limit > math.MaxInt64-(64<<10) }

// valuesV2 leaves CPUShares absent, because they cannot be computed from a weight.
func (t *Tree) valuesV2(group string, v *qos.Values) error {
	dir := filepath.Join(t.mount, group)
	if t.of["cpu"] != nil {
		file := filepath.Join(dir, "cpu.max")
		words, err := readWords(file)
		if err != nil {
			return err
		}
		quota, period, err := parseCPUMax(words)
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		v.CPUQuota, v.CPUPeriod = quota, period
	}
	if t.of["memory"] == nil {
		return nil
	}
	limit, err := readLimit(filepath.Join(dir, "memory.max"))
	if n, ok := limit.Get(); ok {
		v.Memory = unit.LimitTo(unit.Bytes(n))
	} else {
		v.Memory = unit.Unlimited[unit.Bytes]()
	}
	return err
}

// parseCPUMax reads "max 100000" or "50000 100000" (cgroup-v2.rst, cpu.max), in microseconds.
func parseCPUMax(words []string) (unit.Limit[time.Duration], time.Duration, error) {
	none := unit.Limit[time.Duration]{}
	if len(words) != 2 {
		return none, 0, fmt.Errorf("%q: want two words, like \"max 100000\"", strings.Join(words, " "))
	}
	period, err := strconv.ParseInt(words[1], 10, 64)
	if err != nil || period <= 0 {
		return none, 0, fmt.Errorf("period %q: want microseconds", words[1])
	}
	if words[0] == "max" {
		return unit.Unlimited[time.Duration](), micros(period), nil
	}
	quota, err := strconv.ParseInt(words[0], 10, 64)
	if err != nil || quota < 0 {
		return none, 0, fmt.Errorf("quota %q: want microseconds or max", words[0])
	}
	return unit.LimitTo(micros(quota)), micros(period), nil
}

// micros returns n microseconds. A value that is too large becomes the longest Duration, so that an absurd value in a
// file does not become a short time.
func micros(n int64) time.Duration {
	return time.Duration(min(n, math.MaxInt64/1000)) * time.Microsecond
}

// parsePageSize reads the page size in the name of a hugetlb file: 64KB, 2MB, 1GB, in binary units.
func parsePageSize(s string) (unit.Bytes, error) {
	for suffix, factor := range map[string]unit.Bytes{"KB": unit.KiB, "MB": unit.MiB, "GB": unit.GiB} {
		if digits, ok := strings.CutSuffix(s, suffix); ok {
			n, err := strconv.ParseUint(digits, 10, 32)
			if err != nil || n == 0 {
				break
			}
			return unit.Bytes(n) * factor, nil
		}
	}
	return 0, fmt.Errorf("page size %q: want a number with KB, MB or GB", s)
}

// readLimit reads a file with a number or "max".
func readLimit(file string) (unit.Limit[int64], error) {
	text, err := readText(file)
	if err != nil {
		return unit.Limit[int64]{}, err
	}
	if text == "max" {
		return unit.Unlimited[int64](), nil
	}
	n, err := parseNumber(text)
	if err != nil {
		return unit.Limit[int64]{}, fmt.Errorf("%s: %w", file, err)
	}
	return unit.LimitTo(n), nil
}

func readNumber(file string) (int64, error) {
	text, err := readText(file)
	if err != nil {
		return 0, err
	}
	n, err := parseNumber(text)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", file, err)
	}
	return n, nil
}

// parseNumber reads a decimal number. The kernel prints some counters unsigned; a number that does not fit becomes the
// largest int64.
func parseNumber(text string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if errors.Is(err, strconv.ErrRange) && n > 0 {
		return math.MaxInt64, nil
	} else if err != nil {
		return 0, fmt.Errorf("%.80q: not a number", text)
	}
	return n, nil
}

// readKeys sets values to the numbers after the named keys of a flat keyed file ("key number" per line). Missing keys
// keep their value.
func readKeys(file string, keys []string, values []int64) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if err := parseKeys(data, keys, values); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return nil
}

func parseKeys(data []byte, keys []string, values []int64) error {
	for number := 1; len(data) > 0; number++ {
		var line []byte
		line, data, _ = bytes.Cut(data, []byte{'\n'})
		key, rest, _ := bytes.Cut(line, []byte{' '})
		i := slices.IndexFunc(keys, func(k string) bool { return string(key) == k })
		if i < 0 {
			continue
		}
		n, err := parseNumber(string(bytes.TrimSpace(rest)))
		if err != nil {
			return fmt.Errorf("line %d: %s: %w", number, key, err)
		}
		values[i] = n
	}
	return nil
}

func readPIDs(file string, pids []int) ([]int, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return pids, err
	}
	for number, line := range strings.Split(strings.TrimSpace(string(data)), "\n") {
		if line == "" {
			continue
		}
		pid, err := strconv.Atoi(line)
		if err != nil || pid < 0 {
			return pids, fmt.Errorf("%s: line %d: %.80q: not a process id", file, number+1, line)
		}
		if pid > 0 { // 0: a process of another pid namespace
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

func readText(file string) (string, error) {
	data, err := os.ReadFile(file)
	return strings.TrimSpace(string(data)), err
}

func readWords(file string) ([]string, error) {
	data, err := os.ReadFile(file)
	return strings.Fields(string(data)), err
}
