package node

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/host/procfs"
)

// Addresses finds the addresses that a Node publishes. It is asked again for each status, because addresses change.
type Addresses struct {
	Hostname string
	NodeIPs  []netip.Addr // of --node-ip, one or one per family; none: the address of the interface that leads out
	Serving  netip.Addr   // where the agent's server listens

	// Interfaces and Routes observe the machine; ThisMachine fills them in.
	Interfaces func() (map[string][]netip.Addr, error)
	Routes     func() ([]string, error) // names of the interfaces of default routes, best first
}

// ThisMachine makes a observe this machine.
func (a Addresses) ThisMachine() Addresses {
	a.Interfaces, a.Routes = interfaces, procfs.Default.DefaultInterfaces
	return a
}

// Find returns the addresses in the order of a Node's status.
func (a Addresses) Find() ([]corev1.NodeAddress, error) {
	ips, err := a.internal()
	if err != nil {
		return nil, fmt.Errorf("find node address: %w", err)
	}
	var out []corev1.NodeAddress
	for _, ip := range ips {
		out = append(out, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip.String()})
	}
	out = append(out, corev1.NodeAddress{Type: corev1.NodeHostName, Address: a.Hostname})
	if a.Serving.IsLoopback() {
		// The agent's port is open on loopback only: the InternalIP would be refused. An API server on the same machine,
		// and nobody else, reaches it as localhost when its --kubelet-preferred-address-types begins with InternalDNS.
		out = append(out, corev1.NodeAddress{Type: corev1.NodeInternalDNS, Address: "localhost"})
	}
	return out, nil
}

// internal returns the machine's own addresses.
func (a Addresses) internal() ([]netip.Addr, error) {
	have, err := a.Interfaces()
	if err != nil {
		return nil, err
	}
	if len(a.NodeIPs) > 0 {
		for _, ip := range a.NodeIPs {
			if !slices.ContainsFunc(mapValues(have), func(addrs []netip.Addr) bool { return slices.Contains(addrs, ip) }) {
				return nil, fmt.Errorf("--node-ip %s: no interface of this machine has this address", ip)
			}
		}
		return a.NodeIPs, nil
	}
	out, err := a.Routes()
	if err != nil {
		return nil, err
	}
	// IPv4 first, as upstream prefers it; then any interface of a machine that has no way out.
	for _, usable := range []func(netip.Addr) bool{
		func(ip netip.Addr) bool { return ip.Is4() && ip.IsGlobalUnicast() },
		netip.Addr.IsGlobalUnicast,
	} {
		for _, name := range append(out, sortedNames(have)...) {
			if i := slices.IndexFunc(have[name], usable); i >= 0 {
				return have[name][i : i+1], nil
			}
		}
	}
	return nil, errors.New("no interface has an address that others could reach: give one by --node-ip")
}

func mapValues(m map[string][]netip.Addr) [][]netip.Addr {
	out := make([][]netip.Addr, 0, len(m))
	for _, v := range m {
		out = append(out, v)
	}
	return out
}

func sortedNames(m map[string][]netip.Addr) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// interfaces returns the global addresses of the interfaces that are up. It takes one dump of addresses and asks only
// for the few interfaces that have any: the net package dumps both whole tables again for each interface, which on a node
// with 110 pods was nine tenths of everything the idle agent allocated (measured 2026-11-20).
func interfaces() (map[string][]netip.Addr, error) {
	all, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list network addresses: %w", err)
	}
	byLink := map[int][]netip.Addr{}
	for _, a := range all {
		if ip, ok := netip.AddrFromSlice(a.IP); ok && ip.IsGlobalUnicast() {
			byLink[a.LinkIndex] = append(byLink[a.LinkIndex], ip.Unmap())
		}
	}
	out := map[string][]netip.Addr{}
	for index, ips := range byLink {
		link, err := netlink.LinkByIndex(index)
		if errors.As(err, &netlink.LinkNotFoundError{}) {
			continue // it went between the two questions
		}
		if err != nil {
			return nil, fmt.Errorf("read network interface %d: %w", index, err)
		}
		if link.Attrs().Flags&net.FlagUp != 0 {
			out[link.Attrs().Name] = ips
		}
	}
	return out, nil
}

// ParseNodeIPs reads --node-ip: one address, or one IPv4 and one IPv6 address.
func ParseNodeIPs(text string) ([]netip.Addr, error) {
	var ips []netip.Addr
	for part := range strings.SplitSeq(text, ",") {
		if part == "" {
			continue
		}
		ip, err := netip.ParseAddr(strings.TrimSpace(part))
		if err != nil {
			return nil, fmt.Errorf("read --node-ip: %q: want an IP address", part)
		}
		if ip.IsUnspecified() || ip.IsMulticast() || ip.IsLinkLocalUnicast() {
			return nil, fmt.Errorf("read --node-ip: %s: want the address of one machine", ip)
		}
		ips = append(ips, ip.Unmap())
	}
	if len(ips) > 2 || len(ips) == 2 && ips[0].Is4() == ips[1].Is4() {
		return nil, fmt.Errorf("read --node-ip: %q: want one address, or one IPv4 and one IPv6 address", text)
	}
	return ips, nil
}
