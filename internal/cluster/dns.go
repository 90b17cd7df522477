package cluster

import (
	"context"
	_ "embed"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"

	"github.com/plimsoll-dev/plimsoll/internal/image"
	"github.com/plimsoll-dev/plimsoll/internal/kube/kubeletconfig"
)

// DNS: CoreDNS answers for the names of Services and pods, and asks the machine's own name servers for the others. It
// runs as pods, not as a child. So it has an address that every pod reaches, kubectl shows it, it is moved when it is
// evicted or its node fails, and it can be scaled like any Deployment. `up` does not overwrite a configuration that a
// user has edited (applyObjects).

//go:embed coredns.yaml
var dnsManifest string

// addonDNS is the name of the add-on, and of its Deployment in kube-system.
const addonDNS = "coredns"

// clusterDNSOffset is which address of --service-cidr the DNS Service has: the tenth, as kubeadm's.
const clusterDNSOffset = 10

// clusterDNS is the address of the cluster's DNS.
func (o *Options) clusterDNS() netip.Addr {
	services, err := netip.ParsePrefix(o.ServiceCIDR)
	if err != nil {
		return netip.Addr{} // Validate has reported it
	}
	addr := services.Addr()
	for range clusterDNSOffset {
		addr = addr.Next()
	}
	return addr
}

// fillDNS replaces the words in capitals of coredns.yaml.
func (l layout) fillDNS() (*strings.Replacer, error) {
	config, _, err := kubeletconfig.Load(l.agentConfig())
	if err != nil {
		return nil, fmt.Errorf("install %s: %w", addonDNS, err)
	}
	forward := "forward . /etc/resolv.conf"
	if !reachableServers(config.ResolverConfig) {
		forward = "# This machine's resolv.conf names no name server that a pod can reach: " +
			"only the cluster's own names are known."
	}
	return strings.NewReplacer(
		"CLUSTER_DOMAIN", config.ClusterDomain,
		"CLUSTER_DNS", l.o.clusterDNS().String(),
		"FORWARD", forward,
		"IMAGE", image.CoreDNS,
	), nil
}

// dnsAnswers asks the cluster's DNS, at its Service's address, for the Service "kubernetes", which every cluster has.
// It does not rely on the status of the DNS server's pods, which may be from an earlier run.
func (c *cluster) dnsAnswers(ctx context.Context) error {
	if !c.o.has(addonDNS) || !c.o.has(childKubeProxy) {
		return nil
	}
	config, _, err := kubeletconfig.Load(c.agentConfig())
	if err != nil {
		return err
	}
	server := net.JoinHostPort(c.o.clusterDNS().String(), "53")
	resolver := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, server)
	}}
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	if _, err := resolver.LookupHost(ctx, "kubernetes.default.svc."+config.ClusterDomain+"."); err != nil {
		return fmt.Errorf("ask the cluster's DNS: %w", err)
	}
	return nil
}

// reachableServers reports whether a resolver configuration names a server that pods can reach. A server on the
// machine's loopback is not one: in a pod, that address is the pod's own.
func reachableServers(path *string) bool {
	if path == nil || *path == "" {
		return false
	}
	text, err := os.ReadFile(*path)
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) < 2 || fields[0] != "nameserver" {
			continue
		}
		if server, err := netip.ParseAddr(fields[1]); err == nil && !server.IsLoopback() {
			return true
		}
	}
	return false
}
