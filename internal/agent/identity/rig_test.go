package identity

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"

	"github.com/plimsoll-dev/plimsoll/internal/kube/scheme"
)

const (
	token = "abcdef.0123456789abcdef"
	node  = "n1"
)

// An authority signs certificates.
type authority struct {
	key    *ecdsa.PrivateKey
	cert   *x509.Certificate
	serial int64
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{key, cert, 1}
}

func (a *authority) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

// sign signs a certificate for a public key that is valid from and to these times from now.
func (a *authority) sign(t *testing.T, template x509.Certificate, public any, from, to time.Duration) []byte {
	t.Helper()
	a.serial++
	template.SerialNumber = big.NewInt(a.serial)
	template.NotBefore, template.NotAfter = time.Now().Add(from), time.Now().Add(to)
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}
	der, err := x509.CreateCertificate(rand.Reader, &template, a.cert, public, a.key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// A cluster is an API server that serves CertificateSigningRequests over TLS, to who has the token or a certificate of
// its authority, and the signer, who does as the test says.
type cluster struct {
	t      *testing.T
	ca     *authority // of its serving certificate and of clients
	server *httptest.Server
	dir    string

	mu       sync.Mutex // guards everything that follows
	token    string
	requests map[string]*certificatesv1.CertificateSigningRequest
	order    []string
	changed  chan struct{} // closed when a request changes
	decide   func(*certificatesv1.CertificateSigningRequest)
	users    []string // who sent the requests for nodes
	opened   int      // connections
	version  int      // of the last change
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{
		t: t, ca: newAuthority(t, "cluster"), dir: t.TempDir(), token: token,
		requests: map[string]*certificatesv1.CertificateSigningRequest{}, changed: make(chan struct{}),
	}
	c.decide = c.approve(-time.Minute, time.Hour)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	chain := c.ca.sign(t, template, key.Public(), -time.Minute, time.Hour)
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(chain, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}))
	if err != nil {
		t.Fatal(err)
	}
	c.server = httptest.NewUnstartedServer(http.HandlerFunc(c.serve))
	c.server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequestClientCert}
	c.server.EnableHTTP2 = true
	c.server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.opened++
		}
	}
	c.server.StartTLS()
	t.Cleanup(func() { c.server.CloseClientConnections(); c.server.Close() })
	c.write("bootstrap.conf", c.kubeconfig("token: "+token))
	return c
}

func (c *cluster) path(name string) string { return filepath.Join(c.dir, name) }

func (c *cluster) write(name, text string) {
	c.t.Helper()
	if err := os.WriteFile(c.path(name), []byte(text), 0o600); err != nil {
		c.t.Fatal(err)
	}
}

// kubeconfig is a kubeconfig for the cluster with these credentials.
func (c *cluster) kubeconfig(user string) string {
	c.write("ca.crt", string(c.ca.pem()))
	return fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: %q, certificate-authority: %q}}]
users: [{name: u, user: {%s}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
current-context: c
`, c.server.URL, c.path("ca.crt"), user)
}

// userOf returns who sent a request; empty: nobody whom the cluster knows.
func (c *cluster) userOf(r *http.Request) string {
	if certs := r.TLS.PeerCertificates; len(certs) > 0 {
		pool := x509.NewCertPool()
		pool.AddCert(c.ca.cert)
		o := x509.VerifyOptions{Roots: pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
		if _, err := certs[0].Verify(o); err != nil {
			return ""
		}
		return certs[0].Subject.CommonName
	}
	if r.Header.Get("Authorization") == "Bearer "+c.token {
		return "bootstrap"
	}
	return ""
}

func (c *cluster) serve(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	user := c.userOf(r)
	c.mu.Unlock()
	reply := func(code int, obj any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(obj)
	}
	refuse := func(code int, reason metav1.StatusReason) {
		reply(code, &metav1.Status{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
			Status:   metav1.StatusFailure, Code: int32(code), Reason: reason, Message: string(reason),
		})
	}
	if user == "" {
		refuse(http.StatusUnauthorized, metav1.StatusReasonUnauthorized)
		return
	}
	const base = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
	name := strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, base), "/")
	switch {
	case r.URL.Path == "/api/v1/nodes/"+node:
		c.mu.Lock()
		c.users = append(c.users, user)
		c.mu.Unlock()
		reply(http.StatusOK, map[string]any{"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": node}})
	case r.Method == http.MethodPost:
		c.create(r, reply, refuse)
	case r.URL.Query().Get("watch") != "":
		c.watch(w, r)
	case name == "":
		c.mu.Lock()
		defer c.mu.Unlock()
		list := certificatesv1.CertificateSigningRequestList{}
		list.APIVersion = "certificates.k8s.io/v1"
		list.Kind = "CertificateSigningRequestList"
		list.ResourceVersion = "1"
		for _, req := range c.selected(r) {
			list.Items = append(list.Items, *req)
		}
		reply(http.StatusOK, &list)
	default:
		c.mu.Lock()
		req, ok := c.requests[name]
		c.mu.Unlock()
		if !ok {
			refuse(http.StatusNotFound, metav1.StatusReasonNotFound)
			return
		}
		reply(http.StatusOK, req)
	}
}

var codecs = serializer.NewCodecFactory(scheme.Scheme)

func (c *cluster) create(r *http.Request, reply func(int, any), refuse func(int, metav1.StatusReason)) {
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	obj, _, err := codecs.UniversalDeserializer().Decode(text, nil, nil)
	req, ok := obj.(*certificatesv1.CertificateSigningRequest)
	if err != nil || !ok {
		refuse(http.StatusBadRequest, metav1.StatusReasonBadRequest)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, exists := c.requests[req.Name]; exists {
		refuse(http.StatusConflict, metav1.StatusReasonAlreadyExists)
		return
	}
	req.APIVersion, req.Kind = "certificates.k8s.io/v1", "CertificateSigningRequest"
	c.version++
	req.ResourceVersion = fmt.Sprint(c.version)
	c.order = append(c.order, req.Name)
	c.requests[req.Name] = req
	c.decide(req)
	reply(http.StatusCreated, req)
}

// selected returns the requests that the field selector of a list or a watch has. c.mu is locked.
func (c *cluster) selected(r *http.Request) (requests []*certificatesv1.CertificateSigningRequest) {
	for name, req := range c.requests {
		if selector := r.URL.Query().Get("fieldSelector"); selector == "" || selector == "metadata.name="+name {
			requests = append(requests, req)
		}
	}
	return requests
}

// watch tells of all requests that it selects at once, and of all of them again when one changes.
func (c *cluster) watch(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	for first := true; ; first = false {
		c.mu.Lock()
		changed := c.changed
		for _, req := range c.selected(r) {
			kind := "MODIFIED"
			if first {
				kind = "ADDED"
			}
			_ = json.NewEncoder(w).Encode(map[string]any{"type": kind, "object": req})
		}
		c.mu.Unlock()
		if first && r.URL.Query().Get("sendInitialEvents") == "true" {
			end := certificatesv1.CertificateSigningRequest{}
			end.APIVersion = "certificates.k8s.io/v1"
			end.Kind = "CertificateSigningRequest"
			end.ResourceVersion = "1"
			end.Annotations = map[string]string{metav1.InitialEventsAnnotationKey: "true"}
			_ = json.NewEncoder(w).Encode(map[string]any{"type": "BOOKMARK", "object": end})
		}
		w.(http.Flusher).Flush()
		select {
		case <-r.Context().Done():
			return
		case <-changed:
		}
	}
}

// set changes the signer, and lets it decide about all requests again.
func (c *cluster) set(decide func(*certificatesv1.CertificateSigningRequest)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.decide = decide
	for name, req := range c.requests {
		req = req.DeepCopy()
		if len(req.Status.Conditions) == 0 {
			decide(req)
		}
		c.version++
		req.ResourceVersion = fmt.Sprint(c.version)
		c.requests[name] = req
	}
	close(c.changed)
	c.changed = make(chan struct{})
}

func ignore(*certificatesv1.CertificateSigningRequest) {}

func deny(req *certificatesv1.CertificateSigningRequest) {
	req.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{
		Type: certificatesv1.CertificateDenied, Status: "True", Reason: "Unknown", Message: "no such machine",
	}}
}

// approve signs for these times from now.
func (c *cluster) approve(from, to time.Duration) func(*certificatesv1.CertificateSigningRequest) {
	return c.signBy(c.ca, from, to)
}

func (c *cluster) signBy(ca *authority, from, to time.Duration) func(*certificatesv1.CertificateSigningRequest) {
	return func(req *certificatesv1.CertificateSigningRequest) {
		block, _ := pem.Decode(req.Spec.Request)
		wish, err := x509.ParseCertificateRequest(block.Bytes)
		if err != nil {
			c.t.Error(err)
			return
		}
		req.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{
			Type: certificatesv1.CertificateApproved, Status: "True",
		}}
		req.Status.Certificate = ca.sign(c.t, x509.Certificate{
			Subject: wish.Subject, DNSNames: wish.DNSNames, IPAddresses: wish.IPAddresses,
		}, wish.PublicKey, from, to)
	}
}

// made returns the names of the requests in their order.
func (c *cluster) made() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]string(nil), c.order...)
}

func (c *cluster) options() Options {
	return Options{
		NodeName: node, Kubeconfig: c.path("kubelet.conf"), Bootstrap: c.path("bootstrap.conf"), CertDir: c.path("pki"),
		Renews: true, UserAgent: "test",
	}
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

// loginOf reads a kubeconfig with client-go.
func loginOf(t *testing.T, path string) *rest.Config {
	t.Helper()
	config, err := loadBootstrap(path)
	if err != nil {
		t.Fatal(err)
	}
	return config
}
