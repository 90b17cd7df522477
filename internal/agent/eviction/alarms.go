package eviction

import (
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/allocatable"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/host/cgroup"
	"github.com/plimsoll-dev/plimsoll/internal/host/epoll"
	"github.com/plimsoll-dev/plimsoll/internal/host/psi"
)

// stall is when waiting for memory is worth a look. Chosen: 20 ms in half a second is far below what programs notice, and far
// above what reclaim of page cache on an idle machine causes. Less rings more often for nothing.
var stall = psi.Threshold{Stall: 20 * time.Millisecond, Window: 500 * time.Millisecond}

// stepsToLine are where thresholds of v1 ring, as parts of what is to be left: the usage counts page cache, so a ring far from
// the line tells the core that something moves, and one beyond it that cache has gone. Chosen; each costs the kernel a
// comparison for every 128 pages.
var stepsToLine = []float64{4, 2, 1.5, 1.25, 1, 0.75, 0.5, 0.25}

// openAlarms opens what the kernel has to ring for memory. What cannot be opened is told once: the poll has to do without.
func (g *Guard) openAlarms() []epoll.Source {
	var all []epoll.Source
	add := func(sources []epoll.Source, err error) {
		all = append(all, sources...)
		if err != nil {
			slog.Warn("the kernel's alarms for memory are not complete, the poll has to do", "err", err)
		}
	}
	if s, err := psi.Trigger("/proc/pressure/memory", stall); err == nil {
		all = append(all, s)
	} else if !errors.Is(err, psi.ErrNone) {
		add(nil, err)
	}
	if g.o.Tree.Mode() != cgroup.V2 {
		add(g.o.Tree.MemoryAlarms("/", g.marks(allocatable.MemoryAvailable, g.o.Memory), stall))
	}
	if limit, ok := g.o.Limit.Get(); ok && g.o.Group != "" {
		marks := g.marks(allocatable.AllocatableMemory, limit)
		sources, err := g.o.Tree.MemoryAlarms(g.o.Group, marks, stall)
		if err == nil && len(marks) > 0 && g.o.Tree.Mode() != cgroup.V2 {
			g.rings = slices.Min(marks) // usage is more than what counts as used
		}
		add(sources, err)
	}
	return all
}

// marks are usages at which to ring.
func (g *Guard) marks(signal allocatable.Signal, capacity unit.Bytes) (marks []unit.Bytes) {
	for _, line := range g.lines(signal, int64(capacity)) {
		for _, part := range stepsToLine {
			if mark := capacity - unit.Bytes(part*float64(line)); mark > 0 {
				marks = append(marks, mark)
			}
		}
	}
	return marks
}
