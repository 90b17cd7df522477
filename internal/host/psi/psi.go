// Package psi asks the kernel to ring when tasks stall for want of a resource, and reads how long they did
// (pressure stall information, Documentation/accounting/psi.rst; Linux 4.20, triggers 5.2, CONFIG_PSI).
//
// A pressure file belongs to the machine (/proc/pressure/memory) or to a group of cgroup v2 (memory.pressure). Written to, an
// open one becomes a trigger: it rings (EPOLLPRI, see package alarm) when the stall within a window exceeds a threshold, at
// most once per window, until it is closed.
//
// What it tells is that somebody already waits. Memory that is taken fast, and never reclaimed, runs out without a stall; so
// this is one alarm among others, and a hint to look, never a measurement to decide by.
package psi

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/plimsoll-dev/plimsoll/internal/host/alarm"
)

// ErrNone is in the chain of errors where the kernel has no pressure stall information: none compiled in, or switched off
// (psi=0), or not for groups (cgroup v1).
var ErrNone = errors.New("the kernel has no pressure stall information here")

// Threshold says when a trigger rings.
type Threshold struct {
	Full   bool          // all tasks that are not idle stall at once; else some do
	Stall  time.Duration // within Window
	Window time.Duration // 500 ms to 10 s
}

// plainWindow is what windows must be multiples of for a process without CAP_SYS_RESOURCE (psi.rst, since Linux 6.5): the
// kernel then measures with its ordinary averages, every 2 s, and rings so much later.
const plainWindow = 2 * time.Second

// text is what the kernel wants to be written: "some 150000 1000000", in microseconds.
func (t Threshold) text() string {
	who := "some"
	if t.Full {
		who = "full"
	}
	return who + " " + strconv.FormatInt(t.Stall.Microseconds(), 10) + " " + strconv.FormatInt(t.Window.Microseconds(), 10)
}

// Trigger opens file and has it ring at t, in the next longer window that we may use.
func Trigger(file string, t Threshold) (alarm.Source, error) {
	s, err := trigger(file, t)
	if errors.Is(err, unix.EINVAL) && t.Window%plainWindow != 0 {
		t.Window = (t.Window/plainWindow + 1) * plainWindow
		s, err = trigger(file, t)
	}
	return s, err
}

func trigger(file string, t Threshold) (alarm.Source, error) {
	fd, err := unix.Open(file, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return alarm.Source{}, fmt.Errorf("watch pressure: %s: %w", file, absence(err))
	}
	// The terminating zero is part of the kernel's own example: without it some kernels cut the last character.
	if _, err := unix.Write(fd, append([]byte(t.text()), 0)); err != nil {
		unix.Close(fd)
		return alarm.Source{}, fmt.Errorf("watch pressure: %s: write %q: %w", file, t.text(), absence(err))
	}
	return alarm.Source{Name: file + ": " + t.text(), FD: fd}, nil
}

func absence(err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("%w: %w", ErrNone, err)
	}
	return err
}

// Total reads how long tasks stalled since the boot, or since the group was made: some of them, and all at once.
func Total(file string) (some, full time.Duration, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, 0, fmt.Errorf("read pressure: %w", absence(err))
	}
	if some, full, err = parse(string(text)); err != nil {
		return 0, 0, fmt.Errorf("read pressure: %s: %w", file, err)
	}
	return some, full, nil
}

// parse reads a pressure file; cpu has no line "full" before Linux 5.13:
//
//	some avg10=0.00 avg60=0.00 avg300=0.00 total=3057682
//	full avg10=0.00 avg60=0.00 avg300=0.00 total=232971
func parse(text string) (some, full time.Duration, err error) {
	found := false
	for number, line := range strings.Split(strings.TrimSpace(text), "\n") {
		who, rest, _ := strings.Cut(line, " ")
		_, total, ok := strings.Cut(rest, "total=")
		us, perr := strconv.ParseInt(total, 10, 64)
		if !ok || perr != nil || us < 0 || us > int64(1<<63-1)/1000 {
			return 0, 0, fmt.Errorf("line %d: %.80q: want total= and a number of microseconds", number+1, line)
		}
		switch who {
		case "some":
			some, found = time.Duration(us)*time.Microsecond, true
		case "full":
			full = time.Duration(us) * time.Microsecond
		default:
			return 0, 0, fmt.Errorf("line %d: %.80q: want some or full", number+1, line)
		}
	}
	if !found {
		return 0, 0, errors.New("line some: missing")
	}
	return some, full, nil
}
