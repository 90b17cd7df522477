package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/plimsoll-dev/plimsoll/internal/core/devicemanager"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/test/cost"
	"github.com/plimsoll-dev/plimsoll/test/deviceplugin"
)

// heard is a Listener that sends each call as text.
type heard chan string

func (h heard) Connected(p *Plugin, o devicemanager.Options) {
	h <- fmt.Sprintf("connected %s %+v", p.Resource, o)
}
func (h heard) Listed(p *Plugin, d []numa.Device) { h <- fmt.Sprintf("listed %s %+v", p.Resource, d) }
func (h heard) Lost(p *Plugin, _ error)           { h <- "lost " + p.Resource }

func (h heard) expect(t *testing.T, want ...string) {
	t.Helper()
	for _, w := range want {
		select {
		case got := <-h:
			if got != w {
				t.Fatalf("heard %q, want %q", got, w)
			}
		case <-t.Context().Done():
			t.Fatalf("not heard: %q", w)
		}
	}
}

// serve listens and serves until the returned function is called.
func serve(t *testing.T, dir string, l Listener) func() {
	t.Helper()
	s, err := Listen(dir, l)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx) }()
	stop := func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("serve: %v", err)
		}
		ended <- context.Canceled
	}
	t.Cleanup(stop)
	return stop
}

func TestListen(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("d", 120), "device-plugins") // too long for a socket's path
	if err := os.MkdirAll(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	stale, err := net.Listen("unix", "/proc/self/fd/"+openDir(t, dir)+"/stale.sock")
	if err != nil {
		t.Fatal(err)
	}
	defer stale.Close()
	if err := os.WriteFile(filepath.Join(dir, "kubelet_internal_checkpoint"), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	stop := serve(t, dir, make(heard, 10))
	names := func() string {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, e := range entries {
			out = append(out, e.Name())
		}
		return strings.Join(out, " ")
	}
	if got := names(); got != "kubelet.sock kubelet_internal_checkpoint" {
		t.Errorf("directory has %s", got)
	}
	if info, err := os.Stat(filepath.Join(dir, "kubelet.sock")); err != nil || info.Mode() != os.ModeSocket|0o600 {
		t.Errorf("kubelet.sock: %v %v", info.Mode(), err)
	}
	stop()
	if got := names(); got != "kubelet_internal_checkpoint" {
		t.Errorf("after the end the directory has %s", got)
	}
}

// TestModes: a program with access to the socket can offer devices to any pod.
func TestModes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "device-plugins")
	serve(t, dir, make(heard, 10))
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm()&0o027 != 0 {
		t.Errorf("directory: %v %v", info.Mode(), err)
	}
}

func openDir(t *testing.T, dir string) string {
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return fmt.Sprint(f.Fd())
}

// TestOrder: one plugin replaces another.
func TestOrder(t *testing.T) {
	dir, h := t.TempDir(), make(heard, 100)
	serve(t, dir, h)
	run := func(endpoint, id string) func() {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		p := deviceplugin.New(deviceplugin.Config{Dir: dir, Resource: "a.b/c", Endpoint: endpoint,
			Devices: []deviceplugin.Device{{ID: id, Nodes: []int64{1, 2}}}})
		go func() { ended <- p.Run(ctx) }()
		return func() {
			cancel()
			<-ended
		}
	}
	stopFirst := run("one.sock", "d1")
	h.expect(t, "connected a.b/c {Prefers:false PreStart:false}", "listed a.b/c [{ID:d1 Nodes:[1 2] Healthy:true}]")
	stopSecond := run("two.sock", "d2")
	h.expect(t, "connected a.b/c {Prefers:false PreStart:false}", "listed a.b/c [{ID:d2 Nodes:[1 2] Healthy:true}]")
	stopFirst() // it was replaced, so Lost is not called
	stopSecond()
	h.expect(t, "lost a.b/c")
}

// TestAdd: a plugin that registers elsewhere, in plugins_registry, is connected to at the path of its socket.
func TestAdd(t *testing.T) {
	elsewhere, h := t.TempDir(), make(heard, 100)
	s, err := Listen(t.TempDir(), h)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	go func() { ended <- s.Serve(ctx) }()
	p := deviceplugin.New(deviceplugin.Config{Dir: elsewhere, Resource: "a.b/c", Endpoint: "one.sock",
		Devices: []deviceplugin.Device{{ID: "d1"}}})
	go func() { ended <- p.Run(ctx) }()
	defer func() {
		cancel()
		<-ended
		<-ended
	}()
	path := filepath.Join(elsewhere, "one.sock")
	for err = s.Add(ctx, "a.b/c", path); err != nil; err = s.Add(ctx, "a.b/c", path) { // until it listens
		if ctx.Err() != nil {
			t.Fatal(err)
		}
	}
	h.expect(t, "connected a.b/c {Prefers:false PreStart:false}", "listed a.b/c [{ID:d1 Nodes:[] Healthy:true}]")
	s.Remove("a.b/c", filepath.Join(elsewhere, "other.sock")) // not the path of this plugin
	s.Remove("a.b/c", path)
	h.expect(t, "lost a.b/c")
	if err := s.Add(ctx, "gpu", path); err == nil ||
		!strings.HasPrefix(err.Error(), `resource name "gpu": want a name with a domain`) {
		t.Error(err)
	}
	if err := os.Symlink(path, filepath.Join(elsewhere, "link.sock")); err != nil {
		t.Fatal(err)
	}
	if err := s.Add(ctx, "a.b/c", filepath.Join(elsewhere, "link.sock")); err == nil ||
		!strings.Contains(err.Error(), "a symbolic link, want the socket itself") {
		t.Error(err)
	}
}

// TestRegistersBeforeUs starts the plugin before the socket exists, many times. The plugin must always register.
func TestRegistersBeforeUs(t *testing.T) {
	dir, h := t.TempDir(), make(heard, 1000)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	p := deviceplugin.New(deviceplugin.Config{Dir: dir, Resource: "a.b/c", Devices: []deviceplugin.Device{{ID: "d"}}})
	go func() { ended <- p.Run(ctx) }()
	for range 20 {
		stop := serve(t, dir, h)
		for got := ""; !strings.HasPrefix(got, "listed"); got = <-h {
		}
		stop()
		for len(h) > 0 {
			<-h
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestRefused(t *testing.T) {
	dir := t.TempDir()
	outside := filepath.Join(t.TempDir(), "outside.sock")
	listener, err := net.Listen("unix", outside)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if err := os.Symlink(outside, filepath.Join(dir, "link.sock")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	h := make(heard, 10)
	serve(t, dir, h)
	const prefix = "rpc error: code = InvalidArgument desc = register device plugin: "
	for _, c := range []struct{ name, version, resource, endpoint, want string }{
		{"version", "v1alpha1", "a.b/c", "x.sock", prefix + `version "v1alpha1": this agent supports only v1beta1`},
		{"no domain", "", "gpu", "x.sock", prefix +
			`resource name "gpu": want a name with a domain of your own, like example.com/gpu`},
		{"our domain", "", "kubernetes.io/gpu", "x.sock",
			prefix + `resource name "kubernetes.io/gpu": the domain kubernetes.io is not for device plugins`},
		{"below our domain", "", "node.kubernetes.io/gpu", "x.sock",
			prefix + `resource name "node.kubernetes.io/gpu": the domain kubernetes.io is not for device plugins`},
		{"quota", "", "requests.a/b", "x.sock", prefix +
			`resource name "requests.a/b": names that begin with "requests." are those of quotas`},
		{"characters", "", "a.b/c d", "x.sock", prefix +
			`resource name "a.b/c d": name part must consist of alphanumeric characters`},
		{"directory", "", "a.b/c", "../outside.sock",
			prefix +
				`endpoint "../outside.sock": want the name of a socket in the directory of kubelet.sock, without a directory`},
		{"absolute", "", "a.b/c", outside, prefix + `endpoint "` + outside + `": want the name of a socket`},
		{"ours", "", "a.b/c", "kubelet.sock", prefix + `endpoint "kubelet.sock": that is the agent's own socket`},
		{"all at once", "v2", "gpu", "..", prefix +
			`version "v2": this agent supports only v1beta1; resource name "gpu": want a name with a domain of your own, like example.com/gpu; endpoint "..": want the name of the plugin's socket`},
		{"link", "", "a.b/c", "link.sock", "rpc error: code = Unavailable desc = connect to device plugin of a.b/c: " + dir +
			"/link.sock: not a socket but L---------"},
		{"file", "", "a.b/c", "file", "rpc error: code = Unavailable desc = connect to device plugin of a.b/c: " + dir +
			"/file: not a socket but ----------"},
		{"nobody", "", "a.b/c", "nobody.sock", "rpc error: code = Unavailable desc = connect to device plugin of a.b/c: " +
			dir + "/nobody.sock: statat nobody.sock: no such file or directory: it must listen there before it registers"},
	} {
		err := deviceplugin.New(deviceplugin.Config{Dir: dir, Version: c.version, Resource: c.resource,
			Endpoint: c.endpoint}).Register(t.Context())
		if err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s:\n got %v\nwant %s", c.name, err, c.want)
		}
	}
	if len(h) > 0 {
		t.Errorf("heard %q of a refused plugin", <-h)
	}
}

// FuzzCheck: every accepted endpoint is the name of a file directly in the directory.
func FuzzCheck(f *testing.F) {
	for _, endpoint := range []string{"x.sock", "../x.sock", "a/b", "", ".", "..", "kubelet.sock", "x\x00y", "/etc/passwd",
		"...", "\\..\\x"} {
		cost.Attack(f, "example.com/gpu", endpoint)
	}
	cost.Attack(f, "kubernetes.io/x", "x")
	cost.Attack(f, "a/b/c", "x")
	f.Fuzz(func(t *testing.T, resource, endpoint string) {
		defer cost.Spend(t, len(resource)+len(endpoint))()
		if check(&pluginapi.RegisterRequest{Version: pluginapi.Version, ResourceName: resource, Endpoint: endpoint}) != nil {
			return
		}
		if joined := filepath.Join("/dir", endpoint); filepath.Dir(joined) != "/dir" || filepath.Base(joined) != endpoint ||
			endpoint == "kubelet.sock" {
			t.Errorf("endpoint %q is accepted", endpoint)
		}
		if domain, name, ok := strings.Cut(resource, "/"); !ok || domain == "" || name == "" || strings.Contains(name, "/") {
			t.Errorf("resource %q is accepted", resource)
		}
	})
}
