package cluster

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	certutil "k8s.io/client-go/util/cert"

	"github.com/plimsoll-dev/plimsoll/internal/cluster/bootstrap"
	"github.com/plimsoll-dev/plimsoll/internal/cluster/pki"
	"github.com/plimsoll-dev/plimsoll/internal/host/durable"
)

// A machine that joined with --storage-kubeconfig copies the client certificate of that file, and renews the copy as
// the user that it names. Its own kubeconfig goes with it to another server. A kubeconfig with other credentials (a
// token) is used as it is.

// storageIdentity is the copy.
func (l layout) storageIdentity() bootstrap.Identity {
	return bootstrap.Identity{
		Cert: pki.CertPath(l.pki(), string(whoStorage)),
		Key:  pki.KeyPath(l.pki(), string(whoStorage)),
		User: userStorage,
		Node: l.o.NodeName,
	}
}

// keepsStorageIdentity reports whether a machine that joined has such a copy.
func (l layout) keepsStorageIdentity() bool {
	_, err := os.Stat(l.kubeconfig(whoStorage))
	return l.o.joined() && l.o.has(addonCSI) && err == nil
}

// storageKubeconfig returns the path of the kubeconfig that plimsoll-storage uses.
func (l layout) storageKubeconfig() string {
	if l.o.joined() && !l.keepsStorageIdentity() {
		return l.o.StorageKubeconfig
	}
	return l.kubeconfig(whoStorage)
}

// renewStorage copies the certificate of --storage-kubeconfig, if it is valid for longer than the copy, and renews the
// copy when it expires soon. It returns the names of what has changed.
func (c *cluster) renewStorage(ctx context.Context, authority *x509.Certificate) (changed []string, err error) {
	i := c.storageIdentity()
	given, err := readGiven(c.o.StorageKubeconfig)
	if errors.Is(err, fs.ErrNotExist) && c.keepsStorageIdentity() {
		given, err = nil, nil // it was needed once
	}
	if err != nil {
		return nil, fmt.Errorf("--storage-kubeconfig %s: %w", c.o.StorageKubeconfig, err)
	}
	if given != nil && given.cert == nil {
		err := os.Remove(c.kubeconfig(whoStorage))
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return nil, err
	}
	if given != nil && given.better(i, authority) {
		if err := given.check(authority, time.Now()); err != nil {
			return nil, fmt.Errorf("--storage-kubeconfig %s: %w", c.o.StorageKubeconfig, err)
		}
		if err := given.write(i); err != nil {
			return nil, err
		}
		changed = append(changed, i.Cert)
	}
	if err := c.writeKubeconfig(c.kubeconfig(whoStorage), whoStorage, false); err != nil {
		return changed, err
	}
	why, expired := i.Due(authority, time.Now())
	switch {
	case why == "":
		return changed, nil
	case expired:
		return changed, fmt.Errorf("certificate %s: it has expired, so that no other one can be requested with it: "+
			"copy the kubeconfig of %s from the server to %s again", i.Cert, userStorage, c.o.StorageKubeconfig)
	case why != bootstrap.ExpiresSoon:
		return changed, fmt.Errorf("certificate %s: %s: copy the kubeconfig of %s from the server to %s again", i.Cert, why,
			userStorage, c.o.StorageKubeconfig)
	}
	client, err := c.client(whoStorage)
	if err != nil {
		return changed, err
	}
	if err := requestWithin(ctx, i, client); err != nil {
		return changed, err
	}
	return append(changed, i.Cert), nil
}

// givenIdentity is the client certificate of a kubeconfig; the zero value: it has none.
type givenIdentity struct {
	cert            *x509.Certificate
	certPEM, keyPEM []byte
}

// readGiven reads the client certificate of a kubeconfig.
func readGiven(path string) (*givenIdentity, error) {
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return nil, err
	}
	if err := rest.LoadTLSFiles(config); err != nil {
		return nil, err
	}
	if len(config.CertData) == 0 {
		return &givenIdentity{}, nil
	}
	certs, err := certutil.ParseCertsPEM(config.CertData)
	if err != nil {
		return nil, fmt.Errorf("its client certificate: %w", err)
	}
	return &givenIdentity{cert: certs[0], certPEM: config.CertData, keyPEM: config.KeyData}, nil
}

// better reports whether it should replace the copy: there is no usable copy, or it expires earlier.
func (g *givenIdentity) better(i bootstrap.Identity, authority *x509.Certificate) bool {
	have, err := i.Read()
	return err != nil || have.CheckSignatureFrom(authority) != nil || g.cert.NotAfter.After(have.NotAfter)
}

// check returns an error if the certificate is of no use.
func (g *givenIdentity) check(authority *x509.Certificate, now time.Time) error {
	switch {
	case g.cert.Subject.CommonName != userStorage:
		return fmt.Errorf("its certificate is of user %q, want %q", g.cert.Subject.CommonName, userStorage)
	case g.cert.CheckSignatureFrom(authority) != nil:
		return errors.New("its certificate is of another cluster")
	case now.After(g.cert.NotAfter):
		return fmt.Errorf("its certificate expired on %s: copy it from the server again",
			g.cert.NotAfter.UTC().Format(time.RFC3339))
	}
	return nil
}

// write makes it the copy. The key is written first. If the process dies between the two writes, the copy is of no use,
// and is made again.
func (g *givenIdentity) write(i bootstrap.Identity) error {
	for _, f := range []struct {
		path string
		text []byte
	}{{i.Key, g.keyPEM}, {i.Cert, g.certPEM}} {
		if _, err := durable.WriteIfChanged(f.path, append(bytes.TrimSpace(f.text), '\n')); err != nil {
			return fmt.Errorf("copy the certificate of %s: %w", userStorage, err)
		}
	}
	return nil
}
