package dns

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Limits of a resolver configuration, the kubelet's. glibc uses 3 servers (resolv.conf(5), MAXNS). The API admits 32
// search domains and 2048 bytes since KEP-2595. A domain of more than 253 bytes is invalid and makes glibc 2.28 abort.
const (
	serversMax     = 3
	searchesMax    = 32
	searchBytesMax = 2048
	domainBytesMax = 253

	resolvConfMax = 10 << 20 // how many bytes of a resolv.conf are read
)

// Resolver is the node's part of pods' resolver configuration, from the fields of the same names in the kubelet
// configuration.
type Resolver struct {
	ClusterDomain string
	ClusterDNS    []string
	ResolvConf    string // path of the host's file; empty: pods with policy Default use a resolver on the node itself

	// NodeIPs are this node's addresses. They only choose the loopback family if ResolvConf is empty.
	NodeIPs []string
}

// Warning is a problem that the pod's author should know: an Event on the pod with this reason and message.
type Warning struct{ Reason, Message string }

// DNSConfig returns the CRI's description of the pod's resolv.conf.
func (r Resolver) DNSConfig(pod *corev1.Pod) (*runtimeapi.DNSConfig, []Warning, error) {
	policy, warnings := pod.Spec.DNSPolicy, []Warning(nil)
	switch {
	case policy == corev1.DNSClusterFirst && pod.Spec.HostNetwork:
		policy = corev1.DNSDefault
	case policy == corev1.DNSClusterFirstWithHostNet || policy == "":
		policy = corev1.DNSClusterFirst
	}
	if policy == corev1.DNSClusterFirst && len(r.ClusterDNS) == 0 {
		warnings = append(warnings, Warning{"MissingClusterDNS",
			fmt.Sprintf("pod: \"%s_%s(%s)\". kubelet does not have ClusterDNS IP configured and cannot create Pod using %q "+
				"policy. Falling back to %q policy.",
				pod.Name, pod.Namespace, pod.UID, corev1.DNSClusterFirst, corev1.DNSDefault)})
		policy = corev1.DNSDefault
	}
	dns := &runtimeapi.DNSConfig{}
	switch policy {
	case corev1.DNSNone:
	case corev1.DNSClusterFirst:
		host, err := readResolvConf(r.ResolvConf)
		if err != nil {
			return nil, warnings, err
		}
		dns.Servers = slices.Clone(r.ClusterDNS)
		dns.Searches = r.clusterSearches(pod.Namespace, host.Searches)
		dns.Options = []string{"ndots:5"}
	case corev1.DNSDefault:
		host, err := readResolvConf(r.ResolvConf)
		if err != nil {
			return nil, warnings, err
		}
		if dns = host; r.ResolvConf == "" {
			dns = r.loopback()
		}
	default:
		return nil, warnings, fmt.Errorf("invalid DNSPolicy=%v", pod.Spec.DNSPolicy)
	}
	if c := pod.Spec.DNSConfig; c != nil {
		dns.Servers = once(append(dns.Servers, c.Nameservers...))
		dns.Searches = once(append(dns.Searches, c.Searches...))
		dns.Options = mergeOptions(dns.Options, c.Options)
	}
	return dns, append(warnings, limit(dns)...), nil
}

func (r Resolver) clusterSearches(namespace string, host []string) []string {
	if r.ClusterDomain == "" {
		return host
	}
	return once(append([]string{namespace + ".svc." + r.ClusterDomain, "svc." + r.ClusterDomain, r.ClusterDomain},
		host...))
}

// loopback returns what a resolver does without a nameserver line: it asks this machine. Otherwise the runtime would
// insert its own default.
func (r Resolver) loopback() *runtimeapi.DNSConfig {
	dns := &runtimeapi.DNSConfig{Searches: []string{"."}}
	for _, ip := range r.NodeIPs {
		if strings.Contains(ip, ":") {
			dns.Servers = append(dns.Servers, "::1")
		} else {
			dns.Servers = append(dns.Servers, "127.0.0.1")
		}
	}
	if len(dns.Servers) == 0 {
		dns.Servers = []string{"127.0.0.1"}
	}
	return dns
}

func readResolvConf(path string) (*runtimeapi.DNSConfig, error) {
	if path == "" {
		return &runtimeapi.DNSConfig{}, nil
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read resolver configuration: %w", err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, resolvConfMax))
	if err != nil {
		return nil, fmt.Errorf("read resolver configuration: %w", err)
	}
	dns, err := parseResolvConf(string(text))
	if err != nil {
		return nil, fmt.Errorf("read resolver configuration: %s: %w", path, err)
	}
	return dns, nil
}

// parseResolvConf reads resolv.conf(5): nameserver lines are concatenated, only the last search line counts, options
// are merged and the last value of a name counts. A trailing dot of a domain is dropped, so that the same domain counts
// once.
func parseResolvConf(text string) (*runtimeapi.DNSConfig, error) {
	dns := &runtimeapi.DNSConfig{}
	line := 0
	for current := range strings.Lines(text) {
		line++
		fields := strings.Fields(current)
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		switch fields[0] {
		case "nameserver":
			if len(fields) < 2 {
				return nil, fmt.Errorf("line %d: nameserver without an address", line)
			}
			dns.Servers = append(dns.Servers, fields[1])
		case "search":
			dns.Searches = nil
			for _, s := range fields[1:] {
				if s != "." {
					dns.Searches = append(dns.Searches, strings.TrimSuffix(s, "."))
				}
			}
		case "options":
			for _, o := range fields[1:] {
				name, value, _ := strings.Cut(o, ":")
				dns.Options = setOption(dns.Options, name, value)
			}
		}
	}
	return dns, nil
}

// setOption replaces the option called name, in its place, or appends it.
func setOption(options []string, name, value string) []string {
	option := name
	if value != "" {
		option += ":" + value
	}
	for i, o := range options {
		if had, _, _ := strings.Cut(o, ":"); had == name {
			options[i] = option
			return options
		}
	}
	return append(options, option)
}

func mergeOptions(options []string, more []corev1.PodDNSConfigOption) []string {
	for _, o := range more {
		value := ""
		if o.Value != nil {
			value = *o.Value
		}
		options = setOption(options, o.Name, value)
	}
	return options
}

// limit reduces dns to the limits of resolvers.
func limit(dns *runtimeapi.DNSConfig) (warnings []Warning) {
	if len(dns.Servers) > serversMax {
		dns.Servers = dns.Servers[:serversMax]
		warnings = append(warnings, Warning{"DNSConfigForming",
			"Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: " +
				strings.Join(dns.Servers, " ")})
	}
	kept := dns.Searches[:min(len(dns.Searches), searchesMax)]
	kept = slices.DeleteFunc(slices.Clone(kept), func(s string) bool { return len(s) > domainBytesMax })
	for len(strings.Join(kept, " ")) > searchBytesMax {
		kept = kept[:len(kept)-1]
	}
	if len(kept) < len(dns.Searches) {
		dns.Searches = kept
		warnings = append(warnings, Warning{"DNSConfigForming",
			"Search Line limits were exceeded, some search paths have been omitted, the applied search line is: " +
				strings.Join(kept, " ")})
	}
	return warnings
}

// once drops repetitions and keeps first places.
func once(in []string) []string {
	var out []string
	for _, s := range in {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}
