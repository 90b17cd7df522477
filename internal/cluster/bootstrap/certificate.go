package bootstrap

import (
	"context"
	"crypto"
	"crypto/rand"
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
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/keyutil"

	"github.com/plimsoll-dev/plimsoll/internal/host/durable"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// An Identity is a certificate that a node requests from its cluster, with its key.
type Identity struct {
	Cert, Key string // paths of the files
	Node      string // name of the node
	Server    bool   // it is for the node's server; else for the node as a client
	IP        net.IP // the server's address; not used for a client
}

func (i Identity) signer() (name string, usage certificatesv1.KeyUsage) {
	if i.Server {
		return certificatesv1.KubeletServingSignerName, certificatesv1.UsageServerAuth
	}
	return certificatesv1.KubeAPIServerClientKubeletSignerName, certificatesv1.UsageClientAuth
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
	c, err := i.read()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "there is none", false
	case err != nil:
		return err.Error(), false
	case c.CheckSignatureFrom(authority) != nil:
		return "another authority signed it", false
	case c.Subject.CommonName != "system:node:"+i.Node:
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

// read returns the certificate. It is an error if the key is missing or belongs to another certificate.
func (i Identity) read() (*x509.Certificate, error) {
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
func (i Identity) Request(ctx context.Context, c *kube.Client) error {
	signer, usage := i.signer()
	if err := i.request(ctx, c, signer, usage); err != nil {
		return fmt.Errorf("request a certificate of node %s from %s: %w", i.Node, signer, err)
	}
	return nil
}

func (i Identity) request(ctx context.Context, c *kube.Client, signer string, usage certificatesv1.KeyUsage) error {
	key, err := i.ensureKey()
	if err != nil {
		return err
	}
	template := &x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:" + i.Node,
		Organization: []string{"system:nodes"}}}
	if i.Server {
		template.DNSNames, template.IPAddresses = []string{i.Node}, []net.IP{i.IP}
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		return err
	}
	r := &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "csr-"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
			SignerName: signer,
			Usages:     []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, usage},
		},
	}
	if err := c.Create(ctx, kube.CertificateRequests, "", "", r, r); err != nil {
		return err
	}
	if err := await(ctx, c, r); err != nil {
		return fmt.Errorf("CertificateSigningRequest %s: %w", r.Name, err)
	}
	_, err = durable.WriteIfChanged(i.Cert, r.Status.Certificate)
	return err
}

// pollPeriod is how often a request is read until it has its certificate. Chosen: kube-controller-manager needs some 50
// ms.
const pollPeriod = 100 * time.Millisecond

// await waits until a request has its certificate.
func await(ctx context.Context, c *kube.Client, r *certificatesv1.CertificateSigningRequest) error {
	tick := time.NewTicker(pollPeriod)
	defer tick.Stop()
	var last error
	for {
		if last = c.Get(ctx, kube.CertificateRequests, "", r.Name, r); last == nil {
			if len(r.Status.Certificate) > 0 {
				return nil
			}
			approved := false
			for _, condition := range r.Status.Conditions {
				switch condition.Type {
				case certificatesv1.CertificateDenied, certificatesv1.CertificateFailed:
					return fmt.Errorf("%s: %s", condition.Type, condition.Message)
				case certificatesv1.CertificateApproved:
					approved = condition.Status == corev1.ConditionTrue
				}
			}
			last = fmt.Errorf("nobody has approved it: `plimsoll up` does so on the server while it runs; or "+
				"run kubectl certificate approve %s there", r.Name)
			if approved {
				last = errors.New("it is approved and not signed yet: does kube-controller-manager run on the server?")
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), last)
		case <-tick.C:
		}
	}
}
