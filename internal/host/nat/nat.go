// Package nat is the kernel's nftables as far as a pod network needs it: one table per network that lets pods out and
// host ports in. No nft or iptables program is called and no other table is touched.
//
//	table ip plimsoll0 {
//		chain guard       { type filter hook prerouting priority raw;    iifname plimsoll0 ip daddr 127.0.0.0/8 drop }
//		chain prerouting  { type nat hook prerouting priority dstnat;    fib daddr type local jump hostports }
//		chain output      { type nat hook output priority dstnat;        fib daddr type local jump hostports }
//		chain postrouting { type nat hook postrouting priority srcnat;
//			ip saddr 10.85.0.0/16 ip daddr != 10.85.0.0/16 ip daddr != 224.0.0.0/4 masquerade
//			ip saddr 10.85.0.0/16 ct status dnat masquerade
//			ip saddr 127.0.0.0/8 oifname plimsoll0 masquerade }
//		chain hostports   { tcp dport 8080 dnat to 10.85.0.7:80 comment <container id> ... }
//	}
//
// The second masquerade is for pods that use a host port of this machine: bridge neighbours would answer each other
// directly and the translation would never be undone. The third is for this machine's own clients on 127.0.0.1, which
// also takes route_localnet on the bridge; guard keeps pods from using that to reach services on the loopback.
//
// Write is one transaction and keeps the hostports chain, so it may be repeated under running pods. Old flows are not
// flushed: a UDP client that keeps its source port may talk to the port's former pod until the kernel forgets the flow
// (nf_conntrack_udp_timeout, 30 s).
//
// It decides nothing and knows no pods; IPv4 only.
package nat

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"syscall"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// A Network is what the table is about. The table has the bridge's name.
type Network struct {
	Bridge string
	Pods   netip.Prefix
}

// ErrUnsupported is in the chain of errors of a kernel without nftables or one of the expressions used.
var ErrUnsupported = errors.New("not in this kernel")

// A Port is one port of the machine that leads to a pod.
type Port struct {
	Protocol string     // tcp, udp or sctp
	HostIP   netip.Addr // invalid or unspecified: all of the machine's addresses
	HostPort uint16
	Pod      netip.Addr
	PodPort  uint16
}

const hostPortChain = "hostports"

var (
	loopback  = netip.MustParsePrefix("127.0.0.0/8")
	multicast = netip.MustParsePrefix("224.0.0.0/4")
)

// Write creates the table or brings it up to date.
func Write(n Network) error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("write nftables table %s: %w", n.Bridge, err)
	}
	table := conn.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: n.Bridge})
	conn.AddChain(&nftables.Chain{Name: hostPortChain, Table: table})
	base := func(name string, kind nftables.ChainType, hook *nftables.ChainHook, priority *nftables.ChainPriority, rules ...[]expr.Any) {
		chain := conn.AddChain(&nftables.Chain{Name: name, Table: table, Type: kind, Hooknum: hook, Priority: priority})
		conn.FlushChain(chain)
		for _, rule := range rules {
			conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: rule})
		}
	}
	toHostPorts := join(localDestination(), []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: hostPortChain}})
	masquerade := []expr.Any{&expr.Masq{}}
	base("guard", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, nftables.ChainPriorityRaw,
		join(link(expr.MetaKeyIIFNAME, n.Bridge), address(destination, expr.CmpOpEq, loopback), []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}}))
	base("prerouting", nftables.ChainTypeNAT, nftables.ChainHookPrerouting, nftables.ChainPriorityNATDest, toHostPorts)
	base("output", nftables.ChainTypeNAT, nftables.ChainHookOutput, nftables.ChainPriorityNATDest, toHostPorts)
	base("postrouting", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource,
		join(address(source, expr.CmpOpEq, n.Pods), address(destination, expr.CmpOpNeq, n.Pods), address(destination, expr.CmpOpNeq, multicast), masquerade),
		join(address(source, expr.CmpOpEq, n.Pods), translated(), masquerade),
		join(address(source, expr.CmpOpEq, loopback), link(expr.MetaKeyOIFNAME, n.Bridge), masquerade))
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("write nftables table %s: %w", n.Bridge, explain(err))
	}
	return nil
}

// explain marks errors that mean a missing part of the kernel.
func explain(err error) error {
	if errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.EPROTONOSUPPORT) || errors.Is(err, syscall.ENOENT) {
		return fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	return err
}

// Delete removes the table of a bridge. One that is not there is removed.
func Delete(bridge string) error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("delete nftables table %s: %w", bridge, err)
	}
	tables, err := conn.ListTablesOfFamily(nftables.TableFamilyIPv4)
	if errors.Is(explain(err), ErrUnsupported) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list nftables tables: %w", err)
	}
	for _, table := range tables {
		if table.Name == bridge {
			conn.DelTable(table)
		}
	}
	if err := conn.Flush(); err != nil && !errors.Is(err, syscall.ENOENT) {
		return fmt.Errorf("delete nftables table %s: %w", bridge, err)
	}
	return nil
}

// Open leads ports to a pod. The owner names them for Close.
func Open(bridge, owner string, ports []Port) error {
	if len(ports) == 0 {
		return nil
	}
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open host ports: %w", err)
	}
	table, chain := hostPorts(bridge)
	for _, port := range ports {
		rule, err := port.rule()
		if err != nil {
			return fmt.Errorf("open host port %d: %w", port.HostPort, err)
		}
		conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: rule, UserData: []byte(owner)})
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("open host ports: table %s: %w", bridge, err)
	}
	// Without it the kernel drops packets that leave on the bridge with a loopback address (ip-sysctl.rst).
	if err := os.WriteFile("/proc/sys/net/ipv4/conf/"+bridge+"/route_localnet", []byte("1"), 0); err != nil {
		return fmt.Errorf("open host ports: %w", err)
	}
	return nil
}

// Close removes the ports of an owner, if it has any.
func Close(bridge, owner string) error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("close host ports: %w", err)
	}
	rules, err := conn.GetRules(hostPorts(bridge))
	if errors.Is(err, syscall.ENOENT) || err == nil && len(rules) == 0 {
		return nil
	}
	if err != nil {
		return fmt.Errorf("close host ports: table %s: %w", bridge, err)
	}
	for _, rule := range rules {
		if !bytes.Equal(rule.UserData, []byte(owner)) {
			continue
		}
		if err := conn.DelRule(rule); err != nil {
			return fmt.Errorf("close host ports: %w", err)
		}
	}
	if err := conn.Flush(); err != nil && !errors.Is(err, syscall.ENOENT) {
		return fmt.Errorf("close host ports: table %s: %w", bridge, err)
	}
	return nil
}

func hostPorts(bridge string) (*nftables.Table, *nftables.Chain) {
	table := &nftables.Table{Family: nftables.TableFamilyIPv4, Name: bridge}
	return table, &nftables.Chain{Name: hostPortChain, Table: table}
}

var protocols = map[string]byte{"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP, "sctp": unix.IPPROTO_SCTP}

func (p Port) rule() ([]expr.Any, error) {
	number, ok := protocols[p.Protocol]
	if !ok {
		return nil, fmt.Errorf("protocol %q: want tcp, udp or sctp", p.Protocol)
	}
	if !p.Pod.Is4() || p.HostIP.IsValid() && !p.HostIP.Is4() {
		return nil, fmt.Errorf("addresses %s and %s: want IPv4", p.HostIP, p.Pod)
	}
	var rule []expr.Any
	if p.HostIP.IsValid() && !p.HostIP.IsUnspecified() {
		rule = address(destination, expr.CmpOpEq, netip.PrefixFrom(p.HostIP, 32))
	}
	return join(rule, []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{number}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}, // destination port, in all three
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(p.HostPort)},
		&expr.Immediate{Register: 1, Data: p.Pod.AsSlice()},
		&expr.Immediate{Register: 2, Data: binaryutil.BigEndian.PutUint16(p.PodPort)},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1, RegProtoMin: 2},
	}), nil
}

func join(parts ...[]expr.Any) []expr.Any {
	var all []expr.Any
	for _, part := range parts {
		all = append(all, part...)
	}
	return all
}

// Offsets in the IPv4 header (RFC 791).
const (
	source       = 12
	destination  = 16
	addressBytes = 4
)

// address compares the network part of an address in the IPv4 header.
func address(offset uint32, op expr.CmpOp, network netip.Prefix) []expr.Any {
	mask := make([]byte, addressBytes)
	for bit := range network.Bits() {
		mask[bit/8] |= 0x80 >> (bit % 8)
	}
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: addressBytes},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: addressBytes, Mask: mask, Xor: make([]byte, addressBytes)},
		&expr.Cmp{Op: op, Register: 1, Data: network.Masked().Addr().AsSlice()},
	}
}

func link(key expr.MetaKey, name string) []expr.Any {
	padded := make([]byte, unix.IFNAMSIZ)
	copy(padded, name)
	return []expr.Any{&expr.Meta{Key: key, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: padded}}
}

// localDestination matches packets to an address of this machine.
func localDestination() []expr.Any {
	return []expr.Any{
		&expr.Fib{Register: 1, ResultADDRTYPE: true, FlagDADDR: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)},
	}
}

// dstNAT is IPS_DST_NAT of linux/netfilter/nf_conntrack_common.h: the flow's destination was translated.
const dstNAT = 1 << 5

func translated() []expr.Any {
	return []expr.Any{
		&expr.Ct{Register: 1, Key: expr.CtKeySTATUS},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(dstNAT), Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
	}
}
