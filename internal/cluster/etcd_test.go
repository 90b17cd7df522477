package cluster

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/cluster/pki"
)

// etcdAnswer is what etcd 3.6 answers to GET /version.
const etcdAnswer = `{"etcdserver":"3.6.8","etcdcluster":"3.6.0","storage":"3.6.0"}`

func answering(text string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, text) })
}

// One etcd member that answers is enough; if none does, the error has the reason for each.
func TestEtcdMustAnswer(t *testing.T) {
	server := httptest.NewServer(answering(etcdAnswer))
	defer server.Close()
	o := testOptions(t)
	if err := o.checkEtcd(); err != nil {
		t.Errorf("our own: %v", err)
	}
	down := "unix:///no/such/etcd.sock"
	o.EtcdServers = []string{down, server.URL}
	if err := o.checkEtcd(); err != nil {
		t.Errorf("one of two: %v", err)
	}
	server.Close()
	err := o.checkEtcd()
	if err == nil || !strings.Contains(err.Error(), "--etcd-servers "+server.URL) ||
		!strings.Contains(err.Error(), "--etcd-servers "+down) {
		t.Errorf("none of two: %v", err)
	}
}

// TestEtcdCertificates: what is wrong with the connection is said with what to do about it.
func TestEtcdCertificates(t *testing.T) {
	ours, theirs := t.TempDir(), t.TempDir()
	for _, dir := range []string{ours, theirs} {
		plan := pki.Plan{
			Authorities: []pki.Authority{{Name: "ca", CommonName: "etcd"}},
			Leaves:      []pki.Leaf{{Name: "client", Authority: "ca", CommonName: "kube-apiserver", Client: true}},
		}
		if _, err := pki.Ensure(dir, plan, time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	clients := x509.NewCertPool()
	text, err := os.ReadFile(pki.CertPath(ours, "ca"))
	if err != nil || !clients.AppendCertsFromPEM(text) {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(answering(etcdAnswer))
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // of clients that it refuses
	server.TLS = &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients}
	server.StartTLS()
	defer server.Close()
	plain := httptest.NewServer(answering("hello"))
	defer plain.Close()
	authority := filepath.Join(t.TempDir(), "server-ca.crt")
	block := &pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}
	if err := os.WriteFile(authority, pem.EncodeToMemory(block), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name         string
		server       string
		ca, identity string
		want         string
	}{
		{"all is well", server.URL, authority, ours, ""},
		{"no authority", server.URL, "", ours, "name its authority with --etcd-cafile"},
		{"a wrong authority", server.URL, pki.CertPath(ours, "ca"), ours, "is not the authority of its certificate"},
		{"no certificates", server.URL, pki.KeyPath(ours, "ca"), ours, "want certificates in PEM form"},
		{"no client certificate", server.URL, authority, "", "it wants a client certificate"},
		{"a wrong client certificate", server.URL, authority, theirs, "it does not accept --etcd-certfile"},
		{"TLS where there is none", "https://" + plain.Listener.Addr().String(), authority, ours, "does not speak TLS"},
		{"another server", plain.URL, "", "", "want the URL for clients"},
		{"nobody", "http://127.0.0.1:1", "", "", "does etcd run there?"},
	} {
		o := testOptions(t)
		o.EtcdServers, o.EtcdCAFile = []string{c.server}, c.ca
		if c.identity != "" {
			o.EtcdCertFile, o.EtcdKeyFile = pki.CertPath(c.identity, "client"), pki.KeyPath(c.identity, "client")
		}
		err := o.checkEtcd()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

// TestEtcdsObjects: a control plane is started on its own objects, or on none if it never had any.
func TestEtcdsObjects(t *testing.T) {
	const uid = "0d1e5a34-8b1c-4b3a-9d27-5f8f0a0c1d2e"
	system := []byte("k8s\x00\n\x0f\n\x02v1\x12\tNamespace\x12\x2a$" + uid + "\n")
	for _, c := range []struct {
		name  string
		facts etcdFacts
		want  string
	}{
		{"a new cluster", etcdFacts{}, ""},
		{"one that did not come up at first", etcdFacts{Known: true}, ""},
		{"its own", etcdFacts{System: system, ClusterID: uid, Known: true}, ""},
		{"from before its identity was kept", etcdFacts{System: system, Known: true}, ""},
		{"a further server", etcdFacts{System: system, ClusterID: uid}, ""},
		{"moved from our own etcd", etcdFacts{System: system, ClusterID: uid, Known: true, OwnData: true}, ""},
		{"not moved", etcdFacts{System: []byte("\n"), ClusterID: uid, Known: true, OwnData: true}, "move them first"},
		{"lost", etcdFacts{ClusterID: uid, Known: true}, "restore etcd from a snapshot"},
		{"another's", etcdFacts{System: system, ClusterID: "1" + uid[1:], Known: true}, "the objects of another cluster"},
		{"another's, without keys", etcdFacts{System: system}, "plimsoll token create --server"},
	} {
		err := c.facts.judge()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

// TestElections: leaders are elected where another machine may run the same controllers.
func TestElections(t *testing.T) {
	for _, c := range []struct {
		etcd, address string
		want          bool
	}{
		{"", "127.0.0.1", false},
		{"", "0.0.0.0", false},
		{"https://a:1", "127.0.0.1", false},
		{"https://a:1", "0.0.0.0", true},
	} {
		o := testOptions(t)
		if o.BindAddress = c.address; c.etcd != "" {
			o.EtcdServers = []string{c.etcd}
		}
		b := testBuilder(t, o)
		for _, spec := range []struct {
			name string
			argv []string
		}{
			{childControllerManager, b.controllerManager().Argv},
			{childScheduler, b.scheduler().Argv},
			{childLifecycle, b.lifecycle().Argv},
		} {
			if want := fmt.Sprintf("--leader-elect=%v", c.want); !slices.Contains(spec.argv, want) {
				t.Errorf("etcd %q, address %s: %s has %q, want %s", c.etcd, c.address, spec.name, spec.argv, want)
			}
		}
	}
}
