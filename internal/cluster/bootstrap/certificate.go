package bootstrap

import (
	"context"
	"crypto"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/client-go/util/keyutil"

	"github.com/plimsoll-dev/plimsoll/internal/host/durable"
	"github.com/plimsoll-dev/plimsoll/internal/kube/certrequest"
)

// An Identity is a certificate that a machine requests from its cluster, with its key.
type Identity struct {
	Cert, Key string // paths of the files
	User      string // a user that renews its certificate; empty: the node
	Node      string // name of the node
	Server    bool   // it is for the node's server; else for the node as a client
	IP        net.IP // the server's address, or that of a machine that claims; otherwise not used for a client
	Claims    bool   // it is the node's first: no other machine may get one at the same time
}

// kind is what kind of certificate it is.
func (i Identity) kind() certrequest.Kind {
	if i.User != "" {
		return certrequest.Kind{
			What:     "certificate of user " + i.User,
			Signer:   certificatesv1.KubeAPIServerClientSignerName,
			Usage:    certificatesv1.UsageClientAuth,
			Approval: "`plimsoll up` approves it while it runs on the server",
		}
	}
	if !i.Server {
		kind := certrequest.Client
		if i.Claims {
			kind.Claim = &certrequest.Claim{Node: i.Node, Address: i.IP.String(), Now: time.Now()}
		}
		return kind
	}
	return certrequest.Kind{
		What:     "certificate of the node's server",
		Signer:   certificatesv1.KubeletServingSignerName,
		Usage:    certificatesv1.UsageServerAuth,
		Approval: "`plimsoll up` approves it while it runs on the server",
	}
}

// subject is whom the certificate names.
func (i Identity) subject() pkix.Name {
	if i.User != "" {
		return pkix.Name{CommonName: i.User}
	}
	return pkix.Name{CommonName: "system:node:" + i.Node, Organization: []string{"system:nodes"}}
}

// renewFraction says when a certificate is renewed: when less than 1/renewFraction of its life is left (chosen, as in
// package pki).
const renewFraction = 3

// ExpiresSoon is Due's reason for a certificate that is still valid.
const ExpiresSoon = "it expires soon"

// Due returns why a certificate must be requested. The reason is empty if there is one that fits its key, the authority
// and the node and does not expire soon. expired is set if it has expired, so that it cannot be used to request another
// one.
func (i Identity) Due(authority *x509.Certificate, now time.Time) (why string, expired bool) {
	c, err := i.Read()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "there is none", false
	case err != nil:
		return err.Error(), false
	case c.CheckSignatureFrom(authority) != nil:
		return "another authority signed it", false
	case c.Subject.CommonName != i.subject().CommonName:
		return "it is of " + c.Subject.CommonName, false
	case i.Server && (len(c.IPAddresses) != 1 || !c.IPAddresses[0].Equal(i.IP)):
		return "it is for another address", false
	case now.After(c.NotAfter):
		return "it has expired", true
	case c.NotAfter.Sub(now) < c.NotAfter.Sub(c.NotBefore)/renewFraction:
		return ExpiresSoon, false
	}
	return "", false
}

// Read returns the certificate. It is an error if the key is missing or belongs to another certificate.
func (i Identity) Read() (*x509.Certificate, error) {
	text, err := os.ReadFile(i.Cert)
	if err != nil {
		return nil, err
	}
	key, err := i.readKey()
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, fmt.Errorf("%s is damaged", i.Cert)
	}
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s is damaged: %w", i.Cert, err)
	}
	if public, ok := key.Public().(interface{ Equal(crypto.PublicKey) bool }); !ok || !public.Equal(c.PublicKey) {
		return nil, fmt.Errorf("%s does not belong to %s", i.Key, i.Cert)
	}
	return c, nil
}

func (i Identity) readKey() (crypto.Signer, error) {
	key, err := keyutil.PrivateKeyFromFile(i.Key)
	if err != nil {
		return nil, err
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("%s cannot sign", i.Key)
	}
	return signer, nil
}

// ensureKey returns the key. It makes one if there is none or it is damaged: an ECDSA key, as in package pki.
func (i Identity) ensureKey() (crypto.Signer, error) {
	if key, err := i.readKey(); err == nil {
		return key, nil
	}
	text, err := keyutil.MakeEllipticPrivateKeyPEM()
	if err != nil {
		return nil, err
	}
	if _, err := durable.WriteIfChanged(i.Key, text); err != nil {
		return nil, err
	}
	return i.readKey()
}

// Request gets the certificate from the cluster: it makes a request, waits until someone has approved and signed it,
// and writes the certificate.
func (i Identity) Request(ctx context.Context, c certrequest.API) error {
	if err := i.request(ctx, c); err != nil {
		return fmt.Errorf("request the %s of node %s: %w", i.kind().What, i.Node, err)
	}
	return nil
}

func (i Identity) request(ctx context.Context, c certrequest.API) error {
	key, err := i.ensureKey()
	if err != nil {
		return err
	}
	template, renews := i.template()
	chain, err := i.kind().Request(ctx, c, key, template, renews)
	if err != nil {
		return err
	}
	_, err = durable.WriteIfChanged(i.Cert, chain)
	return err
}

// template is what the certificate will say, and renews is the serial number of the present one with the same key.
func (i Identity) template() (template *x509.CertificateRequest, renews string) {
	template = &x509.CertificateRequest{Subject: i.subject()}
	if i.Server {
		template.DNSNames, template.IPAddresses = []string{i.Node}, []net.IP{i.IP}
	}
	if c, err := i.Read(); err == nil { // the key stays, so that no reader sees it with another one: see package pki
		renews = c.SerialNumber.String()
	}
	return template, renews
}

// ClaimName makes a request that claims the node's name, for a machine that has signed its certificate itself, and does
// not wait for an answer.
func (i Identity) ClaimName(ctx context.Context, c certrequest.API) error {
	i.Claims = true
	key, err := i.readKey()
	if err == nil {
		template, renews := i.template()
		_, err = i.kind().Ask(ctx, c, key, template, renews)
	}
	if err != nil {
		return fmt.Errorf("claim the name of node %s: %w", i.Node, err)
	}
	return nil
}
