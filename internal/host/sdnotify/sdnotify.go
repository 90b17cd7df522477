// Package sdnotify speaks to systemd about this process, if it is a service of systemd (sd_notify(3),
// sd_watchdog_enabled(3)).
//
// # Model
//
// systemd describes the service in three variables of the environment. Take reads them once and removes them, so that
// no child process believes that it is meant. A message is one datagram to the socket that they name.
//
// It has no policy: what is said, and when, is the caller's (core/watchdog). It sends no file descriptors, and does not
// speak to a manager outside of a virtual machine (vsock).
package sdnotify

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Messages. More than one can be sent at once, one on each line.
const (
	Ready = "READY=1"
	Alive = "WATCHDOG=1"
)

// Extend is the message that the service needs that much more time to start.
func Extend(by time.Duration) string { return fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d", by.Microseconds()) }

// sendMax bounds a message. Chosen: systemd reads them at once, or does not run.
const sendMax = 5 * time.Second

// The variables of the environment.
const (
	varSocket  = "NOTIFY_SOCKET"
	varTimeout = "WATCHDOG_USEC"
	varPID     = "WATCHDOG_PID"
)

// Service is this process as a service of systemd. The zero value is none: nothing is sent.
type Service struct {
	socket string // path, or @ and an abstract name
	// Watchdog is the timeout of the service's watchdog; 0: it has none.
	Watchdog time.Duration
}

// Take returns the service that the environment describes, and removes it from the environment. The error says what of
// it cannot be used; the rest is.
func Take() (Service, error) {
	socket := os.Getenv(varSocket)
	timeout := os.Getenv(varTimeout)
	pid := os.Getenv(varPID)
	for _, name := range []string{varSocket, varTimeout, varPID} {
		_ = os.Unsetenv(name) // fails for names that no variable can have only
	}
	if socket == "" {
		return Service{}, nil
	}
	if socket[0] != '/' && socket[0] != '@' {
		return Service{}, fmt.Errorf("%s %.200q: want a path that begins with / or an abstract name that begins with @; "+
			"systemd hears nothing of this service", varSocket, socket)
	}
	if pid != "" && pid != strconv.Itoa(os.Getpid()) {
		timeout = "" // meant for another process
	}
	s := Service{socket: socket}
	var err error
	s.Watchdog, err = parseTimeout(timeout)
	return s, err
}

// parseTimeout reads the watchdog's timeout; empty: there is none.
func parseTimeout(text string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	const most = int64(1<<63-1) / int64(time.Microsecond)
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n <= 0 || n > most {
		return 0, fmt.Errorf("%s %.200q: want a number of microseconds from 1 to %d; the watchdog is not fed", varTimeout,
			text, most)
	}
	return time.Duration(n) * time.Microsecond, nil
}

// Exists reports whether there is a systemd to tell.
func (s Service) Exists() bool { return s.socket != "" }

// Tell sends messages.
func (s Service) Tell(messages ...string) error {
	if !s.Exists() || len(messages) == 0 {
		return nil
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("tell systemd: make a socket: %w", err)
	}
	limit := unix.NsecToTimeval(sendMax.Nanoseconds())
	err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit)
	if err == nil {
		err = unix.Sendto(fd, []byte(strings.Join(messages, "\n")), unix.MSG_NOSIGNAL, &unix.SockaddrUnix{Name: s.socket})
	}
	if err = errors.Join(err, unix.Close(fd)); err != nil {
		return fmt.Errorf("tell systemd: %s %.200q: %w", varSocket, s.socket, err)
	}
	return nil
}
