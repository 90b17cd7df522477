package nat

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
)

// listener is a port on which a process of this machine listens: a listening TCP or SCTP socket, or an unconnected UDP
// socket.
type listener struct {
	protocol string
	address  netip.Addr // IPv4; unspecified: all addresses of the machine
	port     uint16
}

func (l listener) String() string {
	return fmt.Sprintf("%s %s", l.protocol, netip.AddrPortFrom(l.address, l.port))
}

// has reports whether l listens on all addresses of p, so that none is left for a pod.
func (l listener) has(p Port) bool {
	return l.meets(p) && (l.address.IsUnspecified() || l.address == p.HostIP)
}

// meets reports whether l listens on some address of p.
func (l listener) meets(p Port) bool {
	everywhere := !p.HostIP.IsValid() || p.HostIP.IsUnspecified()
	return l.protocol == p.Protocol && l.port == p.HostPort && (everywhere || l.address.IsUnspecified() ||
		l.address == p.HostIP)
}

// The states of a socket that accepts from any client (linux/net/tcp_states.h): TCP_LISTEN, and TCP_CLOSE for UDP,
// whose unconnected sockets have no other state. SCTP lists such sockets in a separate file.
var sockets = []struct{ file, protocol, state string }{
	{"tcp", "tcp", "0A"}, {"tcp6", "tcp", "0A"}, {"udp", "udp", "07"}, {"udp6", "udp", "07"},
}

// listeners returns the ports on which processes in the calling thread's network namespace listen for IPv4, each once,
// sorted. A socket on all IPv6 addresses counts as one on all IPv4 addresses too. That is true unless its owner has set
// IPV6_V6ONLY, which these files do not show. Then the port is kept from pods although nothing listens on it over IPv4.
func listeners() ([]listener, error) {
	var all []listener
	read := func(file string, parse func(io.Reader) ([]listener, error)) error {
		f, err := os.Open("/proc/thread-self/net/" + file)
		if errors.Is(err, fs.ErrNotExist) { // a kernel without IPv6 or SCTP
			return nil
		}
		if err != nil {
			return err
		}
		defer f.Close()
		found, err := parse(f)
		if err != nil {
			return fmt.Errorf("%s: %w", f.Name(), err)
		}
		all = append(all, found...)
		return nil
	}
	for _, s := range sockets {
		if err := read(s.file, func(r io.Reader) ([]listener, error) {
			return parseSockets(r, s.protocol,
				s.state)
		}); err != nil {
			return nil, fmt.Errorf("list this machine's sockets: %w", err)
		}
	}
	if err := read("sctp/eps", parseEndpoints); err != nil {
		return nil, fmt.Errorf("list this machine's sockets: %w", err)
	}
	slices.SortFunc(all, func(a, b listener) int { return strings.Compare(a.String(), b.String()) })
	return slices.Compact(all), nil
}

// parseSockets reads the format of proc_net_tcp(5): the local address as HEX-IP:HEX-PORT in column 2, the state in
// column 4. Listening sockets come first in TCP's files, so reading stops after them.
func parseSockets(r io.Reader, protocol, state string) ([]listener, error) {
	var out []listener
	lines := bufio.NewScanner(r)
	for first := true; lines.Scan(); first = false {
		f := strings.Fields(lines.Text())
		if first {
			continue // heading
		}
		if len(f) < 4 {
			return nil, fmt.Errorf("line %.80q: want four columns or more", lines.Text())
		}
		if f[3] != state {
			if protocol == "tcp" {
				break
			}
			continue
		}
		l, serves, err := parseLocal(f[1])
		if err != nil {
			return nil, err
		}
		if l.protocol = protocol; serves {
			out = append(out, l)
		}
	}
	return out, lines.Err()
}

// parseLocal reads an address as the kernel prints it: words of 32 bits in the machine's byte order. It returns whether
// IPv4 packets reach it.
func parseLocal(text string) (l listener, serves bool, err error) {
	host, port, ok := strings.Cut(text, ":")
	number, err := strconv.ParseUint(port, 16, 16)
	raw, hexErr := hex.DecodeString(host)
	if !ok || err != nil || hexErr != nil || len(raw) != 4 && len(raw) != 16 {
		return listener{}, false, fmt.Errorf("local address %.80q: want HEX-IP:HEX-PORT", text)
	}
	for i := 0; i < len(raw); i += 4 {
		binary.NativeEndian.PutUint32(raw[i:], binary.BigEndian.Uint32(raw[i:]))
	}
	address, _ := netip.AddrFromSlice(raw)
	if address == netip.IPv6Unspecified() {
		address = netip.IPv4Unspecified()
	}
	address = address.Unmap()
	return listener{address: address, port: uint16(number)}, address.Is4() && number > 0, nil
}

// parseEndpoints reads SCTP's endpoints: the state in column 4 (10 is SCTP_SS_LISTENING, equal to TCP_LISTEN), the port
// in column 6, local addresses from column 9 on.
func parseEndpoints(r io.Reader) ([]listener, error) {
	var out []listener
	lines := bufio.NewScanner(r)
	for first := true; lines.Scan(); first = false {
		f := strings.Fields(lines.Text())
		if first || len(f) < 9 || f[3] != "10" {
			continue
		}
		port, err := strconv.ParseUint(f[5], 10, 16)
		if err != nil {
			return nil, fmt.Errorf("line %.80q: port: not a number", lines.Text())
		}
		for _, text := range f[8:] {
			address, err := netip.ParseAddr(strings.TrimPrefix(text, "*"))
			if err != nil {
				return nil, fmt.Errorf("line %.80q: %w", lines.Text(), err)
			}
			if address == netip.IPv6Unspecified() {
				address = netip.IPv4Unspecified()
			}
			if address = address.Unmap(); address.Is4() {
				out = append(out, listener{protocol: "sctp", address: address, port: uint16(port)})
			}
		}
	}
	return out, lines.Err()
}
