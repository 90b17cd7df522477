// Package logind speaks to systemd-logind (org.freedesktop.login1(5)) over D-Bus: it delays a shutdown of the machine,
// and tells when one begins or is cancelled.
//
// # Model
//
// An inhibitor lock of mode "delay" is a file. While any is open, logind waits with a shutdown, up to its setting
// InhibitDelayMaxSec. When a shutdown is requested, logind first says so to everybody (the signal PrepareForShutdown).
// It stops nothing until all locks are closed or the time is over.
//
// A Conn is one connection to the bus. When it is lost, Watch's channel is closed, and the Conn is of no more use. A
// lock outlives its connection, but not the logind that gave it.
//
// It has no policy: who inhibits, for how long, and what is done meanwhile is the caller's.
package logind

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/godbus/dbus/v5"

	"github.com/plimsoll-dev/plimsoll/internal/host/durable"
)

// systemBus is where systemd has the system bus (sd_bus_default_system(3)). The library's default is below /var/run,
// which not every machine has.
const systemBus = "unix:path=/run/dbus/system_bus_socket"

const (
	service  = "org.freedesktop.login1"
	manager  = service + ".Manager"
	object   = dbus.ObjectPath("/org/freedesktop/login1")
	prepares = "PrepareForShutdown"

	systemdService = "org.freedesktop.systemd1"
	systemdManager = systemdService + ".Manager"
	systemdObject  = dbus.ObjectPath("/org/freedesktop/systemd1")
	unit           = "systemd-logind.service"

	// callTimeout bounds an answer. Chosen: they take milliseconds, or the bus hangs.
	callTimeout = 10 * time.Second

	// hangup is the signal on which logind reads its configuration again (systemd-logind.service(8)).
	hangup = int32(1)
)

// DropIns is the directory of files that add to logind.conf(5), and dropIn the one that is written here: the kubelet's,
// which takes the place of ours on the same node.
const (
	DropIns = "/etc/systemd/logind.conf.d"
	dropIn  = "99-kubelet.conf"
)

// Conn is a connection to logind. Its methods may be called by any goroutine.
type Conn struct {
	bus     *dbus.Conn
	dropIns string
}

// Dial connects to logind. address is of the bus (D-Bus specification, "Server Addresses"); empty: the system bus.
// dropIns is the directory of DropIns.
func Dial(ctx context.Context, address, dropIns string) (*Conn, error) {
	if address == "" {
		address = cmp.Or(os.Getenv("DBUS_SYSTEM_BUS_ADDRESS"), systemBus)
	}
	bus, err := dbus.Connect(address, dbus.WithContext(ctx))
	if err != nil {
		return nil, fmt.Errorf("connect to the system bus: %w", err)
	}
	return &Conn{bus: bus, dropIns: dropIns}, nil
}

// Close ends the connection. Locks stay.
func (c *Conn) Close() { _ = c.bus.Close() }

// call calls a method and stores its results.
func (c *Conn) call(ctx context.Context, to dbus.BusObject, method string, results []any, args ...any) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	call := to.CallWithContext(ctx, method, 0, args...)
	if call.Err != nil {
		return fmt.Errorf("call %s: %w", method, call.Err)
	}
	if len(results) == 0 {
		return nil
	}
	if err := call.Store(results...); err != nil {
		return fmt.Errorf("call %s: answer: %w", method, err)
	}
	return nil
}

func (c *Conn) property(ctx context.Context, name string, into any) error {
	var value dbus.Variant
	const get = "org.freedesktop.DBus.Properties.Get"
	if err := c.call(ctx, c.bus.Object(service, object), get, []any{&value}, manager, name); err != nil {
		return fmt.Errorf("read logind's %s: %w", name, err)
	}
	if err := value.Store(into); err != nil {
		return fmt.Errorf("read logind's %s: %w", name, err)
	}
	return nil
}

// DelayMax is how long logind waits for locks at most (InhibitDelayMaxSec).
func (c *Conn) DelayMax(ctx context.Context) (time.Duration, error) {
	var microseconds uint64
	err := c.property(ctx, "InhibitDelayMaxUSec", &microseconds)
	return time.Duration(microseconds) * time.Microsecond, err
}

// Preparing reports whether a shutdown has been requested, and not been cancelled.
func (c *Conn) Preparing(ctx context.Context) (is bool, err error) {
	err = c.property(ctx, "PreparingForShutdown", &is)
	return is, err
}

// Inhibit takes a lock, which lasts until it is closed. who and why are shown by systemd-inhibit(1).
func (c *Conn) Inhibit(ctx context.Context, who, why string) (*os.File, error) {
	var fd dbus.UnixFD
	args := []any{"shutdown", who, why, "delay"}
	if err := c.call(ctx, c.bus.Object(service, object), manager+".Inhibit", []any{&fd}, args...); err != nil {
		return nil, fmt.Errorf("take an inhibitor lock: %w", err)
	}
	return os.NewFile(uintptr(fd), "inhibitor lock"), nil
}

// Watch returns a channel that tells when a shutdown begins (true) or is cancelled (false). It is closed when the
// connection is lost or closed.
func (c *Conn) Watch(ctx context.Context) (<-chan bool, error) {
	signals := make(chan *dbus.Signal, 16)
	c.bus.Signal(signals)
	err := c.bus.AddMatchSignalContext(ctx,
		dbus.WithMatchInterface(manager), dbus.WithMatchMember(prepares), dbus.WithMatchObjectPath(object))
	if err != nil {
		c.bus.RemoveSignal(signals)
		return nil, fmt.Errorf("watch for %s: %w", prepares, err)
	}
	out := make(chan bool, 16)
	go func() {
		defer close(out)
		for s := range signals {
			if s.Name != manager+"."+prepares || len(s.Body) == 0 {
				continue
			}
			if begins, ok := s.Body[0].(bool); ok {
				out <- begins
			}
		}
	}()
	return out, nil
}

// SetDelayMax sets InhibitDelayMaxSec in a file of its own and has logind read its configuration. logind does that
// later: ask for DelayMax.
func (c *Conn) SetDelayMax(ctx context.Context, d time.Duration) error {
	seconds := int64((d + time.Second - 1) / time.Second)
	text := fmt.Appendf(nil, "# Written by the node's agent, or its kubelet: as long as shutdownGracePeriod.\n"+
		"[Login]\nInhibitDelayMaxSec=%d\n", seconds)
	path := filepath.Join(c.dropIns, dropIn)
	if err := os.MkdirAll(c.dropIns, 0o755); err != nil {
		return fmt.Errorf("set logind's InhibitDelayMaxSec: %w", err)
	}
	if err := durable.Write(path, text); err != nil {
		return fmt.Errorf("set logind's InhibitDelayMaxSec: %w", err)
	}
	if err := os.Chmod(path, 0o644); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("set logind's InhibitDelayMaxSec: %w", err)
	}
	to := c.bus.Object(systemdService, systemdObject)
	if err := c.call(ctx, to, systemdManager+".KillUnit", nil, unit, "all", hangup); err != nil {
		return fmt.Errorf("have logind read its configuration: %w", err)
	}
	return nil
}
