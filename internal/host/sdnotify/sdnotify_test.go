package sdnotify

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/test/cost"
)

// listen listens on a socket as systemd does.
func listen(t *testing.T, path string) *net.UnixConn {
	t.Helper()
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// TestTell: messages arrive at a socket with a path and at an abstract one.
func TestTell(t *testing.T) {
	for _, socket := range []string{
		filepath.Join(t.TempDir(), "notify"),
		fmt.Sprintf("@plimsoll-test-%d-%d", os.Getpid(), time.Now().UnixNano()),
	} {
		conn := listen(t, socket)
		t.Setenv(varSocket, socket)
		t.Setenv(varTimeout, "20000000")
		t.Setenv(varPID, strconv.Itoa(os.Getpid()))
		s, err := Take()
		if err != nil || !s.Exists() || s.Watchdog != 20*time.Second {
			t.Fatalf("%s: %+v, %v", socket, s, err)
		}
		if err := s.Tell(Ready, Extend(90*time.Second)); err != nil {
			t.Fatal(err)
		}
		text := make([]byte, 256)
		n, err := conn.Read(text)
		if want := "READY=1\nEXTEND_TIMEOUT_USEC=90000000"; err != nil || string(text[:n]) != want {
			t.Errorf("%s: systemd hears %q, %v, want %q", socket, text[:n], err, want)
		}
	}
}

// TestTake: what the environment says is read once, children do not see it, and what cannot be used is named.
func TestTake(t *testing.T) {
	for _, c := range []struct {
		name                 string
		socket, timeout, pid string
		exists               bool
		watchdog             time.Duration
		problem              string
	}{
		{name: "no service"},
		{name: "no watchdog", socket: "/run/s", exists: true},
		{name: "a watchdog", socket: "/run/s", timeout: "3000000", exists: true, watchdog: 3 * time.Second},
		{name: "the watchdog of another", socket: "/run/s", timeout: "3000000", pid: "1", exists: true},
		{name: "words", socket: "/run/s", timeout: "soon", exists: true, problem: `WATCHDOG_USEC "soon": want a number`},
		{name: "negative", socket: "/run/s", timeout: "-1", exists: true, problem: `WATCHDOG_USEC "-1"`},
		{name: "zero", socket: "/run/s", timeout: "0", exists: true, problem: `WATCHDOG_USEC "0"`},
		{name: "endless", socket: "/run/s", timeout: "18446744073709551615", exists: true, problem: "WATCHDOG_USEC"},
		{name: "too long", socket: "/run/s", timeout: "9223372036854775807", exists: true, problem: "WATCHDOG_USEC"},
		{name: "another kind of socket", socket: "vsock:2:1", problem: `NOTIFY_SOCKET "vsock:2:1": want a path`},
	} {
		for name, value := range map[string]string{varSocket: c.socket, varTimeout: c.timeout, varPID: c.pid} {
			t.Setenv(name, value)
		}
		s, err := Take()
		if s.Exists() != c.exists || s.Watchdog != c.watchdog || (err != nil) != (c.problem != "") ||
			err != nil && !strings.Contains(err.Error(), c.problem) {
			t.Errorf("%s: %+v, %v", c.name, s, err)
		}
		for _, name := range []string{varSocket, varTimeout, varPID} {
			if value, set := os.LookupEnv(name); set {
				t.Errorf("%s: %s is %q after it was read", c.name, name, value)
			}
		}
	}
}

// TestNobodyListens: a message that cannot be sent is an error that names the socket. Without systemd there is none.
func TestNobodyListens(t *testing.T) {
	gone := filepath.Join(t.TempDir(), "gone")
	if err := (Service{socket: gone}).Tell(Alive); err == nil || !strings.Contains(err.Error(), gone) {
		t.Errorf("nobody listens: %v", err)
	}
	long := "/" + strings.Repeat("x", 200)
	if err := (Service{socket: long}).Tell(Alive); err == nil || !strings.Contains(err.Error(), "NOTIFY_SOCKET") {
		t.Errorf("a path that is too long: %v", err)
	}
	if err := (Service{}).Tell(Alive); err != nil {
		t.Errorf("no systemd: %v", err)
	}
}

func FuzzParseTimeout(f *testing.F) {
	cost.Attack(f, []byte("20000000"))
	f.Fuzz(func(t *testing.T, data []byte) {
		defer cost.Spend(t, len(data))()
		if d, err := parseTimeout(string(data)); d < 0 || err != nil && d != 0 {
			t.Errorf("%q: %v, %v", data, d, err)
		}
	})
}
