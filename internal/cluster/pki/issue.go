package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"slices"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/host/durable"
)

// signer is a certificate authority with its key.
type signer struct {
	cert *x509.Certificate
	key  crypto.Signer
}

// ensureAuthority loads an authority, or creates it if neither of its files exists. If there is a key without a
// certificate, an earlier run was killed between the two writes.
func ensureAuthority(dir string, a Authority, now time.Time) (*signer, bool, error) {
	cert, certErr := readCert(CertPath(dir, a.Name))
	key, keyErr := readKey(KeyPath(dir, a.Name))
	keyGone, certGone := errors.Is(keyErr, fs.ErrNotExist), errors.Is(certErr, fs.ErrNotExist)
	switch {
	case keyErr != nil && !(keyGone && certGone), certErr != nil && !certGone:
		return nil, false,
			fmt.Errorf("%w (restore the file from a backup; without it the clients of this cluster cannot continue, "+
				"and `plimsoll down --purge` removes the cluster)",
				errors.Join(keyErr, certErr))
	case keyErr == nil && certErr == nil && !belong(key, cert):
		return nil, false, fmt.Errorf("%s does not belong to %s (restore both from one backup)", KeyPath(dir, a.Name),
			CertPath(dir, a.Name))
	case keyErr == nil && certErr == nil && !expiring(cert, now):
		return &signer{cert, key}, false, protect(dir, a.Name)
	}
	if keyGone {
		var err error
		if key, err = makeKey(KeyPath(dir, a.Name), a.ManyChecks); err != nil {
			return nil, false, err
		}
	}
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: a.CommonName},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(authorityLife),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	cert, err := issue(CertPath(dir, a.Name), template, key, &signer{template, key})
	if err != nil {
		return nil, false, err
	}
	return &signer{cert, key}, true, nil
}

func ensureLeaf(dir string, l Leaf, by *signer, now time.Time) (bool, error) {
	key, err := readKey(KeyPath(dir, l.Name))
	switch {
	case err == nil:
		if cert, err := readCert(CertPath(dir, l.Name)); err == nil && fits(cert, l, key, by, now) {
			return false, protect(dir, l.Name)
		}
	case errors.Is(err, fs.ErrPermission):
		return false, err
	default: // missing or damaged: nothing else depends on a leaf's key, so both are replaced
		if key, err = makeKey(KeyPath(dir, l.Name), false); err != nil {
			return false, err
		}
	}
	template := &x509.Certificate{
		Subject:     l.subject(),
		NotBefore:   now.Add(-backdate),
		NotAfter:    earlier(now.Add(leafLife), by.cert.NotAfter),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: l.usages(),
		DNSNames:    l.DNSNames,
		IPAddresses: l.IPs,
	}
	_, err = issue(CertPath(dir, l.Name), template, key, by)
	return err == nil, err
}

// fits reports whether cert is what Ensure would issue for l, apart from its dates, and is not due for renewal.
func fits(cert *x509.Certificate, l Leaf, key crypto.Signer, by *signer, now time.Time) bool {
	return !expiring(cert, now) &&
		belong(key, cert) &&
		cert.CheckSignatureFrom(by.cert) == nil &&
		cert.Subject.CommonName == l.CommonName &&
		slices.Equal(cert.Subject.Organization, l.subject().Organization) &&
		slices.Equal(cert.ExtKeyUsage, l.usages()) &&
		slices.Equal(cert.DNSNames, l.DNSNames) &&
		slices.EqualFunc(cert.IPAddresses, l.IPs, net.IP.Equal)
}

// belong reports whether cert is for key. Every public key of the standard library has Equal.
func belong(key crypto.Signer, cert *x509.Certificate) bool {
	public, ok := key.Public().(interface{ Equal(crypto.PublicKey) bool })
	return ok && public.Equal(cert.PublicKey)
}

func (l Leaf) subject() pkix.Name {
	name := pkix.Name{CommonName: l.CommonName}
	if l.Organization != "" {
		name.Organization = []string{l.Organization}
	}
	return name
}

func (l Leaf) usages() (u []x509.ExtKeyUsage) {
	if l.Server {
		u = append(u, x509.ExtKeyUsageServerAuth)
	}
	if l.Client {
		u = append(u, x509.ExtKeyUsageClientAuth)
	}
	return u
}

// issue signs template for key and writes the certificate.
func issue(path string, template *x509.Certificate, key crypto.Signer, by *signer) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127)) // RFC 5280: positive, at most 20 octets
	if err != nil {
		return nil, err
	}
	template.SerialNumber = serial.Add(serial, big.NewInt(1))
	der, err := x509.CreateCertificate(rand.Reader, template, by.cert, key.Public(), by.key)
	if err != nil {
		return nil, err
	}
	if err := durable.Write(path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})); err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// ensureSigningKey loads or creates a key pair. It writes the public key whenever the file differs, so that a crash
// between the two writes does no harm.
func ensureSigningKey(dir, name string) (bool, error) {
	key, err := readKey(KeyPath(dir, name))
	made := errors.Is(err, fs.ErrNotExist)
	if made {
		key, err = makeKey(KeyPath(dir, name), false)
	}
	if err != nil {
		return false, err
	}
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return false, err
	}
	wrote, err := durable.WriteIfChanged(PublicKeyPath(dir, name), pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY",
		Bytes: der}))
	return made || wrote, err
}

// rsaBits is kubeadm's value. NIST SP 800-57 allows it until 2030, and browsers accept it.
const rsaBits = 2048

func makeKey(path string, manyChecks bool) (key crypto.Signer, err error) {
	if manyChecks {
		key, err = rsa.GenerateKey(rand.Reader, rsaBits)
	} else {
		key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	}
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return key, durable.Write(path, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

func readKey(path string) (crypto.Signer, error) {
	der, err := readPEM(path, "PRIVATE KEY")
	if err != nil {
		return nil, err
	}
	parsed, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	switch key := parsed.(type) {
	case *ecdsa.PrivateKey:
		return key, nil
	case *rsa.PrivateKey:
		return key, nil
	}
	return nil, fmt.Errorf("read %s: a %T, want an ECDSA or RSA key", path, parsed)
}

func readCert(path string) (*x509.Certificate, error) {
	der, err := readPEM(path, "CERTIFICATE")
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return cert, nil
}

func readPEM(path, kind string) ([]byte, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(text)
	if block == nil || block.Type != kind {
		return nil, fmt.Errorf("read %s: no %s in PEM form", path, kind)
	}
	return block.Bytes, nil
}

// protect removes permissions that somebody added to a file.
func protect(dir, name string) error {
	for _, path := range []string{CertPath(dir, name), KeyPath(dir, name)} {
		info, err := os.Stat(path)
		if err == nil && info.Mode().Perm() != 0o600 {
			err = os.Chmod(path, 0o600)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
