// Package epoll waits until the kernel notifies about an event, or until a timeout.
//
// # Model
//
// A Source is an open descriptor that the kernel makes ready when something happened: a trigger of package psi, an
// eventfd or an events file of package cgroup. A Waiter has sources in one epoll set. Wait sleeps in the kernel until
// one of them notifies, Wake is called, or the timeout ends. One thread sleeps, whatever the number of sources.
//
// # Invariants
//
//   - Notifications are edge-triggered: each is returned once, and nothing has to be read. A notification while no Wait
//     runs is returned by the next Wait.
//   - A notification means only that the caller should check: sources may notify without cause (each does once when it
//     is added), and several notifications may be returned as one.
//   - A Waiter owns its sources and closes them.
//
// The package decides nothing, and does not know what its sources mean. Go's own poller cannot do this: it does not
// wait for EPOLLPRI, with which the kernel's pressure and events files notify.
package epoll

import (
	"errors"
	"fmt"
	"math"
	"time"

	"golang.org/x/sys/unix"
)

// Source is one descriptor that may notify. The owner of the Source owns FD.
type Source struct {
	Name string // for logs and journals: what it watches
	FD   int
}

// Close closes a source that was not added to a Waiter.
func (s Source) Close() { unix.Close(s.FD) }

// Waiter waits for sources. Only one goroutine may call Wait and Add; any may call Wake.
type Waiter struct {
	epoll    int
	wake     int // eventfd of Wake
	sources  []Source
	events   []unix.EpollEvent // the buffer of epoll_wait
	notified []string          // the result of the last Wait
}

// New makes a Waiter without sources.
func New() (*Waiter, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create epoll set: epoll_create1: %w", err)
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		unix.Close(epoll)
		return nil, fmt.Errorf("create epoll set: eventfd: %w", err)
	}
	c := &Waiter{epoll: epoll, wake: wake}
	return c, c.Add(Source{Name: "wake", FD: wake})
}

// Add adds a source; after an error the source is closed.
func (c *Waiter) Add(s Source) error {
	// A pressure or events file always counts as readable. With edge-triggering only its notifications are returned.
	event := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLPRI | unix.EPOLLET&0xffffffff, Fd: int32(len(c.sources))}
	if err := unix.EpollCtl(c.epoll, unix.EPOLL_CTL_ADD, s.FD, &event); err != nil {
		s.Close()
		return fmt.Errorf("add %s to epoll set: epoll_ctl: %w", s.Name, err)
	}
	c.sources = append(c.sources, s)
	c.events = append(c.events, unix.EpollEvent{})
	return nil
}

// Forever is a timeout that does not expire.
const Forever = time.Duration(math.MaxInt64)

// Wait sleeps until a source notifies or timeout ends, and returns the names of the sources that notified. With a
// negative timeout it does not sleep. The next Wait reuses the slice. It allocates nothing.
func (c *Waiter) Wait(timeout time.Duration) ([]string, error) {
	until := time.Now().Add(timeout)
	ms := -1
	for {
		if timeout != Forever {
			ms = int((max(time.Until(until), 0) + time.Millisecond - 1) / time.Millisecond)
		}
		n, err := unix.EpollWait(c.epoll, c.events, ms)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("wait for notifications: epoll_wait: %w", err)
		}
		c.notified = c.notified[:0]
		for _, event := range c.events[:n] {
			c.notified = append(c.notified, c.sources[event.Fd].Name)
		}
		return c.notified, nil
	}
}

var one = []byte{1, 0, 0, 0, 0, 0, 0, 0}

// Wake wakes Wait. It never blocks.
func (c *Waiter) Wake() {
	_, _ = unix.Write(c.wake, one) // a full counter notifies too
}

// Close closes the Waiter and its sources.
func (c *Waiter) Close() {
	for _, s := range c.sources {
		s.Close()
	}
	unix.Close(c.epoll)
}
