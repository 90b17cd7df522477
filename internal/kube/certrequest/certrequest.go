// Package certrequest asks a cluster for a certificate of a node: it makes a CertificateSigningRequest and waits for
// the answer. The agent asks so for its client certificate, and a machine that joins for its first ones.
//
// # Model
//
// A Kind is what kind of certificate is requested. Its request has a name that follows from the key and the content. So
// a program that crashed while it waited finds its request again, with the answer. If that answer is a refusal, the
// program makes another request, whose name the API server chooses. A Failure says why there is no certificate, what
// kind of cause that is, and what may help.
//
// A Claim lets one machine at a time request the first certificate of a node name.
//
// # What it does not do
//
// It makes no keys, stores nothing, and does not decide when a certificate is due (core/nodecert). It approves nothing.
// A program that crashes while it waits for a request with a chosen name makes one more.
package certrequest

import (
	"context"
	"crypto"
	"crypto/rsa"
	"crypto/sha256"
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

// Failure is why a request gave no certificate, and what may help.
type Failure struct {
	Cause nodecert.Cause
	Err   error
	Help  string
}

func (f *Failure) Error() string {
	if f.Help == "" {
		return f.Err.Error()
	}
	return f.Err.Error() + ": " + f.Help
}

func (f *Failure) Unwrap() error { return f.Err }

// A Kind is what kind of certificate is requested.
type Kind struct {
	What     string // for messages: "client certificate"
	Signer   string
	Usage    certificatesv1.KeyUsage
	Approval string // who approves such requests
	Claim    *Claim // nil: others may request the same
}

// Client is the certificate with which a node asks the API server.
var Client = Kind{
	What:   "client certificate",
	Signer: certificatesv1.KubeAPIServerClientKubeletSignerName,
	Usage:  certificatesv1.UsageClientAuth,
	Approval: "kube-controller-manager approves it if who asks is bound to the ClusterRole " +
		"system:certificates.k8s.io:certificatesigningrequests:nodeclient (a new node) or " +
		"...:selfnodeclient (a node that renews)",
}

// Request asks the API server for a certificate, as Ask does, and waits until it is there.
func (k Kind) Request(
	ctx context.Context, api API, key crypto.Signer, template *x509.CertificateRequest, renews string,
) (chain []byte, err error) {
	made, err := k.Ask(ctx, api, key, template, renews)
	if err != nil {
		return nil, err
	}
	return k.wait(ctx, api, made)
}

// Ask makes a request for a certificate, under a Claim if k has one. An earlier request of the same Name is found
// again, with its answer. One that was denied, that its signer failed to sign, or that asks for something else is left
// alone: the request that is made then has the name as a prefix.
func (k Kind) Ask(
	ctx context.Context, api API, key crypto.Signer, template *x509.CertificateRequest, renews string,
) (*certificatesv1.CertificateSigningRequest, error) {
	text, err := certutil.MakeCSRFromTemplate(key, template)
	if err != nil {
		return nil, &Failure{nodecert.Unusable, fmt.Errorf("make a certificate request: %w", err), ""}
	}
	wanted := &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: k.Name(key, template, renews)},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request:    text,
			SignerName: k.Signer,
			Usages:     k.usages(key),
		},
	}
	find := makeOrFind
	if k.Claim != nil {
		find = k.Claim.make
	}
	made, err := find(ctx, api, wanted)
	if err != nil {
		return nil, answerOf(fmt.Errorf("make CertificateSigningRequest %s: %w", wanted.Name, err))
	}
	return made, nil
}

// makeOrFind makes a request, or finds an earlier one of the same name. If the earlier one is of no use, it makes
// another one.
func makeOrFind(
	ctx context.Context, api API, wanted *certificatesv1.CertificateSigningRequest,
) (*certificatesv1.CertificateSigningRequest, error) {
	made := &certificatesv1.CertificateSigningRequest{}
	err := api.Create(ctx, kube.CertificateRequests, "", "", wanted, made)
	if !apierrors.IsAlreadyExists(err) {
		return made, err
	}
	found := &certificatesv1.CertificateSigningRequest{}
	if err := api.Get(ctx, kube.CertificateRequests, "", wanted.Name, found); err != nil {
		return nil, err
	}
	if _, refused := answer(found); refused == nil && sameRequest(found, wanted) {
		return found, nil
	}
	another := wanted.DeepCopy()
	another.Name, another.GenerateName = "", wanted.Name+"-"
	err = api.Create(ctx, kube.CertificateRequests, "", "", another, made)
	return made, err
}

// Name returns the name of a request: the same for the same key and the same content. renews names the certificate
// that is renewed with the same key; empty: the key is new.
func (k Kind) Name(key crypto.Signer, template *x509.CertificateRequest, renews string) string {
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		panic(err) // the key was made here or read as one of these types
	}
	content := fmt.Appendf(nil, "%x|%s|%s|%v|%q|%v",
		public, k.Signer, k.Usage, template.Subject, template.DNSNames, template.IPAddresses)
	if renews != "" {
		content = fmt.Appendf(content, "|%s", renews)
	}
	sum := sha256.Sum256(content)
	return "node-csr-" + base64.RawURLEncoding.EncodeToString(sum[:])
}

// usages returns what a certificate for this key is for. Keys of RSA are also used to encipher keys.
func (k Kind) usages(key any) []certificatesv1.KeyUsage {
	usages := []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, k.Usage}
	if _, is := key.(*rsa.PrivateKey); is {
		usages = slices.Insert(usages, 0, certificatesv1.UsageKeyEncipherment)
	}
	return usages
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
func (k Kind) wait(ctx context.Context, api API, r *certificatesv1.CertificateSigningRequest) ([]byte, error) {
	if chain, err := answer(r); chain != nil || err != nil {
		return chain, err
	}
	slog.Info("a "+k.What+" is requested", "request", r.Name, "signer", k.Signer)
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
	last := r
	for began := time.Now(); ; {
		latest := &certificatesv1.CertificateSigningRequest{}
		select {
		case <-ctx.Done():
			return nil, k.late(ctx, last)
		case latest = <-changes:
		case <-remind.C:
			if err := api.Get(ctx, kube.CertificateRequests, "", r.Name, latest); err != nil {
				return nil, answerOf(fmt.Errorf("read CertificateSigningRequest %s: %w", r.Name, err))
			}
		}
		if chain, err := answer(latest); chain != nil || err != nil {
			return chain, err
		}
		last = latest
		if waited := time.Since(began).Round(time.Second); waited >= nodecert.Unanswered {
			err := fmt.Errorf("nobody decided about CertificateSigningRequest %s for %v", r.Name, waited)
			return nil, &Failure{nodecert.NoAnswer, err, k.help(r.Name)}
		} else if waited >= remindEvery {
			slog.Warn("the request for a "+k.What+" waits for approval",
				"request", r.Name, "for", waited, "help", k.help(r.Name))
		}
	}
}

// late says what a request waits for whose time is over.
func (k Kind) late(ctx context.Context, r *certificatesv1.CertificateSigningRequest) error {
	for _, c := range r.Status.Conditions {
		if c.Type == certificatesv1.CertificateApproved {
			err := fmt.Errorf("CertificateSigningRequest %s: it is approved and not signed: %w", r.Name, context.Cause(ctx))
			return &Failure{Cause: nodecert.NoAnswer, Err: err, Help: "does kube-controller-manager run?"}
		}
	}
	err := fmt.Errorf("CertificateSigningRequest %s: nobody has approved it: %w", r.Name, context.Cause(ctx))
	return &Failure{Cause: nodecert.NoAnswer, Err: err, Help: k.help(r.Name)}
}

func (k Kind) help(request string) string {
	return "approve it (kubectl certificate approve " + request + ") or deny it; " + k.Approval
}

// answer returns the certificate of a request, or what was decided instead; neither: nothing yet.
func answer(r *certificatesv1.CertificateSigningRequest) ([]byte, error) {
	for _, c := range r.Status.Conditions {
		if c.Status == corev1.ConditionFalse {
			continue
		}
		switch c.Type {
		case certificatesv1.CertificateDenied:
			return nil, &Failure{
				Cause: nodecert.Denied,
				Err:   fmt.Errorf("CertificateSigningRequest %s was denied: %s: %s", r.Name, c.Reason, c.Message),
				Help:  "find out who denied it and why; the next try makes another request",
			}
		case certificatesv1.CertificateFailed:
			return nil, &Failure{
				Cause: nodecert.SignerFailed,
				Err: fmt.Errorf("signer %s could not sign CertificateSigningRequest %s: %s: %s",
					r.Spec.SignerName, r.Name, c.Reason, c.Message),
				Help: "see the log of kube-controller-manager; the next try makes another request",
			}
		}
	}
	if len(r.Status.Certificate) == 0 {
		return nil, nil
	}
	return r.Status.Certificate, nil
}

// answerOf says what an error of a request to the API server means.
func answerOf(err error) error {
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, new(x509.UnknownAuthorityError)):
		return &Failure{nodecert.Unreachable, err, "the authority in the kubeconfig has not signed the API server's " +
			"certificate: compare it with the cluster's"}
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return &Failure{nodecert.Unreachable, err, "check this machine's clock; if it is right, the API server's " +
			"certificate must be renewed"}
	case errors.As(err, new(*url.Error)):
		return &Failure{nodecert.Unreachable, err, ""}
	case apierrors.IsUnauthorized(err):
		return &Failure{nodecert.Refused, err, "the API server knows neither token nor certificate: it has expired, " +
			"or is of another cluster"}
	case apierrors.IsForbidden(err):
		return &Failure{nodecert.Refused, err, "who asks must be bound to the ClusterRole system:node-bootstrapper " +
			"(a new node) or be the node itself"}
	}
	return &Failure{nodecert.Unreachable, err, ""}
}
