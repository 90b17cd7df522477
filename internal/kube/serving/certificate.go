package serving

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"os"
	"sync"
	"time"
)

const (
	// pairCheckInterval is how often, at most, certificate files are checked for a change while clients connect.
	pairCheckInterval = time.Second
	// selfSignedLife is the validity of a generated certificate, as upstream's.
	selfSignedLife = 365 * 24 * time.Hour
)

// KeyPair is a certificate and its key in files, read again when either changes. While they do not match, as in the
// middle of a rotation, the last good pair stays in use. mu guards the unexported fields.
type KeyPair struct {
	CertFile, KeyFile string

	mu      sync.Mutex
	good    *tls.Certificate // nil until the first successful read
	stamps  [2]fileStamp     // of the certificate's and the key's file when good was read
	checked time.Time        // last check of the files
}

type fileStamp struct {
	modified time.Time
	size     int64
}

// Get is the GetCertificate of a tls.Config.
func (k *KeyPair) Get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.good != nil && time.Since(k.checked) < pairCheckInterval {
		return k.good, nil
	}
	k.checked = time.Now()
	var stamps [2]fileStamp
	for i, p := range []string{k.CertFile, k.KeyFile} {
		if info, err := os.Stat(p); err == nil {
			stamps[i] = fileStamp{info.ModTime(), info.Size()}
		}
	}
	if k.good != nil && stamps == k.stamps {
		return k.good, nil
	}
	pair, err := tls.LoadX509KeyPair(k.CertFile, k.KeyFile)
	if err != nil {
		if k.good != nil {
			slog.Warn("serving certificate changed and cannot be loaded; the previous one stays in use", "cert", k.CertFile,
				"key", k.KeyFile, "err", err)
			return k.good, nil
		}
		return nil, fmt.Errorf("load serving certificate: %s, key %s: %w", k.CertFile, k.KeyFile, err)
	}
	k.good, k.stamps = &pair, stamps
	return k.good, nil
}

// SelfSigned makes a key and a certificate for names, both in PEM.
func SelfSigned(names []string) (certPEM, keyPEM []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make self-signed serving certificate: %w", err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, nil, fmt.Errorf("make self-signed serving certificate: %w", err)
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: fmt.Sprintf("%s@%d", names[0], now.Unix())},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(selfSignedLife), // an hour for clocks that differ
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
	}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, nil, fmt.Errorf("make self-signed serving certificate: %w", err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, fmt.Errorf("make self-signed serving certificate: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE",
		Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), nil
}
