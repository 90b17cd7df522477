package server

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/host/durable"
	"github.com/plimsoll-dev/plimsoll/internal/kube/serving"
)

// selfSignedRest is the least remaining lifetime of a self-signed certificate at a start; with less it is replaced. The
// kubelet does not do that.
const selfSignedRest = 30 * 24 * time.Hour

// tlsFields are what the KubeletConfiguration calls the settings.
var tlsFields = serving.Names{
	MinVersion: "tlsMinVersion", CipherSuites: "tlsCipherSuites", Curves: "tlsCurvePreferences",
}

// tlsConfig translates the configuration's TLS fields; the error lists every problem.
func tlsConfig(o Options) (*tls.Config, error) {
	c := o.Config
	config, err := serving.TLS{
		MinVersion: c.TLSMinVersion, CipherSuites: c.TLSCipherSuites, Curves: c.TLSCurvePreferences,
	}.Config(tlsFields)
	problems := []error{err}
	if (c.TLSCertFile == "") != (c.TLSPrivateKeyFile == "") {
		problems = append(problems, fmt.Errorf("tlsCertFile %q and tlsPrivateKeyFile %q: set both or neither", c.TLSCertFile,
			c.TLSPrivateKeyFile))
	}
	if err := errors.Join(problems...); err != nil {
		return nil, fmt.Errorf("prepare the agent's server: %w", err)
	}
	if o.Certificate != nil {
		config.GetCertificate = o.Certificate // there may be none yet
		return config, nil
	}
	pair := &serving.KeyPair{CertFile: c.TLSCertFile, KeyFile: c.TLSPrivateKeyFile}
	if pair.CertFile == "" {
		pair.CertFile, pair.KeyFile = filepath.Join(o.CertDir, "kubelet.crt"), filepath.Join(o.CertDir, "kubelet.key")
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
		if err := durable.Write(path, text); err != nil {
			return fmt.Errorf("make self-signed serving certificate: %w", err)
		}
	}
	return nil
}
