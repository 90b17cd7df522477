package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/plimsoll-dev/plimsoll/internal/cluster/bootstrap"
	"github.com/plimsoll-dev/plimsoll/internal/cluster/pki"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// sharedOptions returns options of an instance that other machines reach.
func sharedOptions(t *testing.T) Options {
	t.Helper()
	o := testOptions(t)
	o.BindAddress = "192.0.2.10"
	o.PodCIDR = "10.85.0.0/16"
	return o
}

// joinedOptions returns options of a machine that joined.
func joinedOptions(t *testing.T) Options {
	t.Helper()
	o := testOptions(t)
	o.Server, o.BindAddress = "https://192.0.2.10:6443", ""
	if err := o.FillJoined(); err != nil {
		t.Fatal(err)
	}
	return o
}

// TestSharedArguments: only an instance that other machines reach accepts tokens and divides its pod network.
func TestSharedArguments(t *testing.T) {
	alone, shared := testBuilder(t, testOptions(t)), testBuilder(t, sharedOptions(t))
	for _, want := range []string{
		"--enable-bootstrap-token-auth=true", "--allocate-node-cidrs=true", "--cluster-cidr=10.85.0.0/16",
		"--node-cidr-mask-size=24",
		"--controllers=*,-node-lifecycle-controller,-taint-eviction-controller,bootstrap-signer-controller," +
			"token-cleaner-controller",
	} {
		has := func(b builder) bool {
			return slices.Contains(b.apiServer().Argv, want) || slices.Contains(b.controllerManager().Argv, want)
		}
		if has(alone) || !has(shared) {
			t.Errorf("%s: alone %v, shared %v", want, has(alone), has(shared))
		}
	}
	if !slices.Contains(alone.controllerManager().Argv,
		"--controllers=*,-node-lifecycle-controller,-taint-eviction-controller") {
		t.Error("alone, upstream's lifecycle controllers run")
	}
	brief := sharedOptions(t)
	brief.SigningDuration = time.Hour
	if args := testBuilder(t, brief).controllerManager().Argv; !slices.Contains(args,
		"--cluster-signing-duration=1h0m0s") {
		t.Errorf("certificates that last an hour: %q", args)
	}
	small := sharedOptions(t)
	small.PodCIDR = "10.85.0.0/26"
	if args := testBuilder(t, small).controllerManager().Argv; !slices.Contains(args, "--node-cidr-mask-size=26") {
		t.Errorf("a network smaller than a node's: %q", args)
	}
	large := sharedOptions(t)
	large.PodCIDR, large.ServiceCIDR = "10.0.0.0/7", "172.16.0.0/16"
	if err := large.Validate(); err == nil || !strings.Contains(err.Error(), "--pod-cidr") {
		t.Errorf("a network that cannot be divided: %v", err)
	}
}

// TestBootstrapObjects: the manifests are YAML with every word replaced, and the authority in cluster-info is the
// cluster's.
func TestBootstrapObjects(t *testing.T) {
	l := layout{sharedOptions(t)}
	if _, err := l.ensureIdentities(time.Now()); err != nil {
		t.Fatal(err)
	}
	objects, err := l.bootstrapObjects()
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Join(objects, "\n")
	for _, word := range []string{"BOOTSTRAP_GROUP", "SETTINGS_NAME", "SETTINGS_JSON", "SERVER_URL", "AUTHORITY_DATA"} {
		if strings.Contains(all, word) {
			t.Errorf("%s was not replaced", word)
		}
	}
	for _, object := range objects {
		if err := yaml.Unmarshal([]byte(object), &map[string]any{}); err != nil {
			t.Errorf("%v in\n%s", err, object)
		}
		if _, err := headOf(object); err != nil {
			t.Error(err)
		}
	}
	if !strings.Contains(all, "server: https://192.0.2.10:6443") {
		t.Error("cluster-info does not say where the server is")
	}
	if hash, err := l.authorityHash(); err != nil || bootstrap.ParseHash(hash) != nil {
		t.Errorf("hash %q, %v", hash, err)
	}
	if old, err := l.unwanted(true); err != nil || strings.Contains(strings.Join(old, ""), "cluster-info") {
		t.Errorf("the objects are removed from an instance that needs them: %v", err)
	}
	alone := layout{testOptions(t)}
	if _, err := alone.ensureIdentities(time.Now()); err != nil {
		t.Fatal(err)
	}
	if old, err := alone.unwanted(true); err != nil || !strings.Contains(strings.Join(old, ""), "cluster-info") {
		t.Errorf("the objects stay in an instance that needs them no more: %v", err)
	}
}

// TestJoinedChildren: a machine that joined has the children of a node, with the node's own certificate.
func TestJoinedChildren(t *testing.T) {
	o := joinedOptions(t)
	b := testBuilder(t, o)
	c := &cluster{layout: b.layout, build: b}
	runtime, err := newRuntime(c.layout)
	if err != nil {
		t.Fatal(err)
	}
	c.runtime = runtime
	var names []string
	for _, spec := range c.specs() {
		names = append(names, spec.Name)
	}
	slices.Sort(names)
	if want := []string{childAgent, childContainerd, childKubeProxy}; !slices.Equal(names, want) &&
		!slices.Equal(names, want[:1:1]) {
		t.Errorf("children %q, want %q", names, want)
	}
	if spec := b.kubeProxy(); !slices.Contains(spec.Inputs, pki.CertPath(b.pki(), string(whoAgent))) {
		t.Errorf("kube-proxy's inputs %q lack the node's certificate", spec.Inputs)
	}
	for _, p := range o.ports() {
		if p.user != childAgent && p.user != childKubeProxy {
			t.Errorf("port %d of %s", p.number, p.user)
		}
	}
	if o.BindAddress != o.NodeIP {
		t.Errorf("ports are on %s, want on the node's address %s", o.BindAddress, o.NodeIP)
	}
}

// TestJoinedOptions: errors name the flag with a wrong value, and never contain the token.
func TestJoinedOptions(t *testing.T) {
	hash := "sha256:" + strings.Repeat("0", 64)
	for _, c := range []struct {
		name   string
		change func(*Options)
		want   string
	}{
		{"again, without a token", func(*Options) {}, ""},
		{"with a token", func(o *Options) { o.Token, o.AuthorityHash = "abcdef.0123456789abcdef", hash }, ""},
		{"without the hash", func(o *Options) { o.Token = "abcdef.0123456789abcdef" }, "--discovery-token-ca-cert-hash"},
		{"half a token", func(o *Options) { o.Token, o.AuthorityHash = "abcdef.secret", hash }, "--token"},
		{"loopback", func(o *Options) { o.NodeIP = "127.0.0.1" }, "--node-ip 127.0.0.1"},
	} {
		o := joinedOptions(t)
		c.change(&o)
		err := o.ValidateJoined()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: the error has the token: %v", c.name, err)
		}
	}
	bad := Options{Server: "192.0.2.10"}
	if err := bad.FillJoined(); err == nil || !strings.Contains(err.Error(), "https://HOST:PORT") {
		t.Errorf("a server without a port: %v", err)
	}
}

// TestRoles: a state directory belongs to one cluster.
func TestRoles(t *testing.T) {
	own, node := testOptions(t), joinedOptions(t)
	other := node
	other.Server = "https://192.0.2.11:6443"
	expectRoles(t, []role{
		{"the same node", node, node, ""},
		{"the same cluster", own, own, ""},
		{"another server, which connectToCluster judges", node, other, ""},
		{"join with a cluster's state", own, node, "has a cluster of this machine's own"},
		{"up with a node's state", node, own, "plimsoll join https://192.0.2.10:6443"},
	})
}

// TestMovedServer: a URL that the machine does not know is noticed, and is not used unless its server proves to be one
// of the cluster.
func TestMovedServer(t *testing.T) {
	o := joinedOptions(t)
	testBuilder(t, o)
	if got := (layout{o}).movedServer(); got != "" {
		t.Errorf("before the first join: from %q", got)
	}
	if err := o.save(); err != nil {
		t.Fatal(err)
	}
	if got := (layout{o}).movedServer(); got != "" {
		t.Errorf("the same: from %q", got)
	}
	moved := o
	moved.Server = "https://192.0.2.10:7443"
	if got := (layout{moved}).movedServer(); got != o.Server {
		t.Errorf("another port: from %q, want %q", got, o.Server)
	}
	if err := (layout{o}).writeServers(servers{Use: "https://192.0.2.11:6443", Known: []string{o.Server,
		"https://192.0.2.11:6443"}}); err != nil {
		t.Fatal(err)
	}
	if got := (layout{moved}).movedServer(); got != "https://192.0.2.11:6443" {
		t.Errorf("another port: from %q, want the one that was used last", got)
	}
	moved.Server = "https://192.0.2.11:6443"
	if got := (layout{moved}).movedServer(); got != "" {
		t.Errorf("another server of the cluster: from %q", got)
	}
	c := &cluster{layout: layout{moved}}
	why := c.notOfCluster(o.Server, errors.New("it has another authority")).Error()
	for _, want := range []string{moved.Server, o.Server, "it has another authority", "plimsoll down --purge"} {
		if !strings.Contains(why, want) {
			t.Errorf("%q lacks %q", why, want)
		}
	}
}

// role is a state directory that kept has made and now uses, and why it may not.
type role struct {
	name      string
	kept, now Options
	want      string
}

func expectRoles(t *testing.T, roles []role) {
	t.Helper()
	for _, c := range roles {
		dir := t.TempDir()
		c.kept.StateDir, c.now.StateDir = dir, dir
		if err := c.kept.save(); err != nil {
			t.Fatal(err)
		}
		err := layout{c.now}.checkRole()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

func TestSkew(t *testing.T) {
	for server, ok := range map[string]bool{"1.36.0": true, "v1.36.9": true, "1.39.0": true, "1.40.0": false,
		"1.35.9": false, "2.36.0": false, "": false} {
		if err := checkSkew(server); (err == nil) != ok {
			t.Errorf("a control plane of %q: %v", server, err)
		}
	}
}

// TestReadRequest: every field of a request is translated for the core.
func TestReadRequest(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject:        pkix.Name{CommonName: "system:node:a", Organization: []string{"system:nodes"}},
		DNSNames:       []string{"a"},
		IPAddresses:    []net.IP{net.IPv4(10, 0, 0, 2)},
		EmailAddresses: []string{"a@example.com"},
	}, key)
	if err != nil {
		t.Fatal(err)
	}
	r := &certificatesv1.CertificateSigningRequest{Spec: certificatesv1.CertificateSigningRequestSpec{
		Username: "system:node:a",
		Groups:   []string{"system:nodes"},
		Usages:   []certificatesv1.KeyUsage{certificatesv1.UsageServerAuth},
		Request:  pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
	}}
	got, err := readRequest(r)
	if err != nil || got.User != "system:node:a" || !slices.Equal(got.Groups, []string{"system:nodes"}) ||
		got.CommonName != "system:node:a" ||
		!slices.Equal(got.Organizations, []string{"system:nodes"}) || !slices.Equal(got.DNSNames,
		[]string{"a"}) || got.OtherNames != 1 ||
		len(got.Addresses) != 1 || got.Addresses[0].Unmap() != netip.MustParseAddr("10.0.0.2") ||
		!slices.Equal(got.Usages, []string{"server auth"}) {
		t.Errorf("%+v, %v", got, err)
	}
	for name, text := range map[string][]byte{"nothing": nil, "no request": []byte("x"),
		"two": append(r.Spec.Request, r.Spec.Request...)} {
		r.Spec.Request = text
		if _, err := readRequest(r); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// TestCheckName: a name is refused if a node of another machine has it, also one that is not Ready. A machine may have
// the name that it had.
func TestCheckName(t *testing.T) {
	const name = "n1"
	node := func(ready, address string) string {
		return fmt.Sprintf(`{"apiVersion":"v1","kind":"Node","metadata":{"name":%q},"status":{"conditions":[{"type":"Ready",
			"status":%q}],"addresses":[{"type":"InternalIP","address":%q}]}}`, name, ready, address)
	}
	const here, there = "192.0.2.11", "192.0.2.12"
	for _, r := range []struct {
		what    string
		node    string // empty: there is none
		knew    string // whose certificate the machine has
		refused string
	}{
		{"no node", "", "", ""},
		{"a Ready node", node("True", there), "", "has a Ready node of that name"},
		{"a Ready node with this address", node("True", here), "", "has a Ready node of that name"},
		{"a machine that is away", node("Unknown", there), "", "run `plimsoll node remove n1` on the server first"},
		{"a machine that is away, and this was another", node("Unknown", there), "system:node:n2", "node remove n1"},
		{"this machine, with another disk", node("Unknown", here), "", ""},
		{"this machine, with another address", node("Unknown", there), "system:node:" + name, ""},
		{"a node that no machine has been", `{"apiVersion":"v1","kind":"Node","metadata":{"name":"n1"}}`, "", ""},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			text := r.node
			if text == "" {
				w.WriteHeader(http.StatusNotFound)
				text = `{"apiVersion":"v1","kind":"Status","status":"Failure","reason":"NotFound","code":404}`
			}
			_, _ = w.Write([]byte(text))
		}))
		client, err := kube.NewClientForConfig(&rest.Config{Host: server.URL, QPS: -1})
		if err != nil {
			t.Fatal(err)
		}
		o := joinedOptions(t)
		o.StateDir, o.NodeName, o.NodeIP = t.TempDir(), name, here
		c := &cluster{layout: layout{o}}
		if r.knew != "" {
			plan := pki.Plan{
				Authorities: []pki.Authority{{Name: caCluster}},
				Leaves:      []pki.Leaf{{Name: string(whoAgent), Authority: caCluster, CommonName: r.knew, Client: true}},
			}
			if _, err := pki.Ensure(c.pki(), plan, time.Now()); err != nil {
				t.Fatal(err)
			}
		}
		err = c.checkName(t.Context(), client)
		if (err == nil) != (r.refused == "") || err != nil && !strings.Contains(err.Error(), r.refused) {
			t.Errorf("%s: %v, want %q", r.what, err, r.refused)
		}
		server.Close()
	}
}
