package identity

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/plimsoll-dev/plimsoll/internal/core/nodecert"
	"github.com/plimsoll-dev/plimsoll/internal/kube/certrequest"
)

// serverFiles is the name of the serving certificate's files, as the kubelet has it.
const serverFiles = "kubelet-server"

// serverKind is the certificate of the node's server.
var serverKind = certrequest.Kind{
	What:   "serving certificate",
	Signer: certificatesv1.KubeletServingSignerName,
	Usage:  certificatesv1.UsageServerAuth,
	Approval: "Kubernetes has no controller that approves serving certificates: an administrator does, or a program " +
		"that the cluster's distribution has for it",
}

// ServingOptions say for what the node's server needs a certificate.
type ServingOptions struct {
	// CertFile and KeyFile are a pair of somebody else, used until one was issued. Optional.
	CertFile, KeyFile string
	// Addresses returns what the Node publishes; nil: not known yet. It is called from several goroutines.
	Addresses func() []corev1.NodeAddress
}

// Serving is the certificate of the node's server, requested and renewed through the API server.
type Serving struct{ keeper *keeper }

// NewServing reads the files. It makes no requests; Run does, with the node's identity.
func NewServing(i *Identity, o ServingOptions) *Serving {
	files := store{dir: i.o.CertDir, name: serverFiles, certFile: o.CertFile, keyFile: o.KeyFile}
	s := &Serving{}
	s.keeper = &keeper{
		kind:     serverKind,
		files:    files,
		life:     nodecert.Life{Renews: true},
		template: func() *x509.CertificateRequest { return serverTemplate(i.o.NodeName, o.Addresses()) },
		api:      func(bool) (certrequest.API, error) { return i.Client(-1, 0) },
		accept: func(_ context.Context, pair *tls.Certificate, chain, key []byte, _ string) error {
			warnOfIssuer(pair, i.login.Config())
			return files.save(chain, key, time.Now())
		},
		errors:   newServerErrors(),
		replaced: newServerRotation(),
		look:     lookEvery,
	}
	pair, err := files.load()
	switch {
	case err == nil:
		s.keeper.use(pair)
	case !errors.Is(err, fs.ErrNotExist):
		slog.Warn("the node's serving certificate cannot be read; another is requested", "err", err)
	}
	return s
}

// Run keeps the certificate until ctx ends.
func (s *Serving) Run(ctx context.Context) { s.keeper.run(ctx) }

// Get is the GetCertificate of a tls.Config. Without a certificate that is in force the handshake fails, as it does
// with the kubelet: clients see "tls: internal error".
func (s *Serving) Get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	pair := s.keeper.current()
	switch {
	case pair == nil:
		return nil, fmt.Errorf("no serving certificate yet: %w", s.keeper.why())
	case time.Now().After(pair.Leaf.NotAfter):
		return nil, fmt.Errorf("the serving certificate expired at %s: %w", stamp(pair.Leaf.NotAfter), s.keeper.why())
	}
	return pair, nil
}

// serverTemplate has the subject of a node, and its names and addresses in a fixed order. It is nil while no address is
// known, as in the kubelet.
func serverTemplate(node string, addresses []corev1.NodeAddress) *x509.CertificateRequest {
	template := nodeTemplate(node)
	var ips []netip.Addr
	for _, a := range addresses {
		switch ip, err := netip.ParseAddr(a.Address); {
		case err == nil && (a.Type == corev1.NodeHostName || a.Type == corev1.NodeInternalIP ||
			a.Type == corev1.NodeExternalIP):
			ips = append(ips, ip.Unmap().WithZone(""))
		case a.Address != "" && (a.Type == corev1.NodeInternalDNS || a.Type == corev1.NodeExternalDNS ||
			err != nil && a.Type == corev1.NodeHostName):
			template.DNSNames = append(template.DNSNames, a.Address)
		}
	}
	if len(ips) == 0 {
		return nil
	}
	slices.SortFunc(ips, netip.Addr.Compare)
	for _, ip := range slices.Compact(ips) {
		template.IPAddresses = append(template.IPAddresses, net.IP(ip.AsSlice()))
	}
	slices.Sort(template.DNSNames)
	template.DNSNames = slices.Compact(template.DNSNames)
	return template
}

// warnOfIssuer warns of a certificate whose authority is not that of the kubeconfig. It is used nevertheless: a cluster
// may have an authority of its own for its nodes' servers.
func warnOfIssuer(pair *tls.Certificate, config *rest.Config) {
	own, err := rest.TLSConfigFor(config)
	if err != nil || own == nil || own.RootCAs == nil {
		return
	}
	between := x509.NewCertPool()
	for _, der := range pair.Certificate[1:] {
		if c, err := x509.ParseCertificate(der); err == nil {
			between.AddCert(c)
		}
	}
	_, err = pair.Leaf.Verify(x509.VerifyOptions{
		Roots:         own.RootCAs,
		Intermediates: between,
		CurrentTime:   pair.Leaf.NotAfter, // clocks may differ; this is about who signed
	})
	if err == nil || !errors.As(err, new(x509.UnknownAuthorityError)) {
		return
	}
	slog.Warn("the node's serving certificate is of another authority than the cluster's", "err", err,
		"issuer", pair.Leaf.Issuer.String(),
		"help", "clients that verify it need that authority: kube-apiserver in --kubelet-certificate-authority, "+
			"metrics-server in --kubelet-certificate-authority; or have kube-controller-manager sign with the cluster's")
}
