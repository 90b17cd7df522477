package identity

import (
	"context"
	"crypto"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
	certutil "k8s.io/client-go/util/cert"

	"github.com/plimsoll-dev/plimsoll/internal/core/nodecert"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// remindEvery is how often the log says that a request waits, and how often the API server is asked about it besides
// the watch, which does not tell of errors. Chosen.
const remindEvery = time.Minute

// API is what requests need of the API server.
type API interface {
	Get(ctx context.Context, k kube.Kind, namespace, name string, out runtime.Object) error
	Create(ctx context.Context, k kube.Kind, namespace, name string, obj, out runtime.Object, subresources ...string) error
	Informer(k kube.Kind, sel kube.Selection, handler cache.ResourceEventHandler) (cache.Store, cache.Controller)
}

// failure is why a request gave no certificate, and what may help.
type failure struct {
	cause nodecert.Cause
	err   error
	help  string
}

func (f *failure) Error() string {
	if f.help == "" {
		return f.err.Error()
	}
	return f.err.Error() + ": " + f.help
}

func (f *failure) Unwrap() error { return f.err }

// A kind is what kind of certificate is requested.
type kind struct {
	name     string // of the files
	what     string // for messages
	signer   string
	usage    certificatesv1.KeyUsage
	approval string // who approves such requests
}

// clientKind is the certificate with which the node asks the API server.
var clientKind = kind{
	name:   "kubelet-client",
	what:   "client certificate",
	signer: certificatesv1.KubeAPIServerClientKubeletSignerName,
	usage:  certificatesv1.UsageClientAuth,
	approval: "kube-controller-manager approves it if who asks is bound to the ClusterRole " +
		"system:certificates.k8s.io:certificatesigningrequests:nodeclient (a new node) or " +
		"...:selfnodeclient (a node that renews)",
}

// request asks the API server for a certificate and waits until it is there. key is new, or that of an earlier request
// for the same: then that request is found again, with its answer.
func (k kind) request(
	ctx context.Context, api API, key crypto.Signer, template *x509.CertificateRequest,
) (chain []byte, err error) {
	text, err := certutil.MakeCSRFromTemplate(key, template)
	if err != nil {
		return nil, &failure{nodecert.Unusable, fmt.Errorf("make a certificate request: %w", err), ""}
	}
	wanted := &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: k.requestName(key, template)},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request:    text,
			SignerName: k.signer,
			Usages:     k.usages(key),
		},
	}
	made := &certificatesv1.CertificateSigningRequest{}
	err = api.Create(ctx, kube.CertificateRequests, "", "", wanted, made)
	if apierrors.IsAlreadyExists(err) {
		err = api.Get(ctx, kube.CertificateRequests, "", wanted.Name, made)
	}
	if err != nil {
		return nil, answerOf(fmt.Errorf("make CertificateSigningRequest %s: %w", wanted.Name, err))
	}
	if !sameRequest(made, wanted) {
		return nil, &failure{
			cause: nodecert.Unusable,
			err:   fmt.Errorf("CertificateSigningRequest %s exists and asks for something else", wanted.Name),
			help:  "delete it if nobody needs it; the next request has another name",
		}
	}
	return k.wait(ctx, api, made)
}

// requestName returns the same name for the same key and the same content, so that a restarted agent finds its request.
func (k kind) requestName(key crypto.Signer, template *x509.CertificateRequest) string {
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		panic(err) // the key was made here or read as one of these types
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%x|%s|%s|%v|%q|%v",
		public, k.signer, k.usage, template.Subject, template.DNSNames, template.IPAddresses))
	return "node-csr-" + base64.RawURLEncoding.EncodeToString(sum[:])
}

// sameRequest reports whether two requests are for the same key and signer.
func sameRequest(a, b *certificatesv1.CertificateSigningRequest) bool {
	keyOf := func(text []byte) []byte {
		if block, _ := pem.Decode(text); block != nil {
			if r, err := x509.ParseCertificateRequest(block.Bytes); err == nil {
				return r.RawSubjectPublicKeyInfo
			}
		}
		return nil
	}
	x := keyOf(a.Spec.Request)
	return x != nil && slices.Equal(x, keyOf(b.Spec.Request)) && a.Spec.SignerName == b.Spec.SignerName
}

// wait waits for the answer to a request.
func (k kind) wait(ctx context.Context, api API, r *certificatesv1.CertificateSigningRequest) ([]byte, error) {
	if chain, err := answer(r); chain != nil || err != nil {
		return chain, err
	}
	slog.Info("a "+k.what+" is requested", "request", r.Name, "signer", k.signer)
	watching, cancel := context.WithCancel(ctx)
	defer cancel()
	changes := make(chan *certificatesv1.CertificateSigningRequest, 1)
	tell := func(obj any) {
		select {
		case <-changes: // an older state that was not read
		default:
		}
		if r, ok := obj.(*certificatesv1.CertificateSigningRequest); ok {
			changes <- r
		}
	}
	name := fields.OneTermEqualSelector("metadata.name", r.Name)
	_, controller := api.Informer(kube.CertificateRequests, kube.Selection{Fields: name}, cache.ResourceEventHandlerFuncs{
		AddFunc:    tell,
		UpdateFunc: func(_, obj any) { tell(obj) },
	})
	go controller.RunWithContext(watching)
	remind := time.NewTicker(remindEvery)
	defer remind.Stop()
	for began := time.Now(); ; {
		latest := &certificatesv1.CertificateSigningRequest{}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case latest = <-changes:
		case <-remind.C:
			if err := api.Get(ctx, kube.CertificateRequests, "", r.Name, latest); err != nil {
				return nil, answerOf(fmt.Errorf("read CertificateSigningRequest %s: %w", r.Name, err))
			}
		}
		if chain, err := answer(latest); chain != nil || err != nil {
			return chain, err
		}
		if waited := time.Since(began).Round(time.Second); waited >= nodecert.Unanswered {
			err := fmt.Errorf("nobody decided about CertificateSigningRequest %s for %v", r.Name, waited)
			return nil, &failure{nodecert.NoAnswer, err, k.help(r.Name)}
		} else if waited >= remindEvery {
			slog.Warn("the request for a "+k.what+" waits for approval",
				"request", r.Name, "for", waited, "help", k.help(r.Name))
		}
	}
}

func (k kind) help(request string) string {
	return "approve it (kubectl certificate approve " + request + ") or deny it; " + k.approval
}

// answer returns the certificate of a request, or what was decided instead; neither: nothing yet.
func answer(r *certificatesv1.CertificateSigningRequest) ([]byte, error) {
	for _, c := range r.Status.Conditions {
		if c.Status == corev1.ConditionFalse {
			continue
		}
		switch c.Type {
		case certificatesv1.CertificateDenied:
			return nil, &failure{
				cause: nodecert.Denied,
				err:   fmt.Errorf("CertificateSigningRequest %s was denied: %s: %s", r.Name, c.Reason, c.Message),
				help:  "find out who denied it and why; the agent makes another request after a pause",
			}
		case certificatesv1.CertificateFailed:
			return nil, &failure{
				cause: nodecert.SignerFailed,
				err: fmt.Errorf("signer %s could not sign CertificateSigningRequest %s: %s: %s",
					r.Spec.SignerName, r.Name, c.Reason, c.Message),
				help: "see the log of kube-controller-manager; the agent makes another request after a pause",
			}
		}
	}
	if len(r.Status.Certificate) == 0 {
		return nil, nil
	}
	return r.Status.Certificate, nil
}

// checkIssued returns the pair of an issued certificate and its key, if it is of use.
func checkIssued(chain, key []byte, now time.Time) (*tls.Certificate, error) {
	pair, err := tls.X509KeyPair(chain, key)
	if err != nil {
		err = fmt.Errorf("the certificate that was issued: %w", err)
		return nil, &failure{nodecert.Unusable, err, "the signer must sign the key of the request"}
	}
	if now.After(pair.Leaf.NotAfter) {
		return nil, &failure{
			cause: nodecert.Unusable,
			err: fmt.Errorf("the certificate that was issued expired at %s, and this machine's clock is at %s",
				pair.Leaf.NotAfter.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339)),
			help: "set the clock of this machine, or of the machine where kube-controller-manager runs",
		}
	}
	if now.Before(pair.Leaf.NotBefore) {
		slog.Warn("a certificate was issued that is not valid yet by this machine's clock; check the clock",
			"begins", pair.Leaf.NotBefore.UTC(), "now", now.UTC())
	}
	return &pair, nil
}

// answerOf says what an error of a request to the API server means.
func answerOf(err error) error {
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, new(x509.UnknownAuthorityError)):
		return &failure{nodecert.Unreachable, err, "the authority in the kubeconfig has not signed the API server's " +
			"certificate: compare it with the cluster's"}
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return &failure{nodecert.Unreachable, err, "check this machine's clock; if it is right, the API server's " +
			"certificate must be renewed"}
	case errors.As(err, new(*url.Error)):
		return &failure{nodecert.Unreachable, err, ""}
	case apierrors.IsUnauthorized(err):
		return &failure{nodecert.Refused, err, "the API server knows neither token nor certificate: it has expired, " +
			"or is of another cluster"}
	case apierrors.IsForbidden(err):
		return &failure{nodecert.Refused, err, "who asks must be bound to the ClusterRole system:node-bootstrapper " +
			"(a new node) or be the node itself"}
	}
	return &failure{nodecert.Unreachable, err, ""}
}
