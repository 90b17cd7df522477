package servingcert

import (
	"net/netip"
	"strings"
	"testing"
)

func TestJudge(t *testing.T) {
	facts := Facts{
		Cluster: []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.96.0.1")},
		Names:   []string{"kubernetes", "localhost"},
		Nodes: map[string][]netip.Addr{
			"a": {netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.1")}, // it claims kube-apiserver's too
			"b": {netip.MustParseAddr("10.0.0.3")},
		},
	}
	good := func() Request {
		return Request{
			User:          "system:node:a",
			Groups:        []string{"system:nodes", "system:authenticated"},
			CommonName:    "system:node:a",
			Organizations: []string{"system:nodes"},
			DNSNames:      []string{"a"},
			Addresses:     []netip.Addr{netip.MustParseAddr("10.0.0.2")},
			Usages:        []string{"digital signature", "server auth"},
		}
	}
	for _, c := range []struct {
		name   string
		change func(*Request)
		want   string // part of the reason; empty: approved
	}{
		{"its own", func(*Request) {}, ""},
		{"a new address", func(r *Request) { r.Addresses = []netip.Addr{netip.MustParseAddr("10.0.0.9")} }, ""},
		{"with the usage of RSA keys", func(r *Request) { r.Usages = append(r.Usages, "key encipherment") }, ""},
		{"by a service account", func(r *Request) { r.User = "system:serviceaccount:default:a" }, "is no node"},
		{"by a user who calls itself node", func(r *Request) { r.Groups = []string{"system:authenticated"} }, "is no node"},
		{"without a node's name", func(r *Request) { r.User, r.CommonName = "system:node:", "system:node:" }, "is no node"},
		{"by a node called as kube-apiserver", named("kubernetes"), "as a server of the cluster"},
		{"by a node called as a Service", named("metrics-server.kube-system.svc"), "as a Service"},
		{"by a node called as a Service in full", named("web.team.svc.cluster.local"), "as a Service"},
		{"by a node with dots in its name", named("svc.example.com"), ""},
		{"of another node", func(r *Request) { r.CommonName = "system:node:b" }, "in its own name only"},
		{"of kube-apiserver", func(r *Request) { r.CommonName = "kube-apiserver" }, "in its own name only"},
		{"of administrators", func(r *Request) { r.Organizations = []string{"system:nodes", "system:masters"} },
			"organizations"},
		{"no organization", func(r *Request) { r.Organizations = nil }, "organizations"},
		{"kube-apiserver's name", func(r *Request) { r.DNSNames = []string{"a", "kubernetes"} }, `DNS name "kubernetes"`},
		{"kube-apiserver's address", func(r *Request) { r.Addresses = facts.Cluster[:1] }, "belongs to kube-apiserver"},
		{"the same, as IPv6",
			func(r *Request) { r.Addresses = []netip.Addr{netip.MustParseAddr("::ffff:10.0.0.1")} },
			"belongs to kube-apiserver"},
		{"the Service's address", func(r *Request) { r.Addresses = append(r.Addresses, facts.Cluster[1]) },
			"belongs to kube-apiserver"},
		{"another node's address", func(r *Request) { r.Addresses = facts.Nodes["b"] }, "belongs to node b"},
		{"loopback", func(r *Request) { r.Addresses = []netip.Addr{netip.MustParseAddr("127.0.0.1")} },
			"no address by which"},
		{"no address", func(r *Request) { r.Addresses = nil }, "no address"},
		{"e-mail", func(r *Request) { r.OtherNames = 1 }, "e-mail"},
		{"a client's usage", func(r *Request) { r.Usages = append(r.Usages, "client auth") }, "client auth"},
		{"no server", func(r *Request) { r.Usages = r.Usages[:1] }, "want server auth"},
	} {
		r := good()
		c.change(&r)
		err := Judge(r, facts)
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: denied: %v", c.name, err)
		case c.want != "" && err == nil:
			t.Errorf("%s: approved", c.name)
		case c.want != "" && !strings.Contains(err.Error(), c.want):
			t.Errorf("%s: denied: %v, want %q", c.name, err, c.want)
		}
	}
}

// named makes a request that of a node with another name.
func named(name string) func(*Request) {
	return func(r *Request) {
		r.User = "system:node:" + name
		r.CommonName = r.User
		r.DNSNames = []string{name}
		r.Addresses = []netip.Addr{netip.MustParseAddr("10.0.0.9")}
	}
}
