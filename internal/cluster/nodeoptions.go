package cluster

import (
	"fmt"
	"net/netip"
	"strings"
)

// several reports whether the instance has local nodes.
func (o *Options) several() bool { return o.Nodes > 1 }

// fillNodes sets the default addresses of `up --nodes`, which follow from the network between the nodes.
func (o *Options) fillNodes() {
	network, err := netip.ParsePrefix(o.NodeCIDR)
	if !o.several() || err != nil {
		return // Validate reports it
	}
	first := network.Masked().Addr().Next().String()
	if o.BindAddress == "" {
		o.BindAddress = first
	}
	if o.NodeIP == "" {
		o.NodeIP = first
	}
}

// validateNodes returns what is wrong with --nodes and with the options that depend on it.
func (o *Options) validateNodes() (problems []error) {
	bad := func(format string, args ...any) {
		problems = append(problems, fmt.Errorf("--nodes %d: "+format, append([]any{o.Nodes}, args...)...))
	}
	if o.Nodes < 0 {
		bad("want 1 or more")
	}
	if !o.several() {
		return problems
	}
	for _, c := range []struct {
		is  bool
		why string
	}{
		{!o.Agent, "needs root, and has no effect with --no-agent: --hollow N adds nodes that run no containers"},
		{o.NoControllerManager, "--no-controller-manager: kube-controller-manager signs the certificates of nodes"},
		{o.AgentBinary != "", "--agent-binary: only a single node can run another agent"},
		{o.ContainerRuntimeEndpoint != "", "--container-runtime-endpoint: every node needs a runtime of its own"},
	} {
		if c.is {
			bad("%s", c.why)
		}
	}
	if last := (layout{*o}).localNode(o.Nodes); o.has(addonCSI) && len(last.name) > driverNodeMax {
		bad("--node-name %s: volumes have the name %s in a label, whose limit is %d characters: choose a shorter one, or "+
			"leave volumes out with --without %s", o.NodeName, last.name, driverNodeMax, addonCSI)
	}
	network, err := netip.ParsePrefix(o.NodeCIDR)
	if err != nil || network != network.Masked() || !network.Addr().Is4() {
		return append(problems, fmt.Errorf("--node-cidr %q: not an IPv4 network in CIDR form, like 10.87.0.0/24",
			o.NodeCIDR))
	}
	problems = append(problems, o.validateNodeNetwork(network)...)
	for flag, value := range map[string]string{"bind-address": o.BindAddress, "node-ip": o.NodeIP} {
		if first := network.Addr().Next().String(); value != first {
			bad("--%s %s: its nodes reach the API server at %s, the first address of --node-cidr: leave --%s out",
				flag, value, first, flag)
		}
	}
	for _, text := range o.RegistryMirrors {
		if mirror := onLoopback(text); mirror != "" {
			bad("--registry-mirror %s: the other nodes cannot reach the loopback of this machine: let the mirror "+
				"listen on all addresses and name it by %s", mirror, network.Addr().Next())
		}
	}
	return problems
}

// onLoopback returns the mirror if its host is a loopback address or localhost.
func onLoopback(mirror string) string {
	_, address, _ := strings.Cut(mirror, "://")
	host, _, _ := strings.Cut(address, "/")
	host = strings.TrimSuffix(strings.TrimRight(host, "0123456789"), ":")
	if ip, err := netip.ParseAddr(strings.Trim(host, "[]")); host == "localhost" || err == nil && ip.IsLoopback() {
		return mirror
	}
	return ""
}

// validateNodeNetwork checks that the networks have room for the nodes and do not overlap.
func (o *Options) validateNodeNetwork(network netip.Prefix) (problems []error) {
	for flag, value := range map[string]string{"pod-cidr": o.PodCIDR, "service-cidr": o.ServiceCIDR} {
		if other, err := netip.ParsePrefix(value); err == nil && other.Overlaps(network) {
			problems = append(problems, fmt.Errorf("--node-cidr %s: overlaps --%s %s", network, flag, value))
		}
	}
	const reserved = 2 // the network's own address and the broadcast address
	if room := 1<<(32-network.Bits()) - reserved; o.Nodes > room {
		problems = append(problems, fmt.Errorf("--nodes %d: --node-cidr %s has addresses for %d", o.Nodes, network,
			max(room, 0)))
	}
	if pods, err := netip.ParsePrefix(o.PodCIDR); err == nil && pods.Addr().Is4() {
		if room := 1 << max(o.nodeMask()-pods.Bits(), 0); o.Nodes > room {
			problems = append(problems, fmt.Errorf("--nodes %d: --pod-cidr %s has room for %d: each node gets a /%d of it",
				o.Nodes, pods, room, o.nodeMask()))
		}
	}
	return problems
}
