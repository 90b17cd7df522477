// Package identity gets, renews and keeps a node's certificates: the one with which its agent authenticates to the API
// server, and, if it is asked to, the one of the agent's server.
//
// # Model
//
//	bootstrap kubeconfig (a token) ──► CertificateSigningRequest ──► approved, signed
//	                                                                      │
//	kubeconfig ──► kubelet-client-current.pem ◄── kubelet-client-DATE.pem ◄┘
//
// The certificate of the server is requested with that identity, for the names and addresses that the Node publishes,
// and again when they change (Serving). Its files are kubelet-server-*.pem.
//
// A keeper owns one certificate. core/nodecert says when the next one is requested. The keeper makes the key and the
// request, waits for the answer, and stores the certificate. The rest of the agent runs meanwhile. Static pods need no
// identity; requests to the API server wait for it (kube.Login). Files and names are the kubelet's, so that each can
// continue with what the other left.
//
// # Invariants
//
//   - A key is on disk before its request exists, and the name of a request follows from its key: an agent that crashed
//     finds the request of the one before, with its answer.
//   - A certificate stays in use until the next one is stored. A server never lacks a certificate that it had, until
//     that expires.
//   - A client certificate is stored after the API server has accepted it. So one that was signed by another authority
//     replaces none that works.
//   - The kubeconfig is written after the certificate file that it names.
//   - Keys are in files of mode 0600 and in memory, and never in the log.
//
// It approves nothing, and makes requests to the API server only.
//
// Rejected: client-go's manager of certificates, which the kubelet has. It needs the generated clientset: the program
// was 14 MB larger with it, and each process had 1 MB more on its heap (measured 2026-11-24).
package identity

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"github.com/plimsoll-dev/plimsoll/internal/core/nodecert"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/kube/certrequest"
)

// clientFiles is the name of the client certificate's files, as the kubelet has it.
const clientFiles = "kubelet-client"

// Options say where the node's identity is.
type Options struct {
	NodeName   string
	Kubeconfig string // of the API server
	Bootstrap  string // kubeconfig to ask for the first certificate with; empty: Kubeconfig is there already
	CertDir    string // of the node's certificates
	Renews     bool   // rotateCertificates
	UserAgent  string
}

// Identity is how the agent authenticates to the API server.
type Identity struct {
	o      Options
	login  *kube.Login
	host   string
	keeper *keeper // nil: the kubeconfig is used as it is
}

// New reads the files. It makes no requests; Run does.
func New(o Options) (*Identity, error) {
	i := &Identity{o: o}
	if o.Bootstrap == "" && !o.Renews {
		i.login = kube.NewLogin(o.Kubeconfig, "")
		return i, i.haveKubeconfig()
	}
	files := store{dir: o.CertDir, name: clientFiles}
	if err := files.recover(); err != nil {
		return nil, fmt.Errorf("read the node's client certificate: %w", err)
	}
	i.login = kube.NewLogin(o.Kubeconfig, files.current())
	i.keeper = &keeper{
		kind:     certrequest.Client,
		files:    files,
		life:     nodecert.Life{Renews: o.Renews},
		template: func() *x509.CertificateRequest { return nodeTemplate(o.NodeName) },
		api:      i.api,
		accept:   i.accept,
		errors:   newErrors(),
		look:     lookEvery,
	}
	if o.Bootstrap == "" {
		if err := i.haveKubeconfig(); err != nil {
			return nil, err
		}
	} else if err := i.bootstrap(); err != nil {
		return nil, err
	}
	return i, i.adopt()
}

// haveKubeconfig reads where the API server is from the kubeconfig, which must be there.
func (i *Identity) haveKubeconfig() error {
	if err := i.login.Check(); err != nil {
		return err
	}
	i.host = i.login.Config().Host
	return nil
}

// bootstrap reads where the API server is. The bootstrap kubeconfig must be there if the kubeconfig cannot be used; a
// kubeconfig whose certificate has expired is better than none, because its files may be replaced.
func (i *Identity) bootstrap() error {
	own := i.login.Config()
	if own != nil {
		i.host = own.Host
	}
	if why := i.notUsable(); why != nil {
		config, err := loadBootstrap(i.o.Bootstrap)
		switch {
		case err == nil && own == nil:
			i.host = config.Host
		case err != nil && own == nil:
			return fmt.Errorf("%w; and %w", why, err)
		case err != nil:
			slog.Error("the node cannot log in to the API server; running pods go on", "err", why, "help", err)
		}
	}
	i.login.Wanting(func() error { return fmt.Errorf("no client certificate yet: %w", i.keeper.why()) })
	return nil
}

// notUsable returns why the kubeconfig cannot be used; nil: it can.
func (i *Identity) notUsable() error {
	if err := i.login.Check(); err != nil {
		return err
	}
	leaf := i.login.Leaf()
	if leaf == nil && !hasToken(i.login.Config()) {
		return fmt.Errorf("read kubeconfig: %s: no client certificate and no token", i.o.Kubeconfig)
	}
	if leaf != nil && time.Now().After(leaf.NotAfter) {
		return fmt.Errorf("the client certificate of kubeconfig %s expired at %s", i.o.Kubeconfig, stamp(leaf.NotAfter))
	}
	return nil
}

func hasToken(c *rest.Config) bool {
	return c.BearerToken != "" || c.BearerTokenFile != "" || c.ExecProvider != nil
}

// adopt tells the keeper which certificate is in use. One that is in the kubeconfig itself, as kubeadm writes it at
// first, is stored and renewed at once, as the kubelet does.
func (i *Identity) adopt() error {
	pair, err := i.keeper.files.load()
	switch {
	case err == nil:
		i.keeper.use(pair)
		return nil
	case !errors.Is(err, fs.ErrNotExist):
		slog.Warn("the node's client certificate cannot be read; another is requested", "err", err)
	}
	leaf := i.login.Leaf()
	if leaf == nil || !i.o.Renews {
		return nil
	}
	config := i.login.Config()
	if err := i.keeper.files.save(chainOf(config.CertData), keyOf(config.KeyData), time.Now()); err != nil {
		slog.Warn("the client certificate of the kubeconfig is not stored", "err", err)
	}
	i.keeper.use(&tls.Certificate{Leaf: leaf})
	i.keeper.foreign = true
	return nil
}

// Client returns a client that logs in with the node's identity, as it is at each request.
func (i *Identity) Client(qps float32, burst int) (*kube.Client, error) {
	return kube.NewClientFor(i.login, i.host, kube.Options{UserAgent: i.o.UserAgent, QPS: qps, Burst: burst})
}

// Leaf returns the client certificate in use; nil: there is none.
func (i *Identity) Leaf() *x509.Certificate { return i.login.Leaf() }

// Run keeps the client certificate until ctx ends.
func (i *Identity) Run(ctx context.Context) {
	if i.keeper != nil {
		i.keeper.run(ctx)
	}
}

// api returns the API for requests of the next certificate: with the node's own credentials (own), else with those of
// the bootstrap kubeconfig.
func (i *Identity) api(own bool) (certrequest.API, error) {
	if (own || i.o.Bootstrap == "") && i.login.Config() != nil {
		return i.Client(-1, 0)
	}
	if leaf := i.login.Leaf(); leaf == nil && i.login.Config() != nil && hasToken(i.login.Config()) {
		return i.Client(-1, 0)
	}
	config, err := loadBootstrap(i.o.Bootstrap)
	if err != nil {
		if why := i.notUsable(); why != nil {
			err = fmt.Errorf("%w; and %w", why, err)
		}
		return nil, err
	}
	config.UserAgent, config.QPS = i.o.UserAgent, -1
	return kube.NewClientForConfig(config)
}

// accept stores a new pair once the API server has accepted the certificate, and makes the kubeconfig name it.
func (i *Identity) accept(ctx context.Context, pair *tls.Certificate, chain, key []byte, request string) error {
	config := i.login.Config()
	fresh := config == nil || i.notUsable() != nil
	if fresh && i.o.Bootstrap != "" {
		var err error
		if config, err = loadBootstrap(i.o.Bootstrap); err != nil {
			return err
		}
	}
	if err := tryPair(ctx, config, chain, key, request); err != nil {
		return err
	}
	if err := i.keeper.files.save(chain, key, time.Now()); err != nil {
		return err
	}
	if fresh && i.o.Bootstrap != "" {
		if err := writeKubeconfig(i.o.Kubeconfig, config, i.keeper.files.current()); err != nil {
			return err
		}
	}
	return i.login.Check()
}

// tryPair makes a request to the API server with a new certificate. It returns an error only if the API server does not
// accept the certificate.
func tryPair(ctx context.Context, config *rest.Config, chain, key []byte, request string) error {
	as := rest.AnonymousClientConfig(config)
	as.CertData, as.KeyData = chain, key
	client, err := kube.NewClientForConfig(as)
	if err != nil {
		return err
	}
	err = client.Get(ctx, kube.CertificateRequests, "", request, &certificatesv1.CertificateSigningRequest{})
	if !apierrors.IsUnauthorized(err) {
		return nil
	}
	issuer := "an unknown authority"
	if pair, err := tls.X509KeyPair(chain, key); err == nil {
		issuer = fmt.Sprintf("%q", pair.Leaf.Issuer.String())
	}
	return &certrequest.Failure{
		Cause: nodecert.Unusable,
		Err:   fmt.Errorf("the API server does not accept the client certificate that was issued, by %s: %w", issuer, err),
		Help: "the authority of kube-controller-manager's --cluster-signing-cert-file must be in kube-apiserver's " +
			"--client-ca-file",
	}
}

// nodeTemplate has the subject by which the API server knows a node.
func nodeTemplate(node string) *x509.CertificateRequest {
	return &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}},
	}
}
