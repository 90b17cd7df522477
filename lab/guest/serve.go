package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/plimsoll-dev/plimsoll/lab/wire"
)

// openPort opens the virtio serial port to the host.
func openPort() (*os.File, error) {
	names, err := filepath.Glob("/sys/class/virtio-ports/*/name")
	if err != nil {
		return nil, err
	}
	for _, path := range names {
		name, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		if strings.TrimSpace(string(name)) == wire.Port {
			return os.OpenFile("/dev/"+filepath.Base(filepath.Dir(path)), os.O_RDWR, 0)
		}
	}
	return nil, fmt.Errorf("find serial port %s: none of %d has this name", wire.Port, len(names))
}

func report(port io.Writer, stage wire.Stage) {
	if err := json.NewEncoder(port).Encode(stage); err != nil {
		fmt.Fprintln(os.Stderr, "guest: report:", err)
	}
}

// serve answers commands until the host closes the port, which ends the guest.
func serve() error {
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte(oomNever), 0); err != nil {
		return err
	}
	port, err := openPort()
	if err != nil {
		return err
	}
	report(port, wire.Stage{Ready: true})
	commands := http.NewServeMux()
	commands.HandleFunc("POST "+wire.PathExec, runCommand)
	server := &http.Server{Handler: commands, Protocols: new(http.Protocols)}
	server.Protocols.SetUnencryptedHTTP2(true)
	return server.Serve(&oneConn{conn: portConn{port}, done: make(chan struct{})})
}

// portConn makes the port a net.Conn, which has addresses.
type portConn struct{ *os.File }

func (portConn) LocalAddr() net.Addr  { return &net.UnixAddr{Name: wire.Port, Net: "virtio"} }
func (portConn) RemoteAddr() net.Addr { return &net.UnixAddr{Name: "host", Net: "virtio"} }

// oneConn is a listener with one connection.
type oneConn struct {
	once sync.Once
	conn net.Conn
	done chan struct{}
}

func (l *oneConn) Accept() (conn net.Conn, err error) {
	l.once.Do(func() { conn = l.conn })
	if conn != nil {
		return conn, nil
	}
	<-l.done
	return nil, net.ErrClosed
}

func (l *oneConn) Close() error   { close(l.done); return nil }
func (l *oneConn) Addr() net.Addr { return portConn{}.LocalAddr() }

// orphansLinger is how long outputs may stay open after their command has ended, if processes that it started hold them
// (chosen: what the command printed before its end has arrived long before).
const orphansLinger = 2 * time.Second

// runCommand is the handler of wire.PathExec.
func runCommand(w http.ResponseWriter, r *http.Request) {
	body := bufio.NewReader(r.Body)
	line, err := body.ReadBytes('\n')
	var what wire.Exec
	if err == nil {
		err = json.Unmarshal(line, &what)
	}
	if err == nil && len(what.Args) == 0 {
		err = errors.New("no arguments")
	}
	if err != nil {
		http.Error(w, fmt.Sprintf("read command: %v", err), http.StatusBadRequest)
		return
	}
	out := &framer{to: w}
	exit := out.run(r, what, body)
	text, err := json.Marshal(exit)
	if err == nil {
		err = out.write(wire.Ended, text)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "guest: report the end of %q: %v\n", what.Args, err)
	}
}

// framer sends a command's outputs as they arrive.
type framer struct {
	mu sync.Mutex
	to http.ResponseWriter
}

func (f *framer) write(kind wire.Kind, data []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := wire.WriteFrame(f.to, kind, data); err != nil {
		return err
	}
	return http.NewResponseController(f.to).Flush()
}

type output struct {
	*framer
	kind wire.Kind
}

func (o output) Write(data []byte) (int, error) {
	if err := o.write(o.kind, data); err != nil {
		return 0, err
	}
	return len(data), nil
}

// run runs a command in its own session, all of which is killed when the host disconnects.
func (f *framer) run(r *http.Request, what wire.Exec, stdin io.Reader) wire.Exit {
	command := exec.CommandContext(r.Context(), "/proc/self/exe", append([]string{"exec"}, what.Args...)...)
	command.Env = append(os.Environ(), what.Env...)
	command.Dir = "/" + what.Dir
	command.Stdout, command.Stderr = output{f, wire.Stdout}, output{f, wire.Stderr}
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGKILL) }
	command.WaitDelay = orphansLinger
	in, err := command.StdinPipe()
	if err == nil {
		err = command.Start()
	}
	if err != nil {
		return wire.Exit{Code: exitNotStarted, Error: err.Error()}
	}
	go func() {
		_, _ = io.Copy(in, stdin) // a command need not read its input
		in.Close()
	}()
	err = command.Wait()
	if command.ProcessState == nil {
		return wire.Exit{Code: exitNotStarted, Error: err.Error()}
	}
	status, ok := command.ProcessState.Sys().(syscall.WaitStatus)
	if ok && status.Signaled() {
		return wire.Exit{Code: 128 + int(status.Signal()), Signal: int(status.Signal())}
	}
	return wire.Exit{Code: command.ProcessState.ExitCode()}
}
