package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	systemd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"
)

// Bus calls this machine's systemd over D-Bus: over the system bus, and as root also over systemd's own socket if there
// is no bus. It is safe for concurrent use, and reconnects after systemd or the bus was restarted.
type Bus struct {
	mu      sync.Mutex    // guards what follows
	conn    *systemd.Conn // nil: not connected
	version int           // of systemd; zero: not asked yet
}

// busTimeout bounds one answer, and one job. systemd answers soon or hangs. Chosen: runc's timeout.
const busTimeout = 30 * time.Second

// ErrNoSystemd means that this machine was not booted with systemd.
var ErrNoSystemd = errors.New("this machine was not booted with systemd (no /run/systemd/system): " +
	"use the cgroupfs driver, here and in the container runtime")

// DialSystemd connects to this machine's systemd.
func DialSystemd() (*Bus, error) {
	if info, err := os.Lstat("/run/systemd/system"); err != nil || !info.IsDir() { // sd_booted(3)
		return nil, ErrNoSystemd
	}
	b := &Bus{}
	if _, err := b.Version(); err != nil {
		return nil, err
	}
	return b, nil
}

// Close closes the connection.
func (b *Bus) Close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.conn != nil {
		b.conn.Close()
		b.conn = nil
	}
}

// call makes a call. If the connection is lost meanwhile, it makes the call once more.
func (b *Bus) call(what string, question func(context.Context, *systemd.Conn) error) error {
	var err error
	for range 2 {
		var conn *systemd.Conn
		if conn, err = b.connect(); err != nil {
			break
		}
		ctx, cancel := context.WithTimeout(context.Background(), busTimeout)
		err = question(ctx, conn)
		cancel()
		if err == nil {
			return nil
		}
		if conn.Connected() && !errors.Is(err, dbus.ErrClosed) {
			break
		}
		b.drop(conn)
	}
	return fmt.Errorf("ask systemd: %s: %w", what, err)
}

func (b *Bus) connect() (*systemd.Conn, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.conn != nil {
		return b.conn, nil
	}
	conn, err := systemd.NewWithContext(context.Background()) // the connection ends with this context
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	b.conn = conn
	return conn, nil
}

func (b *Bus) drop(conn *systemd.Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.conn == conn {
		b.conn.Close()
		b.conn = nil
	}
}

// Version implements Units.
func (b *Bus) Version() (int, error) {
	b.mu.Lock()
	known := b.version
	b.mu.Unlock()
	if known > 0 {
		return known, nil
	}
	var version int
	err := b.call("version", func(_ context.Context, conn *systemd.Conn) error {
		text, err := conn.GetManagerProperty("Version")
		if err != nil {
			return err
		}
		version, err = parseSystemdVersion(text)
		return err
	})
	if err == nil {
		b.mu.Lock()
		b.version = version
		b.mu.Unlock()
	}
	return version, err
}

// parseSystemdVersion reads the number in "252.39-1~deb12u1", v255-rc1 or "v245" (with its quotes).
func parseSystemdVersion(text string) (int, error) {
	digits := strings.TrimLeft(text, `"v`)
	if end := strings.IndexFunc(digits, func(r rune) bool { return r < '0' || r > '9' }); end >= 0 {
		digits = digits[:end]
	}
	n, err := strconv.Atoi(digits)
	if err != nil || n <= 0 {
		return 0, fmt.Errorf("version %.80q: want a number, like 252", text)
	}
	return n, nil
}

// Start implements Units.
func (b *Bus) Start(name string, properties []Property) error {
	return b.call("start "+name, func(ctx context.Context, conn *systemd.Conn) error {
		done := make(chan string, 1)
		_, err := conn.StartTransientUnitContext(ctx, name, "replace", dbusProperties(properties), done)
		if isBusError(err, "org.freedesktop.systemd1.UnitExists") {
			return nil
		} else if err != nil {
			return err
		}
		return await(ctx, done)
	})
}

// Set implements Units.
func (b *Bus) Set(name string, properties []Property) error {
	return b.call("set properties of "+name, func(ctx context.Context, conn *systemd.Conn) error {
		return conn.SetUnitPropertiesContext(ctx, name, true, dbusProperties(properties)...)
	})
}

// Stop implements Units.
func (b *Bus) Stop(name string) error {
	return b.call("stop "+name, func(ctx context.Context, conn *systemd.Conn) error {
		done := make(chan string, 1)
		_, err := conn.StopUnitContext(ctx, name, "replace", done)
		if isBusError(err, "org.freedesktop.systemd1.NoSuchUnit") {
			return nil
		} else if err != nil {
			return err
		}
		if err := await(ctx, done); err != nil {
			return err
		}
		// systemd keeps a failed unit until ResetFailedUnit is called. For a unit that has not failed, which is the usual
		// case, the call is an error.
		if err := conn.ResetFailedUnitContext(ctx, name); err != nil &&
			!isBusError(err, "org.freedesktop.systemd1.NoSuchUnit") {
			return err
		}
		return nil
	})
}

func await(ctx context.Context, done <-chan string) error {
	select {
	case result := <-done:
		if result != "done" {
			return fmt.Errorf("the job ended as %q, want done", result)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("no answer within %v", busTimeout)
	}
}

func dbusProperties(properties []Property) []systemd.Property {
	out := make([]systemd.Property, len(properties))
	for i, p := range properties {
		out[i] = systemd.Property{Name: p.Name, Value: dbus.MakeVariant(p.Value)}
	}
	return out
}

func isBusError(err error, name string) bool {
	var e dbus.Error
	return errors.As(err, &e) && e.Name == name
}
