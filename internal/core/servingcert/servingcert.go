// Package servingcert decides whether a node gets the certificate for its server that it requests.
//
// # Model
//
// The cluster's authority signs what clients of every server of the cluster trust: kube-apiserver's certificate too. So
// a node must get a certificate for its own name and its own addresses, and for nothing else. A Request is what the
// node asks for, and who it is; Facts are the addresses that belong to others. Upstream has no controller for this
// decision: it leaves it to the distribution (KEP-4222 and the documentation of kubernetes.io/kubelet-serving).
//
// # Invariants
//
//   - A certificate is approved for the requester alone: its subject, its DNS names and its addresses are those of one
//     node, and no address is known to be another's. A node whose name is that of one of the cluster's servers, or has
//     the form of a Service's name, gets none: a machine that joins chooses its own name.
//   - What is not approved is denied with the reason, so that no request waits for ever.
//
// # What it does not do
//
// It cannot verify who has an address, because a node publishes its own addresses. An address that belongs to no other
// node and to no server of the cluster counts as the node's.
package servingcert

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

const (
	nodeUser   = "system:node:"
	nodesGroup = "system:nodes"
)

// A Request is a request for the certificate of a node's server.
type Request struct {
	User          string   // who asks, as the API server authenticated it
	Groups        []string // its groups
	CommonName    string
	Organizations []string
	DNSNames      []string
	Addresses     []netip.Addr
	OtherNames    int // e-mail addresses and URIs
	Usages        []string
}

// Facts are who has which addresses and names.
type Facts struct {
	Cluster []netip.Addr            // of kube-apiserver, its Service among them
	Names   []string                // DNS names of the cluster's own servers
	Nodes   map[string][]netip.Addr // by node name
}

// Judge returns nil if the request is approved, else why it is denied.
func Judge(r Request, f Facts) error {
	name, isNode := strings.CutPrefix(r.User, nodeUser)
	switch {
	case !isNode || name == "" || !slices.Contains(r.Groups, nodesGroup):
		return fmt.Errorf("requested by %q, which is no node", r.User)
	case r.CommonName != r.User:
		return fmt.Errorf("the subject is %q: a node gets certificates in its own name only, which is %q",
			r.CommonName, r.User)
	case !slices.Equal(r.Organizations, []string{nodesGroup}):
		return fmt.Errorf("the organizations are %q: want %q", r.Organizations, nodesGroup)
	case slices.Contains(f.Names, name):
		return fmt.Errorf("the node calls itself %q, as a server of the cluster does: join with another --node-name", name)
	case strings.HasSuffix(name, ".svc") || strings.Contains(name, ".svc."):
		return fmt.Errorf("the node calls itself %q, as a Service is called: join with another --node-name", name)
	case r.OtherNames > 0:
		return fmt.Errorf("it names e-mail addresses or URIs: want DNS names and addresses only")
	case len(r.Addresses) == 0:
		return fmt.Errorf("it names no address: clients reach nodes by address")
	}
	for _, usage := range r.Usages {
		if usage != "digital signature" && usage != "key encipherment" && usage != "server auth" {
			return fmt.Errorf("usage %q: want digital signature, key encipherment and server auth only", usage)
		}
	}
	if !slices.Contains(r.Usages, "server auth") {
		return fmt.Errorf("the usages are %q: want server auth among them", r.Usages)
	}
	for _, dns := range r.DNSNames {
		if dns != name {
			return fmt.Errorf("DNS name %q: want the node's name only, which is %q", dns, name)
		}
	}
	for _, a := range r.Addresses {
		if err := judgeAddress(a.Unmap(), name, f); err != nil {
			return fmt.Errorf("address %s: %w", a, err)
		}
	}
	return nil
}

func judgeAddress(a netip.Addr, name string, f Facts) error {
	if a.IsLoopback() || a.IsUnspecified() || a.IsMulticast() {
		return fmt.Errorf("no address by which others reach a node")
	}
	if slices.Contains(f.Cluster, a) {
		return fmt.Errorf("belongs to kube-apiserver")
	}
	for other, addresses := range f.Nodes {
		if other != name && slices.Contains(addresses, a) {
			return fmt.Errorf("belongs to node %s", other)
		}
	}
	return nil
}
