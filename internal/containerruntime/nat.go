package containerruntime

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// forwardSysctl lets the kernel route between links. The bridge plugin sets it too, at the first pod; we set it first,
// so as to know what it was.
const forwardSysctl = "/proc/sys/net/ipv4/ip_forward"

// prepareNetwork lets pods reach beyond the machine: routing between links, and masquerading by a table of our own.
//
//	table ip plimsoll0 {
//		chain postrouting {
//			type nat hook postrouting priority srcnat;
//			ip saddr 10.85.0.0/16 ip daddr != 10.85.0.0/16 ip daddr != 224.0.0.0/4 masquerade
//		}
//	}
func (i *Instance) prepareNetwork() error {
	if err := i.enableForwarding(); err != nil {
		return err
	}
	err := writeTable(i.options)
	if errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.EPROTONOSUPPORT) {
		i.note("this kernel has no nftables masquerading (%v): pods reach each other and this machine, not beyond", err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("write nftables table %s: %w", i.options.Bridge, err)
	}
	return nil
}

func (o Options) forwardRecord() string { return filepath.Join(o.RunDir, "ip_forward.was-off") }

func (i *Instance) enableForwarding() error {
	on, err := forwarding()
	if err != nil || on {
		return err
	}
	if err := os.WriteFile(i.options.forwardRecord(), nil, 0o600); err != nil {
		return err
	}
	if err := os.WriteFile(forwardSysctl, []byte("1"), 0); err != nil {
		return fmt.Errorf("enable routing between links: %w", err)
	}
	return nil
}

func forwarding() (bool, error) {
	text, err := os.ReadFile(forwardSysctl)
	if err != nil {
		return false, err
	}
	return strings.TrimSpace(string(text)) != "0", nil
}

// restoreForwarding turns routing off again if it was us who turned it on, unless another bridge has come that may
// count on it by now: to leave a setting behind is better than to cut off a neighbour.
func (i *Instance) restoreForwarding() error {
	if _, err := os.Stat(i.options.forwardRecord()); err != nil {
		return nil // it was on already, or this is a second teardown
	}
	bridges, err := filepath.Glob("/sys/class/net/*/bridge")
	if err != nil {
		return err
	}
	if len(bridges) > 0 {
		return nil
	}
	return os.WriteFile(forwardSysctl, []byte("0"), 0)
}

// ipv4 header offsets (RFC 791) and the multicast network (RFC 5771).
const (
	sourceOffset      = 12
	destinationOffset = 16
	addressBytes      = 4
)

var multicast = netip.MustParsePrefix("224.0.0.0/4")

// writeTable replaces our table in one transaction: there is never a moment without it.
func writeTable(o Options) error {
	pods, err := netip.ParsePrefix(o.PodCIDR)
	if err != nil {
		return err
	}
	conn, err := nftables.New()
	if err != nil {
		return err
	}
	table := &nftables.Table{Family: nftables.TableFamilyIPv4, Name: o.Bridge}
	conn.AddTable(table) // deleting what is not there would fail
	conn.DelTable(table)
	conn.AddTable(table)
	chain := conn.AddChain(&nftables.Chain{
		Name:     "postrouting",
		Table:    table,
		Type:     nftables.ChainTypeNAT,
		Hooknum:  nftables.ChainHookPostrouting,
		Priority: nftables.ChainPriorityNATSource,
	})
	var rule []expr.Any
	rule = append(rule, matchAddress(sourceOffset, expr.CmpOpEq, pods)...)
	rule = append(rule, matchAddress(destinationOffset, expr.CmpOpNeq, pods)...)
	rule = append(rule, matchAddress(destinationOffset, expr.CmpOpNeq, multicast)...)
	conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: append(rule, &expr.Masq{})})
	return conn.Flush()
}

// matchAddress compares the network part of an address in the IPv4 header.
func matchAddress(offset uint32, op expr.CmpOp, network netip.Prefix) []expr.Any {
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

// deleteTable removes our table. A kernel without nftables has none.
func deleteTable(o Options) error {
	conn, err := nftables.New()
	if err != nil {
		return err
	}
	tables, err := conn.ListTablesOfFamily(nftables.TableFamilyIPv4)
	if errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.EPROTONOSUPPORT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list nftables tables: %w", err)
	}
	for _, table := range tables {
		if table.Name == o.Bridge {
			conn.DelTable(table)
			if err := conn.Flush(); err != nil {
				return fmt.Errorf("delete nftables table %s: %w", o.Bridge, err)
			}
		}
	}
	return nil
}
