package authn

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/test/cost"
)

// api answers reviews: tokens by table, access by "user verb subresource".
type api struct {
	mu     sync.Mutex
	tokens map[string]authenticationv1.UserInfo
	allow  map[string]bool
	away   error
	asked  []string
	wait   chan struct{} // if not nil, answers wait until it is closed
}

func (a *api) Create(ctx context.Context, k kube.Kind, _, _ string, obj, out runtime.Object, _ ...string) error {
	a.mu.Lock()
	wait := a.wait
	a.mu.Unlock()
	if wait != nil {
		select {
		case <-wait:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	switch review := obj.(type) {
	case *authenticationv1.TokenReview:
		a.asked = append(a.asked, "token "+review.Spec.Token)
		user, ok := a.tokens[review.Spec.Token]
		out.(*authenticationv1.TokenReview).Status = authenticationv1.TokenReviewStatus{Authenticated: ok, User: user}
	case *authorizationv1.SubjectAccessReview:
		if r := review.Spec.NonResourceAttributes; r != nil {
			question := fmt.Sprintf("%s %s %s", review.Spec.User, r.Verb, r.Path)
			a.asked = append(a.asked, question)
			out.(*authorizationv1.SubjectAccessReview).Status.Allowed = a.allow[question]
			return a.away
		}
		r := review.Spec.ResourceAttributes
		if r.Group != "" {
			question := fmt.Sprintf("%s %s %s.%s/%s", review.Spec.User, r.Verb, r.Resource, r.Group, r.Name)
			a.asked = append(a.asked, question)
			out.(*authorizationv1.SubjectAccessReview).Status.Allowed = a.allow[question]
			return a.away
		}
		if r.Resource != "nodes" || r.Name != "n1" {
			return fmt.Errorf("review of %s/%s", r.Resource, r.Name)
		}
		question := fmt.Sprintf("%s %s %s", review.Spec.User, r.Verb, r.Subresource)
		a.asked = append(a.asked, question+" "+strings.Join(review.Spec.Groups, ","))
		out.(*authorizationv1.SubjectAccessReview).Status.Allowed = a.allow[question]
	}
	return a.away
}

func (a *api) takeAsked() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := strings.Join(a.asked, "; ")
	a.asked = nil
	return s
}

// authority signs client certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour),
		IsCA:     true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	a := &authority{cert, key, filepath.Join(t.TempDir(), "ca.crt")}
	a.writeTo(t, a.file)
	return a
}

func (a *authority) writeTo(t *testing.T, file string) {
	t.Helper()
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw}),
		0o600); err != nil {
		t.Fatal(err)
	}
}

func (a *authority) sign(t *testing.T, subject pkix.Name, usage x509.ExtKeyUsage,
	life time.Duration) *x509.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: subject, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(life),
		ExtKeyUsage: []x509.ExtKeyUsage{usage},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func request(method, path string, cert *x509.Certificate, headers ...string) *http.Request {
	r := httptest.NewRequest(method, path, nil)
	if cert != nil {
		r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert}}
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	return r
}

// outcome is "user" or "status text".
func outcome(id *Identity, err error) string {
	if refusal := (*Refusal)(nil); errors.As(err, &refusal) {
		return fmt.Sprint(refusal.Status)
	}
	return id.Name + " " + strings.Join(id.Groups, ",")
}

func TestAdmit(t *testing.T) {
	ca, foreign := newAuthority(t), newAuthority(t)
	admin := ca.sign(t, pkix.Name{CommonName: "admin", Organization: []string{"system:masters"}},
		x509.ExtKeyUsageClientAuth, time.Hour)
	nobody := ca.sign(t, pkix.Name{CommonName: "nobody"}, x509.ExtKeyUsageClientAuth, time.Hour)
	reader := ca.sign(t, pkix.Name{CommonName: "reader"}, x509.ExtKeyUsageClientAuth, time.Hour)
	a := &api{
		tokens: map[string]authenticationv1.UserInfo{"good": {Username: "scraper", Groups: []string{"g"}}},
		allow: map[string]bool{
			"admin get proxy": true, "admin create proxy": true, "reader get proxy": true, "scraper get metrics": true,
			"scraper get pods": true, "system:anonymous get healthz": true,
		},
	}
	for _, c := range []struct {
		name string
		r    *http.Request
		anon bool
		want string
	}{
		{"certificate", request("GET", "/exec/a/b/c", admin), false, "admin system:masters,system:authenticated"},
		{"certificate, POST", request("POST", "/exec/a/b/c", admin), false, "admin system:masters,system:authenticated"},
		{"certificate before token", request("GET", "/exec/a/b/c", admin, "Authorization", "Bearer bad"), false,
			"admin system:masters,system:authenticated"},
		{"logs need get", request("GET", "/containerLogs/a/b/c", reader), false, "reader system:authenticated"},
		{"exec needs create", request("GET", "/exec/a/b/c", reader), false, "403"},
		{"exec in WebSocket too", request("GET", "/exec/a/b/c", reader, "Connection", "Upgrade", "Upgrade", "websocket"),
			false, "403"},
		{"attach needs create", request("GET", "/attach/a/b/c", reader), false, "403"},
		{"run needs create", request("GET", "/run/a/b/c", reader), false, "403"},
		{"port-forward needs create", request("GET", "/portForward/a/b", reader), false, "403"},
		{"what only begins like run needs get", request("GET", "/runningpods/", reader), false,
			"reader system:authenticated"},
		{"pods may be read with proxy", request("GET", "/pods", admin), false, "admin system:masters,system:authenticated"},
		{"known, not allowed", request("GET", "/exec/a/b/c", nobody), false, "403"},
		{"certificate of another CA", request("GET", "/pods", foreign.sign(t, pkix.Name{CommonName: "admin"},
			x509.ExtKeyUsageClientAuth, time.Hour)), true, "401"},
		{"certificate that has expired", request("GET", "/pods", ca.sign(t, pkix.Name{CommonName: "admin"},
			x509.ExtKeyUsageClientAuth, -time.Minute)), true, "401"},
		{"certificate for servers", request("GET", "/pods", ca.sign(t, pkix.Name{CommonName: "admin"},
			x509.ExtKeyUsageServerAuth, time.Hour)), true, "401"},
		{"certificate without a name", request("GET", "/pods", ca.sign(t, pkix.Name{Organization: []string{"system:masters"}},
			x509.ExtKeyUsageClientAuth, time.Hour)), false, "401"},
		{"token", request("GET", "/metrics", nil, "Authorization", "Bearer good"), false, "scraper g,system:authenticated"},
		{"token, any spelling", request("GET", "/metrics", nil, "Authorization", "bearer good"), false,
			"scraper g,system:authenticated"},
		{"token in a subprotocol", request("GET", "/metrics", nil, "Upgrade", "websocket", "Sec-Websocket-Protocol",
			"v4.channel.k8s.io, base64url.bearer.authorization.k8s.io.Z29vZA"), false, "scraper g,system:authenticated"},
		{"token as the only subprotocol", request("GET", "/metrics", nil, "Upgrade", "websocket", "Sec-Websocket-Protocol",
			"base64url.bearer.authorization.k8s.io.Z29vZA"), true, "401"},
		{"token of metrics does not reach exec", request("GET", "/exec/a/b/c", nil, "Authorization", "Bearer good"), false,
			"403"},
		{"token, fine-grained pods", request("GET", "/pods/", nil, "Authorization", "Bearer good"), false,
			"scraper g,system:authenticated"},
		{"bad token is not anonymous", request("GET", "/healthz", nil, "Authorization", "Bearer bad"), true, "401"},
		{"huge token", request("GET", "/healthz", nil, "Authorization", "Bearer "+strings.Repeat("x", tokenBytesMax+1)), true,
			"401"},
		{"nothing", request("GET", "/healthz", nil), false, "401"},
		{"nothing, anonymous", request("GET", "/healthz", nil), true, "system:anonymous system:unauthenticated"},
		{"anonymous, not allowed", request("GET", "/podsx", nil), true, "403"},
		{"basic authentication is nothing", request("GET", "/healthz", nil, "Authorization", "Basic Z29vZA=="), true,
			"system:anonymous system:unauthenticated"},
		{"method without a verb", request("HEAD", "/healthz", admin), false, "405"},
	} {
		t.Run(c.name, func(t *testing.T) {
			g, err := New(Options{NodeName: "n1", API: a, ClientCAFile: ca.file, Tokens: true, Anonymous: c.anon})
			if err != nil {
				t.Fatal(err)
			}
			id, err := g.Admit(c.r)
			if got := outcome(id, err); got != c.want {
				t.Errorf("got %s (%v), want %s", got, err, c.want)
			}
			if err == nil && strings.Contains(fmt.Sprint(c.r.Header), "good") ||
				strings.Contains(fmt.Sprint(c.r.Header), "Z29vZA]") && err == nil && id.Name != anonymousName {
				t.Errorf("the credential is still in the headers: %v", c.r.Header)
			}
		})
	}
}

// A server that belongs to no node is authorized by path, as upstream's controllers are.
func TestPaths(t *testing.T) {
	a := &api{tokens: map[string]authenticationv1.UserInfo{"good": {Username: "scraper"}},
		allow: map[string]bool{"scraper get /metrics": true}}
	g, err := New(Options{API: a, Tokens: true})
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{"/metrics": "scraper system:authenticated", "/metrics/x": "403",
		"/debug": "403"} {
		id, err := g.Admit(request("GET", path, nil, "Authorization", "Bearer good"))
		if got := outcome(id, err); got != want {
			t.Errorf("%s: %s (%v), want %s", path, got, err, want)
		}
	}
}

// TestResources: a path with a resource of its own needs that resource. On a node's server the subresource of the path
// suffices, too, because that is what the API server has when it passes a request on.
func TestResources(t *testing.T) {
	a := &api{
		tokens: map[string]authenticationv1.UserInfo{
			"reader": {Username: "reader"}, "path": {Username: "path"}, "proxy": {Username: "proxy"}},
		allow: map[string]bool{
			"reader get journals.plimsoll.dev/n1": true, "path get /journal": true, "proxy get proxy": true},
	}
	const reader, path, proxy = "reader system:authenticated", "path system:authenticated", "proxy system:authenticated"
	for node, want := range map[string]map[string]string{
		"":   {"reader": reader, "path": "403", "proxy": "403"},
		"n1": {"reader": reader, "path": "403", "proxy": proxy},
	} {
		g, err := New(Options{NodeName: node, API: a, Tokens: true, Resources: map[string]Resource{
			"/journal": {Group: "plimsoll.dev", Resource: "journals", Name: "n1"}}})
		if err != nil {
			t.Fatal(err)
		}
		for who, want := range want {
			id, err := g.Admit(request("GET", "/journal", nil, "Authorization", "Bearer "+who))
			if got := outcome(id, err); got != want {
				t.Errorf("node %q, %s: %s (%v), want %s", node, who, got, err, want)
			}
			if refusal := (*Refusal)(nil); errors.As(err, &refusal) &&
				!strings.Contains(refusal.Text, "resource=journals.plimsoll.dev, name=n1") {
				t.Errorf("the refusal does not say what is needed: %s", refusal.Text)
			}
		}
		for _, other := range []string{"/journal/x", "/journalx", "/metrics"} {
			if id, err := g.Admit(request("GET", other, nil, "Authorization", "Bearer reader")); err == nil {
				t.Errorf("node %q: %s is allowed for %s", node, other, id.Name)
			}
		}
	}
}

// TestVerbOf: streams and commands need create; all other requests need the verb of their method.
func TestVerbOf(t *testing.T) {
	for request, want := range map[string]string{
		"GET /exec/a/b/c": "create", "POST /exec/a/b/c": "create", "GET /attach/a/b/c": "create", "GET /run": "create",
		"GET /portForward/a/b": "create",
		"PUT /exec/a/b/c":      "create", "HEAD /exec/a/b/c": "", "GET /execs": "get", "GET /runningpods/": "get",
		"GET /containerLogs/a/b/c": "get",
		"GET /metrics":             "get", "POST /stats/summary": "create", "DELETE /pods": "delete",
	} {
		method, path, _ := strings.Cut(request, " ")
		if verb, ok := VerbOf(method, path); verb != want || ok != (want != "") {
			t.Errorf("%s: %q, %v, want %q", request, verb, ok, want)
		}
	}
}

func TestSubresources(t *testing.T) {
	for path, want := range map[string]string{
		"/": "proxy", "/exec/a/b/c": "proxy", "/containerLogs/a/b/c": "proxy", "/run/a/b/c": "proxy",
		"/debug/pprof/heap": "proxy",
		"/stats/summary":    "stats", "/stats": "stats", "/statsx": "proxy", "/metrics": "metrics",
		"/metrics/cadvisor": "metrics", "/logs/x": "log",
		"/checkpoint/a/b/c": "checkpoint", "/pods": "pods proxy", "/pods/": "pods proxy", "/runningpods/": "pods proxy",
		"/healthz": "healthz proxy", "/healthz/ping": "healthz proxy", "/configz": "configz proxy", "/statusz": "statusz",
		"/flagz": "configz",
	} {
		if got := strings.Join(Subresources(path), " "); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
}

// Answers are cached for their time, errors are not, and without an API server no request is allowed.
func TestRemembering(t *testing.T) {
	ca := newAuthority(t)
	now := time.Now()
	a := &api{tokens: map[string]authenticationv1.UserInfo{"good": {Username: "u"}},
		allow: map[string]bool{"u get pods": true}}
	g, err := New(Options{
		NodeName: "n1", API: a, ClientCAFile: ca.file, Tokens: true, Now: func() time.Time { return now },
		TokenTTL: time.Minute, AllowTTL: 5 * time.Minute, DenyTTL: 30 * time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	ask := func(path, token, want, asked string) {
		t.Helper()
		id, err := g.Admit(request("GET", path, nil, "Authorization", "Bearer "+token))
		if got := outcome(id, err); got != want {
			t.Errorf("%s with %s: %s (%v), want %s", path, token, got, err, want)
		}
		if got := a.takeAsked(); got != asked {
			t.Errorf("%s with %s: the API server was asked %q, want %q", path, token, got, asked)
		}
	}
	const u = "u system:authenticated"
	ask("/pods", "good", u, "token good; u get pods system:authenticated")
	ask("/pods", "good", u, "")
	ask("/stats", "good", "403", "u get stats system:authenticated")
	ask("/stats", "good", "403", "")
	ask("/pods", "bad", "401", "token bad")
	ask("/pods", "bad", "401", "")

	a.away = errors.New("connection refused")
	ask("/pods", "good", u, "")
	ask("/healthz", "good", "503", "u get healthz system:authenticated")
	ask("/pods", "other", "503", "token other")
	now = now.Add(2 * time.Minute)
	ask("/pods", "good", "503", "token good")
	a.away = nil
	ask("/pods", "good", u, "token good") // the decision is still cached
	ask("/stats", "good", "403", "u get stats system:authenticated")
	now = now.Add(4 * time.Minute)
	ask("/pods", "good", u, "token good; u get pods system:authenticated")
}

// Many callers that need the same review cause one review. The number of different reviews in flight is bounded.
func TestQuestionsAreShared(t *testing.T) {
	a := &api{tokens: map[string]authenticationv1.UserInfo{"good": {Username: "u"}}, wait: make(chan struct{})}
	g, err := New(Options{NodeName: "n1", API: a, Tokens: true, TokenTTL: time.Minute, AlwaysAllow: true})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if id, err := g.Admit(request("GET", "/pods", nil, "Authorization", "Bearer good")); err != nil || id.Name != "u" {
				t.Errorf("got %v, %v", id, err)
			}
		})
	}
	refused := make(chan string, 3*pendingMax)
	for i := range 3 * pendingMax {
		wg.Go(func() {
			_, err := g.Admit(request("GET", "/pods", nil, "Authorization", fmt.Sprint("Bearer made-up-", i)))
			refused <- outcome(nil, err)
		})
	}
	for range 2 * pendingMax { // those above the bound are refused while the API server does not answer
		if got := <-refused; got != "503" {
			t.Fatalf("refused with %s, want 503", got)
		}
	}
	close(a.wait)
	wg.Wait()
	if n := strings.Count(a.takeAsked(), "token good"); n > 1 {
		t.Errorf("one token was reviewed %d times", n)
	}
}

func TestCachesAreBounded(t *testing.T) {
	a := &api{tokens: map[string]authenticationv1.UserInfo{"good": {Username: "u"}}}
	g, err := New(Options{NodeName: "n1", API: a, Tokens: true, TokenTTL: time.Hour, AlwaysAllow: true})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 * tokensMax {
		token := fmt.Sprint("bad-", i)
		if i == 0 {
			token = "good"
		}
		g.Admit(request("GET", "/pods", nil, "Authorization", "Bearer "+token))
	}
	a.takeAsked()
	if id, err := g.Admit(request("GET", "/pods", nil, "Authorization", "Bearer good")); err != nil || id.Name != "u" ||
		a.takeAsked() != "" {
		t.Errorf("bad tokens pushed out a good one: %v", err)
	}
	for i, s := range g.tokens.caches {
		if len(s.items) > tokensMax || s.order.Len() != len(s.items) {
			t.Errorf("answerCache %d holds %d tokens, limit %d", i, len(s.items), tokensMax)
		}
	}
}

func TestClientCAIsReadAgain(t *testing.T) {
	first, second := newAuthority(t), newAuthority(t)
	now := time.Now()
	g, err := New(Options{NodeName: "n1", ClientCAFile: first.file, AlwaysAllow: true,
		Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	try := func(by *authority, want string) {
		t.Helper()
		now = now.Add(2 * caCheckInterval)
		id, err := g.Admit(request("GET", "/pods", by.sign(t, pkix.Name{CommonName: "u"}, x509.ExtKeyUsageClientAuth,
			time.Hour)))
		if got := outcome(id, err); got != want {
			t.Errorf("got %s (%v), want %s", got, err, want)
		}
	}
	const u = "u system:authenticated"
	try(first, u)
	if err := os.WriteFile(first.file, []byte("half writ"), 0o600); err != nil {
		t.Fatal(err)
	}
	try(first, u) // the last good CA stays in use
	second.writeTo(t, first.file)
	try(second, u)
	try(first, "401")
}

func TestNewRefusesWhatCannotWork(t *testing.T) {
	for _, o := range []Options{
		{NodeName: "n"},
		{NodeName: "n", Tokens: true, AlwaysAllow: true},
		{NodeName: "n", AlwaysAllow: true, ClientCAFile: "/does/not/exist"},
		{NodeName: "n", AlwaysAllow: true, ClientCAFile: os.Args[0]},
	} {
		if _, err := New(o); err == nil {
			t.Errorf("%+v was taken", o)
		}
	}
}

func FuzzBearer(f *testing.F) {
	cost.Attack(f, "Bearer x", "a,base64url.bearer.authorization.k8s.io.Z29vZA")
	f.Fuzz(func(t *testing.T, authorization, protocols string) {
		defer cost.Spend(t, len(authorization)+len(protocols))()
		r := httptest.NewRequest("GET", "/", nil)
		r.Header["Authorization"] = []string{authorization}
		r.Header["Sec-Websocket-Protocol"] = []string{protocols}
		r.Header["Upgrade"] = []string{"websocket"}
		token, strip, err := bearer(r)
		if err == nil && token != "" {
			strip()
			if again, _, _ := bearer(r); again == token && r.Header.Get("Authorization") != "" {
				t.Errorf("token %q is still there", token)
			}
		}
	})
}
