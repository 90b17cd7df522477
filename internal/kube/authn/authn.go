// Package authn decides whether a request to a component's server is allowed: it authenticates the sender and
// authorizes the request.
//
// Authentication: a client certificate signed by the client CA (the common name is the user, organizations are the
// groups), else a bearer token that the API server's TokenReview accepts, else system:anonymous where the configuration
// allows it. An invalid credential is an error; such a request does not continue as anonymous.
//
// Authorization: the API server's SubjectAccessReview on the resource nodes/<this node>, with the subresources and
// verbs that the kubelet uses, so that existing RBAC rules mean the same here. There is one exception: a request that
// runs code in a container, or communicates with it, needs `create` whatever the method (VerbOf). A server that does
// not belong to a node is authorized by path, as upstream's controllers and scheduler are. Some paths have a resource
// of their own instead (Options.Resources), so that a role can allow one of them alone. With authorization mode
// AlwaysAllow every request is allowed.
//
// Answers are cached for the configured times. The caches are bounded. Their keys are keyed hashes, so that a memory
// dump contains no token. While the API server does not answer, cached answers still count, and other requests are
// refused with status 503 and a text that gives this reason. No request is allowed because the API server could not be
// asked.
//
// The package does not speak TLS (internal/agent/server owns the listener) and knows no routes except the path prefixes
// that decide a subresource.
package authn

import (
	"context"
	"crypto/x509"
	"fmt"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// Identity is who sent a request.
type Identity struct {
	Name   string
	UID    string
	Groups []string
	Extra  map[string][]string
}

// Names and groups that upstream gives to requests by the way they were authenticated.
const (
	anonymousName        = "system:anonymous"
	groupAuthenticated   = "system:authenticated"
	groupUnauthenticated = "system:unauthenticated"
)

// Reviewer posts reviews to the API server. *kube.Client implements it.
type Reviewer interface {
	Create(ctx context.Context, k kube.Kind, namespace, name string, obj, out runtime.Object, subresources ...string) error
}

// Options configure a Guard. The durations are those of KubeletConfiguration; zero means that no answer is cached.
type Options struct {
	NodeName string // the node of the server; empty: the server belongs to no node, and access is authorized by path
	// Resources has the paths for which access to a resource suffices, on a node's server. On other servers, it is
	// required instead of access to the path.
	Resources    map[string]Resource
	API          Reviewer // nil: tokens are not accepted and Webhook authorization is an error
	AccessAPI    Reviewer // for SubjectAccessReviews; nil: API
	ClientCAFile string   // PEM bundle; empty: see ClientCAs
	// ClientCAs returns the CAs of accepted client certificates when there is no file. Nil, or nil from it: none is
	// accepted.
	ClientCAs   func() *x509.CertPool
	Tokens      bool             // authentication.webhook.enabled
	TokenTTL    time.Duration    // authentication.webhook.cacheTTL
	Anonymous   bool             // authentication.anonymous.enabled
	AlwaysAllow bool             // authorization.mode AlwaysAllow; otherwise Webhook
	AllowTTL    time.Duration    // authorization.webhook.cacheAuthorizedTTL
	DenyTTL     time.Duration    // authorization.webhook.cacheUnauthorizedTTL
	Now         func() time.Time // nil: time.Now
}

// Guard decides on requests. It is safe for concurrent use.
type Guard struct {
	o         Options
	ca        *bundle             // nil: there is no ClientCAFile
	tokens    *reviews[*Identity] // who sent a token; nil Identity: the API server refused it
	decisions *reviews[bool]      // whether an identity may use a subresource or path
}

// New checks o and returns a Guard. It reads the client CA once, so that a wrong path is reported at the start.
func New(o Options) (*Guard, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.AccessAPI == nil {
		o.AccessAPI = o.API
	}
	if o.API == nil && o.Tokens {
		return nil,
			fmt.Errorf("guard the server: authentication.webhook.enabled: needs an API server; " +
				"set it to false or set --kubeconfig")
	}
	if o.AccessAPI == nil && !o.AlwaysAllow {
		return nil,
			fmt.Errorf("guard the server: authorization.mode Webhook: needs an API server; set AlwaysAllow or set --kubeconfig")
	}
	g := &Guard{
		o: o,
		// Refused tokens are cached apart from accepted ones, so that a flood of bad tokens cannot evict the good ones.
		tokens: newReviews(o.Now, tokensMax, func(id *Identity) (bool, time.Duration) { return id != nil, o.TokenTTL }),
		decisions: newReviews(o.Now, decisionsMax, func(ok bool) (bool, time.Duration) {
			return ok, pick(ok, o.AllowTTL,
				o.DenyTTL)
		}),
	}
	if o.ClientCAFile != "" {
		g.ca = &bundle{path: o.ClientCAFile, now: o.Now}
		if _, err := g.ca.pool(); err != nil {
			return nil, err
		}
	}
	return g, nil
}

func pick[T any](first bool, a, b T) T {
	if first {
		return a
	}
	return b
}

// Refusal is the error of a request that is not allowed: the status code and text of the answer.
type Refusal struct {
	Status int
	Text   string
	Err    error // for the log; nil where Text says it all
}

func (r *Refusal) Error() string {
	if r.Err != nil {
		return r.Text + ": " + r.Err.Error()
	}
	return r.Text
}

func (r *Refusal) Unwrap() error { return r.Err }

// Admit authenticates and authorizes r. On success it removes the credential from r's headers, so that no code behind
// the guard (a proxied runtime, a log) can read it. The error is a *Refusal.
func (g *Guard) Admit(r *http.Request) (*Identity, error) {
	id, err := g.identify(r)
	if err != nil {
		return nil, err
	}
	if err := g.authorize(r, id); err != nil {
		return id, err
	}
	return id, nil
}

// identify tries the ways to authenticate in upstream's order: certificate, token, anonymous.
func (g *Guard) identify(r *http.Request) (*Identity, error) {
	id, certErr := g.fromCertificate(r)
	if id != nil {
		r.Header.Del("Authorization")
		return id, nil
	}
	id, tokenErr := g.fromToken(r)
	if id != nil {
		return id, nil
	}
	switch {
	case tokenErr != nil:
		return nil, tokenErr
	case certErr != nil:
		return nil, &Refusal{http.StatusUnauthorized, "Unauthorized", certErr}
	case g.o.Anonymous:
		return &Identity{Name: anonymousName, Groups: []string{groupUnauthenticated}}, nil
	}
	return nil, &Refusal{http.StatusUnauthorized, "Unauthorized", nil}
}
