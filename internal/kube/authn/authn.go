// Package authn answers two questions about a request to a component's own server: who sent it, and may they.
//
// Who: a client certificate signed by the client CA (common name is the user, organizations are the groups), else a
// bearer token that the API server's TokenReview accepts, else nobody (system:anonymous) where the configuration
// allows that. A credential that was offered and does not hold is an error, never a reason to go on as anonymous.
//
// May they: the API server's SubjectAccessReview on the resource nodes/<this node>, with the subresources and verbs the
// kubelet asks for, so that existing RBAC rules mean the same here, but for one: what runs code in a container or
// speaks with it asks for `create` whatever the method (VerbOf). For a server that is no node's, on the path itself, as
// upstream's controllers and scheduler ask; or everything, with authorization mode AlwaysAllow.
//
// Answers are remembered for the configured times in bounded caches, keyed by a keyed hash so that a memory dump holds
// no token. When the API server cannot be asked, remembered answers still count and everything else is refused with
// status 503 and a text that says so: the agent never lets anybody in because it could not ask.
//
// The package does not speak TLS (internal/agent/server owns the listener) and knows no routes beyond the path prefixes
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

// Names and groups that upstream gives to requests by how they were authenticated.
const (
	anonymousName        = "system:anonymous"
	groupAuthenticated   = "system:authenticated"
	groupUnauthenticated = "system:unauthenticated"
)

// Reviewer posts reviews to the API server; *kube.Client is one.
type Reviewer interface {
	Create(ctx context.Context, k kube.Kind, namespace, name string, obj, out runtime.Object, subresources ...string) error
}

// Options configure a Guard. The durations are KubeletConfiguration's; zero means that nothing is remembered.
type Options struct {
	NodeName     string   // whose server it is; empty: no node's, and access is to paths
	API          Reviewer // nil: tokens are not accepted and Webhook authorization is an error
	AccessAPI    Reviewer // asked what an identity may; nil: API
	ClientCAFile string   // PEM bundle; empty: see ClientCAs
	// ClientCAs, where there is no file, says whose client certificates are accepted; nil, or nil from it: nobody's.
	ClientCAs   func() *x509.CertPool
	Tokens      bool // authentication.webhook.enabled
	TokenTTL    time.Duration
	Anonymous   bool // authentication.anonymous.enabled
	AlwaysAllow bool // authorization.mode AlwaysAllow; otherwise Webhook
	AllowTTL    time.Duration
	DenyTTL     time.Duration
	Now         func() time.Time // nil: time.Now
}

// Guard decides on requests. It is safe for concurrent use.
type Guard struct {
	o         Options
	ca        *bundle
	tokens    *reviews[*Identity]
	decisions *reviews[bool]
}

// New checks o and returns a Guard. It reads the client CA once, so that a wrong path is found at start.
func New(o Options) (*Guard, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.AccessAPI == nil {
		o.AccessAPI = o.API
	}
	if o.API == nil && o.Tokens {
		return nil, fmt.Errorf("guard the server: authentication.webhook.enabled: no API server to ask; set it to false or give --kubeconfig")
	}
	if o.AccessAPI == nil && !o.AlwaysAllow {
		return nil, fmt.Errorf("guard the server: authorization.mode Webhook: no API server to ask; set AlwaysAllow or give --kubeconfig")
	}
	g := &Guard{
		o: o,
		// A refused token is remembered apart from good ones, so that a flood of bad ones cannot push those out.
		tokens:    newReviews(o.Now, tokensMax, func(id *Identity) (bool, time.Duration) { return id != nil, o.TokenTTL }),
		decisions: newReviews(o.Now, decisionsMax, func(ok bool) (bool, time.Duration) { return ok, pick(ok, o.AllowTTL, o.DenyTTL) }),
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

// Refusal is why a request may not pass: the status to answer with and the text that says why.
type Refusal struct {
	Status int
	Text   string
	Err    error // for the log; nil where the text says it all
}

func (r *Refusal) Error() string {
	if r.Err != nil {
		return r.Text + ": " + r.Err.Error()
	}
	return r.Text
}

func (r *Refusal) Unwrap() error { return r.Err }

// Admit authenticates and authorizes r. On success it removes the credential from r's headers, so that nothing behind
// the guard (a proxied runtime, a log) can see it. The error is a *Refusal.
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

// identify goes through the ways to authenticate in upstream's order: certificate, token, anonymous.
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
