package server

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

const (
	// pairCheckInterval is how often, at most, certificate files are looked at for a change while clients connect.
	pairCheckInterval = time.Second
	// selfSignedLife is upstream's validity of a generated certificate; it is made anew at a start with less than
	// selfSignedRest left, which upstream does not do.
	selfSignedLife = 365 * 24 * time.Hour
	selfSignedRest = 30 * 24 * time.Hour
)

// tlsVersions are the names of tlsMinVersion.
var tlsVersions = map[string]uint16{
	"": tls.VersionTLS12, "VersionTLS10": tls.VersionTLS10, "VersionTLS11": tls.VersionTLS11, "VersionTLS12": tls.VersionTLS12, "VersionTLS13": tls.VersionTLS13,
}

// tlsConfig turns the configuration's TLS fields into a listener's, naming every problem at once. Client certificates
// are asked for and left to the guard to verify: a request without one may carry a token.
func tlsConfig(o Options) (*tls.Config, error) {
	c := o.Config
	var problems []error
	version, ok := tlsVersions[c.TLSMinVersion]
	if !ok {
		problems = append(problems, fmt.Errorf("tlsMinVersion: %q: want VersionTLS10, VersionTLS11, VersionTLS12 or VersionTLS13", c.TLSMinVersion))
	}
	suites := map[string]uint16{}
	for _, s := range append(tls.CipherSuites(), tls.InsecureCipherSuites()...) {
		suites[s.Name] = s.ID
	}
	config := &tls.Config{MinVersion: version, ClientAuth: tls.RequestClientCert, NextProtos: []string{"h2", "http/1.1"}}
	for _, name := range c.TLSCipherSuites {
		id, ok := suites[name]
		if !ok {
			problems = append(problems, fmt.Errorf("tlsCipherSuites: %q: not a cipher suite that this build knows", name))
		}
		config.CipherSuites = append(config.CipherSuites, id)
	}
	for _, id := range c.TLSCurvePreferences {
		curve := tls.CurveID(id)
		if id <= 0 || id > 1<<16-1 || strings.HasPrefix(curve.String(), "CurveID(") {
			problems = append(problems, fmt.Errorf("tlsCurvePreferences: %d: not a curve that this build knows", id))
		}
		config.CurvePreferences = append(config.CurvePreferences, curve)
	}
	if (c.TLSCertFile == "") != (c.TLSPrivateKeyFile == "") {
		problems = append(problems, fmt.Errorf("tlsCertFile %q and tlsPrivateKeyFile %q: give both or neither", c.TLSCertFile, c.TLSPrivateKeyFile))
	}
	if len(problems) > 0 {
		return nil, fmt.Errorf("prepare the agent's server: %w", errors.Join(problems...))
	}
	pair := &keyPair{cert: c.TLSCertFile, key: c.TLSPrivateKeyFile}
	if pair.cert == "" {
		pair.cert, pair.key = filepath.Join(o.RootDir, "pki", "kubelet.crt"), filepath.Join(o.RootDir, "pki", "kubelet.key")
		if err := selfSigned(pair.cert, pair.key, append([]string{o.NodeName}, o.Names...)); err != nil {
			return nil, err
		}
	}
	if _, err := pair.get(nil); err != nil {
		return nil, fmt.Errorf("prepare the agent's server: %w", err)
	}
	config.GetCertificate = pair.get
	return config, nil
}

// keyPair is a certificate and its key in files, read again when either changes. While they do not fit each other, in
// the middle of a rotation, the last good pair stays in use.
type keyPair struct {
	cert, key string

	mu      sync.Mutex
	good    *tls.Certificate
	stamps  [2]fileStamp // of the files in good
	checked time.Time
}

type fileStamp struct {
	modified time.Time
	size     int64
}

func (k *keyPair) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.good != nil && time.Since(k.checked) < pairCheckInterval {
		return k.good, nil
	}
	k.checked = time.Now()
	var stamps [2]fileStamp
	for i, p := range []string{k.cert, k.key} {
		if info, err := os.Stat(p); err == nil {
			stamps[i] = fileStamp{info.ModTime(), info.Size()}
		}
	}
	if k.good != nil && stamps == k.stamps {
		return k.good, nil
	}
	pair, err := tls.LoadX509KeyPair(k.cert, k.key)
	if err != nil {
		if k.good != nil {
			slog.Warn("serving certificate changed and does not load; the one before stays in use", "cert", k.cert, "key", k.key, "err", err)
			return k.good, nil
		}
		return nil, fmt.Errorf("load serving certificate: %s, key %s: %w", k.cert, k.key, err)
	}
	k.good, k.stamps = &pair, stamps
	return k.good, nil
}

// selfSigned makes a key and a certificate for names unless a usable pair is there.
func selfSigned(certFile, keyFile string, names []string) error {
	if pair, err := tls.LoadX509KeyPair(certFile, keyFile); err == nil && time.Until(pair.Leaf.NotAfter) > selfSignedRest {
		return nil
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		slog.Warn("self-signed serving certificate does not load; making another", "cert", certFile, "err", err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("make self-signed serving certificate: %w", err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return fmt.Errorf("make self-signed serving certificate: %w", err)
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: fmt.Sprintf("%s@%d", names[0], now.Unix())},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(selfSignedLife), // an hour for clocks that disagree
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, BasicConstraintsValid: true,
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
		return fmt.Errorf("make self-signed serving certificate: %w", err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return fmt.Errorf("make self-signed serving certificate: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(certFile), 0o700); err != nil {
		return fmt.Errorf("make self-signed serving certificate: %w", err)
	}
	for path, block := range map[string]*pem.Block{
		keyFile: {Type: "PRIVATE KEY", Bytes: keyDER}, certFile: {Type: "CERTIFICATE", Bytes: der},
	} {
		if err := writePrivate(path, pem.EncodeToMemory(block)); err != nil {
			return fmt.Errorf("make self-signed serving certificate: %w", err)
		}
	}
	return nil
}

// writePrivate replaces path by a file that only its owner may read, complete or not at all.
func writePrivate(path string, data []byte) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*") // 0600
	if err != nil {
		return err
	}
	_, err = tmp.Write(data)
	if err = errors.Join(err, tmp.Sync(), tmp.Close()); err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp.Name()))
	}
	return nil
}
