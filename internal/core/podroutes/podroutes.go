// Package podroutes decides which routes lead from one machine to the pods of the others.
//
// # Model
//
// Every node has a network for its pods and an address. A machine that shares a network with a node sends packets for
// the node's pods to the node's address; this is what others call host gateways. Plan turns nodes into such routes, and
// Changes compares them with those that the kernel has.
//
// # Invariants
//
//   - A route is planned only to an address in a network of this machine. Elsewhere the kernel would refuse it, or a
//     router would drop the packets silently.
//   - No planned route overlaps this machine's own pods, or another planned route. Of two nodes with overlapping
//     networks the first by name has the route, so that all machines agree.
//   - The result depends on the nodes alone, not on their order.
//
// # What it does not do
//
// It knows no tunnels: nodes in different networks need a pod network of another kind. It assigns no networks.
package podroutes

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
)

// A Node is what the cluster says of one node. The zero values mean that it has not been assigned a network yet, or has
// not published its address.
type Node struct {
	Name    string
	Address netip.Addr
	Pods    netip.Prefix
}

// A Route leads to a network through a neighbour.
type Route struct {
	To  netip.Prefix
	Via netip.Addr
}

// A Problem is a node whose pods cannot be reached, and why.
type Problem struct {
	Node string
	Text string
}

// Plan returns the routes that the machine of node self needs, in the order of the nodes' names. attached are the
// networks of the machine's interfaces without that of its own pods.
func Plan(self string, nodes []Node, attached []netip.Prefix) (routes []Route, problems []Problem) {
	nodes = slices.SortedFunc(slices.Values(nodes), func(a, b Node) int { return cmp.Compare(a.Name, b.Name) })
	var taken []Node // whose pods have a place in the routes: this machine's own first, whatever its name
	for _, n := range nodes {
		if n.Name == self && n.Pods.IsValid() {
			taken = append(taken, n)
		}
	}
	for _, n := range nodes {
		if n.Name == self || !n.Pods.IsValid() || !n.Address.IsValid() {
			continue
		}
		bad := func(format string, args ...any) {
			problems = append(problems, Problem{Node: n.Name, Text: fmt.Sprintf(format, args...)})
		}
		if i := slices.IndexFunc(taken, func(t Node) bool { return t.Pods.Overlaps(n.Pods) }); i >= 0 {
			bad("its pods' network %s overlaps %s of node %s: remove one of the nodes and let it join again",
				n.Pods, taken[i].Pods, taken[i].Name)
			continue
		}
		if !slices.ContainsFunc(attached, func(p netip.Prefix) bool { return p.Contains(n.Address) }) {
			bad("its address %s is in no network of this machine, so its pods %s cannot be reached: nodes must "+
				"share a network (choose their addresses with --node-ip)", n.Address, n.Pods)
			continue
		}
		taken = append(taken, n)
		routes = append(routes, Route{To: n.Pods.Masked(), Via: n.Address})
	}
	return routes, problems
}

// Changes returns what turns the routes that exist into those that are wanted. A route to the same network through
// another neighbour is only added: adding replaces it.
func Changes(want, have []Route) (add, remove []Route) {
	for _, w := range want {
		if !slices.Contains(have, w) {
			add = append(add, w)
		}
	}
	for _, h := range have {
		if !slices.ContainsFunc(want, func(w Route) bool { return w.To == h.To }) {
			remove = append(remove, h)
		}
	}
	return add, remove
}
