package nat

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/google/nftables"
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
		exprs int // an address to match takes three more
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

// TestTable writes, opens, closes and deletes in the kernel; that packets follow is internal/containerruntime's to test,
// with pods.
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
	for range 2 { // the second finds everything there
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
		if got := count(t, network.Bridge); got != rules {
			t.Errorf("%s: rules %s, want %s", when, got, rules)
		}
	}
	want("written twice", "guard 1, hostports 0, output 1, postrouting 3, prerouting 1")
	for _, owner := range []string{"a", "b"} {
		// There is no link of that name, so that the last step, a setting of the link, fails: the rules are there.
		err := Open(network.Bridge, owner, []Port{port("tcp", "", "10.85.0.2"), port("udp", "192.0.2.1", "10.85.0.2")})
		if err == nil || !strings.Contains(err.Error(), "route_localnet") {
			t.Fatal(err)
		}
	}
	want("two owners", "guard 1, hostports 4, output 1, postrouting 3, prerouting 1")
	if err := Write(network); err != nil {
		t.Fatal(err)
	}
	want("written under open ports", "guard 1, hostports 4, output 1, postrouting 3, prerouting 1")
	for range 2 {
		if err := Close(network.Bridge, "a"); err != nil {
			t.Fatal(err)
		}
	}
	want("one closed", "guard 1, hostports 2, output 1, postrouting 3, prerouting 1")
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
func count(t *testing.T, bridge string) string {
	t.Helper()
	conn, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	table, _ := hostPorts(bridge)
	var found []string
	for _, chain := range []string{"guard", hostPortChain, "output", "postrouting", "prerouting"} {
		rules, err := conn.GetRules(table, &nftables.Chain{Name: chain, Table: table})
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, fmt.Sprintf("%s %d", chain, len(rules)))
	}
	return strings.Join(found, ", ")
}
