// Package cgroup reads and writes the kernel's control groups: it creates groups, sets their values, reads their usage,
// notifies when their memory becomes short, kills their processes, and removes them. It supports cgroup v1 (a hierarchy
// per controller), hybrid (v1 with an additional unused v2 hierarchy) and v2 (one hierarchy), and hides which one a
// machine has.
//
// # Model
//
// A Tree is the machine's mounted hierarchies below one directory, normally /sys/fs/cgroup. A group is named by its
// path below a hierarchy's root, like /kubepods/burstable/pod7, and exists if it exists in every hierarchy that is
// managed. qos.Values are written; Usage is read. With systemd, a group that is a slice is created by systemd over
// D-Bus (Units), and its values are both set there and written.
//
// # Invariants
//
//   - Apply and Remove may be repeated, and complete what an interrupted call left.
//   - Nothing is ever written to the root group, except on v2 to cgroup.subtree_control, so that a controller exists
//     below it. Processes are never moved, and only Kill kills them.
//   - Every error names the file and the reason. A missing file, a zero and "max" are distinguished.
//
// # Limits of the package
//
// It does not decide values (core/qos does), nor how a limit is lowered while processes run (allocatable.Lowering
// does). It does not wait: a busy group is an error, and the caller may retry.
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

// Mode is the kind of hierarchies that a machine has.
type Mode string

// Modes, as cgroups(7) describes them.
const (
	V1     Mode = "v1"
	Hybrid Mode = "hybrid"
	V2     Mode = "v2"
)

// ErrBusy is in the chain of errors about a group that still has processes.
var ErrBusy = errors.New("the group still has processes")

// Tree is the machine's control groups. It is safe for concurrent use. Calls that create, remove or set the same value
// of the same group must not overlap.
type Tree struct {
	mode        Mode
	mount       string // the directory with the hierarchies
	hierarchies []hierarchy
	of          map[string]*hierarchy // the hierarchy of each controller

	units   Units         // creates slices; nil: no systemd, groups are plain directories
	started *startedUnits // units that this process started; nil without systemd

	// makeDir and removeDir are the kernel's mkdir and rmdir. Tests replace them, because on an ordinary file system a
	// new directory stays empty.
	makeDir, removeDir func(dir string) error
}

// hierarchy is one mounted tree of groups.
type hierarchy struct {
	dir     string // its root
	unified bool   // v2
	passive bool   // groups are removed here but not created: another program creates them
}

// v1Controllers are the controllers and named hierarchies in which groups are created on v1: all that a runtime uses.
var v1Controllers = []string{
	"cpu", "cpuacct", "cpuset", "memory", "pids", "hugetlb", "devices", "freezer", "blkio", "net_cls", "net_prio",
	"perf_event", "rdma", "misc", "systemd",
}

// v2Controllers are the controllers that are enabled for groups on v2. io is enabled for its statistics.
var v2Controllers = []string{"cpu", "cpuset", "memory", "pids", "hugetlb", "io"}

// Open finds the hierarchies that are mounted at mount, by their directories.
func Open(mount string) (*Tree, error) {
	t := &Tree{
		mount: filepath.Clean(mount), of: map[string]*hierarchy{},
		makeDir:   func(dir string) error { return os.Mkdir(dir, 0o755) },
		removeDir: removeDir,
	}
	controllers, err := readWords(filepath.Join(t.mount, "cgroup.controllers"))
	if err == nil {
		t.mode = V2
		t.hierarchies = []hierarchy{{dir: t.mount, unified: true}}
		for _, c := range controllers {
			t.of[c] = &t.hierarchies[0]
		}
		return t, nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("open cgroups: %w", err)
	}
	return t, t.findV1()
}

// findV1 searches for a directory per controller. Controllers that are mounted together have one directory and symlinks
// to it.
func (t *Tree) findV1() error {
	t.mode = V1
	index := map[string]int{}
	add := func(name string, h hierarchy) error {
		real, err := filepath.EvalSymlinks(filepath.Join(t.mount, name))
		if errors.Is(err, os.ErrNotExist) {
			return nil
		} else if err != nil {
			return fmt.Errorf("open cgroups: %w", err)
		}
		if _, err := os.Stat(filepath.Join(real, procsFile)); err != nil {
			return nil // a plain directory: the controller is not mounted
		}
		if _, seen := index[real]; !seen {
			index[real] = len(t.hierarchies)
			h.dir = real
			t.hierarchies = append(t.hierarchies, h)
		}
		t.of[name] = &hierarchy{dir: real}
		return nil
	}
	for _, name := range v1Controllers {
		if err := add(name, hierarchy{}); err != nil {
			return err
		}
	}
	if len(t.hierarchies) == 0 {
		return fmt.Errorf("open cgroups: %s: neither cgroup v2 (no cgroup.controllers) "+
			"nor v1 (no directory of a controller); mount one of them there", t.mount)
	}
	before := len(t.hierarchies)
	if err := add("unified", hierarchy{unified: true, passive: true}); err != nil {
		return err
	}
	delete(t.of, "unified")
	if len(t.hierarchies) > before {
		t.mode = Hybrid
	}
	return nil
}

// Mode returns the kind of hierarchies that the machine has.
func (t *Tree) Mode() Mode { return t.mode }

// Controllers returns the names of the existing controllers, sorted.
func (t *Tree) Controllers() []string {
	names := make([]string, 0, len(t.of))
	for name := range t.of {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Require returns an error if controllers are missing that are needed to isolate pods. The error names all missing
// ones.
func (t *Tree) Require() error {
	required := []string{"cpu", "cpuset", "memory"}
	if t.mode != V2 {
		required = append(required, "cpuacct")
	}
	var missing []string
	for _, c := range required {
		if t.of[c] == nil {
			missing = append(missing, c)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	advice := "boot a kernel that has them and without cgroup_disable="
	if t.mode != V2 {
		advice = "mount them: mount -t cgroup -o <controller> cgroup " + filepath.Join(t.mount, "<controller>")
	}
	return fmt.Errorf("open cgroups: %s (%s): missing controllers: %s; %s", t.mount, t.mode, strings.Join(missing, ", "),
		advice)
}

// Exists reports whether group exists in every hierarchy in which Apply creates it.
func (t *Tree) Exists(group string) bool {
	if check(group) != nil {
		return false
	}
	for _, h := range t.hierarchies {
		if _, err := os.Stat(filepath.Join(h.dir, group)); err != nil && !h.passive {
			return false
		}
	}
	return true
}

// Children returns the last path elements of the groups directly below group, in any hierarchy, sorted. A group that
// does not exist has none.
func (t *Tree) Children(group string) ([]string, error) {
	var names []string
	for _, h := range t.hierarchies {
		entries, err := os.ReadDir(filepath.Join(h.dir, group))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("list cgroups: %w", err)
		}
		for _, e := range entries {
			if e.IsDir() {
				names = append(names, e.Name())
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// check returns an error for a name that is not that of a group below the root.
func check(group string) error {
	if group == "/" || !strings.HasPrefix(group, "/") || path.Clean(group) != group {
		return fmt.Errorf("cgroup %q: want a clean absolute path below the root group, like /kubepods", group)
	}
	return nil
}
