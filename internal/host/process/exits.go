// Package process watches processes that are not children, finds the listener on a socket, sets out-of-memory scores,
// and keeps its own process small, or all of it in memory.
//
// A pidfd (pidfd_open(2), Linux 5.3) becomes readable when its process has exited, whoever its parent is. One epoll set
// has all pidfds, so that waiting for hundreds of processes costs one sleeping thread and no polling. A PID may have
// been reused by the time it is opened: the caller must verify that the process is still the same.
//
// It starts and kills no process.
package process

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Exits calls back when watched processes exit. NewExits makes one. It is safe for concurrent use.
type Exits struct {
	epoll int

	mu      sync.Mutex      // guards everything that follows
	next    int64           // number of the next watch
	watched map[int64]watch // by a number that is never reused, unlike a descriptor
}

type watch struct {
	fd     int
	exited func()
}

// NewExits starts a watcher that lives as long as the program.
func NewExits() (*Exits, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("watch processes: epoll_create1: %w", err)
	}
	e := &Exits{epoll: epoll, watched: map[int64]watch{}}
	go e.loop()
	return e, nil
}

// Watch calls exited once, on the watcher's goroutine, after the process has exited; exited must not block. same is
// called after the process was pinned, and must report whether pid is still the intended process. An error means that
// the process has ended or is another one, or that the kernel refused; then exited is never called. cancel may be
// called at any time, also after the exit.
func (e *Exits) Watch(pid int, same func() bool, exited func()) (cancel func(), err error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, fmt.Errorf("watch process %d: pidfd_open: %w", pid, err)
	}
	if !same() {
		unix.Close(fd)
		return nil, fmt.Errorf("watch process %d: %w", pid, unix.ESRCH)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.next++
	id := e.next
	// One-shot: the descriptor stays readable forever after the process has ended.
	event := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT, Fd: int32(id), Pad: int32(id >> 32)}
	if err := unix.EpollCtl(e.epoll, unix.EPOLL_CTL_ADD, fd, &event); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("watch process %d: epoll_ctl: %w", pid, err)
	}
	e.watched[id] = watch{fd, exited}
	return func() { e.take(id) }, nil
}

// Lives reports whether pid is a running process whose cgroup is named after the container or sandbox with that id. So
// a pid that was reused counts as not running, and so does a process that has ended and waits for its parent.
func (e *Exits) Lives(pid int, id string) bool {
	group, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil || !strings.Contains(string(group), id) {
		return false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)) // proc(5): pid (name) state; a name may have brackets
	name := bytes.LastIndexByte(stat, ')')
	return err == nil && name >= 0 && name+2 < len(stat) && !bytes.ContainsRune([]byte("ZXx"), rune(stat[name+2]))
}

// take ends a watch and returns its callback; nil if it ended before.
func (e *Exits) take(id int64) func() {
	e.mu.Lock()
	defer e.mu.Unlock()
	w, ok := e.watched[id]
	if !ok {
		return nil
	}
	delete(e.watched, id)
	unix.Close(w.fd) // closing the only reference also removes it from the epoll set
	return w.exited
}

func (e *Exits) loop() {
	events := make([]unix.EpollEvent, 64)
	for {
		n, err := unix.EpollWait(e.epoll, events, -1)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			// the watcher's own descriptor is broken: a programming error
			panic(fmt.Sprintf("watch processes: epoll_wait: %v", err))
		}
		for _, event := range events[:n] {
			if exited := e.take(int64(uint32(event.Fd)) | int64(event.Pad)<<32); exited != nil {
				exited()
			}
		}
	}
}
