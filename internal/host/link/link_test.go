package link

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// apart runs a test in a network namespace of its own.
func apart(t *testing.T, test func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes a network namespace")
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Error(err)
			return
		}
		test()
	}()
	<-done
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// TestRoutes: routes are added, replaced and deleted, each twice. Routes of other programs are not touched.
func TestRoutes(t *testing.T) {
	apart(t, func() {
		must(t, SetUp("lo"))
		for range 2 {
			must(t, EnsureBridge("b0", netip.MustParsePrefix("192.168.7.1/24")))
		}
		a := Route{To: netip.MustParsePrefix("10.1.0.0/24"), Via: netip.MustParseAddr("192.168.7.2")}
		b := Route{To: netip.MustParsePrefix("10.2.0.0/24"), Via: netip.MustParseAddr("192.168.7.3")}
		for range 2 {
			must(t, AddRoute(a))
			must(t, AddRoute(b))
		}
		a.Via = netip.MustParseAddr("192.168.7.4")
		must(t, AddRoute(a))
		if got, err := Routes(); err != nil || len(got) != 2 || !slices.Contains(got, a) || !slices.Contains(got, b) {
			t.Errorf("routes %v, %v", got, err)
		}
		if err := AddRoute(Route{To: a.To, Via: netip.MustParseAddr("203.0.113.1")}); err == nil {
			t.Error("a route through a machine of another network is added")
		}
		must(t, DeleteRoutes(netip.MustParsePrefix("10.1.0.0/16")))
		for range 2 {
			must(t, DeleteRoute(b))
		}
		if got, err := Routes(); err != nil || len(got) > 0 {
			t.Errorf("routes %v, %v", got, err)
		}
		attached, err := Attached("none")
		if want := netip.MustParsePrefix("192.168.7.0/24"); err != nil || !slices.Contains(attached, want) {
			t.Errorf("attached %v, %v", attached, err)
		}
		if attached, err := Attached("b0"); err != nil || slices.Contains(attached, netip.MustParsePrefix("192.168.7.0/24")) {
			t.Errorf("attached without the bridge: %v, %v", attached, err)
		}
	})
}

// TestBridge: a bridge is deleted with its ports, its addresses can be replaced, and another link is not taken for a
// bridge.
func TestBridge(t *testing.T) {
	apart(t, func() {
		if err := CreateBridge("lo"); err == nil || !strings.Contains(err.Error(), "is not a bridge") {
			t.Errorf("a bridge called lo: %v", err)
		}
		must(t, EnsureBridge("b0", netip.MustParsePrefix("10.1.0.1/16")))
		must(t, EnsureBridge("b0", netip.MustParsePrefix("10.1.3.1/24")))
		must(t, KeepAddresses("b0", netip.MustParsePrefix("10.1.3.0/24")))
		must(t, KeepAddresses("gone", netip.MustParsePrefix("10.1.3.0/24")))
		if attached, err := Attached(""); err != nil || !slices.Contains(attached, netip.MustParsePrefix("10.1.3.0/24")) ||
			slices.Contains(attached, netip.MustParsePrefix("10.1.0.0/16")) {
			t.Errorf("attached %v, %v", attached, err)
		}
		if n, err := Bridges(); err != nil || n != 1 {
			t.Errorf("%d bridges, %v", n, err)
		}
		for range 2 {
			must(t, DeleteBridge("b0"))
		}
		if n, err := Bridges(); err != nil || n != 0 {
			t.Errorf("%d bridges, %v", n, err)
		}
	})
}

// TestOverlapping: an interface is found by any overlap of its network, except the one that is left out.
func TestOverlapping(t *testing.T) {
	apart(t, func() {
		must(t, SetUp("lo"))
		must(t, EnsureBridge("b0", netip.MustParsePrefix("192.168.7.1/24")))
		for network, want := range map[string]string{
			"192.168.0.0/16": "b0 192.168.7.1/24",
			"192.168.7.8/30": "b0 192.168.7.1/24",
			"127.0.0.0/16":   "lo 127.0.0.1/8",
			"192.168.8.0/24": "",
		} {
			got := ""
			o, err := Overlapping(netip.MustParsePrefix(network), "")
			if o != nil {
				got = o.Link + " " + o.Address.String()
			}
			if err != nil || got != want {
				t.Errorf("%s overlaps %q, %v, want %q", network, got, err, want)
			}
		}
		if o, err := Overlapping(netip.MustParsePrefix("192.168.7.0/24"), "b0"); o != nil || err != nil {
			t.Errorf("an interface that is left out: %v, %v", o, err)
		}
	})
}

// TestStart: a program runs in the named namespace, and the process that starts it stays in its own.
func TestStart(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes a network namespace")
	}
	name := fmt.Sprintf("link-start-%d", os.Getpid())
	home, err := Namespace("")
	must(t, err)
	made := map[string]bool{}
	for range 2 { // a namespace that is made again is another one
		must(t, EnsureNamespace(name))
		there, err := Namespace(name)
		must(t, err)
		if there == home {
			t.Errorf("namespace %s is the test's own", there)
		}
		made[there] = true
		for namespace, want := range map[string]string{"": home, name: there} {
			var said strings.Builder
			program := exec.Command("stat", "-L", "-c", "%d:%i", "/proc/self/ns/net")
			program.Stdout = &said
			must(t, Start(namespace, program))
			must(t, program.Wait())
			if got := strings.TrimSpace(said.String()); got != want {
				t.Errorf("in %q: namespace %s, want %s", namespace, got, want)
			}
		}
		must(t, DeleteNamespace(name))
	}
	threads, err := filepath.Glob("/proc/self/task/*/ns/net")
	must(t, err)
	for _, thread := range threads {
		var is unix.Stat_t
		if unix.Stat(thread, &is) == nil && made[fmt.Sprintf("%d:%d", is.Dev, is.Ino)] {
			t.Errorf("%s has not returned", thread)
		}
	}
	if err := Start(name, exec.Command("true")); err == nil {
		t.Error("a program was started in a namespace that does not exist")
	}
}

// TestNamespace: a namespace is made, connected and deleted, each twice.
func TestNamespace(t *testing.T) {
	name := fmt.Sprintf("link-%d", os.Getpid())
	apart(t, func() {
		defer func() {
			for range 2 {
				must(t, DeleteNamespace(name))
			}
		}()
		must(t, EnsureBridge("b0", netip.MustParsePrefix("192.168.7.1/24")))
		for range 2 {
			must(t, EnsureNamespace(name))
			must(t, Connect(Cable{
				Bridge:    "b0",
				Here:      "here",
				Namespace: name,
				There:     "eth0",
				Address:   netip.MustParsePrefix("192.168.7.2/24"),
				Gateway:   netip.MustParseAddr("192.168.7.1"),
			}))
		}
		if in, err := In(name); err != nil || in {
			t.Errorf("in it already: %v, %v", in, err)
		}
		listening, err := net.Listen("tcp", "192.168.7.1:0") // a socket of this thread's namespace
		if err != nil {
			t.Error(err)
			return
		}
		defer listening.Close()
		answer := make(chan error)
		go func() {
			runtime.LockOSThread()
			if err := Enter(name); err != nil {
				answer <- err
				return
			}
			conn, err := net.Dial("tcp", listening.Addr().String())
			if err == nil {
				conn.Close()
			}
			answer <- err
		}()
		must(t, <-answer)
	})
	if err := Enter(name); err == nil {
		t.Error("a namespace that was deleted can be entered")
	}
}

// TestWhole: a list that changes while it is read is read again, within a bound; other errors are returned at once.
func TestWhole(t *testing.T) {
	for _, c := range []struct {
		interrupted int
		then        error
		reads       int
		want        error
	}{
		{0, nil, 1, nil},
		{3, nil, 4, nil},
		{2, unix.EPERM, 3, unix.EPERM},
		{listsMax, nil, listsMax, netlink.ErrDumpInterrupted},
	} {
		reads := 0
		all, err := whole(func() ([]int, error) {
			reads++
			if reads <= c.interrupted {
				return []int{1}, netlink.ErrDumpInterrupted
			}
			return []int{1, 2}, c.then
		})
		if reads != c.reads || !errors.Is(err, c.want) || err == nil && len(all) != 2 {
			t.Errorf("%d times interrupted: %d reads, %v, %v; want %d reads and %v", c.interrupted, reads, all, err,
				c.reads, c.want)
		}
	}
}
