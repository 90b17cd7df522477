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

// roles returns the processes of the instance, with the pids of each role: its supervisor, its children, and the shims
// of its containers with all that descends from them.
func (s *subject) roles(all status) (map[string][]int, error) {
	found := map[string][]int{roleRest: {all.SupervisorPID}}
	for _, c := range all.Children {
		role := roleOf(c.Name)
		found[role] = append(found[role], c.PID)
	}
	if s.kubeScheduler != nil {
		found[roleScheduler] = append(found[roleScheduler], s.kubeScheduler.PID())
	}
	rest, err := s.ofContainers()
	found[roleRest] = append(found[roleRest], rest...)
	return found, err
}

// ofContainers returns the shims of the instance's containers and all that descends from them.
func (s *subject) ofContainers() ([]int, error) {
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
		if bytes.Contains(text, []byte("containerd-shim")) && bytes.Contains(text, []byte(s.state()+"/")) {
			shims = append(shims, pid)
		}
		if parent, err := parentOf(pid); err == nil {
			parents[pid] = parent
		}
	}
	found := slices.Clone(shims)
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

// usage is what the processes of one role use.
type usage struct {
	processes int
	cpu       float64 // seconds since each began
	resident  float64 // MiB, shared pages counted in each process
	private   float64 // MiB, shared pages divided among the processes that have them
}

// use reads what processes use, by role.
func use(roles map[string][]int) (map[string]usage, error) {
	all := map[string]usage{}
	for role, pids := range roles {
		u := usage{processes: len(pids)}
		for _, pid := range pids {
			cpu, err := record.CPUSeconds(pid)
			if err != nil {
				return nil, err
			}
			rss, pss, err := rollup(pid)
			if err != nil {
				return nil, err
			}
			u.cpu += cpu
			u.resident += rss / 1024
			u.private += pss / 1024
		}
		all[role] = u
	}
	return all, nil
}

// sums returns the values of a window of some seconds: of the whole and of each role. Our lifecycle controller counts
// in the role of controllers too.
func sums(before, after map[string]usage, seconds float64) map[string]float64 {
	values := map[string]float64{}
	add := func(role string, u, since usage) {
		values[of(role, resident)] += u.resident
		values[of(role, private)] += u.private
		values[of(role, restCPU)] += (u.cpu - since.cpu) / seconds
	}
	for role, u := range after {
		values[processes] += float64(u.processes)
		values[resident] += u.resident
		values[private] += u.private
		values[restCPU] += (u.cpu - before[role].cpu) / seconds
		add(role, u, before[role])
		if role == roleLifecycle {
			add(roleControllers, u, before[role])
		}
	}
	return values
}

// rollup returns Rss and Pss of proc_pid_smaps(5), smaps_rollup, in KiB.
func rollup(pid int) (rss, pss float64, err error) {
	path := fmt.Sprintf("/proc/%d/smaps_rollup", pid)
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, 0, err
	}
	if rss, err = parseRollup(path, string(text), "Rss"); err != nil {
		return 0, 0, err
	}
	pss, err = parseRollup(path, string(text), "Pss")
	return rss, pss, err
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
