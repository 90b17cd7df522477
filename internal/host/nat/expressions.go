package nat

import (
	"bytes"
	"net/netip"
	"os"

	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// transport matches a protocol and its destination port.
func transport(protocol byte, port uint16) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{protocol}},
		// at the same place in all three protocols
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(port)},
	}
}

// socketOfThisMachine matches packets for which this machine has a listening or connected socket: the expression ends
// the rule if there is none (nft_socket_eval in net/netfilter/nft_socket.c). The loaded value does not matter.
func socketOfThisMachine() []expr.Any {
	return []expr.Any{&expr.Socket{Key: expr.SocketKeyTransparent, Register: 1}}
}

func accept() []expr.Any { return []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}} }

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
	load := []expr.Any{&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset,
		Len: addressBytes}}
	return append(load, inNetwork(op, network)...)
}

// inNetwork compares the network part of the address in register 1.
func inNetwork(op expr.CmpOp, network netip.Prefix) []expr.Any {
	mask := make([]byte, addressBytes)
	for bit := range network.Bits() {
		mask[bit/8] |= 0x80 >> (bit % 8)
	}
	return []expr.Any{
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

// seesBridged is a file with "1" where the kernel passes IPv4 packets between ports of a bridge to netfilter
// (ip-sysctl.rst). Without br_netfilter the file does not exist.
const seesBridged = "/proc/sys/net/bridge/bridge-nf-call-iptables"

// exceptReversed excepts flows to Services where the kernel undoes their translation on the bridge.
func exceptReversed(services netip.Prefix) []expr.Any {
	text, err := os.ReadFile(seesBridged)
	if err != nil || string(bytes.TrimSpace(text)) != "1" || !services.IsValid() || !services.Addr().Is4() {
		return nil
	}
	return originalDestination(expr.CmpOpNeq, services)
}

// originalDestination compares the network part of the destination that a flow had before it was translated.
func originalDestination(op expr.CmpOp, network netip.Prefix) []expr.Any {
	const original = 0 // IP_CT_DIR_ORIGINAL of linux/netfilter/nf_conntrack_tuple_common.h
	load := []expr.Any{&expr.Ct{Register: 1, Key: expr.CtKeyDST, Direction: original}}
	return append(load, inNetwork(op, network)...)
}

// dstNAT is IPS_DST_NAT of linux/netfilter/nf_conntrack_common.h: the flow's destination was translated.
const dstNAT = 1 << 5

func translated() []expr.Any {
	return []expr.Any{
		&expr.Ct{Register: 1, Key: expr.CtKeySTATUS},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(dstNAT),
			Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
	}
}
