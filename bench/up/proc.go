package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/plimsoll-dev/plimsoll/bench/record"
)

// processes returns the processes of the instance: its supervisor, its children, and the shims of its containers with
// all that descends from them.
func (s *subject) processes(all status) ([]int, error) {
	found := []int{all.SupervisorPID}
	for _, c := range all.Children {
		found = append(found, c.PID)
	}
	paths, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return nil, err
	}
	parents := map[int]int{}
	var shims []int
	for _, path := range paths {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		if bytes.Contains(text, []byte("containerd-shim")) && bytes.Contains(text, []byte(s.state+"/")) {
			shims = append(shims, pid)
		}
		if parent, err := parentOf(pid); err == nil {
			parents[pid] = parent
		}
	}
	found = append(found, shims...)
	for pid := range parents {
		for p := parents[pid]; p > 1; p = parents[p] {
			if slices.Contains(shims, p) {
				found = append(found, pid)
				break
			}
		}
	}
	return found, nil
}

// parentOf returns field 4 of proc_pid_stat(5).
func parentOf(pid int) (int, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	return parseParent(string(text))
}

// parseParent reads proc_pid_stat(5), whose second field may contain blanks and parentheses.
func parseParent(text string) (int, error) {
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(fields) < 2 {
		return 0, fmt.Errorf("stat %q: want more fields", text)
	}
	return strconv.Atoi(fields[1])
}

// cpuOf returns the CPU seconds that processes have used.
func cpuOf(pids []int) (sum float64, err error) {
	for _, pid := range pids {
		used, err := record.CPUSeconds(pid)
		if err != nil {
			return 0, err
		}
		sum += used
	}
	return sum, nil
}

// rollup returns a value of proc_pid_smaps(5), smaps_rollup, in KiB.
func rollup(pid int, key string) (float64, error) {
	path := fmt.Sprintf("/proc/%d/smaps_rollup", pid)
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return parseRollup(path, string(text), key)
}

// parseRollup reads lines like "Pss:               10172 kB".
func parseRollup(path, text, key string) (float64, error) {
	for line := range strings.Lines(text) {
		name, rest, found := strings.Cut(line, ":")
		if fields := strings.Fields(rest); found && name == key && len(fields) == 2 {
			return strconv.ParseFloat(fields[0], 64)
		}
	}
	return 0, fmt.Errorf("%s: no line %s", path, key)
}
