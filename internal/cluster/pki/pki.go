// Package pki makes and keeps the keys and certificates of one cluster: its authorities, one identity per component,
// and the key that signs service account tokens.
//
// A Plan says what must exist; Ensure makes the directory so and touches nothing that is right already. Calling it
// again is how certificates are renewed.
//
//   - A key, once made, stays. Renewal signs a new certificate for the same key, so one rename replaces it and no reader
//     ever sees a key and a certificate that do not belong together. To replace a key, remove both files.
//   - A leaf that is missing, damaged, expiring or not as planned is issued again. A damaged authority is an error:
//     making another one would silently cut off every client that trusts the first.
//   - Files are 0600 in a 0700 directory and replaced atomically (package durable).
//
// Keys are ECDSA P-256: every program here takes them, and to make one and flush it to disk costs half a millisecond,
// where RSA-2048 costs some hundred. Authorities with many checks (Authority.ManyChecks) have RSA-2048 all the same. There is no revocation: an identity is cut off by removing its RBAC binding.
package pki

import (
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"
)

const (
	// authorityLife is kubeadm's: an authority outlives machines. It is re-signed with the same key when it nears its end.
	authorityLife = 10 * 365 * 24 * time.Hour
	// leafLife is kubeadm's. Lower it and a cluster that is not restarted for long depends more on the supervisor's
	// renewal; raise it and a leaked key is good for longer.
	leafLife = 365 * 24 * time.Hour
	// renewFraction of a life must be left, or the certificate is renewed: a third, as cert-manager does, leaves four
	// months in which a machine may be switched off.
	renewFraction = 3
	// backdate tolerates clocks that step back after a certificate was made (a virtual machine without battery clock).
	backdate = time.Hour
)

// Authority is a certificate authority to keep.
type Authority struct {
	Name       string // file name without extension
	CommonName string
	// ManyChecks says that its signatures are checked again and again: kube-apiserver checks that of a client's certificate with
	// every request. Its key is RSA-2048 when it is made; one that is there stays, whatever it is. To check an RSA-2048 signature takes a third
	// of the time of a P-256 one (0.04 and 0.11 ms of a busy core, Go 1.26, 2026-11-21), and the latter was a twelfth of what a bind costs
	// kube-apiserver.
	ManyChecks bool
}

// Leaf is a certificate to keep, for a server, a client or both.
type Leaf struct {
	Name         string // file name without extension
	Authority    string // Name of the authority that signs it
	CommonName   string // the user name, of a client
	Organization string // the group, of a client; empty: none
	Client       bool
	Server       bool
	DNSNames     []string // of a server
	IPs          []net.IP // of a server
}

// Plan is everything a directory shall hold.
type Plan struct {
	Authorities []Authority
	Leaves      []Leaf
	SigningKeys []string // names of bare key pairs: NAME.key and NAME.pub
}

// CertPath and KeyPath say where dir keeps the certificate and the key called name.
func CertPath(dir, name string) string { return filepath.Join(dir, name+".crt") }

// KeyPath is where dir keeps the private key called name.
func KeyPath(dir, name string) string { return filepath.Join(dir, name+".key") }

// PublicKeyPath is where dir keeps the public half of the signing key called name.
func PublicKeyPath(dir, name string) string { return filepath.Join(dir, name+".pub") }

// Ensure makes dir hold what plan says and returns the names of the certificates and keys it made or renewed.
func Ensure(dir string, plan Plan, now time.Time) (changed []string, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make certificates: %w", err)
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make certificates: %w", err)
	}
	authorities := map[string]*signer{}
	for _, a := range plan.Authorities {
		s, made, err := ensureAuthority(dir, a, now)
		if err != nil {
			return changed, fmt.Errorf("make certificates: authority %s: %w", a.Name, err)
		}
		authorities[a.Name] = s
		if made {
			changed = append(changed, a.Name)
		}
	}
	for _, l := range plan.Leaves {
		by := authorities[l.Authority]
		if by == nil {
			return changed, fmt.Errorf("make certificates: %s: authority %q is not in the plan", l.Name, l.Authority)
		}
		made, err := ensureLeaf(dir, l, by, now)
		if err != nil {
			return changed, fmt.Errorf("make certificates: %s: %w", l.Name, err)
		}
		if made {
			changed = append(changed, l.Name)
		}
	}
	for _, name := range plan.SigningKeys {
		made, err := ensureSigningKey(dir, name)
		if err != nil {
			return changed, fmt.Errorf("make certificates: signing key %s: %w", name, err)
		}
		if made {
			changed = append(changed, name)
		}
	}
	return changed, nil
}

// expiring reports whether c is outside its validity or has less than its renewal share of it left.
func expiring(c *x509.Certificate, now time.Time) bool {
	life := c.NotAfter.Sub(c.NotBefore)
	return now.Before(c.NotBefore) || c.NotAfter.Sub(now) < life/renewFraction
}
