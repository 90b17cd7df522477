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

// MemoryNotifications opens the kernel's notifications about scarce memory of group, which on v1 may be the root:
//
//   - v1: an eventfd for each of marks. It notifies when the usage, including page cache, crosses the mark in either
//     direction (Documentation/admin-guide/cgroup-v1/memory.rst, "Memory thresholds"). One more eventfd notifies
//     whenever pages are reclaimed for the group or one below it (memory.pressure_level low): at the limit the usage
//     does not change while anonymous memory displaces page cache.
//   - v2: memory.events, which notifies when the limit is reached, and stall on memory.pressure. v2 has no thresholds.
//
// What the kernel does not support is left out. Other failures are in the error, which may be returned together with
// the notifications that were opened.
func (t *Tree) MemoryNotifications(group string, marks []unit.Bytes, stall psi.Threshold) ([]epoll.Source, error) {
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

// watchFile opens a v2 file that notifies (EPOLLPRI) when its content changes, at most every 10 ms.
func watchFile(file string) (epoll.Source, error) {
	fd, err := unix.Open(file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return epoll.Source{}, fmt.Errorf("%s: %w", file, err)
	}
	return epoll.Source{Name: file, FD: fd}, nil
}

// watchV1 registers an eventfd for a v1 file by writing "<eventfd> <file> <argument>" to cgroup.event_control. The
// registration ends when the eventfd is closed or the cgroup is removed.
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
	if err := write(filepath.Join(dir, "cgroup.event_control"), fmt.Sprintf("%d %d %s", event, watched,
		argument)); err != nil {
		unix.Close(event)
		return epoll.Source{}, fmt.Errorf("%s: %w", path, err)
	}
	return epoll.Source{Name: path + " " + argument, FD: event}, nil
}
