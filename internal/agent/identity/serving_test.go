package identity

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// A place is what a node publishes; nil at first.
type place struct {
	addresses atomic.Pointer[[]corev1.NodeAddress]
}

func (p *place) get() []corev1.NodeAddress {
	if a := p.addresses.Load(); a != nil {
		return *a
	}
	return nil
}

// move gives the node another internal address.
func (p *place) move(ip string) {
	p.addresses.Store(&[]corev1.NodeAddress{
		{Type: corev1.NodeInternalIP, Address: ip},
		{Type: corev1.NodeExternalIP, Address: "2001:db8::1"},
		{Type: corev1.NodeHostName, Address: node},
		{Type: corev1.NodeExternalDNS, Address: "n1.example.com"},
	})
}

// serve runs the certificate of a node's server until the test ends, or until end is called. The node's identity is a
// token.
func serve(t *testing.T, c *cluster, p *place, o ServingOptions) (s *Serving, end func()) {
	t.Helper()
	c.write("kubelet.conf", c.kubeconfig("token: "+token))
	identity := c.options()
	identity.Bootstrap, identity.Renews = "", false
	i, err := New(identity)
	if err != nil {
		t.Fatal(err)
	}
	o.Addresses = p.get
	s = NewServing(i, o)
	s.keeper.look = 5 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { s.Run(ctx) })
	end = func() { cancel(); running.Wait() }
	t.Cleanup(end)
	return s, end
}

// shows returns the address that the server's certificate has; empty: there is none.
func shows(s *Serving) string {
	pair, err := s.Get(nil)
	if err != nil {
		return ""
	}
	return pair.Leaf.IPAddresses[0].String()
}

// TestServing: the server has no certificate until one was issued, for what the node publishes; the next agent uses its
// files.
func TestServing(t *testing.T) {
	c := newCluster(t)
	c.set(ignore)
	p := &place{}
	s, end := serve(t, c, p, ServingOptions{})
	if _, err := s.Get(nil); err == nil || !strings.Contains(err.Error(), "no serving certificate yet") {
		t.Errorf("before the first: %v", err)
	}
	p.move("192.0.2.1")
	eventually(t, "a request", func() bool { return len(c.made()) == 1 })
	c.mu.Lock()
	request := c.requests[c.order[0]].DeepCopy()
	c.mu.Unlock()
	usages := []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth}
	if request.Spec.SignerName != "kubernetes.io/kubelet-serving" || !slices.Equal(request.Spec.Usages, usages) {
		t.Errorf("requested of %s for %v", request.Spec.SignerName, request.Spec.Usages)
	}
	block, _ := pem.Decode(request.Spec.Request)
	wish, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	if is := fmt.Sprint(wish.Subject, wish.DNSNames, wish.IPAddresses); is !=
		"CN=system:node:n1,O=system:nodes [n1 n1.example.com] [192.0.2.1 2001:db8::1]" {
		t.Errorf("requested for %s", is)
	}
	c.set(c.approve(-time.Minute, time.Hour))
	eventually(t, "a certificate", func() bool { return shows(s) == "192.0.2.1" })
	end()
	file := c.path("pki/kubelet-server-current.pem")
	if pair, err := tls.LoadX509KeyPair(file, file); err != nil || len(pair.Leaf.DNSNames) != 2 {
		t.Errorf("the files: %v", err)
	}
	next, _ := serve(t, c, p, ServingOptions{})
	if shows(next) != "192.0.2.1" || len(c.made()) != 1 {
		t.Errorf("the next agent: %q, %d requests", shows(next), len(c.made()))
	}
}

// TestServingMoves: when the node's addresses change, another certificate is requested, also in the place of a request
// without an answer. The one before is served until then.
func TestServingMoves(t *testing.T) {
	c := newCluster(t)
	p := &place{}
	p.move("192.0.2.1")
	s, _ := serve(t, c, p, ServingOptions{})
	eventually(t, "a certificate", func() bool { return shows(s) == "192.0.2.1" })
	c.set(ignore)
	p.move("192.0.2.2")
	eventually(t, "another request", func() bool { return len(c.made()) == 2 })
	p.move("192.0.2.3")
	eventually(t, "a third request", func() bool { return len(c.made()) == 3 })
	if shows(s) != "192.0.2.1" {
		t.Errorf("meanwhile: %q", shows(s))
	}
	c.set(c.approve(-time.Minute, time.Hour))
	eventually(t, "the new certificate", func() bool { return shows(s) == "192.0.2.3" })
	if n := counted(t, s, "kubelet_server_expiration_renew_errors"); n != 0 {
		t.Errorf("%v failures counted", n)
	}
	if n := counted(t, s, "kubelet_certificate_manager_server_rotation_seconds"); n != 1 {
		t.Errorf("%v certificates replaced, want 1", n)
	}
}

// counted returns the value of a counter, or how often a histogram observed.
func counted(t *testing.T, s *Serving, name string) float64 {
	t.Helper()
	registry := prometheus.NewRegistry()
	s.Register(registry)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.Metric[0].GetCounter().GetValue() + float64(f.Metric[0].GetHistogram().GetSampleCount())
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}

// TestServingRotation: clients connect all the time while the certificate is renewed again and again; none fails.
func TestServingRotation(t *testing.T) {
	c := newCluster(t)
	p := &place{}
	p.move("127.0.0.1")
	c.set(c.approve(-99*time.Minute, time.Minute)) // to be renewed at once
	s, _ := serve(t, c, p, ServingOptions{})
	eventually(t, "a certificate", func() bool { return shows(s) != "" })
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{GetCertificate: s.Get})
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				_ = conn.(*tls.Conn).Handshake()
				_ = conn.Close()
			})
		}
	})
	defer serving.Wait()
	defer func() { _ = listener.Close() }()
	roots := x509.NewCertPool()
	roots.AddCert(c.ca.cert)
	serials := map[string]bool{}
	dials := 0
	eventually(t, "twenty certificates were seen", func() bool {
		conn, err := tls.Dial("tcp", listener.Addr().String(), &tls.Config{RootCAs: roots})
		if err != nil {
			t.Fatalf("connection %d: %v", dials, err)
		}
		dials++
		serials[conn.ConnectionState().PeerCertificates[0].SerialNumber.String()] = true
		_ = conn.Close()
		return len(serials) > 20
	})
}

// TestServingFilesOfOthers: the pair of tlsCertFile is served until one was issued, and a pair that another program
// puts in place of ours at once.
func TestServingFilesOfOthers(t *testing.T) {
	c := newCluster(t)
	c.set(ignore)
	signer, key, err := store{dir: c.path("elsewhere"), name: "x"}.pending()
	if err != nil {
		t.Fatal(err)
	}
	pair := func(ip string, to time.Duration) []byte {
		template := x509.Certificate{Subject: nodeTemplate(node).Subject, IPAddresses: []net.IP{net.ParseIP(ip)}}
		return c.ca.sign(t, template, signer.Public(), -time.Minute, to)
	}
	c.write("theirs.crt", string(pair("192.0.2.9", time.Hour)))
	c.write("theirs.key", string(key))
	p := &place{}
	p.move("192.0.2.1")
	s, _ := serve(t, c, p, ServingOptions{CertFile: c.path("theirs.crt"), KeyFile: c.path("theirs.key")})
	if shows(s) != "192.0.2.9" {
		t.Errorf("before one was issued: %q", shows(s))
	}
	eventually(t, "a request", func() bool { return len(c.made()) == 1 })
	c.set(c.approve(-time.Minute, time.Hour))
	eventually(t, "a certificate of ours", func() bool { return shows(s) == "192.0.2.1" })
	if err := s.keeper.files.save(pair("192.0.2.8", 2*time.Hour), key, time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "their certificate", func() bool { return shows(s) == "192.0.2.8" || len(c.made()) > 1 })
}

// TestServingBadAnswers: whatever becomes of a request, the error says what and what to do, the server keeps what it
// has, and requests are not repeated at once.
func TestServingBadAnswers(t *testing.T) {
	for name, test := range map[string]struct {
		decide func(*cluster) func(*certificatesv1.CertificateSigningRequest)
		want   []string
	}{
		"denied": {
			decide: func(*cluster) func(*certificatesv1.CertificateSigningRequest) { return deny },
			want:   []string{"was denied: Unknown: no such machine", "find out who denied it"},
		},
		"less than was requested": {
			decide: func(c *cluster) func(*certificatesv1.CertificateSigningRequest) {
				sign := c.approve(-time.Minute, time.Hour)
				return func(r *certificatesv1.CertificateSigningRequest) {
					sign(r)
					block, _ := pem.Decode(r.Spec.Request)
					wish, err := x509.ParseCertificateRequest(block.Bytes)
					if err != nil {
						t.Error(err)
						return
					}
					r.Status.Certificate = c.ca.sign(t, x509.Certificate{Subject: wish.Subject}, wish.PublicKey, 0, time.Hour)
				}
			},
			want: []string{"addresses []; requested were", "192.0.2.2", "the signer must sign what the request says"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			p := &place{}
			p.move("192.0.2.1")
			s, _ := serve(t, c, p, ServingOptions{})
			eventually(t, "a certificate", func() bool { return shows(s) == "192.0.2.1" })
			c.set(test.decide(c))
			p.move("192.0.2.2")
			eventually(t, "an error", func() bool { return s.keeper.why().Error() != "it is requested" })
			for _, want := range test.want {
				if !strings.Contains(s.keeper.why().Error(), want) {
					t.Errorf("%v: does not say %q", s.keeper.why(), want)
				}
			}
			if shows(s) != "192.0.2.1" || len(c.made()) != 2 {
				t.Errorf("served is %q; requests %q", shows(s), c.made())
			}
			if n := counted(t, s, "kubelet_server_expiration_renew_errors"); n != 1 {
				t.Errorf("%v failures counted, want 1", n)
			}
		})
	}
}

// TestServingOfAnotherAuthority: a certificate of another authority is served, and the log says who must know that.
func TestServingOfAnotherAuthority(t *testing.T) {
	var log bytes.Buffer
	old := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	defer slog.SetDefault(old)
	c := newCluster(t)
	c.set(c.signBy(newAuthority(t, "other"), -time.Minute, time.Hour))
	p := &place{}
	p.move("192.0.2.1")
	s, end := serve(t, c, p, ServingOptions{})
	eventually(t, "a certificate", func() bool { return shows(s) == "192.0.2.1" })
	end()
	for _, want := range []string{"of another authority", "issuer=\"CN=other\"", "--kubelet-certificate-authority"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log does not say %q:\n%s", want, log.String())
		}
	}
}

// TestServingExpired: an expired certificate is not served, and one that cannot be read is replaced.
func TestServingExpired(t *testing.T) {
	c := newCluster(t)
	c.set(ignore)
	files := store{dir: c.path("pki"), name: serverFiles}
	signer, key, err := files.pending()
	if err != nil {
		t.Fatal(err)
	}
	template := x509.Certificate{Subject: nodeTemplate(node).Subject, IPAddresses: []net.IP{net.ParseIP("192.0.2.1")}}
	if err := files.save(c.ca.sign(t, template, signer.Public(), -2*time.Hour, -time.Hour), key, time.Now()); err != nil {
		t.Fatal(err)
	}
	p := &place{}
	s, end := serve(t, c, p, ServingOptions{})
	if _, err := s.Get(nil); err == nil || !strings.Contains(err.Error(), "expired at") {
		t.Errorf("an expired certificate: %v", err)
	}
	end()
	if err := os.WriteFile(files.current(), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	p.move("192.0.2.1")
	c.set(c.approve(-time.Minute, time.Hour))
	s, _ = serve(t, c, p, ServingOptions{})
	eventually(t, "another certificate", func() bool { return shows(s) == "192.0.2.1" })
	if _, err := os.Stat(c.path("pki/kubelet-server.key.tmp")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

// A mute API takes requests, and nobody decides about them.
type mute struct {
	made *certificatesv1.CertificateSigningRequest
}

func (m *mute) Create(_ context.Context, _ kube.Kind, _, _ string, obj, out runtime.Object, _ ...string) error {
	m.made = obj.(*certificatesv1.CertificateSigningRequest)
	m.made.DeepCopyInto(out.(*certificatesv1.CertificateSigningRequest))
	return nil
}

func (m *mute) Get(_ context.Context, _ kube.Kind, _, _ string, out runtime.Object) error {
	m.made.DeepCopyInto(out.(*certificatesv1.CertificateSigningRequest))
	return nil
}

func (m *mute) Informer(kube.Kind, kube.Selection, cache.ResourceEventHandler) (cache.Store, cache.Controller) {
	return nil, idle{}
}

// idle is the controller of a watch that delivers nothing.
type idle struct{ cache.Controller }

func (idle) RunWithContext(ctx context.Context) { <-ctx.Done() }

// TestUnanswered: a request about which nobody decides ends after a while, with what to do.
func TestUnanswered(t *testing.T) {
	signer, _, err := store{dir: t.TempDir(), name: "x"}.pending()
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		api := &mute{}
		_, err := serverKind.Request(t.Context(), api, signer, nodeTemplate(node), "")
		if waited := time.Since(began); waited != 15*time.Minute {
			t.Errorf("ended after %v", waited)
		}
		for _, want := range []string{"nobody decided about", "kubectl certificate approve " + api.made.Name,
			"an administrator"} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v: does not say %q", err, want)
			}
		}
	})
}
