// Package apart checks, on the real kernel and while things change, whether containers with exclusive CPUs really have
// them alone: whether another container's cpuset contains any of them.
//
// # Model
//
// A container with exclusive CPUs is recognized by its first process, which has a mark in its arguments. So it counts
// from its program's first instruction, and the watcher needs no information about pods. A check reads the cpusets of
// all containers, of cgroup v1 or v2, twice: first of the containers with exclusive CPUs, then of all.
//
// # Invariants
//
//   - What a check reports was true at one moment: the exclusive container's CPUs are read once more after the other's,
//     and must be the same.
//
// It misses what begins and ends between two checks. Package watch below it is the same as a separate program, for
// guests.
package apart

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
)

// Watch says what to check.
type Watch struct {
	Root string // the cgroup of the node's pods: .../kubepods
	Mark string

	owners map[string]bool // cgroups whose first process had the mark; they stay in the map
}

// Look checks once, and returns what overlaps.
func (w *Watch) Look() (overlaps []string) {
	dirs := w.containers()
	own := map[string]idset.Set{}
	for _, dir := range dirs {
		if cpus, ok := w.ownCPUs(dir); ok {
			own[dir] = cpus
		}
	}
	if len(own) == 0 {
		return nil
	}
	for _, dir := range dirs {
		cpus, ok := groupCPUs(dir)
		for owner, theirs := range own {
			both := cpus.Intersect(theirs)
			if !ok || dir == owner || both.IsEmpty() || first(dir) == "" {
				continue
			}
			if again, ok := w.ownCPUs(owner); ok && again.Equal(theirs) {
				overlaps = append(overlaps, fmt.Sprintf("%s may run on %v, of which %v are %s's own", dir, cpus, both, owner))
			}
		}
	}
	return overlaps
}

// shown is how many overlaps Run reports: one that persists is found again and again.
const shown = 5

// Run checks until ctx ends, with pauses of at least every, and at least as long as a check takes, since it shares the
// machine with what it watches. It returns the numbers of checks and overlaps.
func (w *Watch) Run(ctx context.Context, every time.Duration, tell func(string)) (looks, overlaps int) {
	for {
		began := time.Now()
		for _, text := range w.Look() {
			if overlaps++; overlaps <= shown {
				tell(text)
			}
		}
		looks++
		select {
		case <-ctx.Done():
			return looks, overlaps
		case <-time.After(max(every, time.Since(began))):
		}
	}
}

// containers returns the cgroups of containers.
func (w *Watch) containers() (dirs []string) {
	for _, pattern := range []string{"pod*/*/cgroup.procs", "*/pod*/*/cgroup.procs"} {
		files, err := filepath.Glob(filepath.Join(w.Root, pattern))
		if err != nil {
			panic(err) // impossible: the pattern is valid
		}
		for _, file := range files {
			dirs = append(dirs, filepath.Dir(file))
		}
	}
	return dirs
}

// ownCPUs returns the CPUs of a running container with exclusive CPUs.
func (w *Watch) ownCPUs(dir string) (idset.Set, bool) {
	process := first(dir)
	if process == "" {
		return idset.Set{}, false
	}
	if !w.owners[dir] {
		command, err := os.ReadFile("/proc/" + process + "/cmdline")
		if err != nil || !strings.Contains(string(command), w.Mark) {
			return idset.Set{}, false
		}
		if w.owners == nil {
			w.owners = map[string]bool{}
		}
		w.owners[dir] = true
	}
	return groupCPUs(dir)
}

// first returns the process that is listed first in a cgroup; empty: there is none.
func first(dir string) string {
	procs, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil || len(procs) == 0 {
		return ""
	}
	return strings.Fields(string(procs))[0]
}

// groupCPUs returns the CPUs on which the processes of a cgroup run.
func groupCPUs(dir string) (idset.Set, bool) {
	for _, file := range []string{"cpuset.cpus.effective", "cpuset.cpus"} { // of v2, of v1
		text, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			continue
		}
		cpus, err := idset.Parse(string(text))
		return cpus, err == nil && !cpus.IsEmpty()
	}
	return idset.Set{}, false
}
