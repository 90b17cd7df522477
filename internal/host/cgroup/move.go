package cgroup

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
)

// Has reports whether process pid is in group itself, in every hierarchy in which Create makes it. A group that does
// not exist has no processes.
func (t *Tree) Has(group string, pid int) (bool, error) {
	if !t.Exists(group) {
		return false, nil
	}
	for _, h := range t.hierarchies {
		if h.passive {
			continue
		}
		pids, err := readPIDs(filepath.Join(h.dir, group, procsFile), nil)
		if err != nil {
			return false, fmt.Errorf("list processes of cgroup %s: %w", group, err)
		}
		if !slices.Contains(pids, pid) {
			return false, nil
		}
	}
	return true, nil
}

// Move moves process pid, with all its threads, into group in every hierarchy in which Create makes it. The processes
// that it started stay where they are. If it fails in one hierarchy, those before it stay changed.
func (t *Tree) Move(group string, pid int) error {
	if err := check(group); err != nil {
		return fmt.Errorf("move process %d: %w", pid, err)
	}
	for _, h := range t.hierarchies {
		if h.passive {
			continue
		}
		file := filepath.Join(h.dir, group, procsFile)
		if err := write(file, strconv.Itoa(pid)); err != nil {
			return fmt.Errorf("move process %d into cgroup %s: %w", pid, group, err)
		}
	}
	return nil
}
