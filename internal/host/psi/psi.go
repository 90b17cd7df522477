// Package psi makes the kernel notify when tasks stall because a resource is short, and reads how long they did
// (pressure stall information, Documentation/accounting/psi.rst; Linux 4.20, triggers 5.2, CONFIG_PSI).
//
// A pressure file belongs to the machine (/proc/pressure/memory) or to a group of cgroup v2 (memory.pressure). Writing
// to an open pressure file makes it a trigger: until it is closed it notifies (EPOLLPRI, see package epoll) when the
// stall within a window exceeds a threshold, at most once per window.
//
// A notification means that some task already waits. Memory that is allocated fast and cannot be reclaimed runs out
// without a stall, so callers need other notifications too. The averages show stalls that last longer.
package psi

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/plimsoll-dev/plimsoll/internal/host/epoll"
)

// ErrNone is in the chain of errors if the kernel has no pressure stall information: not compiled in, switched off
// (psi=0), or not for groups (cgroup v1).
var ErrNone = errors.New("the kernel has no pressure stall information here")

// Threshold determines when a trigger notifies.
type Threshold struct {
	Full   bool          // all tasks that are not idle stall at the same time; otherwise some do
	Stall  time.Duration // within Window
	Window time.Duration // 500 ms to 10 s
}

// plainWindow is what every window of a process without CAP_SYS_RESOURCE must be a multiple of (psi.rst, since Linux
// 6.5). The kernel then measures with its ordinary averages, every 2 s, and notifies up to 2 s later.
const plainWindow = 2 * time.Second

// text returns what must be written to the file: "some 150000 1000000", in microseconds.
func (t Threshold) text() string {
	who := "some"
	if t.Full {
		who = "full"
	}
	return who + " " + strconv.FormatInt(t.Stall.Microseconds(), 10) + " " + strconv.FormatInt(t.Window.Microseconds(), 10)
}

// Trigger opens file and makes it notify at t, with the next longer window that the process may use.
func Trigger(file string, t Threshold) (epoll.Source, error) {
	s, err := trigger(file, t)
	if errors.Is(err, unix.EINVAL) && t.Window%plainWindow != 0 {
		t.Window = (t.Window/plainWindow + 1) * plainWindow
		s, err = trigger(file, t)
	}
	return s, err
}

func trigger(file string, t Threshold) (epoll.Source, error) {
	fd, err := unix.Open(file, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return epoll.Source{}, fmt.Errorf("watch pressure: %s: %w", file, absence(err))
	}
	// The terminating zero is part of the kernel's own example; without it some kernels cut the last character.
	if _, err := unix.Write(fd, append([]byte(t.text()), 0)); err != nil {
		unix.Close(fd)
		return epoll.Source{}, fmt.Errorf("watch pressure: %s: write %q: %w", file, t.text(), absence(err))
	}
	return epoll.Source{Name: file + ": " + t.text(), FD: fd}, nil
}

func absence(err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("%w: %w", ErrNone, err)
	}
	return err
}

// Pressure is the content of a pressure file.
type Pressure struct {
	Some Stall // at least one task stalled
	Full Stall // all tasks that were not idle did, at the same time
}

// Stall is the lost time.
type Stall struct {
	Avg10, Avg60, Avg300 float64       // per cent, over that many last seconds, exponentially weighted
	Total                time.Duration // since boot, or since the group was created
}

// Read reads a pressure file.
func Read(file string) (Pressure, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return Pressure{}, fmt.Errorf("read pressure: %w", absence(err))
	}
	p, err := parse(string(text))
	if err != nil {
		return Pressure{}, fmt.Errorf("read pressure: %s: %w", file, err)
	}
	return p, nil
}

// parse reads the text of a pressure file; cpu has no line "full" before Linux 5.13:
//
//	some avg10=0.22 avg60=0.17 avg300=1.11 total=58761459
//	full avg10=0.00 avg60=0.13 avg300=0.96 total=57422402
func parse(text string) (Pressure, error) {
	var p Pressure
	found := false
	for number, line := range strings.Split(strings.TrimSpace(text), "\n") {
		who, rest, _ := strings.Cut(line, " ")
		stall, err := parseStall(rest)
		if err != nil {
			return Pressure{}, fmt.Errorf("line %d: %.80q: %w", number+1, line, err)
		}
		switch who {
		case "some":
			p.Some, found = stall, true
		case "full":
			p.Full = stall
		default:
			return Pressure{}, fmt.Errorf("line %d: %.80q: want some or full", number+1, line)
		}
	}
	if !found {
		return Pressure{}, errors.New("line some: missing")
	}
	return p, nil
}

func parseStall(text string) (s Stall, err error) {
	averages := map[string]*float64{"avg10": &s.Avg10, "avg60": &s.Avg60, "avg300": &s.Avg300}
	us := int64(-1)
	for _, pair := range strings.Fields(text) {
		name, value, _ := strings.Cut(pair, "=")
		if name == "total" {
			if us, err = strconv.ParseInt(value, 10, 64); err != nil || us < 0 || us > int64(1<<63-1)/1000 {
				return Stall{}, errors.New("total: want a number of microseconds")
			}
		} else if to := averages[name]; to != nil {
			if *to, err = strconv.ParseFloat(value, 64); err != nil || !(*to >= 0 && *to <= 100) {
				return Stall{}, fmt.Errorf("%s: want a percentage", name)
			}
		}
	}
	if us < 0 {
		return Stall{}, errors.New("total: missing")
	}
	s.Total = time.Duration(us) * time.Microsecond
	return s, nil
}
