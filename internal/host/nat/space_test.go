package nat

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// space is a network namespace: a goroutine whose thread is in it, and which ends with the thread.
type space struct {
	do  chan func()
	tid int
}

func newSpace(t *testing.T) *space {
	t.Helper()
	s := &space{do: make(chan func())}
	failed := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		s.tid = unix.Gettid()
		failed <- unix.Unshare(unix.CLONE_NEWNET)
		for f := range s.do {
			f()
		}
	}()
	if err := <-failed; err != nil {
		t.Skipf("a network namespace of our own: %v", err)
	}
	t.Cleanup(func() { close(s.do) })
	s.ip(t, "link set lo up")
	return s
}

// in runs f in the namespace and returns its error.
func (s *space) in(f func() error) error {
	done := make(chan error)
	s.do <- func() { done <- f() }
	return <-done
}

func (s *space) ip(t *testing.T, args string) {
	t.Helper()
	var out []byte
	if err := s.in(func() (err error) {
		out, err = exec.Command("ip", strings.Fields(args)...).CombinedOutput()
		return err
	}); err != nil {
		t.Fatalf("ip %s: %v: %s", args, err, out)
	}
}

// join2 connects two namespaces by a pair of links with addresses.
func join2(t *testing.T, a *space, nameA, addressA string, b *space, nameB, addressB string) {
	t.Helper()
	a.ip(t, fmt.Sprintf("link add %s type veth peer name %s netns %d", nameA, nameB, b.tid))
	for _, end := range []struct {
		s             *space
		name, address string
	}{{a, nameA, addressA}, {b, nameB, addressB}} {
		end.s.ip(t, fmt.Sprintf("addr add %s dev %s", end.address, end.name))
		end.s.ip(t, fmt.Sprintf("link set %s up", end.name))
	}
}

// serve answers every client at an address with a name, over TCP or UDP.
func (s *space) serve(t *testing.T, network, address, name string) io.Closer {
	t.Helper()
	var closer io.Closer
	listen := func() error {
		l, err := net.Listen(network, address)
		if closer = l; err == nil {
			go answer(l, name)
		}
		return err
	}
	if network == "udp" {
		listen = func() error {
			conn, err := net.ListenPacket(network, address)
			if closer = conn; err == nil {
				go echo(conn, name)
			}
			return err
		}
	}
	if err := s.in(listen); err != nil {
		t.Fatalf("listen on %s %s: %v", network, address, err)
	}
	t.Cleanup(func() { closer.Close() })
	return closer
}

func answer(l net.Listener, name string) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		io.WriteString(conn, name)
		conn.Close()
	}
}

func echo(conn net.PacketConn, name string) {
	for b := make([]byte, 64); ; {
		_, from, err := conn.ReadFrom(b)
		if err != nil {
			return
		}
		conn.WriteTo([]byte(name), from)
	}
}

// ask returns the name that answers at an address, or "nobody".
func (s *space) ask(network, address string) string {
	answer := make([]byte, 64)
	n := 0
	err := s.in(func() error {
		conn, err := net.DialTimeout(network, address, 5*time.Second)
		if err != nil {
			return err
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(5 * time.Second))
		if network == "udp" {
			conn.Write([]byte("?"))
		}
		n, err = conn.Read(answer)
		return err
	})
	if err != nil {
		return "nobody"
	}
	return string(answer[:n])
}

// bridge is the link of the pods: an ordinary one, since the table needs no more of a bridge.
const bridge = "pods0"

// machine is a host with a pod and a client on its network, each a network namespace.
type machine struct{ host, pod, remote *space }

func newMachine(t *testing.T) machine {
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes network namespaces")
	}
	host := newSpace(t)
	pod := newSpace(t)
	remote := newSpace(t)
	join2(t, host, bridge, "10.85.0.1/16", pod, "eth0", "10.85.0.2/16")
	join2(t, host, "net0", "192.0.2.1/24", remote, "net0", "192.0.2.2/24")
	pod.ip(t, "route add default via 10.85.0.1")
	err := host.in(func() error {
		// in the thread's namespace
		if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0); err != nil {
			return err
		}
		return Write(Network{Bridge: bridge, Pods: netip.MustParsePrefix("10.85.0.0/16")})
	})
	if errors.Is(err, ErrUnsupported) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	return machine{host: host, pod: pod, remote: remote}
}

func (m machine) open(owner string, ports ...Port) error {
	return m.host.in(func() error { return Open(bridge, owner, ports) })
}

// leads returns a port that leads to port 80 of the pod.
func leads(protocol, hostIP string, number uint16) Port {
	p := Port{Protocol: protocol, HostPort: number, Pod: netip.MustParseAddr("10.85.0.2"), PodPort: 80}
	if hostIP != "" {
		p.HostIP = netip.MustParseAddr(hostIP)
	}
	return p
}

func (m machine) keep(t *testing.T) {
	t.Helper()
	if err := m.host.in(func() error { return UpdateListeners(bridge) }); err != nil {
		t.Fatal(err)
	}
}

// want asks from the network, from the machine to its own address, and over its loopback.
func (m machine) want(t *testing.T, when, network string, number int, fromNet, fromHost, overLoopback string) {
	t.Helper()
	for _, c := range []struct {
		from          *space
		what, at, who string
	}{
		{m.remote, "the network", "192.0.2.1", fromNet},
		{m.host, "the machine", "192.0.2.1", fromHost},
		{m.host, "the loopback", "127.0.0.1", overLoopback},
	} {
		if who := c.from.ask(network, fmt.Sprintf("%s:%d", c.at, number)); who != c.who {
			t.Errorf("%s: %s %d from %s is answered by %s, want %s", when, network, number, c.what, who, c.who)
		}
	}
}

// TestWhosePort: a host port leads to the pod from everywhere. A port on which a process of the machine listens stays
// with that process, whether it listened first or not, over the network and on the machine itself.
func TestWhosePort(t *testing.T) {
	m := newMachine(t)
	m.pod.serve(t, "tcp4", "0.0.0.0:80", "pod")
	m.pod.serve(t, "udp", "0.0.0.0:80", "pod")

	if err := m.open("a", leads("tcp", "", 8080), leads("udp", "", 8080)); err != nil {
		t.Fatal(err)
	}
	m.want(t, "a free port", "tcp", 8080, "pod", "pod", "pod")
	m.want(t, "a free port", "udp", 8080, "pod", "pod", "pod")

	// A listener on all IPv4 addresses, or on all IPv6 addresses, has the whole port.
	m.host.serve(t, "tcp4", "0.0.0.0:6443", "host")
	m.host.serve(t, "tcp", "[::]:6444", "host")
	m.host.serve(t, "udp", "0.0.0.0:53", "host")
	for _, p := range []Port{leads("tcp", "", 6443), leads("tcp", "127.0.0.1", 6443), leads("tcp", "", 6444),
		leads("udp", "", 53)} {
		if err := m.open("b", leads("tcp", "", 9999), p); !errors.Is(err, ErrTaken) {
			t.Errorf("%v was opened: %v", p, err)
		}
	}
	m.want(t, "a port refused", "tcp", 6443, "host", "host", "host")
	m.want(t, "opened together with one refused", "tcp", 9999, "nobody", "nobody", "nobody")
	if err := m.open("c", leads("tcp", "", 53)); err != nil {
		t.Errorf("another protocol's listener takes the port: %v", err)
	}

	// A listener on one address keeps it; the pod gets the others.
	m.host.serve(t, "tcp4", "127.0.0.1:2379", "host")
	if err := m.open("d", leads("tcp", "127.0.0.1", 2379)); !errors.Is(err, ErrTaken) {
		t.Errorf("the listener's own address was opened: %v", err)
	}
	if err := m.open("d", leads("tcp", "", 2379)); err != nil {
		t.Fatal(err)
	}
	m.want(t, "a port shared by address", "tcp", 2379, "pod", "pod", "host")

	// A listener that starts later gets the port: at once for clients over the network, and for the machine itself after
	// the next UpdateListeners.
	late := m.host.serve(t, "tcp4", "0.0.0.0:8080", "host")
	if who := m.remote.ask("tcp", "192.0.2.1:8080"); who != "host" {
		t.Errorf("a later listener's client from the network reaches %s", who)
	}
	m.keep(t)
	m.keep(t)
	m.want(t, "a later listener", "tcp", 8080, "host", "host", "host")
	m.want(t, "a later listener of another protocol", "udp", 8080, "pod", "pod", "pod")
	late.Close()
	m.keep(t)
	m.want(t, "a listener that went", "tcp", 8080, "pod", "pod", "pod")

	for _, owner := range []string{"a", "c", "d"} {
		if err := m.host.in(func() error { return Close(bridge, owner) }); err != nil {
			t.Error(err)
		}
	}
	m.keep(t)
	err := m.host.in(func() error {
		got, err := count(bridge)
		if got != "api-host 0, api-pods 0, guard 1, hostports 0, listeners 0, output 2, postrouting 3, prerouting 3" {
			t.Errorf("after the last pod: %s", got)
		}
		return errors.Join(err, Delete(bridge), UpdateListeners(bridge))
	})
	if err != nil {
		t.Error(err)
	}
}

// TestForwards: pods and the machine reach a server on the machine's loopback at the forwarded addresses. Nobody else
// does, and no other address or port of the loopback is reached.
func TestForwards(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes network namespaces")
	}
	host := newSpace(t)
	pod := newSpace(t)
	remote := newSpace(t)
	const bridge = "pods0"
	join2(t, host, bridge, "10.85.0.1/16", pod, "eth0", "10.85.0.2/16")
	join2(t, host, "net0", "192.0.2.1/24", remote, "net0", "192.0.2.2/24")
	for _, s := range []struct {
		space *space
		via   string
	}{{pod, "10.85.0.1"}, {remote, "192.0.2.1"}, {host, "192.0.2.2"}} {
		s.space.ip(t, "route add default via "+s.via)
	}
	to := netip.MustParseAddrPort("127.0.0.1:6443")
	network := Network{Bridge: bridge, Pods: netip.MustParsePrefix("10.85.0.0/16"), Forwards: []Forward{
		{From: netip.MustParseAddrPort("10.96.0.1:443"), To: to},
		{From: netip.MustParseAddrPort("10.85.0.1:6443"), To: to},
		{From: netip.MustParseAddrPort("10.96.0.2:443"), To: to, PodsOnly: true},
	}}
	write := func() {
		t.Helper()
		err := host.in(func() error {
			return errors.Join(os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0), Write(network))
		})
		if errors.Is(err, ErrUnsupported) {
			t.Skip(err)
		} else if err != nil {
			t.Fatal(err)
		}
	}
	write()
	write() // everything exists
	host.serve(t, "tcp4", "127.0.0.1:6443", "server")
	host.serve(t, "tcp4", "127.0.0.1:6444", "other")
	for _, c := range []struct {
		from     *space
		who      string
		at, want string
	}{
		{pod, "a pod", "10.96.0.1:443", "server"},
		{pod, "a pod", "10.85.0.1:6443", "server"},
		{pod, "a pod", "10.85.0.1:6444", "nobody"},
		{pod, "a pod", "10.96.0.1:6443", "nobody"},
		{pod, "a pod", "192.0.2.1:6443", "nobody"},
		{pod, "a pod", "10.96.0.2:443", "server"},
		{host, "the machine", "10.96.0.1:443", "server"},
		{host, "the machine", "10.96.0.2:443", "nobody"},
		{host, "the machine", "10.85.0.1:6443", "server"},
		{host, "the machine", "127.0.0.1:6443", "server"},
		{remote, "the network", "10.96.0.1:443", "nobody"},
		{remote, "the network", "10.85.0.1:6443", "nobody"},
		{remote, "the network", "192.0.2.1:6443", "nobody"},
	} {
		if got := c.from.ask("tcp", c.at); got != c.want {
			t.Errorf("%s asks at %s: %s answers, want %s", c.who, c.at, got, c.want)
		}
	}
	network.Forwards = nil
	write()
	if got := pod.ask("tcp", "10.96.0.1:443"); got != "nobody" {
		t.Errorf("the forwards are gone, and %s answers", got)
	}
}

// TestMasquerade: a network behind the machine reaches hosts beyond the machine with the machine's address, and the
// machine's pods with its own. The table may be written and deleted twice.
func TestMasquerade(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes network namespaces")
	}
	host := newSpace(t)
	node := newSpace(t)
	pod := newSpace(t)
	remote := newSpace(t)
	join2(t, host, "nodes0", "10.86.0.1/24", node, "eth0", "10.86.0.2/24")
	join2(t, host, "pods0", "10.85.0.1/24", pod, "eth0", "10.85.0.2/24")
	join2(t, host, "net0", "192.0.2.1/24", remote, "net0", "192.0.2.2/24")
	node.ip(t, "route add default via 10.86.0.1")
	pod.ip(t, "route add default via 10.85.0.1")
	for _, s := range []struct {
		space   *space
		address string
	}{{pod, "10.85.0.2:80"}, {remote, "192.0.2.2:80"}} {
		var l net.Listener
		if err := s.space.in(func() (err error) { l, err = net.Listen("tcp4", s.address); return err }); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				host, _, _ := net.SplitHostPort(conn.RemoteAddr().String())
				io.WriteString(conn, host)
				conn.Close()
			}
		}()
	}
	for range 2 {
		err := host.in(func() error {
			return errors.Join(os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0),
				Masquerade("nodes0", netip.MustParsePrefix("10.86.0.0/24"), netip.MustParsePrefix("10.85.0.0/16")))
		})
		if errors.Is(err, ErrUnsupported) {
			t.Skip(err)
		} else if err != nil {
			t.Fatal(err)
		}
	}
	for at, want := range map[string]string{"192.0.2.2:80": "192.0.2.1", "10.85.0.2:80": "10.86.0.2"} {
		if got := node.ask("tcp", at); got != want {
			t.Errorf("%s sees %s, want %s", at, got, want)
		}
	}
	for range 2 {
		if err := host.in(func() error { return Delete("nodes0") }); err != nil {
			t.Error(err)
		}
	}
}
