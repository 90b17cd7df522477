// Package apart looks, on the real kernel and while things change, whether containers with CPUs of their own have them for
// themselves: whether no other container's cpuset has any of them.
//
// # Model
//
// A container with CPUs of its own is known by its first process, which has a mark in its arguments that no other has. So it counts
// from its program's first instruction on, and whoever watches needs to know nothing of pods. A look reads the cpusets of all
// containers of cgroup v1 or v2 twice: first of those that own CPUs, then of all.
//
// # Invariants
//
//   - What a look complains of was so at one moment: the owner is read once more after the other, and must have the same CPUs.
//
// It misses what begins and ends between two looks. Package watch below is the same as a process of its own, for guests.
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

// Watch is what to look at.
type Watch struct {
	Root string // the node's group: .../kubepods
	Mark string

	owners map[string]bool // groups that were found marked: they stay so
}

// Look compares once, and says what overlaps.
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

// shown is how many overlaps Run tells: one that stays is the same over and over.
const shown = 5

// Run looks until ctx ends, with pauses of at least every, and as long as a look takes: it shares the machine with what it watches.
// It returns how often it looked, and how many overlaps it saw.
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

// containers returns the groups of containers.
func (w *Watch) containers() (dirs []string) {
	for _, pattern := range []string{"pod*/*/cgroup.procs", "*/pod*/*/cgroup.procs"} {
		files, err := filepath.Glob(filepath.Join(w.Root, pattern))
		if err != nil {
			panic(err) // the pattern is ours
		}
		for _, file := range files {
			dirs = append(dirs, filepath.Dir(file))
		}
	}
	return dirs
}

// ownCPUs returns the CPUs of a container that has some of its own and runs.
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

// first is the process that is listed first in a group; empty: there is none.
func first(dir string) string {
	procs, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil || len(procs) == 0 {
		return ""
	}
	return strings.Fields(string(procs))[0]
}

// groupCPUs returns where what is in a group runs.
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
