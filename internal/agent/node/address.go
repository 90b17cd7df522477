package node

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/host/procfs"
)

// Addresses finds the addresses that a Node publishes. It is asked again for each status, because addresses change.
type Addresses struct {
	Hostname string
	NodeIPs  []netip.Addr // of --node-ip, one or one per family; none: the address of the interface that leads out
	Serving  netip.Addr   // where the agent's server listens

	// These observe the machine; ThisMachine fills them in.
	Own        func() ([]netip.Addr, error)            // all addresses of the machine
	Of         func(name string) ([]netip.Addr, error) // those of one interface; none while it is down
	Interfaces func() ([]string, error)                // names of all
	Routes     func() ([]string, error)                // names of those that default routes use, best first
}

// ThisMachine makes a observe this machine.
func (a Addresses) ThisMachine() Addresses {
	a.Own, a.Of, a.Interfaces, a.Routes = ownAddresses, addressesOf, interfaceNames, procfs.Default.DefaultInterfaces
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
	if len(a.NodeIPs) > 0 {
		own, err := a.Own()
		if err != nil {
			return nil, err
		}
		for _, ip := range a.NodeIPs {
			if !slices.Contains(own, ip) {
				return nil, fmt.Errorf("--node-ip %s: no interface of this machine has this address", ip)
			}
		}
		return a.NodeIPs, nil
	}
	// The interfaces that lead out; then any, of a machine that has no way out.
	for _, names := range []func() ([]string, error){a.Routes, a.Interfaces} {
		candidates, err := names()
		if err != nil {
			return nil, err
		}
		if ip, err := a.best(candidates); err != nil || ip.IsValid() {
			return []netip.Addr{ip}, err
		}
	}
	return nil, errors.New("no interface has an address that others could reach: give one by --node-ip")
}

// best returns the first usable address of the interfaces, IPv4 before IPv6 as upstream prefers it; invalid when none has
// one.
func (a Addresses) best(names []string) (found netip.Addr, err error) {
	for _, name := range names {
		ips, err := a.Of(name)
		if err != nil {
			return netip.Addr{}, err
		}
		for _, ip := range ips {
			if !ip.IsGlobalUnicast() {
				continue
			}
			if ip.Is4() {
				return ip, nil
			}
			if !found.IsValid() {
				found = ip
			}
		}
	}
	return found, nil
}

func ownAddresses() ([]netip.Addr, error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	return ipsOf(addrs), nil
}

func addressesOf(name string) ([]netip.Addr, error) {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return nil, fmt.Errorf("find interface %s: %w", name, err)
	}
	if i.Flags&net.FlagUp == 0 {
		return nil, nil
	}
	addrs, err := i.Addrs()
	if err != nil {
		return nil, fmt.Errorf("list addresses of interface %s: %w", name, err)
	}
	return ipsOf(addrs), nil
}

func interfaceNames() ([]string, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list network interfaces: %w", err)
	}
	names := make([]string, len(all))
	for i := range all {
		names[i] = all[i].Name
	}
	slices.Sort(names)
	return names, nil
}

func ipsOf(addrs []net.Addr) []netip.Addr {
	var ips []netip.Addr
	for _, addr := range addrs {
		if prefix, err := netip.ParsePrefix(addr.String()); err == nil {
			ips = append(ips, prefix.Addr().Unmap())
		}
	}
	return ips
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
