package authn

import (
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/hex"
	"fmt"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"
)

// caCheckInterval is how often, at most, the client CA file is checked for a change while requests arrive. Chosen: a
// rotation takes effect within a second, and a busy server does one stat per second. Without requests it is not
// checked.
const caCheckInterval = time.Second

// credentialID is the key under which audit records name the credential (upstream's spelling).
const credentialID = "authentication.kubernetes.io/credential-id"

// uidOID is the subject attribute that contains a user's UID (KEP-4542, beta and on in 1.36).
var uidOID = asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57683, 2}

// fromCertificate returns the identity of a verified client certificate and nil if the client sent none. It returns an
// error if the client CA did not sign it, it has expired or it is not for clients.
func (g *Guard) fromCertificate(r *http.Request) (*Identity, error) {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return nil, nil
	}
	leaf := r.TLS.PeerCertificates[0]
	roots, err := g.clientCAs()
	if err != nil || roots == nil {
		return nil, err
	}
	intermediates := x509.NewCertPool()
	for _, c := range r.TLS.PeerCertificates[1:] {
		intermediates.AddCert(c)
	}
	if _, err := leaf.Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: intermediates, CurrentTime: g.o.Now(),
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}); err != nil {
		return nil, fmt.Errorf("verify client certificate: subject %q serial %v: %w", leaf.Subject, leaf.SerialNumber, err)
	}
	if leaf.Subject.CommonName == "" {
		return nil, nil
	}
	print := sha256.Sum256(leaf.Raw)
	return &Identity{
		Name:   leaf.Subject.CommonName,
		UID:    subjectUID(leaf.Subject),
		Groups: withGroup(leaf.Subject.Organization, groupAuthenticated),
		Extra:  map[string][]string{credentialID: {"X509SHA256=" + hex.EncodeToString(print[:])}},
	}, nil
}

// clientCAs returns the CAs of accepted client certificates; nil: none is accepted.
func (g *Guard) clientCAs() (*x509.CertPool, error) {
	switch {
	case g.ca != nil:
		return g.ca.pool()
	case g.o.ClientCAs != nil:
		return g.o.ClientCAs(), nil
	}
	return nil, nil
}

func subjectUID(subject pkix.Name) string {
	for _, name := range subject.Names {
		if uid, ok := name.Value.(string); ok && name.Type.Equal(uidOID) {
			return uid
		}
	}
	return ""
}

func withGroup(groups []string, g string) []string {
	if slices.Contains(groups, g) {
		return groups
	}
	return append(slices.Clone(groups), g)
}

// bundle is a PEM file of CA certificates that is read again when it changes. While the file is missing or does not
// parse, the last good pool stays in use, so that a half-written rotation does not lock all clients out.
// path and now are set once. mu guards the rest.
type bundle struct {
	path string
	now  func() time.Time

	mu      sync.Mutex
	good    *x509.CertPool // nil until the first successful read
	stamp   fileStamp      // of the content in good
	checked time.Time      // last check of the file
}

type fileStamp struct {
	modified time.Time
	size     int64
}

func (b *bundle) pool() (*x509.CertPool, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	if b.good != nil && now.Sub(b.checked) < caCheckInterval {
		return b.good, nil
	}
	b.checked = now
	pool, stamp, err := b.read()
	if err != nil {
		if b.good != nil {
			return b.good, nil
		}
		return nil, err
	}
	b.good, b.stamp = pool, stamp
	return b.good, nil
}

func (b *bundle) read() (*x509.CertPool, fileStamp, error) {
	info, err := os.Stat(b.path)
	if err != nil {
		return nil, fileStamp{}, fmt.Errorf("read authentication.x509.clientCAFile: %w", err)
	}
	stamp := fileStamp{info.ModTime(), info.Size()}
	if b.good != nil && stamp == b.stamp {
		return b.good, stamp, nil
	}
	pem, err := os.ReadFile(b.path)
	if err != nil {
		return nil, fileStamp{}, fmt.Errorf("read authentication.x509.clientCAFile: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fileStamp{}, fmt.Errorf("read authentication.x509.clientCAFile: %s: no PEM certificate in %d bytes",
			b.path, len(pem))
	}
	return pool, stamp, nil
}
