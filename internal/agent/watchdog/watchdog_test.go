package watchdog

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// systemd is a socket on which a test hears what systemd would. It is read without the runtime's poller, so that it
// works in virtual time.
type systemd struct {
	t  *testing.T
	fd int
}

// listen makes this process a service of systemd, with a watchdog of that timeout.
func listen(t *testing.T, timeout time.Duration) systemd {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	path := filepath.Join(t.TempDir(), "notify")
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		t.Fatal(err)
	}
	t.Setenv("NOTIFY_SOCKET", path)
	t.Setenv("WATCHDOG_PID", strconv.Itoa(os.Getpid()))
	t.Setenv("WATCHDOG_USEC", "")
	if timeout > 0 {
		t.Setenv("WATCHDOG_USEC", strconv.FormatInt(timeout.Microseconds(), 10))
	}
	return systemd{t: t, fd: fd}
}

// heard returns the messages since the last call.
func (s systemd) heard() []string {
	s.t.Helper()
	var all []string
	for text := make([]byte, 256); ; {
		n, _, err := unix.Recvfrom(s.fd, text, unix.MSG_DONTWAIT)
		if err != nil {
			return all
		}
		all = append(all, strings.Split(string(text[:n]), "\n")...)
	}
}

// wants fails unless exactly these messages were heard since the last call.
func (s systemd) wants(when string, messages ...string) {
	s.t.Helper()
	if got := s.heard(); !slices.Equal(got, messages) {
		s.t.Errorf("%s, systemd hears %q, want %q", when, got, messages)
	}
}

// TestRun: systemd is asked for more time while the agent waits, hears that it is ready when its loops work, then that
// it lives, and nothing while a loop stands still.
func TestRun(t *testing.T) {
	s := listen(t, 20*time.Second)
	synctest.Test(t, func(t *testing.T) {
		s.t = t
		w := New(time.Minute)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); w.Run(ctx) }()
		synctest.Wait()
		s.wants("at the start", "EXTEND_TIMEOUT_USEC=90000000")
		time.Sleep(45 * time.Second)
		synctest.Wait()
		s.wants("after 45 s", "EXTEND_TIMEOUT_USEC=90000000")

		var turned atomic.Pointer[time.Time]
		var works atomic.Bool
		turned.Store(&time.Time{})
		w.Watch(Loop{Name: "main", Turned: func() time.Time { return *turned.Load() }, Works: works.Load})
		turn := func(length time.Duration) {
			for end := time.Now().Add(length); time.Now().Before(end); {
				now := time.Now()
				turned.Store(&now)
				time.Sleep(100 * time.Millisecond)
				synctest.Wait()
			}
		}
		turn(5 * time.Second)
		s.wants("while the loop waits")
		works.Store(true)
		turn(time.Second)
		s.wants("when it works", "READY=1", "WATCHDOG=1")
		turn(20 * time.Second)
		s.wants("20 s later", "WATCHDOG=1", "WATCHDOG=1")
		time.Sleep(time.Minute) // it stands still
		synctest.Wait()
		s.heard()
		time.Sleep(time.Minute)
		synctest.Wait()
		s.wants("while it stands still")
		turn(10 * time.Second)
		s.wants("when it turns again", "WATCHDOG=1")
		cancel()
		<-ended
		s.wants("at the end")
	})
	if value, set := os.LookupEnv("NOTIFY_SOCKET"); set {
		t.Errorf("children see NOTIFY_SOCKET=%s", value)
	}
}

// TestWithout: without systemd there is nothing to do. A systemd that cannot be told, or says nonsense, is a warning.
func TestWithout(t *testing.T) {
	var out bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&out, nil)))
	t.Cleanup(func() { slog.SetDefault(before) })
	for _, c := range []struct{ name, socket, timeout, warning string }{
		{"no systemd", "", "", ""},
		{"nobody listens", filepath.Join(t.TempDir(), "gone"), "", "tell systemd about the agent"},
		{"another kind of socket", "vsock:2:1", "", "NOTIFY_SOCKET"},
		{"words for a timeout", filepath.Join(t.TempDir(), "gone"), "soon", "WATCHDOG_USEC"},
		{"a timeout that is too short", filepath.Join(t.TempDir(), "gone"), "500000", "WatchdogSec= of the unit is short"},
	} {
		t.Setenv("NOTIFY_SOCKET", c.socket)
		t.Setenv("WATCHDOG_USEC", c.timeout)
		t.Setenv("WATCHDOG_PID", "")
		out.Reset()
		synctest.Test(t, func(t *testing.T) {
			w := New(time.Minute)
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Second)
			defer cancel()
			w.Watch(Loop{Name: "main", Turned: time.Now, Works: func() bool { return true }})
			w.Run(ctx)
		})
		warnings := strings.Count(out.String(), "level=WARN")
		if c.warning == "" && warnings > 0 || !strings.Contains(out.String(), c.warning) || warnings > 2 {
			t.Errorf("%s: want %q once in\n%s", c.name, c.warning, out.String())
		}
	}
}
