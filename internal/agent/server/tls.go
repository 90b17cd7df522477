package server

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/kube/serving"
)

const (
	// selfSignedRest is the least remaining lifetime of a self-signed certificate at a start; with less it is replaced.
	// The kubelet does not do that.
	selfSignedRest = 30 * 24 * time.Hour
)

// tlsVersions are the values of tlsMinVersion.
var tlsVersions = map[string]uint16{
	"": tls.VersionTLS12, "VersionTLS10": tls.VersionTLS10, "VersionTLS11": tls.VersionTLS11, "VersionTLS12": tls.VersionTLS12, "VersionTLS13": tls.VersionTLS13,
}

// tlsConfig translates the configuration's TLS fields; the error lists every problem. Client certificates are
// requested, and the guard verifies them: a request without one may have a token.
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
		problems = append(problems, fmt.Errorf("tlsCertFile %q and tlsPrivateKeyFile %q: set both or neither", c.TLSCertFile, c.TLSPrivateKeyFile))
	}
	if len(problems) > 0 {
		return nil, fmt.Errorf("prepare the agent's server: %w", errors.Join(problems...))
	}
	pair := &serving.KeyPair{CertFile: c.TLSCertFile, KeyFile: c.TLSPrivateKeyFile}
	if pair.CertFile == "" {
		pair.CertFile, pair.KeyFile = filepath.Join(o.RootDir, "pki", "kubelet.crt"), filepath.Join(o.RootDir, "pki", "kubelet.key")
		if err := selfSigned(pair.CertFile, pair.KeyFile, append([]string{o.NodeName}, o.Names...)); err != nil {
			return nil, err
		}
	}
	if _, err := pair.Get(nil); err != nil {
		return nil, fmt.Errorf("prepare the agent's server: %w", err)
	}
	config.GetCertificate = pair.Get
	return config, nil
}

// selfSigned creates a key and a certificate for names unless a usable pair exists.
func selfSigned(certFile, keyFile string, names []string) error {
	if pair, err := tls.LoadX509KeyPair(certFile, keyFile); err == nil && time.Until(pair.Leaf.NotAfter) > selfSignedRest {
		return nil
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		slog.Warn("self-signed serving certificate does not load; creating another", "cert", certFile, "err", err)
	}
	certPEM, keyPEM, err := serving.SelfSigned(names)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(certFile), 0o700); err != nil {
		return fmt.Errorf("make self-signed serving certificate: %w", err)
	}
	for path, text := range map[string][]byte{keyFile: keyPEM, certFile: certPEM} {
		if err := writePrivate(path, text); err != nil {
			return fmt.Errorf("make self-signed serving certificate: %w", err)
		}
	}
	return nil
}

// writePrivate replaces path by a file that only its owner may read. The file is replaced completely or not at all.
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
