// Package nat manages the kernel's nftables as far as a pod network needs it: one table per network that masquerades
// pods' packets and forwards host ports. It calls no nft or iptables program and touches no other table.
//
//	table ip plimsoll0 {
//		chain guard       { type filter hook prerouting priority raw;    iifname plimsoll0 ip daddr 127.0.0.0/8 drop }
//		chain api-pods    { type nat hook prerouting priority dstnat - 10;
//			iifname plimsoll0 ip daddr 10.96.0.1 tcp dport 443 dnat to 127.0.0.1:6443
//			iifname plimsoll0 ip daddr 10.85.0.1 tcp dport 6443 dnat to 127.0.0.1:6443 }
//		chain api-host    { type nat hook output priority dstnat - 10;
//			ip daddr 10.96.0.1 tcp dport 443 dnat to 127.0.0.1:6443
//			ip daddr 10.85.0.1 tcp dport 6443 dnat to 127.0.0.1:6443 }
//		chain prerouting  { type nat hook prerouting priority dstnat;
//			fib daddr type local socket transparent 0-1 accept
//			jump listeners
//			fib daddr type local jump hostports }
//		chain output      { type nat hook output priority dstnat;
//			jump listeners
//			fib daddr type local jump hostports }
//		chain postrouting { type nat hook postrouting priority srcnat;
//			ip saddr 10.85.0.0/16 ip daddr != 10.85.0.0/16 ip daddr != 224.0.0.0/4 masquerade
//			ip saddr 10.85.0.0/16 ct status dnat masquerade
//			ip saddr 127.0.0.0/8 oifname plimsoll0 masquerade }
//		chain listeners   { ip daddr 127.0.0.1 tcp dport 8080 accept ... }
//		chain hostports   { tcp dport 8080 dnat to 10.85.0.7:80 comment <container id> ... }
//	}
//
// The second masquerade is for pods that use a host port of this machine, or a Service: pods on the same bridge would
// answer each other directly, and the translation would never be undone. Where the kernel passes packets between ports
// of a bridge to netfilter (net.bridge.bridge-nf-call-iptables), it undoes the translation of Services itself. Then
// Services are excepted, and a pod behind a Service sees its client's address. The third is for this machine's own
// clients on 127.0.0.1, which also needs route_localnet on the bridge; the chain guard keeps pods from using that to
// reach services on the loopback.
//
// The chains api-pods and api-host let pods reach a server that listens on the machine's loopback only: kube-apiserver.
// They come before the chains of kube-proxy, which have priority dstnat, because the first translation of a flow is the
// one that counts.
//
// A port on which a process of the machine listens stays with that process, whatever pods request. A host port on all
// of whose addresses a process listens is refused (ErrTaken). If a process listens on some of the addresses, pods get
// the others. If a process begins to listen later, the port is the process's from then on. For packets from the
// network, the rule with `socket` ensures that: it finds the listening socket. For packets of this machine's own
// clients it would find the client's socket, so the chain listeners is for them. Open and UpdateListeners write that
// chain. UpdateListeners is called about every second; until then a client on this machine may still reach the pod.
//
// Write is one transaction and keeps the chain hostports, so it may be repeated while pods run. Existing flows are not
// flushed: a UDP client that keeps its source port may still send to the port's former pod until the kernel drops the
// flow (nf_conntrack_udp_timeout, 30 s).
//
// Masquerade writes another kind of table, for machines behind this one.
//
// The package decides nothing and does not know pods; IPv4 only.
package nat

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"syscall"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// A Network is a pod network with a table. The table has the bridge's name.
type Network struct {
	Bridge   string
	Pods     netip.Prefix
	Services netip.Prefix // addresses that another program translates, such as kube-proxy; the zero value: there are none
	Forwards []Forward    // addresses where nothing listens, and where their packets go
}

// A Forward translates the destination of TCP connections of pods and, unless PodsOnly is set, of this machine.
type Forward struct {
	From, To netip.AddrPort
	PodsOnly bool
}

// ErrUnsupported is in the chain of errors of a kernel without nftables or one of the expressions used.
var ErrUnsupported = errors.New("not in this kernel")

// ErrTaken is in the chain of errors about a host port on which a process of the machine listens.
var ErrTaken = errors.New("a process of this machine listens on it")

// A Port is one port of the machine that is forwarded to a pod.
type Port struct {
	Protocol string     // tcp, udp or sctp
	HostIP   netip.Addr // invalid or unspecified: all addresses of the machine
	HostPort uint16
	Pod      netip.Addr
	PodPort  uint16
}

const (
	hostPortChain = "hostports"
	listenerChain = "listeners"
	apiPodsChain  = "api-pods"
	apiHostChain  = "api-host"
)

var (
	loopback  = netip.MustParsePrefix("127.0.0.0/8")
	multicast = netip.MustParsePrefix("224.0.0.0/4")
)

// Write creates or updates the table. On a kernel without the `socket` expression only UpdateListeners detects
// processes that listen on a port that was opened before.
func Write(n Network) error {
	err := write(n, socketOfThisMachine())
	if errors.Is(err, ErrUnsupported) {
		err = write(n, nil)
	}
	return err
}

func write(n Network, socket []expr.Any) error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("write nftables table %s: %w", n.Bridge, err)
	}
	table := conn.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: n.Bridge})
	conn.AddChain(&nftables.Chain{Name: hostPortChain, Table: table})
	conn.AddChain(&nftables.Chain{Name: listenerChain, Table: table})
	base := func(name string, kind nftables.ChainType, hook *nftables.ChainHook, priority *nftables.ChainPriority,
		rules ...[]expr.Any) {
		chain := conn.AddChain(&nftables.Chain{Name: name, Table: table, Type: kind, Hooknum: hook, Priority: priority})
		conn.FlushChain(chain)
		for _, rule := range rules {
			conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: rule})
		}
	}
	toHostPorts := join(localDestination(), []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: hostPortChain}})
	toListeners := []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: listenerChain}}
	arriving := [][]expr.Any{toListeners, toHostPorts}
	if socket != nil {
		arriving = slices.Insert(arriving, 0, join(localDestination(), socket, accept()))
	}
	var ofPods, ofHost [][]expr.Any
	for _, f := range n.Forwards {
		if !f.PodsOnly {
			ofHost = append(ofHost, f.rule())
		}
		ofPods = append(ofPods, join(link(expr.MetaKeyIIFNAME, n.Bridge), f.rule()))
	}
	first := nftables.ChainPriorityRef(*nftables.ChainPriorityNATDest - beforeKubeProxy)
	base(apiPodsChain, nftables.ChainTypeNAT, nftables.ChainHookPrerouting, first, ofPods...)
	base(apiHostChain, nftables.ChainTypeNAT, nftables.ChainHookOutput, first, ofHost...)
	masquerade := []expr.Any{&expr.Masq{}}
	base("guard", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, nftables.ChainPriorityRaw,
		join(link(expr.MetaKeyIIFNAME, n.Bridge), address(destination, expr.CmpOpEq, loopback),
			[]expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}}))
	base("prerouting", nftables.ChainTypeNAT, nftables.ChainHookPrerouting, nftables.ChainPriorityNATDest, arriving...)
	base("output", nftables.ChainTypeNAT, nftables.ChainHookOutput, nftables.ChainPriorityNATDest, toListeners,
		toHostPorts)
	base("postrouting", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource,
		join(address(source, expr.CmpOpEq, n.Pods), address(destination, expr.CmpOpNeq, n.Pods), address(destination,
			expr.CmpOpNeq, multicast), masquerade),
		join(address(source, expr.CmpOpEq, n.Pods), translated(), exceptReversed(n.Services), masquerade),
		join(address(source, expr.CmpOpEq, loopback), link(expr.MetaKeyOIFNAME, n.Bridge), masquerade))
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("write nftables table %s: %w", n.Bridge, explain(err))
	}
	if len(n.Forwards) == 0 {
		return nil
	}
	if err := routeLoopback(n.Bridge); err != nil {
		return fmt.Errorf("write nftables table %s: %w", n.Bridge, err)
	}
	return nil
}

// Masquerade creates or updates a table that lets a network reach what is beyond this machine. There its packets have
// this machine's address. Between the network and the networks in reaches, addresses stay as they are. Delete removes
// the table.
func Masquerade(table string, network netip.Prefix, reaches ...netip.Prefix) error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("write nftables table %s: %w", table, err)
	}
	t := conn.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: table})
	chain := conn.AddChain(&nftables.Chain{
		Name:     "postrouting",
		Table:    t,
		Type:     nftables.ChainTypeNAT,
		Hooknum:  nftables.ChainHookPostrouting,
		Priority: nftables.ChainPriorityNATSource,
	})
	conn.FlushChain(chain)
	rule := join(
		address(source, expr.CmpOpEq, network),
		address(destination, expr.CmpOpNeq, network),
		address(destination, expr.CmpOpNeq, multicast),
	)
	for _, to := range reaches {
		rule = join(rule, address(destination, expr.CmpOpNeq, to))
	}
	conn.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: append(rule, &expr.Masq{})})
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("write nftables table %s: %w", table, explain(err))
	}
	return nil
}

// beforeKubeProxy is by how much the priority of our chains for the API server is below that of kube-proxy's (chosen).
const beforeKubeProxy = 10

// rule translates the destination of a Forward.
func (f Forward) rule() []expr.Any {
	return join(
		address(destination, expr.CmpOpEq, netip.PrefixFrom(f.From.Addr(), 32)),
		transport(unix.IPPROTO_TCP, f.From.Port()),
		translateTo(f.To),
	)
}

// translateTo sets the destination of a flow.
func translateTo(to netip.AddrPort) []expr.Any {
	return []expr.Any{
		&expr.Immediate{Register: 1, Data: to.Addr().AsSlice()},
		&expr.Immediate{Register: 2, Data: binaryutil.BigEndian.PutUint16(to.Port())},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1, RegProtoMin: 2},
	}
}

// routeLoopback lets packets with a loopback address pass a bridge. Otherwise the kernel drops them (ip-sysctl.rst).
func routeLoopback(bridge string) error {
	return os.WriteFile("/proc/sys/net/ipv4/conf/"+bridge+"/route_localnet", []byte("1"), 0)
}

// explain marks errors that mean that the kernel lacks a feature.
func explain(err error) error {
	if errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.EPROTONOSUPPORT) || errors.Is(err, syscall.ENOENT) {
		return fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	return err
}

// Delete removes the table of a bridge. It is no error if it does not exist.
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

// Open forwards ports to a pod. The owner identifies them for Close. If a process of the machine listens on one of
// them, ErrTaken is in the error's chain, and no port is opened.
func Open(bridge, owner string, ports []Port) error {
	if len(ports) == 0 {
		return nil
	}
	own, err := listeners()
	if err != nil {
		return fmt.Errorf("open host ports: %w", err)
	}
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open host ports: %w", err)
	}
	table, chain := chainOf(bridge, hostPortChain)
	var rules [][]expr.Any
	for _, port := range ports {
		for _, l := range own {
			if l.has(port) {
				return fmt.Errorf("open host port %s %d: %w (%s): choose another hostPort or hostIP, or a node where it is free",
					port.Protocol, port.HostPort, ErrTaken, netip.AddrPortFrom(l.address, l.port))
			}
		}
		rule, err := port.rule()
		if err != nil {
			return fmt.Errorf("open host port %d: %w", port.HostPort, err)
		}
		rules = append(rules, rule)
	}
	for _, l := range own { // these rules must be there before the first packet can reach the pod
		if slices.ContainsFunc(ports, l.meets) {
			addListener(conn, bridge, l)
		}
	}
	for _, rule := range rules {
		conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: rule, UserData: []byte(owner)})
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("open host ports: table %s: %w", bridge, err)
	}
	if err := routeLoopback(bridge); err != nil {
		return fmt.Errorf("open host ports: %w", err)
	}
	return nil
}

// Close closes the ports of an owner, if it has any.
func Close(bridge, owner string) error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("close host ports: %w", err)
	}
	rules, err := conn.GetRules(chainOf(bridge, hostPortChain))
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

// UpdateListeners updates the chain of listeners to the processes that listen on open host ports now. Without a table
// there is nothing to do.
func UpdateListeners(bridge string) error {
	if err := updateListeners(bridge); err != nil {
		return fmt.Errorf("update host ports to this machine's listeners: table %s: %w", bridge, err)
	}
	return nil
}

func updateListeners(bridge string) error {
	conn, err := nftables.New()
	if err != nil {
		return err
	}
	open, err := conn.GetRules(chainOf(bridge, hostPortChain))
	if errors.Is(err, syscall.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	known, err := conn.GetRules(chainOf(bridge, listenerChain))
	if err != nil || len(open) == 0 && len(known) == 0 {
		return err
	}
	own, err := listeners()
	if err != nil {
		return err
	}
	wanted := map[string]listener{}
	for _, rule := range open {
		for _, l := range own {
			if l.meets(portOf(rule)) {
				wanted[l.String()] = l
			}
		}
	}
	for _, rule := range known {
		// A duplicate rule, which another process may have added at the same time, is removed too.
		if _, ok := wanted[string(rule.UserData)]; ok {
			delete(wanted, string(rule.UserData))
		} else if err := conn.DelRule(rule); err != nil {
			return err
		}
	}
	for _, l := range wanted {
		addListener(conn, bridge, l)
	}
	return conn.Flush()
}

// addListener adds a rule by which packets for a listener reach it.
func addListener(conn *nftables.Conn, bridge string, l listener) {
	var to []expr.Any
	if !l.address.IsUnspecified() {
		to = address(destination, expr.CmpOpEq, netip.PrefixFrom(l.address, 32))
	}
	table, chain := chainOf(bridge, listenerChain)
	conn.AddRule(&nftables.Rule{
		Table:    table,
		Chain:    chain,
		Exprs:    join(to, transport(protocols[l.protocol], l.port), accept()),
		UserData: []byte(l.String()),
	})
}

func chainOf(bridge, name string) (*nftables.Table, *nftables.Chain) {
	table := &nftables.Table{Family: nftables.TableFamilyIPv4, Name: bridge}
	return table, &nftables.Chain{Name: name, Table: table}
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
	return join(rule, transport(number, p.HostPort), translateTo(netip.AddrPortFrom(p.Pod, p.PodPort))), nil
}

// portOf reads from a rule that Port.rule wrote the part before the translation.
func portOf(rule *nftables.Rule) Port {
	var p Port
	var loaded expr.Any
	for _, e := range rule.Exprs {
		cmp, ok := e.(*expr.Cmp)
		if !ok {
			if _, masked := e.(*expr.Bitwise); !masked {
				loaded = e
			}
			continue
		}
		switch load := loaded.(type) {
		case *expr.Meta:
			for name, number := range protocols {
				if len(cmp.Data) > 0 && cmp.Data[0] == number {
					p.Protocol = name
				}
			}
		case *expr.Payload:
			if load.Base == expr.PayloadBaseTransportHeader && len(cmp.Data) == 2 {
				p.HostPort = binaryutil.BigEndian.Uint16(cmp.Data)
			} else if load.Base == expr.PayloadBaseNetworkHeader {
				p.HostIP, _ = netip.AddrFromSlice(cmp.Data)
			}
		}
	}
	return p
}
