package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/lab/wire"
)

// T is the part of *testing.T that the lab uses.
type T interface {
	Helper()
	Context() context.Context
	Cleanup(func())
	Failed() bool
	Logf(format string, args ...any)
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	Skipf(format string, args ...any)
}

// consoleShown is how much of the console a failed test prints (chosen: enough for the last boot or a kernel panic).
const consoleShown = 16 << 10

// Boot boots a machine, which ends with the test. It skips the test, with the reason, if this host cannot run the
// machine.
func Boot(t T, description string, o Options) *Guest {
	t.Helper()
	if o.Say == nil {
		o.Say = func(step string) { t.Logf("build guest image: %s", step) }
	}
	began := time.Now()
	g, err := Start(t.Context(), description, o)
	if errors.Is(err, ErrCannot) {
		t.Skipf("%v", err)
	}
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			console := g.ConsoleText()
			t.Logf("console of %s:\n%s", g.Name, console[max(0, len(console)-consoleShown):])
		}
		if err := g.Close(); err != nil {
			t.Errorf("%v", err)
		}
	})
	t.Logf("%s (%s) is up after %v", g.Name, g.options.Init, time.Since(began).Round(100*time.Millisecond))
	return g
}

// Run runs a command and returns its output without the last newline. It fails the test if the command fails.
func (g *Guest) Run(t T, args ...string) string {
	t.Helper()
	out, err := g.Output(t.Context(), args...)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return strings.TrimSuffix(out, "\n")
}

// A Process is a command that runs in a guest while the test continues.
type Process struct {
	Name   string
	stop   context.CancelFunc
	ended  chan struct{}
	err    error // result of Exec; set before ended is closed
	output *tail
}

// Start starts a command that runs until it ends, Stop is called or the test ends. Its output is kept, and printed if
// the test fails.
func (g *Guest) Start(t T, c Command) *Process {
	t.Helper()
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	p := &Process{Name: filepath.Base(c.Args[0]), stop: stop, ended: make(chan struct{}), output: &tail{max: consoleKept}}
	if c.Stdout == nil {
		c.Stdout = p.output
	}
	if c.Stderr == nil {
		c.Stderr = p.output
	}
	go func() {
		defer close(p.ended)
		p.err = g.Exec(ctx, c)
	}()
	t.Cleanup(func() {
		p.Stop()
		if t.Failed() {
			text := p.Output()
			t.Logf("%s in %s: %v\n%s", p.Name, g.Name, p.err, text[max(0, len(text)-consoleShown):])
		}
	})
	return p
}

// Stop kills the command and everything in its session, and waits for its end.
func (p *Process) Stop() { p.stop(); <-p.ended }

// Ended is closed when the command has ended.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Err returns how the command ended. Call it only after Ended is closed.
func (p *Process) Err() error { return p.err }

// Output returns the end of the command's output.
func (p *Process) Output() string { return p.output.String() }

// CopyIn copies a file of the host, with its mode, to a path in the guest. It makes missing directories.
func (g *Guest) CopyIn(t T, from, to string) {
	t.Helper()
	file, err := os.Open(from)
	if err != nil {
		t.Fatalf("%v", err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		t.Fatalf("%v", err)
	}
	g.write(t, to, file, info.Mode().Perm())
}

// Write writes a file in the guest. It makes missing directories.
func (g *Guest) Write(t T, path, text string) {
	t.Helper()
	g.write(t, path, strings.NewReader(text), 0o644)
}

func (g *Guest) write(t T, path string, content io.Reader, mode os.FileMode) {
	t.Helper()
	script := fmt.Sprintf(`mkdir -p "${0%%/*}/" && cat > "$0" && chmod %o "$0"`, mode)
	if err := g.Exec(t.Context(), Command{Args: []string{"sh", "-c", script, path}, Stdin: content}); err != nil {
		t.Fatalf("copy to %s: %v", path, err)
	}
}

// CopyOut copies a file of the guest to the host.
func (g *Guest) CopyOut(t T, from, to string) {
	t.Helper()
	file, err := os.Create(to)
	if err != nil {
		t.Fatalf("%v", err)
	}
	if err := errors.Join(g.Exec(t.Context(), Command{Args: []string{"cat", from}, Stdout: file}),
		file.Close()); err != nil {
		t.Fatalf("copy from %s: %v", from, err)
	}
}

// Kill crashes the guest: nothing is flushed. PowerOn boots it again from its disks.
func (g *Guest) Kill() { g.PowerOff() }

// Restart boots a guest that was killed.
func (g *Guest) Restart(t T) {
	t.Helper()
	began := time.Now()
	if err := g.PowerOn(t.Context()); err != nil {
		t.Fatalf("%v", err)
	}
	t.Logf("%s is up again after %v", g.Name, time.Since(began).Round(100*time.Millisecond))
}

// Shrink reduces the memory of a node of a guest that is switched off, as a broken memory module or a kernel at another
// address would. The guest boots with that memory from then on.
func (g *Guest) Shrink(t T, node int, by unit.Bytes) {
	t.Helper()
	if g.process != nil {
		t.Fatalf("shrink node %d of %s: it runs", node, g.Name)
	}
	if err := g.memory.shrink(node, by); err != nil {
		t.Fatalf("shrink %s: %v", g.Name, err)
	}
}

// Freeze stops all CPUs of the guest: its clocks stand still, its network card does not answer.
func (g *Guest) Freeze(t T) { t.Helper(); g.sendQMP(t, "stop", nil) }

// Thaw continues a frozen guest. Its clocks are then behind by the time that it was frozen, as after a hypervisor's
// pause.
func (g *Guest) Thaw(t T) { t.Helper(); g.sendQMP(t, "cont", nil) }

// CutNetwork disconnects the guest's network cards. Commands still work.
func (g *Guest) CutNetwork(t T) { t.Helper(); g.setLinks(t, false) }

// RestoreNetwork connects the network cards again.
func (g *Guest) RestoreNetwork(t T) { t.Helper(); g.setLinks(t, true) }

func (g *Guest) setLinks(t T, up bool) {
	t.Helper()
	names := []string{network}
	if g.port != nil {
		names = append(names, peers)
	}
	for _, name := range names {
		g.sendQMP(t, "set_link", map[string]any{"name": name, "up": up})
	}
}

func (g *Guest) sendQMP(t T, command string, arguments map[string]any) {
	t.Helper()
	if g.process == nil {
		t.Fatalf("%s %s: it is switched off", command, g.Name)
	}
	if err := g.process.monitor.do(command, arguments, nil); err != nil {
		t.Fatalf("%v", err)
	}
}

// OfflineCPU switches off a CPU of the running kernel. CPU 0 cannot be switched off.
func (g *Guest) OfflineCPU(t T, cpu int) { t.Helper(); g.switchCPU(t, cpu, "0") }

// OnlineCPU switches on a CPU that OfflineCPU switched off.
func (g *Guest) OnlineCPU(t T, cpu int) { t.Helper(); g.switchCPU(t, cpu, "1") }

func (g *Guest) switchCPU(t T, cpu int, to string) {
	t.Helper()
	g.Run(t, "sh", "-c", fmt.Sprintf("echo %s > /sys/devices/system/cpu/cpu%d/online", to, cpu))
}

// Forward forwards a port of the host's loopback interface to the same port of the guest's, through the network card,
// so that CutNetwork interrupts it. It lasts until the guest is switched off.
func (g *Guest) Forward(t T, port int) {
	t.Helper()
	g.Publish(t, port)
	g.Start(t, Command{Args: []string{wire.Program, "forward", fmt.Sprintf("%s:%d", g.IP, port),
		fmt.Sprintf("127.0.0.1:%d", port)}})
}

// Publish is Forward to the same port of the guest's card, for a program that listens there.
func (g *Guest) Publish(t T, port int) { t.Helper(); g.PublishAs(t, port, port) }

// PublishAs is Publish to another port of the guest's card, for guests that listen on the same one.
func (g *Guest) PublishAs(t T, here, there int) {
	t.Helper()
	if g.process == nil {
		t.Fatalf("forward port %d to %s: it is switched off", here, g.Name)
	}
	if err := g.process.monitor.human(fmt.Sprintf("hostfwd_add %s tcp:127.0.0.1:%d-%s:%d", network, here, g.IP,
		there)); err != nil {
		t.Fatalf("%v", err)
	}
}

// FillDisk fills the file system of a directory until only leave is free, with one file there, whose path it returns.
// Removing the file frees the space again.
func (g *Guest) FillDisk(t T, dir string, leave unit.Bytes) string {
	t.Helper()
	path := filepath.Join(dir, "filled-by-the-lab")
	const script = `free=$(stat -f -c '%a * %S' "$0") && fallocate -l $(( $free - $2 )) "$1"`
	g.Run(t, "sh", "-c", script, dir, path, fmt.Sprint(int64(leave)))
	return path
}

// SetClock sets the guest's clock while it runs. Options.Time sets it before the first instruction.
func (g *Guest) SetClock(t T, now time.Time) {
	t.Helper()
	g.Run(t, "date", "-s", fmt.Sprintf("@%d.%09d", now.Unix(), now.Nanosecond()))
}
