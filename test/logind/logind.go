// Package logind plays a D-Bus with systemd-logind and systemd for tests: inhibitor locks, shutdowns that begin and are
// cancelled, a configuration that is read again.
//
// It serves the protocol on a socket of its own (D-Bus specification: authentication EXTERNAL, file descriptors), so
// the code under test speaks to it as to a real bus. A lock is the end of a pipe, as logind's is: it is gone when its
// holder closes it or dies. Only what the product calls is answered; anything else is an error.
package logind

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"
)

const manager = "org.freedesktop.login1.Manager"

// Bus is the bus. Its methods may be called by any goroutine.
type Bus struct {
	t        *testing.T
	listener *net.UnixListener

	mu        sync.Mutex
	clients   map[*client]bool
	locks     []string // who and why, of those that were given
	open      int      // locks that are held
	delay     time.Duration
	preparing bool
	refused   map[string]string // error by method
	reload    func() time.Duration
	reloads   int
}

// New starts a bus that ends with the test. logind waits for delay at most.
func New(t *testing.T, delay time.Duration) *Bus {
	t.Helper()
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "bus"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	b := &Bus{t: t, listener: listener, clients: map[*client]bool{}, delay: delay, refused: map[string]string{}}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := listener.AcceptUnix()
			if err != nil {
				return
			}
			running.Go(func() { b.serve(conn) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		b.Drop()
		running.Wait()
	})
	return b
}

// Address is the bus's address for clients.
func (b *Bus) Address() string { return "unix:path=" + b.listener.Addr().String() }

// Held returns how many locks are held.
func (b *Bus) Held() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.open
}

// Locks returns who took locks and why, in order.
func (b *Bus) Locks() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]string(nil), b.locks...)
}

// Reloads returns how often logind was told to read its configuration.
func (b *Bus) Reloads() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.reloads
}

// OnReload is called when logind is told to read its configuration, and returns how long it waits from then on.
func (b *Bus) OnReload(f func() time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.reload = f
}

// Refuse has a method answered with an error; empty: no longer.
func (b *Bus) Refuse(method, message string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refused[method] = message
}

// Shutdown says that a shutdown begins, or is cancelled.
func (b *Bus) Shutdown(begins bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.preparing = begins
	for c := range b.clients {
		c.send(&dbus.Message{
			Type: dbus.TypeSignal,
			Headers: map[dbus.HeaderField]dbus.Variant{
				dbus.FieldPath:      dbus.MakeVariant(dbus.ObjectPath("/org/freedesktop/login1")),
				dbus.FieldInterface: dbus.MakeVariant(manager),
				dbus.FieldMember:    dbus.MakeVariant("PrepareForShutdown"),
				dbus.FieldSender:    dbus.MakeVariant(":1.0"),
			},
			Body: []any{begins},
		})
	}
}

// Drop closes all connections.
func (b *Bus) Drop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for c := range b.clients {
		_ = c.conn.Close()
	}
}

// A client is one connection.
type client struct {
	conn   *net.UnixConn
	mu     sync.Mutex
	serial uint32
}

// send sends a message, with the files that are in its body.
func (c *client) send(m *dbus.Message, files ...*os.File) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(m.Body) > 0 {
		m.Headers[dbus.FieldSignature] = dbus.MakeVariant(dbus.SignatureOf(m.Body...))
	}
	if len(files) > 0 {
		m.Headers[dbus.FieldUnixFDs] = dbus.MakeVariant(uint32(len(files)))
	}
	var text bytes.Buffer
	fds, err := m.EncodeToWithFDs(&text, binary.LittleEndian)
	if err != nil {
		panic(err) // a message of this package
	}
	c.serial++
	binary.LittleEndian.PutUint32(text.Bytes()[8:], c.serial)
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	_, _, _ = c.conn.WriteMsgUnix(text.Bytes(), rights, nil) // a client that is gone is noticed when it is read from
}

func (b *Bus) serve(conn *net.UnixConn) {
	c := &client{conn: conn}
	in := bufio.NewReader(conn)
	defer func() { _ = conn.Close() }()
	if !authenticate(in, conn) {
		return
	}
	b.mu.Lock()
	b.clients[c] = true
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		delete(b.clients, c)
		b.mu.Unlock()
	}()
	for {
		m, err := dbus.DecodeMessage(in)
		if err != nil {
			return
		}
		if m.Type == dbus.TypeMethodCall {
			b.answer(c, m)
		}
	}
}

// authenticate lets anybody in.
func authenticate(in *bufio.Reader, out *net.UnixConn) bool {
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return false
		}
		answer := "ERROR"
		switch line = strings.Trim(line, "\x00\r\n"); {
		case line == "AUTH":
			answer = "REJECTED EXTERNAL"
		case strings.HasPrefix(line, "AUTH EXTERNAL"):
			answer = "OK 1234567890abcdef1234567890abcdef"
		case line == "NEGOTIATE_UNIX_FD":
			answer = "AGREE_UNIX_FD"
		case line == "BEGIN":
			return true
		}
		if _, err := out.Write([]byte(answer + "\r\n")); err != nil {
			return false
		}
	}
}

// answer answers a call.
func (b *Bus) answer(c *client, m *dbus.Message) {
	method, _ := m.Headers[dbus.FieldMember].Value().(string)
	reply := &dbus.Message{
		Type: dbus.TypeMethodReply,
		Headers: map[dbus.HeaderField]dbus.Variant{
			dbus.FieldReplySerial: dbus.MakeVariant(m.Serial()),
			dbus.FieldSender:      dbus.MakeVariant(":1.0"),
		},
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	var files []*os.File
	var err error
	if message := b.refused[method]; message != "" {
		err = fmt.Errorf("%s", message)
	} else {
		reply.Body, files, err = b.call(method, m.Body)
	}
	if err != nil {
		reply.Type = dbus.TypeError
		reply.Headers[dbus.FieldErrorName] = dbus.MakeVariant("org.freedesktop.DBus.Error.Failed")
		reply.Body = []any{err.Error()}
	}
	c.send(reply, files...)
	for _, f := range files {
		_ = f.Close()
	}
}

// call carries out a call. b.mu is locked.
func (b *Bus) call(method string, args []any) (results []any, files []*os.File, err error) {
	switch method {
	case "Hello":
		return []any{":1.1"}, nil, nil
	case "AddMatch":
		return nil, nil, nil
	case "Get":
		switch fmt.Sprint(args) {
		case "[" + manager + " InhibitDelayMaxUSec]":
			return []any{dbus.MakeVariant(uint64(b.delay / time.Microsecond))}, nil, nil
		case "[" + manager + " PreparingForShutdown]":
			return []any{dbus.MakeVariant(b.preparing)}, nil, nil
		}
	case "Inhibit":
		if b.preparing {
			return nil, nil, fmt.Errorf("the operation inhibition has been requested for is already running")
		}
		return b.inhibit(args)
	case "KillUnit":
		if fmt.Sprint(args) == "[systemd-logind.service all 1]" {
			b.reloads++
			if b.reload != nil {
				b.delay = b.reload()
			}
			return nil, nil, nil
		}
	}
	return nil, nil, fmt.Errorf("no such call: %s(%v)", method, args)
}

// inhibit gives a lock. b.mu is locked.
func (b *Bus) inhibit(args []any) (results []any, files []*os.File, err error) {
	if len(args) != 4 || args[0] != "shutdown" || args[3] != "delay" {
		return nil, nil, fmt.Errorf("want a delay of shutdown: %v", args)
	}
	mine, theirs, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	b.locks = append(b.locks, fmt.Sprintf("%s: %s", args[1], args[2]))
	b.open++
	go func() {
		_, _ = mine.Read(make([]byte, 1)) // until all who have the other end have closed it
		_ = mine.Close()
		b.mu.Lock()
		defer b.mu.Unlock()
		b.open--
	}()
	return []any{dbus.UnixFD(theirs.Fd())}, []*os.File{theirs}, nil
}
