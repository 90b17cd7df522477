package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/host/epoll"
	"github.com/plimsoll-dev/plimsoll/internal/host/psi"
)

// MemoryAlarms opens what the kernel has to ring when memory of group, which on v1 may be the root, becomes scarce:
//
//   - v1: an eventfd for each of marks, rung when the usage, page cache included, crosses it in either direction
//     (Documentation/admin-guide/cgroup-v1/memory.rst, "Memory thresholds"); and one rung whenever pages are reclaimed for
//     the group or one below it (memory.pressure_level low), which is where the usage stands still at the limit while
//     anonymous memory displaces page cache.
//   - v2: memory.events, rung when the limit is hit; and stall on memory.pressure. v2 has no thresholds.
//
// What a kernel lacks is left out; an error is one that somebody should see, beside the alarms that there are.
func (t *Tree) MemoryAlarms(group string, marks []unit.Bytes, stall psi.Threshold) ([]epoll.Source, error) {
	if group != "/" {
		if err := check(group); err != nil {
			return nil, fmt.Errorf("watch memory: %w", err)
		}
	}
	dir, err := t.need("memory", group)
	if err != nil {
		return nil, fmt.Errorf("watch memory of cgroup %s: %w", group, err)
	}
	var found []epoll.Source
	var problems []error
	take := func(s epoll.Source, err error) {
		switch {
		case err == nil:
			found = append(found, s)
		case !errors.Is(err, os.ErrNotExist) && !errors.Is(err, psi.ErrNone):
			problems = append(problems, fmt.Errorf("watch memory of cgroup %s: %w", group, err))
		}
	}
	if t.mode == V2 {
		take(watchFile(filepath.Join(dir, "memory.events")))
		take(psi.Trigger(filepath.Join(dir, "memory.pressure"), stall))
		return found, errors.Join(problems...)
	}
	for _, mark := range marks {
		take(watchV1(dir, "memory.usage_in_bytes", fmt.Sprint(int64(mark))))
	}
	take(watchV1(dir, "memory.pressure_level", "low,hierarchy"))
	return found, errors.Join(problems...)
}

// watchFile opens a file of v2 that rings (EPOLLPRI) when what it says changes, at most every 10 ms.
func watchFile(file string) (epoll.Source, error) {
	fd, err := unix.Open(file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return epoll.Source{}, fmt.Errorf("%s: %w", file, err)
	}
	return epoll.Source{Name: file, FD: fd}, nil
}

// watchV1 registers an eventfd for a file of v1: "<eventfd> <file> <argument>" goes to cgroup.event_control. The registration
// ends when the eventfd is closed, or the group removed.
func watchV1(dir, file, argument string) (epoll.Source, error) {
	path := filepath.Join(dir, file)
	watched, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return epoll.Source{}, fmt.Errorf("%s: %w", path, err)
	}
	defer unix.Close(watched)
	event, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return epoll.Source{}, fmt.Errorf("%s: eventfd: %w", path, err)
	}
	if err := write(filepath.Join(dir, "cgroup.event_control"), fmt.Sprintf("%d %d %s", event, watched, argument)); err != nil {
		unix.Close(event)
		return epoll.Source{}, fmt.Errorf("%s: %w", path, err)
	}
	return epoll.Source{Name: path + " " + argument, FD: event}, nil
}
