package podroutes

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func node(name, address, pods string) Node {
	n := Node{Name: name}
	if address != "" {
		n.Address = netip.MustParseAddr(address)
	}
	if pods != "" {
		n.Pods = netip.MustParsePrefix(pods)
	}
	return n
}

var attached = []netip.Prefix{netip.MustParsePrefix("192.168.7.0/24"), netip.MustParsePrefix("172.16.0.0/12")}

func TestPlan(t *testing.T) {
	for _, c := range []struct {
		name     string
		nodes    []Node
		routes   string
		problems string
	}{
		{"alone", []Node{node("me", "192.168.7.1", "10.1.0.0/24")}, "", ""},
		{"two others", []Node{
			node("z", "172.20.1.1", "10.1.2.0/24"),
			node("me", "192.168.7.1", "10.1.0.0/24"),
			node("b", "192.168.7.2", "10.1.1.0/24"),
		}, "10.1.1.0/24 via 192.168.7.2, 10.1.2.0/24 via 172.20.1.1", ""},
		{"one that has nothing yet", []Node{node("b", "192.168.7.2", ""), node("c", "", "10.1.2.0/24")}, "", ""},
		{"one in another network", []Node{node("b", "203.0.113.4", "10.1.1.0/24")}, "",
			"b: its address 203.0.113.4 is in no network"},
		{"two with the same pods", []Node{
			node("c", "192.168.7.3", "10.1.1.0/24"), node("b", "192.168.7.2", "10.1.1.0/24"),
		}, "10.1.1.0/24 via 192.168.7.2", "c: its pods' network 10.1.1.0/24 overlaps 10.1.1.0/24 of node b"},
		{"one that has this machine's pods", []Node{
			node("b", "192.168.7.2", "10.1.0.0/16"), node("me", "192.168.7.1", "10.1.0.0/24"),
		}, "", "b: its pods' network 10.1.0.0/16 overlaps 10.1.0.0/24 of node me"},
		{"another family", []Node{node("b", "fd00::2", "10.1.1.0/24")}, "", "b: its address fd00::2 is in no network"},
	} {
		routes, problems := Plan("me", c.nodes, attached)
		if got := text(routes); got != c.routes {
			t.Errorf("%s: routes %q, want %q", c.name, got, c.routes)
		}
		got := ""
		for _, p := range problems {
			got += p.Node + ": " + p.Text + "\n"
		}
		if c.problems == "" && got != "" || !strings.Contains(got, c.problems) {
			t.Errorf("%s: problems %q, want %q", c.name, got, c.problems)
		}
	}
}

func text(routes []Route) string {
	var all []string
	for _, r := range routes {
		all = append(all, fmt.Sprintf("%s via %s", r.To, r.Via))
	}
	return strings.Join(all, ", ")
}

// TestHistories plays random nodes. After each step the kernel's routes, kept as a map by network as the kernel does,
// are those of the plan; the order in which nodes are listed makes no difference; and no route overlaps another.
func TestHistories(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	nodes := map[string]Node{}
	kernel := map[netip.Prefix]netip.Addr{}
	for range 2000 {
		name := string(rune('a' + random.IntN(8)))
		if random.IntN(4) == 0 {
			delete(nodes, name)
		} else {
			nodes[name] = node(name, fmt.Sprintf("192.168.%d.%d", 7+random.IntN(2), 1+random.IntN(9)),
				netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 1, byte(random.IntN(6)), 0}), 23+random.IntN(2)).Masked().String())
		}
		var list, other []Node
		for _, n := range nodes {
			list = append(list, n)
		}
		for _, n := range nodes {
			other = append(other, n)
		}
		want, _ := Plan("d", list, attached)
		if again, _ := Plan("d", other, attached); !slices.Equal(want, again) {
			t.Fatalf("the order of nodes matters: %v, %v", want, again)
		}
		var have []Route
		for to, via := range kernel {
			have = append(have, Route{To: to, Via: via})
		}
		add, remove := Changes(want, have)
		for _, r := range remove {
			delete(kernel, r.To)
		}
		for _, r := range add {
			kernel[r.To] = r.Via
		}
		if len(kernel) != len(want) {
			t.Fatalf("kernel has %v, want %v", kernel, want)
		}
		for i, r := range want {
			if kernel[r.To] != r.Via {
				t.Fatalf("kernel has %v, want %v", kernel, want)
			}
			if own, ok := nodes["d"]; ok && own.Pods.Overlaps(r.To) {
				t.Fatalf("%v leads away from this machine's pods %v", r, own.Pods)
			}
			for _, s := range want[:i] {
				if s.To.Overlaps(r.To) {
					t.Fatalf("%v and %v overlap", s, r)
				}
			}
		}
	}
}
