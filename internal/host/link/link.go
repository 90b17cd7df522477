// Package link is the adapter to the kernel's network interfaces, routes and network namespaces (rtnetlink(7),
// network_namespaces(7)). It works on the network namespace of its caller.
//
// It decides nothing. Every call may be repeated: what exists already stays, and deleting what does not exist is no
// error.
package link

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// protocol marks the routes that this package adds, to distinguish them from others (rtm_protocol of rtnetlink(7); the
// kernel and well-known daemons use numbers below 64, and 186 to 192 are those of FRR). Chosen.
const protocol = netlink.RouteProtocol(112)

// listsMax is how often a list is read before it counts as unreadable. Chosen: with 110 pods that start at once, links
// change some 30 times a second, and a list of all of them takes a millisecond.
const listsMax = 100

// whole returns what list returns, and reads it again if the kernel says that it changed meanwhile (NLM_F_DUMP_INTR of
// netlink(7)): entries may be missing then.
func whole[T any](list func() ([]T, error)) (all []T, err error) {
	for range listsMax {
		if all, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return all, err
}

// A Route leads to a network through a neighbour.
type Route struct {
	To  netip.Prefix
	Via netip.Addr
}

// Routes returns the IPv4 routes that AddRoute has added.
func Routes() ([]Route, error) {
	found, err := whole(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Protocol: protocol},
			netlink.RT_FILTER_PROTOCOL)
	})
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	var all []Route
	for _, r := range found {
		via, ok := netip.AddrFromSlice(r.Gw)
		if !ok || r.Dst == nil {
			continue
		}
		to, _ := netip.AddrFromSlice(r.Dst.IP)
		bits, _ := r.Dst.Mask.Size()
		all = append(all, Route{To: netip.PrefixFrom(to.Unmap(), bits), Via: via.Unmap()})
	}
	return all, nil
}

func (r Route) netlink() *netlink.Route {
	return &netlink.Route{Dst: ipNet(r.To), Gw: r.Via.AsSlice(), Protocol: protocol}
}

// AddRoute adds a route, or replaces the one to the same network.
func AddRoute(r Route) error {
	if err := netlink.RouteReplace(r.netlink()); err != nil {
		return fmt.Errorf("add route to %s via %s: %w", r.To, r.Via, err)
	}
	return nil
}

// DeleteRoute deletes a route that AddRoute has added.
func DeleteRoute(r Route) error {
	if err := netlink.RouteDel(r.netlink()); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("delete route to %s via %s: %w", r.To, r.Via, err)
	}
	return nil
}

// DeleteRoutes deletes all routes that AddRoute has added below a network.
func DeleteRoutes(below netip.Prefix) error {
	all, err := Routes()
	for _, r := range all {
		if below.Overlaps(r.To) {
			err = errors.Join(err, DeleteRoute(r))
		}
	}
	return err
}

// Attached returns the networks of all interfaces, leaving one interface out.
func Attached(except string) ([]netip.Prefix, error) {
	links, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list network interfaces: %w", err)
	}
	var all []netip.Prefix
	for _, l := range links {
		if l.Name == except || l.Flags&net.FlagLoopback != 0 {
			continue
		}
		addresses, err := l.Addrs()
		if err != nil {
			continue // the interface was deleted meanwhile
		}
		for _, a := range addresses {
			if p, err := netip.ParsePrefix(a.String()); err == nil {
				all = append(all, p.Masked())
			}
		}
	}
	return all, nil
}

// An Overlap is a network interface with an address in a network that is meant for something else.
type Overlap struct {
	Link    string
	Address netip.Prefix // the interface's, with the length of its network
}

// Overlapping returns the first interface whose network overlaps another network, leaving one interface out; nil: none.
// Unlike in Attached, the loopback interface counts.
func Overlapping(network netip.Prefix, except string) (*Overlap, error) {
	links, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list network interfaces: %w", err)
	}
	for _, l := range links {
		if l.Name == except {
			continue
		}
		addresses, err := l.Addrs()
		if err != nil {
			continue // the interface was deleted meanwhile
		}
		for _, a := range addresses {
			if p, err := netip.ParsePrefix(a.String()); err == nil && network.Overlaps(p.Masked()) {
				return &Overlap{Link: l.Name, Address: p}, nil
			}
		}
	}
	return nil, nil
}

// CreateBridge creates a bridge, if it is missing.
func CreateBridge(name string) error {
	err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}})
	switch {
	case errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("create bridge %s: %w: this kernel has no bridges (CONFIG_BRIDGE), which the pod "+
			"network needs", name, err)
	case err != nil && !errors.Is(err, unix.EEXIST):
		return fmt.Errorf("create bridge %s: %w", name, err)
	}
	l, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("create bridge %s: %w", name, err)
	}
	if l.Type() != "bridge" {
		return fmt.Errorf("create bridge %s: a link of that name exists and is not a bridge: remove it or "+
			"choose another name", name)
	}
	return nil
}

// EnsureBridge creates a bridge with an address, if it is missing, and sets it up.
func EnsureBridge(name string, address netip.Prefix) error {
	if err := CreateBridge(name); err != nil {
		return err
	}
	l, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find bridge %s: %w", name, err)
	}
	return configure(l, address)
}

// DeleteBridge deletes a bridge and the links that are still its ports.
func DeleteBridge(name string) error {
	bridge, err := netlink.LinkByName(name)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find bridge %s: %w", name, err)
	}
	all, err := whole(netlink.LinkList)
	if err != nil {
		return fmt.Errorf("list ports of bridge %s: %w", name, err)
	}
	var problems []error
	for _, l := range all {
		if l.Attrs().MasterIndex == bridge.Attrs().Index {
			problems = append(problems, Delete(l.Attrs().Name))
		}
	}
	return errors.Join(append(problems, Delete(name))...)
}

// Bridges returns how many bridges there are.
func Bridges() (count int, err error) {
	all, err := whole(netlink.LinkList)
	if err != nil {
		return 0, fmt.Errorf("list network links: %w", err)
	}
	for _, l := range all {
		if l.Type() == "bridge" {
			count++
		}
	}
	return count, nil
}

// KeepAddresses removes from a link the IPv4 addresses that are not the first of a network. A link that does not exist
// has none.
func KeepAddresses(name string, network netip.Prefix) error {
	l, err := netlink.LinkByName(name)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find link %s: %w", name, err)
	}
	all, err := whole(func() ([]netlink.Addr, error) { return netlink.AddrList(l, netlink.FAMILY_V4) })
	if err != nil {
		return fmt.Errorf("list addresses of %s: %w", name, err)
	}
	for _, a := range all {
		ip, _ := netip.AddrFromSlice(a.IP)
		bits, _ := a.Mask.Size()
		if ip.Unmap() == network.Addr().Next() && bits == network.Bits() {
			continue
		}
		if err := netlink.AddrDel(l, &a); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return fmt.Errorf("remove %s from %s: %w", a.IPNet, name, err)
		}
	}
	return nil
}

// configure gives a link its address and sets it up.
func configure(l netlink.Link, address netip.Prefix) error {
	a := &netlink.Addr{IPNet: &net.IPNet{IP: address.Addr().AsSlice(), Mask: ipNet(address).Mask}}
	if err := netlink.AddrReplace(l, a); err != nil {
		return fmt.Errorf("give %s the address %s: %w", l.Attrs().Name, address, err)
	}
	if err := netlink.LinkSetUp(l); err != nil {
		return fmt.Errorf("set %s up: %w", l.Attrs().Name, err)
	}
	return nil
}

// SetUp sets a link up.
func SetUp(name string) error { return set(name, netlink.LinkSetUp, "up") }

// SetDown sets a link down: no packet passes it any more.
func SetDown(name string) error { return set(name, netlink.LinkSetDown, "down") }

func set(name string, do func(netlink.Link) error, what string) error {
	l, err := netlink.LinkByName(name)
	if err == nil {
		err = do(l)
	}
	if err != nil {
		return fmt.Errorf("set network link %s %s: %w", name, what, err)
	}
	return nil
}

// Delete deletes a link.
func Delete(name string) error {
	l, err := netlink.LinkByName(name)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil
	}
	if err == nil {
		err = netlink.LinkDel(l)
	}
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete network link %s: %w", name, err)
	}
	return nil
}

// namespaceDir is where named network namespaces are (ip-netns(8)).
const namespaceDir = "/run/netns"

// NamespacePath returns the file of a named network namespace.
func NamespacePath(name string) string { return filepath.Join(namespaceDir, name) }

// EnsureNamespace creates a named network namespace, if it is missing, as `ip netns add` does. Its loopback is up.
func EnsureNamespace(name string) error {
	if ns, err := netns.GetFromName(name); err == nil {
		return ns.Close()
	}
	// A crash may leave a file to which no namespace is bound.
	if err := os.Remove(NamespacePath(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("create network namespace %s: %w", name, err)
	}
	err := aside(func() error {
		ns, err := netns.NewNamed(name)
		if err != nil {
			return err
		}
		ns.Close()
		return SetUp("lo")
	})
	if errors.Is(err, unix.EINVAL) {
		err = fmt.Errorf("%w: this kernel has no network namespaces (CONFIG_NET_NS)", err)
	}
	if err != nil {
		return fmt.Errorf("create network namespace %s: %w", name, err)
	}
	return nil
}

// aside calls do on a locked thread, whose network namespace do may change. Afterwards the thread returns to its own
// namespace. If it cannot, it ends.
func aside(do func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		home, err := netns.Get()
		if err != nil {
			runtime.UnlockOSThread()
			done <- err
			return
		}
		defer home.Close()
		err = do()
		if netns.Set(home) == nil {
			runtime.UnlockOSThread() // a thread that stays locked ends with this goroutine
		}
		done <- err
	}()
	return <-done
}

// Start starts a program in a named network namespace, or, if the name is empty, in the caller's.
func Start(namespace string, program *exec.Cmd) error {
	if namespace == "" {
		return program.Start()
	}
	return aside(func() error {
		if err := Enter(namespace); err != nil {
			return err
		}
		return program.Start()
	})
}

// Namespace returns an id of a named network namespace, or, if the name is empty, of the caller's. A namespace that is
// deleted and created again has another id.
func Namespace(name string) (id string, err error) {
	path := "/proc/thread-self/ns/net"
	if name != "" {
		path = NamespacePath(name)
	}
	var is unix.Stat_t
	if err := unix.Stat(path, &is); err != nil {
		return "", fmt.Errorf("find network namespace %s: %w", path, err)
	}
	return fmt.Sprintf("%d:%d", is.Dev, is.Ino), nil
}

// DeleteNamespace deletes a named network namespace. The kernel removes it, with its links, when no process is in it.
func DeleteNamespace(name string) error {
	if _, err := os.Lstat(NamespacePath(name)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := netns.DeleteNamed(name); err != nil {
		// Nothing is bound to the file.
		if removed := os.Remove(NamespacePath(name)); removed != nil && !errors.Is(removed, fs.ErrNotExist) {
			return fmt.Errorf("delete network namespace %s: %w", name, err)
		}
	}
	return nil
}

// In reports whether this process is in a named network namespace.
func In(name string) (bool, error) {
	here, err := os.Stat("/proc/self/ns/net")
	if err != nil {
		return false, err
	}
	there, err := os.Stat(NamespacePath(name))
	if err != nil {
		return false, fmt.Errorf("find network namespace %s: %w", name, err)
	}
	return os.SameFile(here, there), nil
}

// Enter moves the calling thread, which must be locked, into a named network namespace. The process's other threads
// stay where they are, so the caller must execute another program next.
func Enter(name string) error {
	ns, err := netns.GetFromName(name)
	if err != nil {
		return fmt.Errorf("enter network namespace %s: %w", name, err)
	}
	defer ns.Close()
	if err := netns.Set(ns); err != nil {
		return fmt.Errorf("enter network namespace %s: %w", name, err)
	}
	return nil
}

// A Cable (veth(4)) connects a network namespace with a bridge of the caller's namespace.
type Cable struct {
	Bridge    string
	Here      string       // the end in the caller's namespace, a port of the bridge
	Namespace string       // name of the network namespace
	There     string       // the end in the namespace
	Address   netip.Prefix // of There
	Gateway   netip.Addr   // the namespace's default gateway
}

// Connect makes a cable. One that exists is corrected.
func Connect(c Cable) error {
	if err := connect(c); err != nil {
		return fmt.Errorf("connect network namespace %s with bridge %s: %w", c.Namespace, c.Bridge, err)
	}
	return nil
}

func connect(c Cable) error {
	ns, err := netns.GetFromName(c.Namespace)
	if err != nil {
		return err
	}
	defer ns.Close()
	inside, err := netlink.NewHandleAt(ns)
	if err != nil {
		return err
	}
	defer inside.Close()
	there, err := inside.LinkByName(c.There)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		if err := Delete(c.Here); err != nil { // its other end is elsewhere
			return err
		}
		pair := &netlink.Veth{
			LinkAttrs:     netlink.LinkAttrs{Name: c.Here},
			PeerName:      c.There,
			PeerNamespace: netlink.NsFd(ns),
		}
		err = netlink.LinkAdd(pair)
		if errors.Is(err, unix.EOPNOTSUPP) {
			err = fmt.Errorf("%w: this kernel has no virtual network cables (CONFIG_VETH)", err)
		}
		if err != nil {
			return err
		}
		there, err = inside.LinkByName(c.There)
	}
	if err != nil {
		return err
	}
	bridge, err := netlink.LinkByName(c.Bridge)
	if err != nil {
		return err
	}
	here, err := netlink.LinkByName(c.Here)
	if err != nil {
		return err
	}
	if err := errors.Join(netlink.LinkSetMaster(here, bridge), netlink.LinkSetUp(here)); err != nil {
		return err
	}
	a := &netlink.Addr{IPNet: &net.IPNet{IP: c.Address.Addr().AsSlice(), Mask: ipNet(c.Address).Mask}}
	if err := errors.Join(inside.AddrReplace(there, a), inside.LinkSetUp(there)); err != nil {
		return err
	}
	return inside.RouteReplace(&netlink.Route{LinkIndex: there.Attrs().Index, Gw: c.Gateway.AsSlice()})
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Masked().Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
