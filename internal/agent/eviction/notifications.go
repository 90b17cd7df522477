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

// stall is the least pressure stall that triggers a check. Chosen: 20 ms in half a second is far below what programs
// notice, and far above what reclaim of page cache causes on an idle machine. A lower value causes more checks that
// find nothing.
var stall = psi.Threshold{Stall: 20 * time.Millisecond, Window: 500 * time.Millisecond}

// markParts are the places of memory thresholds on cgroup v1, as multiples of the memory that the eviction threshold
// wants available. The kernel compares usage, which includes page cache. So a notification far from the eviction
// threshold means that usage moves, and one beyond it means that cache was dropped. Chosen; each costs the kernel a
// comparison for every 128 pages.
var markParts = []float64{4, 2, 1.5, 1.25, 1, 0.75, 0.5, 0.25}

// openSources opens the kernel's notifications about memory. A failure is logged once; the periodic checks remain.
func (g *Guard) openSources() []epoll.Source {
	var all []epoll.Source
	add := func(sources []epoll.Source, err error) {
		all = append(all, sources...)
		if err != nil {
			slog.Warn("some of the kernel's notifications about memory are missing; periodic checks remain", "err", err)
		}
	}
	if s, err := psi.Trigger("/proc/pressure/memory", stall); err == nil {
		all = append(all, s)
	} else if !errors.Is(err, psi.ErrNone) {
		add(nil, err)
	}
	if g.o.Tree.Mode() != cgroup.V2 {
		add(g.o.Tree.MemoryNotifications("/", g.marks(allocatable.MemoryAvailable, g.o.Memory), stall))
	}
	if limit, ok := g.o.Limit.Get(); ok && g.o.Group != "" {
		marks := g.marks(allocatable.AllocatableMemory, limit)
		sources, err := g.o.Tree.MemoryNotifications(g.o.Group, marks, stall)
		if err == nil && len(marks) > 0 && g.o.Tree.Mode() != cgroup.V2 {
			g.firstMark = slices.Min(marks) // usage includes cache, so it is more than what counts as used
		}
		add(sources, err)
	}
	return all
}

// marks returns the usages at which the kernel notifies.
func (g *Guard) marks(signal allocatable.Signal, capacity unit.Bytes) (marks []unit.Bytes) {
	for _, threshold := range g.thresholds(signal, int64(capacity)) {
		for _, part := range markParts {
			if mark := capacity - unit.Bytes(part*float64(threshold)); mark > 0 {
				marks = append(marks, mark)
			}
		}
	}
	return marks
}
