// Package epoll sleeps until the kernel has something to tell, or until a time is over.
//
// # Model
//
// A Source is an open descriptor that the kernel makes ready when something happened: a trigger of package psi, an eventfd
// or an events file of package cgroup. A Clock holds sources in one epoll set and Wait sleeps in the kernel until one of
// them rings, somebody calls Ring, or the timeout ends. One thread sleeps, whatever the number of sources.
//
// # Invariants
//
//   - Edge-triggered: what rang is told once, and needs no reading. What rings while nobody waits is told by the next Wait.
//   - A ring says "look", never what to see: sources may ring for nothing (each does once when it is added), and several
//     rings may be told as one.
//   - A Clock owns its sources and closes them.
//
// It decides nothing, and does not know what its sources mean. Go's own poller cannot do this: it does not wait for EPOLLPRI,
// by which the kernel's pressure and events files ring.
package epoll

import (
	"errors"
	"fmt"
	"math"
	"time"

	"golang.org/x/sys/unix"
)

// Source is one thing that may ring. FD belongs to whoever holds the Source.
type Source struct {
	Name string // for logs and journals: what it watches and from where it rings
	FD   int
}

// Close gives up a source that no Clock has taken.
func (s Source) Close() { unix.Close(s.FD) }

// Clock waits for sources. Wait and Add belong to one goroutine; Ring may be called from any.
type Clock struct {
	epoll   int
	ring    int // eventfd of Ring
	sources []Source
	events  []unix.EpollEvent
	rang    []string
}

// New makes a Clock without sources.
func New() (*Clock, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make alarm: epoll_create1: %w", err)
	}
	ring, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		unix.Close(epoll)
		return nil, fmt.Errorf("make alarm: eventfd: %w", err)
	}
	c := &Clock{epoll: epoll, ring: ring}
	return c, c.Add(Source{Name: "ring", FD: ring})
}

// Add takes a source; on an error it is closed.
func (c *Clock) Add(s Source) error {
	// A pressure or events file always counts as readable besides; edge-triggered, only its rings are told.
	event := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLPRI | unix.EPOLLET&0xffffffff, Fd: int32(len(c.sources))}
	if err := unix.EpollCtl(c.epoll, unix.EPOLL_CTL_ADD, s.FD, &event); err != nil {
		s.Close()
		return fmt.Errorf("add alarm %s: epoll_ctl: %w", s.Name, err)
	}
	c.sources = append(c.sources, s)
	c.events = append(c.events, unix.EpollEvent{})
	return nil
}

// Forever is a timeout that is never over.
const Forever = time.Duration(math.MaxInt64)

// Wait sleeps until something rings or timeout is over, and returns the names of what rang. A timeout that was over before, and so
// is negative, is no sleep. The slice is used again by the next Wait. It allocates nothing.
func (c *Clock) Wait(timeout time.Duration) ([]string, error) {
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
			return nil, fmt.Errorf("wait for alarms: epoll_wait: %w", err)
		}
		c.rang = c.rang[:0]
		for _, event := range c.events[:n] {
			c.rang = append(c.rang, c.sources[event.Fd].Name)
		}
		return c.rang, nil
	}
}

var one = []byte{1, 0, 0, 0, 0, 0, 0, 0}

// Ring wakes whoever waits. It never blocks.
func (c *Clock) Ring() {
	_, _ = unix.Write(c.ring, one) // a full counter rings, too
}

// Close closes the clock and its sources.
func (c *Clock) Close() {
	for _, s := range c.sources {
		s.Close()
	}
	unix.Close(c.epoll)
}
