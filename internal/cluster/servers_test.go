package cluster

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/plimsoll-dev/plimsoll/internal/cluster/pki"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// TestShared: a further server has the first one's authorities and settings, and certificates of its own that the other
// server's authorities signed.
func TestShared(t *testing.T) {
	a, got := firstServer(t)
	second := testOptions(t)
	second.FirstServer, second.BindAddress, second.NodeIP, second.NodeName = "https://192.0.2.10:6443", "192.0.2.11",
		"192.0.2.11", "node-2"
	testBuilder(t, second)
	c := &cluster{layout: layout{second}, logger: slog.New(slog.DiscardHandler)}
	got.Files["../../outside"] = []byte("x")
	if err := c.keepShared(got); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(second.StateDir + "/../outside"); err == nil {
		t.Error("a file was written outside")
	}
	changed, err := c.ensureIdentities(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{caCluster, caFrontProxy} {
		if slices.Contains(changed, name) {
			t.Errorf("%s was made anew", name)
		}
	}
	expectSameKeys(t, a, c.layout)
	if c.o.PodCIDR != "10.99.0.0/16" || !slices.Equal(c.o.EtcdServers, a.o.EtcdServers) ||
		!slices.Equal(c.o.Without, a.o.Without) || !c.o.elects() {
		t.Errorf("options %+v", c.o)
	}
	for path, want := range map[string]string{c.o.EtcdCAFile: "etcd's ca", c.o.EtcdCertFile: "etcd's c",
		c.o.EtcdKeyFile: "etcd's k"} {
		if text, err := os.ReadFile(path); err != nil || string(text) != want {
			t.Errorf("%s: %q, %v, want %q", path, text, err, want)
		}
	}
	if id, err := c.keptClusterID(); err != nil || id != "uid-1" {
		t.Errorf("identity %q, %v", id, err)
	}
	delete(got.Files, pki.KeyPath("", caFrontProxy))
	if err := got.check(); err == nil {
		t.Error("a key is missing, and nobody says so")
	}
}

// firstServer returns a first server, and what a further one gets of it.
func firstServer(t *testing.T) (layout, sharedState) {
	t.Helper()
	first := testOptions(t)
	first.BindAddress = "0.0.0.0"
	first.EtcdServers, first.Without = []string{"https://192.0.2.1:2379"}, []string{addonMetrics}
	first.PodCIDR, first.APIServerPort = "10.99.0.0/16", 7443
	dir := t.TempDir()
	for flag, path := range map[string]*string{"ca": &first.EtcdCAFile, "c": &first.EtcdCertFile,
		"k": &first.EtcdKeyFile} {
		*path = dir + "/" + flag
		if err := os.WriteFile(*path, []byte("etcd's "+flag), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	a := layout{first}
	testBuilder(t, first)
	if _, err := a.sharedState(); err == nil {
		t.Error("a cluster without an identity is shared")
	}
	if err := os.WriteFile(a.clusterID(), []byte("uid-1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := a.ensureIdentities(time.Now()); err != nil {
		t.Fatal(err)
	}
	shared, err := a.sharedState()
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(shared)
	if err != nil {
		t.Fatal(err)
	}
	var got sharedState
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	if err := got.check(); err != nil {
		t.Error(err)
	}
	return a, got
}

// expectSameKeys compares the authorities and the keys for tokens of two servers.
func expectSameKeys(t *testing.T, a, c layout) {
	t.Helper()
	one, err := a.authorityHash()
	two, err2 := c.authorityHash()
	if err != nil || err2 != nil || one != two {
		t.Errorf("authorities %s and %s, %v, %v", one, two, err, err2)
	}
	for _, name := range []string{pki.KeyPath("", caCluster), pki.KeyPath("", keyServiceTokens),
		pki.PublicKeyPath("", keyServiceTokens)} {
		x, err := os.ReadFile(a.state("pki", name))
		y, err2 := os.ReadFile(c.state("pki", name))
		if err != nil || err2 != nil || string(x) != string(y) {
			t.Errorf("%s differs: %v, %v", name, err, err2)
		}
		if info, err := os.Stat(c.state("pki", name)); err != nil || info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}
}

// TestServerOptions: what a user may get wrong is said with its flag, and secrets never.
func TestServerOptions(t *testing.T) {
	token, hash, key := "abcdef.0123456789abcdef", "sha256:"+strings.Repeat("0", 64), strings.Repeat("5e", 32)
	for _, c := range []struct {
		name   string
		change func(*Options)
		want   string
	}{
		{"again", func(*Options) {}, ""},
		{"for the first time", func(o *Options) { o.Token, o.AuthorityHash, o.CertificateKey = token, hash, key }, ""},
		{"a token alone", func(o *Options) { o.Token, o.AuthorityHash = token, hash }, "want both"},
		{"a key alone", func(o *Options) { o.CertificateKey = key }, "want both"},
		{"half a key", func(o *Options) { o.Token, o.AuthorityHash, o.CertificateKey = token, hash, key[:30] },
			"--certificate-key: want 64"},
		{"on the loopback", func(o *Options) { o.BindAddress = "127.0.0.1" }, "--bind-address 127.0.0.1"},
		{"without an address", func(o *Options) { o.NodeIP = "127.0.0.1" }, "--node-ip 127.0.0.1"},
		{"a port of its own", func(o *Options) { o.APIServerPort = 7443 }, ""},
		{"no port", func(o *Options) { o.APIServerPort = -1 }, "--apiserver-port -1"},
		{"several nodes", func(o *Options) { o.Nodes, o.NodeCIDR = 2, "10.87.0.0/24" }, "--nodes 2"},
		{"hollow nodes", func(o *Options) { o.Hollow = 3 }, "--hollow 3"},
	} {
		o := testOptions(t)
		o.FirstServer, o.BindAddress, o.APIServerPort = "192.0.2.10:6443", "", 0
		if err := o.FillServer(); err != nil {
			t.Fatal(err)
		}
		if o.FirstServer != "https://192.0.2.10:6443" || o.BindAddress != o.NodeIP {
			t.Errorf("server %s, address %s", o.FirstServer, o.BindAddress)
		}
		c.change(&o)
		err := o.ValidateServer()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
		if err != nil && (strings.Contains(err.Error(), key[:30]) || strings.Contains(err.Error(), "0123456789abcdef")) {
			t.Errorf("%s: the error has a secret: %v", c.name, err)
		}
	}
}

// TestServerRoles: a server's state stays a server's, with the etcd that it had.
func TestServerRoles(t *testing.T) {
	alone, outside, further := testOptions(t), testOptions(t), testOptions(t)
	outside.EtcdServers = []string{"https://192.0.2.1:2379"}
	further.EtcdServers, further.FirstServer = outside.EtcdServers, "https://192.0.2.10:6443"
	again := further
	again.EtcdServers = nil // it takes those of before
	expectRoles(t, []role{
		{"moved to an etcd outside", alone, outside, ""},
		{"the same", outside, outside, ""},
		{"without its etcd", outside, alone, "give --etcd-servers again"},
		{"a further server again", further, again, ""},
		{"a further server as the first", further, alone, "plimsoll up --server https://192.0.2.10:6443"},
		{"a further server with all flags", further, outside, ""},
		{"a cluster of its own", alone, again, "has a cluster of this machine's own"},
	})
}

func TestServerSkew(t *testing.T) {
	for server, ok := range map[string]bool{"1.36.0": true, "v1.35.9": true, "1.37.1": true, "1.38.0": false,
		"1.34.9": false, "2.36.0": false, "": false} {
		if err := checkServerSkew(server); (err == nil) != ok {
			t.Errorf("a server of %q: %v", server, err)
		}
	}
}

// TestServersOf: every address of Service kubernetes is a server.
func TestServersOf(t *testing.T) {
	answer := `{"items":[{"endpoints":[{"addresses":["192.0.2.11"]},{"addresses":["192.0.2.10"]}],
		"ports":[{"name":"https","port":6443}]},{"endpoints":[{"addresses":["2001:db8::1"]},{"addresses":["192.0.2.10"]}],
		"ports":[{"port":6443}]},{"endpoints":[{"addresses":["192.0.2.9"]}],"ports":[{}]}]}`
	var path string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path = r.URL.String()
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(answer))
	}))
	defer server.Close()
	client, err := kube.NewClientForConfig(&rest.Config{Host: server.URL, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	got, err := serversOf(context.Background(), client)
	want := []string{"https://192.0.2.10:6443", "https://192.0.2.11:6443", "https://[2001:db8::1]:6443"}
	if err != nil || !slices.Equal(got, want) || !strings.Contains(path, "kubernetes.io%2Fservice-name%3Dkubernetes") {
		t.Errorf("%q, %v from %s, want %q", got, err, path, want)
	}
}

// TestKnownServers: what a machine knows of its cluster's servers outlives it, and a damaged file is no harm.
func TestKnownServers(t *testing.T) {
	o := joinedOptions(t)
	testBuilder(t, o)
	l := layout{o}
	if got := l.readServers(); got.Use != o.Server || !slices.Equal(got.Known, []string{o.Server}) {
		t.Errorf("without a file: %+v", got)
	}
	want := servers{Use: "https://192.0.2.11:6443", Known: []string{o.Server, "https://192.0.2.11:6443"}}
	if err := l.writeServers(want); err != nil {
		t.Fatal(err)
	}
	if got := l.serverURL(); got != want.Use {
		t.Errorf("uses %s, want %s", got, want.Use)
	}
	if !l.isServer(o.Server) || l.isServer("https://192.0.2.12:6443") {
		t.Error("which servers are the cluster's")
	}
	if err := os.WriteFile(l.knownServers(), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := l.readServers(); got.Use != o.Server {
		t.Errorf("with a damaged file: %+v", got)
	}
}
