package pluginregistry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/plimsoll-dev/plimsoll/internal/core/registration"
	"github.com/plimsoll-dev/plimsoll/test/csidriver"
)

// handler is a Handler that sends each call as text.
type handler struct {
	calls chan string
	fail  func(registration.Plugin) error
}

func (h handler) Register(_ context.Context, p registration.Plugin) error {
	h.calls <- "register " + p.Name
	return h.fail(p)
}

func (h handler) Unregister(p registration.Plugin) { h.calls <- "unregister " + p.Name }

func expect(t *testing.T, from chan string, want ...string) {
	t.Helper()
	for _, w := range want {
		select {
		case got := <-from:
			if got != w {
				t.Fatalf("got %q, want %q", got, w)
			}
		case <-t.Context().Done():
			t.Fatalf("nothing came, want %q", w)
		}
	}
}

// bench is a running Registry with a directory.
type bench struct {
	t        *testing.T
	dir      string // of the drivers' own sockets
	registry string
	calls    chan string
	*Registry
}

func run(t *testing.T) *bench {
	b := &bench{t: t, dir: t.TempDir(), calls: make(chan string, 100)}
	b.registry = filepath.Join(b.dir, "plugins_registry")
	fail := func(p registration.Plugin) error {
		if strings.HasPrefix(p.Name, "bad") {
			return errors.New("no good")
		}
		return nil
	}
	b.Registry = New(Options{
		Dir: b.registry, Handlers: map[registration.Kind]Handler{registration.CSI: handler{b.calls, fail}},
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	return b
}

func (b *bench) start(registry string, a csidriver.Answers) *csidriver.Driver {
	b.t.Helper()
	if err := os.MkdirAll(registry, 0o750); err != nil {
		b.t.Fatal(err)
	}
	d, err := csidriver.Start(b.dir, registry, a)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(d.Stop)
	return d
}

// TestLife: a driver registers, comes back, and goes. One that hangs in each call does not delay it.
func TestLife(t *testing.T) {
	b := run(t)
	hang := func(ctx context.Context, _ string) error {
		<-ctx.Done()
		return ctx.Err()
	}
	b.start(b.registry, csidriver.Answers{Name: "hangs", Fail: hang})
	d := b.start(filepath.Join(b.registry, "below", "there"), csidriver.Answers{Name: "a"})
	expect(t, b.calls, "register a")
	expect(t, d.Told, "")
	for range 5 {
		if err := d.Register(); err != nil { // removes the socket and makes it again, perhaps between two looks
			t.Fatal(err)
		}
		expect(t, b.calls, "unregister a", "register a")
		expect(t, d.Told, "")
	}
	hanging := filepath.Join(b.registry, "hangs-reg.sock")
	want := fmt.Sprint([]string{d.Registration + " actual_state_of_world", d.Registration + " desired_state_of_world",
		hanging + " desired_state_of_world"})
	for got := ""; got != want; got = b.counted() { // what the driver was told is recorded a moment later
		if t.Context().Err() != nil {
			t.Fatalf("counted %s, want %s", got, want)
		}
	}
	if err := d.Unregister(); err != nil {
		t.Fatal(err)
	}
	expect(t, b.calls, "unregister a")
}

// TestRenamed: a driver registers with another name at the same socket, and then with its first one again. Each time it
// is unregistered by the name that it had. A name that another driver has is refused until that one has gone.
func TestRenamed(t *testing.T) {
	b := run(t)
	d := b.start(b.registry, csidriver.Answers{Name: "a"})
	expect(t, b.calls, "register a")
	expect(t, d.Told, "")
	rename := func(name string) {
		t.Helper()
		d.Set(func(a *csidriver.Answers) { a.Name = name })
		if err := d.Register(); err != nil {
			t.Fatal(err)
		}
	}
	rename("b")
	expect(t, b.calls, "unregister a", "register b")
	expect(t, d.Told, "")
	rename("a")
	expect(t, b.calls, "unregister b", "register a")
	expect(t, d.Told, "")
	other := b.start(b.registry, csidriver.Answers{Name: "c"})
	expect(t, b.calls, "register c")
	expect(t, other.Told, "")
	rename("c")
	expect(t, b.calls, "unregister a")
	expect(t, d.Told, "CSIPlugin c is registered already, at "+other.Registration+" with version 1.0.0: this one, with "+
		"version 1.0.0, is registered when that one has gone")
	if err := other.Unregister(); err != nil {
		t.Fatal(err)
	}
	expect(t, b.calls, "unregister c", "register c")
	expect(t, d.Told, "")
}

// counted returns the rows of the kubelet's metric.
func (b *bench) counted() string {
	rows := prometheus.NewPedanticRegistry()
	rows.MustRegister(b.Registry)
	families, err := rows.Gather()
	if err != nil {
		b.t.Fatal(err)
	}
	var out []string
	for _, f := range families {
		for _, m := range f.GetMetric() {
			out = append(out, m.GetLabel()[0].GetValue()+" "+m.GetLabel()[1].GetValue())
		}
	}
	return fmt.Sprint(out)
}

// TestRefused: each plugin is told why it is not registered. Other files, and sockets without a listener, are left
// alone.
func TestRefused(t *testing.T) {
	b := run(t)
	outside := filepath.Join(b.dir, "outside")
	target := b.start(outside, csidriver.Answers{Name: "linked"})
	if err := os.MkdirAll(b.registry, 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target.Registration, filepath.Join(b.registry, "linked.sock")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(b.registry, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	b.start(filepath.Join(b.registry, ".hidden"), csidriver.Answers{Name: "hidden"})
	for _, test := range []struct {
		a    csidriver.Answers
		want string
	}{
		{csidriver.Answers{Name: "bad"}, "CSIPlugin bad at " + filepath.Join(b.dir, "bad.sock") + ": no good"},
		{csidriver.Answers{Name: "x", Kind: "DRAPlugin"},
			"kind DRAPlugin is not supported: this node's agent does not prepare claimed devices (dynamic resource allocation)"},
		{csidriver.Answers{Name: "gpu", Kind: "DevicePlugin", Versions: []string{"v1beta1"}},
			"this agent has no use for plugins of kind DevicePlugin"},
		{csidriver.Answers{Name: "old", Versions: []string{"0.3.0"}},
			`supported versions "0.3.0": want one of CSI 1, like 1.0.0`},
	} {
		expect(t, b.start(b.registry, test.a).Told, test.want)
	}
	// Each of the refused ones is tried again; the hidden one and the one behind the link never are.
	good := b.start(b.registry, csidriver.Answers{Name: "good"})
	expect(t, good.Told, "")
	for len(b.calls) > 0 {
		if call := <-b.calls; strings.Contains(call, "hidden") || strings.Contains(call, "linked") {
			t.Error(call)
		}
	}
	if len(target.Told) > 0 {
		t.Errorf("the driver behind a link was told %q", <-target.Told)
	}
}

// TestForeign: the log says which socket is a link or belongs to another user, and which file is no socket, and what to
// do about it. A driver beside them registers; each of the three does once there is a proper socket.
func TestForeign(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("gives a socket to another user: run as root")
	}
	log := &logged{}
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(log, nil)))
	t.Cleanup(func() { slog.SetDefault(before) })
	b := run(t)
	link, theirs, file := "link-reg.sock", "theirs-reg.sock", "file-reg.sock"
	in := func(name string) string { return filepath.Join(b.registry, name) }
	outside := filepath.Join(b.dir, "outside")
	b.start(outside, csidriver.Answers{Name: "link"})
	b.start(outside, csidriver.Answers{Name: "theirs"})
	if err := os.MkdirAll(b.registry, 0o750); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{
		os.Chown(filepath.Join(outside, theirs), 1234, 0),
		os.Rename(filepath.Join(outside, theirs), in(theirs)),
		os.Symlink(filepath.Join(outside, link), in(link)),
		os.WriteFile(in(file), nil, 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	log.await(t, in(link)+": a symbolic link, want the socket itself: have the program make it at this path")
	log.await(t, in(theirs)+": a socket of user 1234, want one of root or of the agent's user 0: run the program as one "+
		"of them, or chown the socket")
	log.await(t, "it is not a socket, want the socket by which a plugin registers: remove the file if it was put there "+
		`by mistake" path=`+in(file))
	good := b.start(b.registry, csidriver.Answers{Name: "good"})
	expect(t, b.calls, "register good")
	expect(t, good.Told, "")
	if err := errors.Join(os.Chown(in(theirs), 0, 0), os.Remove(in(file))); err != nil {
		t.Fatal(err)
	}
	expect(t, b.calls, "register theirs") // after its back-off
	b.start(b.registry, csidriver.Answers{Name: "file"})
	expect(t, b.calls, "register file")
	if err := os.Rename(filepath.Join(outside, link), in(link)); err != nil {
		t.Fatal(err)
	}
	expect(t, b.calls, "register link")
	if n := log.count("not a socket, want"); n != 1 {
		t.Errorf("the file is logged %d times", n)
	}
}

// logged keeps what is logged.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(line)
}

func (l *logged) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), text)
}

// await waits until a text is logged.
func (l *logged) await(t *testing.T, text string) {
	t.Helper()
	for range 1000 {
		if l.count(text) > 0 {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("not logged within 10 s: %s", text)
}
