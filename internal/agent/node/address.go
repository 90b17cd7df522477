package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/host/procfs"
)

// Addresses finds the addresses that a Node publishes. Find is called again for later statuses, because addresses
// change.
type Addresses struct {
	Hostname string
	// of --node-ip, one or one per family; an unspecified one only selects the family; none: IPv4 first
	NodeIPs []netip.Addr
	Serving netip.Addr // the address where the agent's server listens

	// These read the machine; ThisMachine sets them.
	Lookup     func(name string) ([]netip.Addr, error) // resolves a host name
	Own        func() ([]netip.Addr, error)            // all addresses of the machine
	Of         func(name string) ([]netip.Addr, error) // of one interface; none while it is down
	Interfaces func() ([]string, error)                // names of all interfaces
	Routes     func() ([]string, error)                // names of the interfaces that default routes use, best first
}

// ThisMachine returns a with functions that read this machine.
func (a Addresses) ThisMachine() Addresses {
	a.Lookup = lookUp
	a.Own = ownAddresses
	a.Of = addressesOf
	a.Interfaces = interfaceNames
	a.Routes = procfs.Default.DefaultInterfaces
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
		// The agent's port is open on loopback only, so connections to the InternalIP would be refused. Only an API
		// server on the same machine reaches it, as localhost, when its --kubelet-preferred-address-types begins with
		// InternalDNS.
		out = append(out, corev1.NodeAddress{Type: corev1.NodeInternalDNS, Address: "localhost"})
	}
	return out, nil
}

// internal returns the machine's own addresses. Without --node-ip it returns one: the host name, if it is an address;
// else what the host name resolves to, if this machine has that address; else an interface's.
func (a Addresses) internal() ([]netip.Addr, error) {
	own, err := a.Own()
	if err != nil {
		return nil, err
	}
	if a.specified() {
		for _, ip := range a.NodeIPs {
			if !slices.Contains(own, ip) {
				return nil, fmt.Errorf("--node-ip %s: no interface of this machine has this address", ip)
			}
		}
		return a.NodeIPs, nil
	}
	if ip, err := netip.ParseAddr(a.Hostname); err == nil {
		return []netip.Addr{ip}, nil
	}
	if resolved, err := a.Lookup(a.Hostname); err == nil { // a host name that does not resolve is no error
		here := slices.DeleteFunc(resolved, func(ip netip.Addr) bool { return !slices.Contains(own, ip) })
		if ip := a.choose(here, netip.Addr{}); ip.IsValid() {
			return []netip.Addr{ip}, nil
		}
	}
	// First the interfaces of default routes; then any, for a machine without a default route.
	for _, names := range []func() ([]string, error){a.Routes, a.Interfaces} {
		candidates, err := names()
		if err != nil {
			return nil, err
		}
		if ip, err := a.best(candidates); err != nil || ip.IsValid() {
			return []netip.Addr{ip}, err
		}
	}
	return nil, errors.New("no interface has an address that other machines can reach: set one with --node-ip")
}

// specified reports whether --node-ip names addresses, and not only a family.
func (a Addresses) specified() bool { return len(a.NodeIPs) > 0 && !a.NodeIPs[0].IsUnspecified() }

// prefers reports whether ip is of the preferred family. As in the kubelet that is IPv4 by default.
func (a Addresses) prefers(ip netip.Addr) bool {
	return ip.Is4() == (len(a.NodeIPs) == 0 || a.NodeIPs[0].Is4())
}

// best returns the first usable address of the interfaces, of the preferred family if any interface has one. It is
// invalid if no interface has a usable address.
func (a Addresses) best(names []string) (found netip.Addr, err error) {
	for _, name := range names {
		ips, err := a.Of(name)
		if err != nil {
			return netip.Addr{}, err
		}
		found = a.choose(ips, found)
	}
	return found, nil
}

// choose returns the first usable address, of the preferred family if there is one, and else soFar.
func (a Addresses) choose(ips []netip.Addr, soFar netip.Addr) netip.Addr {
	if soFar.IsValid() && a.prefers(soFar) {
		return soFar
	}
	for _, ip := range ips {
		if !ip.IsGlobalUnicast() {
			continue
		}
		if a.prefers(ip) {
			return ip
		}
		if !soFar.IsValid() {
			soFar = ip
		}
	}
	return soFar
}

// lookUpMax bounds a DNS lookup: a node must not wait for a name server to become Ready.
const lookUpMax = time.Second

func lookUp(name string) ([]netip.Addr, error) {
	ctx, cancel := context.WithTimeout(context.Background(), lookUpMax)
	defer cancel()
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", name)
	for i := range ips {
		ips[i] = ips[i].Unmap()
	}
	return ips, err
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

// ParseNodeIPs reads --node-ip: one address, or one IPv4 and one IPv6 address, or 0.0.0.0 or :: for any of that family.
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
		if ip.IsMulticast() || ip.IsLinkLocalUnicast() || ip.Zone() != "" {
			return nil, fmt.Errorf("read --node-ip: %s: want the address of one machine", ip)
		}
		ips = append(ips, ip.Unmap())
	}
	if len(ips) == 2 && (ips[0].IsUnspecified() || ips[1].IsUnspecified()) {
		return nil, fmt.Errorf("read --node-ip: %q: 0.0.0.0 and :: must stand alone: each only selects an address family",
			text)
	}
	if len(ips) > 2 || len(ips) == 2 && ips[0].Is4() == ips[1].Is4() {
		return nil, fmt.Errorf("read --node-ip: %q: want one address, or one IPv4 and one IPv6 address", text)
	}
	return ips, nil
}
