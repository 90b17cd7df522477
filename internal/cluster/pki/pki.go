// Package pki creates and renews the keys and certificates of one cluster: its authorities, one identity per component,
// and the key that signs service account tokens.
//
// A Plan says what must exist. Ensure creates what is missing and leaves the rest as it is. Certificates are renewed by
// calling it again.
//   - An existing key stays. Renewal signs a new certificate for the same key. So one rename replaces the certificate,
//     and no reader ever sees a key and a certificate that do not match. To replace a key, remove both files.
//   - A leaf that is missing, damaged, about to expire or not as planned is issued again. A damaged authority is an
//     error: with a new authority, all clients that trust the old one would fail.
//   - Files have mode 0600 in a directory with mode 0700, and are replaced atomically (package durable).
//
// Keys are ECDSA P-256. Every program here supports them, and creating one and flushing it to disk takes half a
// millisecond; with RSA-2048 it takes about a hundred. Only authorities whose signatures are verified often
// (Authority.ManyChecks) have RSA-2048. There is no revocation: remove the RBAC binding of an identity instead.
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
	// authorityLife is kubeadm's value. Before an authority expires, its certificate is signed again with the same key.
	authorityLife = 10 * 365 * 24 * time.Hour
	// leafLife is kubeadm's value. Lowering it, a cluster depends more on its supervisor, which renews certificates;
	// raising it, a leaked key is valid for longer.
	leafLife = 365 * 24 * time.Hour
	// renewFraction says when a certificate is renewed: when less than 1/renewFraction of its life is left. It is a third,
	// as in cert-manager; so a machine may be switched off for four months.
	renewFraction = 3
	// backdate tolerates clocks that are set back after a certificate was created (a virtual machine without a battery
	// clock).
	backdate = time.Hour
)

// Authority is a certificate authority that must exist.
type Authority struct {
	Name       string // file name without extension
	CommonName string
	// ManyChecks says that the authority's signatures are verified often: kube-apiserver verifies the signature of a
	// client's certificate with every request. Its key is then created as RSA-2048; an existing key of another type stays.
	// Verifying an RSA-2048 signature takes a third of the time of a P-256 one (0.04 and 0.11 ms of a busy core, Go 1.26,
	// 2026-11-21). With P-256 it was a twelfth of the CPU time that a bind costs kube-apiserver.
	ManyChecks bool
}

// Leaf is a certificate that must exist, for a server, a client or both.
type Leaf struct {
	Name         string   // file name without extension
	Authority    string   // Name of the authority that signs it
	CommonName   string   // the user name, for a client
	Organization string   // the group, for a client; empty: none
	Client       bool     // it authenticates a client
	Server       bool     // it authenticates a server
	DNSNames     []string // for a server
	IPs          []net.IP // for a server
}

// Plan is everything that a directory must contain.
type Plan struct {
	Authorities []Authority
	Leaves      []Leaf
	SigningKeys []string // names of key pairs without certificates: NAME.key and NAME.pub
}

// CertPath is the path in dir of the certificate called name.
func CertPath(dir, name string) string { return filepath.Join(dir, name+".crt") }

// KeyPath is the path in dir of the private key called name.
func KeyPath(dir, name string) string { return filepath.Join(dir, name+".key") }

// PublicKeyPath is the path in dir of the public half of the signing key called name.
func PublicKeyPath(dir, name string) string { return filepath.Join(dir, name+".pub") }

// Ensure creates and renews in dir what plan says, and returns the names of the certificates and keys that it created
// or renewed.
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

// expiring reports whether c is outside its validity or due for renewal.
func expiring(c *x509.Certificate, now time.Time) bool {
	life := c.NotAfter.Sub(c.NotBefore)
	return now.Before(c.NotBefore) || c.NotAfter.Sub(now) < life/renewFraction
}
