package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// Missing is a controller that a group should have and lacks.
type Missing struct {
	Controller string
	Path       string // where the group should be, or the path of the group that lacks the controller
	Command    string // shell command that would create it
}

// The controllers that a group must have if something is reserved for it and the machine has them: the kubelet's lists
// for v1 and v2.
var (
	reservedControllersV1 = []string{"cpu", "cpuacct", "cpuset", "memory", "systemd", "pids", "hugetlb"}
	reservedControllersV2 = []string{"cpu", "cpuset", "memory", "pids", "hugetlb"}
)

// Missing returns the controllers that a reserved group must have and that group lacks.
func (t *Tree) Missing(group string) ([]Missing, error) {
	if err := check(group); err != nil {
		return nil, fmt.Errorf("find controllers: %w", err)
	}
	if t.mode == V2 {
		return t.missingV2(group)
	}
	var missing []Missing
	for _, c := range reservedControllersV1 {
		if t.of[c] == nil {
			continue
		}
		dir := t.dirOf(c, group)
		_, err := os.Stat(dir)
		if err == nil {
			continue
		} else if !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("find controllers of cgroup %s: %w", group, err)
		}
		command := "mkdir -p " + dir
		if c == "cpuset" {
			command = makeCpuset(t.of[c].dir, group)
		}
		missing = append(missing, Missing{c, dir, command})
	}
	return missing, nil
}

// makeCpuset returns the command that creates a v1 cpuset: a new one is empty, and unusable, until it is copied from
// its parent.
func makeCpuset(root, group string) string {
	var commands []string
	for _, g := range lineage(group) {
		dir, above := filepath.Join(root, g), filepath.Join(root, path.Dir(g))
		if _, err := os.Stat(dir); err == nil {
			continue
		}
		commands = append(commands, "mkdir "+dir)
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			commands = append(commands, fmt.Sprintf("cat %s > %s", filepath.Join(above, file), filepath.Join(dir, file)))
		}
	}
	return strings.Join(commands, " && ")
}

// lineage returns the groups from the one below the root down to group itself.
func lineage(group string) []string {
	var groups []string
	for g := group; g != "/"; g = path.Dir(g) {
		groups = append(groups, g)
	}
	slices.Reverse(groups)
	return groups
}

// missingV2 reads the group itself: it has a controller if every parent enables it.
func (t *Tree) missingV2(group string) ([]Missing, error) {
	dir := filepath.Join(t.mount, group)
	has, err := readWords(filepath.Join(dir, "cgroup.controllers"))
	absent := errors.Is(err, os.ErrNotExist)
	if err != nil && !absent {
		return nil, fmt.Errorf("find controllers of cgroup %s: %w", group, err)
	}
	var missing []Missing
	for _, c := range reservedControllersV2 {
		if t.of[c] == nil || slices.Contains(has, c) {
			continue
		}
		var commands []string
		if absent {
			commands = append(commands, "mkdir -p "+dir)
		}
		for _, g := range lineage(group) {
			control := filepath.Join(t.mount, path.Dir(g), "cgroup.subtree_control")
			if enabled, err := readWords(control); err != nil || !slices.Contains(enabled, c) {
				commands = append(commands, fmt.Sprintf("echo +%s > %s", c, control))
			}
		}
		missing = append(missing, Missing{c, dir, strings.Join(commands, " && ")})
	}
	return missing, nil
}
