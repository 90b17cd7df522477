package nat

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/google/nftables"

	"github.com/plimsoll-dev/plimsoll/test/cost"
)

func port(protocol, hostIP, pod string) Port {
	p := Port{Protocol: protocol, HostPort: 8080, Pod: netip.MustParseAddr(pod), PodPort: 80}
	if hostIP != "" {
		p.HostIP = netip.MustParseAddr(hostIP)
	}
	return p
}

func TestPortRule(t *testing.T) {
	for _, c := range []struct {
		port  Port
		exprs int // a match on an address takes three more
		fail  string
	}{
		{port("tcp", "", "10.85.0.2"), 7, ""},
		{port("sctp", "0.0.0.0", "10.85.0.2"), 7, ""},
		{port("udp", "192.0.2.1", "10.85.0.2"), 10, ""},
		{port("icmp", "", "10.85.0.2"), 0, `protocol "icmp"`},
		{port("tcp", "::", "10.85.0.2"), 0, "want IPv4"},
		{port("tcp", "", "fd00::2"), 0, "want IPv4"},
	} {
		rule, err := c.port.rule()
		if len(rule) != c.exprs || (err == nil) != (c.fail == "") || err != nil && !strings.Contains(err.Error(), c.fail) {
			t.Errorf("%v: %d expressions, %v; want %d, error with %q", c.port, len(rule), err, c.exprs, c.fail)
		}
	}
}

// TestTable writes, opens, closes and deletes in the kernel. internal/containerruntime tests with pods that packets are
// translated.
func TestTable(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: changes nftables")
	}
	network := Network{Bridge: fmt.Sprintf("plimsoll-nat-%d", os.Getpid()), Pods: netip.MustParsePrefix("10.85.0.0/16")}
	t.Cleanup(func() {
		if err := Delete(network.Bridge); err != nil {
			t.Error(err)
		}
	})
	for range 2 { // the second time everything exists
		err := Write(network)
		if errors.Is(err, ErrUnsupported) {
			t.Skip(err)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	want := func(when, rules string) {
		t.Helper()
		if got, err := count(network.Bridge); err != nil || got != rules {
			t.Errorf("%s: rules %s, %v; want %s", when, got, err, rules)
		}
	}
	want("written twice",
		"api-host 0, api-pods 0, guard 1, hostports 0, listeners 0, output 2, postrouting 3, prerouting 3")
	for _, owner := range []string{"a", "b"} {
		// There is no link of that name, so the last step, a setting of the link, fails after the rules were written.
		err := Open(network.Bridge, owner, []Port{port("tcp", "", "10.85.0.2"), port("udp", "192.0.2.1", "10.85.0.2")})
		if err == nil || !strings.Contains(err.Error(), "route_localnet") {
			t.Fatal(err)
		}
	}
	want("two owners", "api-host 0, api-pods 0, guard 1, hostports 4, listeners 0, output 2, postrouting 3, prerouting 3")
	if err := Write(network); err != nil {
		t.Fatal(err)
	}
	want("written under open ports",
		"api-host 0, api-pods 0, guard 1, hostports 4, listeners 0, output 2, postrouting 3, prerouting 3")
	for range 2 {
		if err := Close(network.Bridge, "a"); err != nil {
			t.Fatal(err)
		}
	}
	want("one closed", "api-host 0, api-pods 0, guard 1, hostports 2, listeners 0, output 2, postrouting 3, prerouting 3")
	for range 2 {
		if err := Delete(network.Bridge); err != nil {
			t.Fatal(err)
		}
	}
	if err := Close(network.Bridge, "b"); err != nil {
		t.Errorf("close without a table: %v", err)
	}
	if err := Open(network.Bridge, "a", nil); err != nil {
		t.Errorf("open nothing: %v", err)
	}
}

// count prints how many rules each chain of a table has.
func count(bridge string) (string, error) {
	conn, err := nftables.New()
	if err != nil {
		return "", err
	}
	var found []string
	for _, name := range []string{apiHostChain, apiPodsChain, "guard", hostPortChain, listenerChain, "output",
		"postrouting", "prerouting"} {
		rules, err := conn.GetRules(chainOf(bridge, name))
		if err != nil {
			return "", err
		}
		found = append(found, fmt.Sprintf("%s %d", name, len(rules)))
	}
	return strings.Join(found, ", "), nil
}

// TestParseSockets reads kernels' output; the addresses are words in the order of a little-endian machine.
func TestParseSockets(t *testing.T) {
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		t.Skip("the texts are a little-endian machine's")
	}
	const heading = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
	for _, c := range []struct{ protocol, state, text, want string }{
		{"tcp", "0A",
			"   0: 0100007F:192B 00000000:0000 0A 0\n   1: 00000000:0016 00000000:0000 0A 0\n" +
				"   2: 0100007F:9C40 0100007F:192B 01 0\n", "tcp 127.0.0.1:6443, tcp 0.0.0.0:22"},
		{"tcp", "0A", "   0: 00000000000000000000000000000000:1F90 00000000000000000000000000000000:0000 0A 0\n",
			"tcp 0.0.0.0:8080"},
		{"tcp", "0A", "   0: 0000000000000000FFFF0000020200C0:1F90 00000000000000000000000000000000:0000 0A 0\n",
			"tcp 192.0.2.2:8080"},
		{"tcp", "0A", "   0: 00000000000000000000000001000000:1F90 00000000000000000000000000000000:0000 0A 0\n", ""},
		{"udp", "07", "   0: 3500007F:0035 00000000:0000 07 0\n   1: 00000000:9C40 0100007F:0035 01 0\n",
			"udp 127.0.0.53:53"},
	} {
		got, err := parseSockets(strings.NewReader(heading+c.text), c.protocol, c.state)
		if text := fmt.Sprint(got); err != nil || text != "["+strings.ReplaceAll(c.want, ", ", " ")+"]" {
			t.Errorf("%q: %s, %v; want %s", c.text, text, err, c.want)
		}
	}
	const endpoints = " ENDPT     SOCK   STY SST HBKT LPORT   UID INODE LADDRS\n"
	got, err := parseEndpoints(strings.NewReader(endpoints +
		"ffff0 ffff1 2 10 29 7777 0 12345 10.0.0.1 *192.0.2.1 ::1 \nffff0 ffff1 2 1 29 7778 0 12346 0.0.0.0\n"))
	if text := fmt.Sprint(got); err != nil || text != "[sctp 10.0.0.1:7777 sctp 192.0.2.1:7777]" {
		t.Errorf("endpoints: %s, %v", text, err)
	}
}

// FuzzListeners: reading any text of the kernel is cheap and yields ports that can be compared with a host port.
func FuzzListeners(f *testing.F) {
	cost.Attack(f, "heading\n   0: 0100007F:192B 00000000:0000 0A 0\n")
	cost.Attack(f, "heading\nffff0 ffff1 2 10 29 7777 0 12345 10.0.0.1\n")
	f.Fuzz(func(t *testing.T, text string) {
		cost.Under(t, cost.Budget{}, len(text), func() {
			_, _ = parseSockets(strings.NewReader(text), "udp", "07")
			_, _ = parseEndpoints(strings.NewReader(text))
		})
		found, _ := parseSockets(strings.NewReader(text), "tcp", "0A")
		more, _ := parseEndpoints(strings.NewReader(text))
		for _, l := range append(found, more...) {
			if !l.address.Is4() || !l.has(Port{Protocol: l.protocol, HostIP: l.address, HostPort: l.port}) {
				t.Errorf("%q is read as %v", text, l)
			}
		}
	})
}
