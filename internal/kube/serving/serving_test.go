package serving

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// api accepts one token, whose owner may read /metrics.
type api struct{}

func (api) Create(_ context.Context, _ kube.Kind, _, _ string, obj, out runtime.Object, _ ...string) error {
	switch review := obj.(type) {
	case *authenticationv1.TokenReview:
		ok := review.Spec.Token == "good" || review.Spec.Token == "poor"
		out.(*authenticationv1.TokenReview).Status = authenticationv1.TokenReviewStatus{Authenticated: ok,
			User: authenticationv1.UserInfo{Username: review.Spec.Token}}
	case *authorizationv1.SubjectAccessReview:
		path := review.Spec.NonResourceAttributes
		out.(*authorizationv1.SubjectAccessReview).Status.Allowed = review.Spec.User == "good" && path != nil &&
			path.Path == "/metrics" && path.Verb == "get"
	}
	return nil
}

func TestServer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()
	var ill atomic.Bool
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, testOptions(port, &ill)) }()
	// its certificate is self-signed
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	ask := func(path, token string) (int, string) {
		for {
			r, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("https://127.0.0.1:%d%s", port, path), nil)
			if err != nil {
				t.Fatal(err)
			}
			if token != "" {
				r.Header.Set("Authorization", "Bearer "+token)
			}
			answer, err := client.Do(r)
			if err != nil {
				select {
				case err := <-ended:
					t.Fatal(err)
				default: // it does not listen yet
					continue
				}
			}
			defer answer.Body.Close()
			body, err := io.ReadAll(answer.Body)
			if err != nil {
				t.Fatal(err)
			}
			return answer.StatusCode, string(body)
		}
	}
	for _, q := range []struct {
		path, token string
		status      int
		body        string
	}{
		{"/healthz", "", 200, "ok"}, {"/readyz", "", 200, "ok"}, {"/livez", "bad", 200, "ok"},
		{"/metrics", "good", 200, "things_total 0"},
		{"/metrics", "poor", 403, "path=/metrics"},
		{"/metrics", "", 401, "Unauthorized"},
		{"/readyz?verbose", "", 200, "[+]lists ok\nreadyz check passed"},
		{"/readyz/lists", "good", 403, "path=/readyz/lists"},
		{"/readyz?verbose&exclude=lists", "", 200, "[+]lists excluded: ok"}, {"/open/here", "", 200, "hello"},
		{"/metrics", "bad", 401, "Unauthorized"}, {"/debug/pprof/", "good", 403, "Forbidden"},
	} {
		if status, body := ask(q.path, q.token); status != q.status || !strings.Contains(body, q.body) {
			t.Errorf("%s with %q: %d %s", q.path, q.token, status, body)
		}
	}
	ill.Store(true)
	if status, body := ask("/healthz", ""); status != 500 ||
		!strings.Contains(body, "[-]loop failed: the loop stands still\nhealthz check failed") {
		t.Errorf("ill: %d %s", status, body)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// testOptions are those of a server whose check fails when it is ill.
func testOptions(port int, ill *atomic.Bool) Options {
	registry := prometheus.NewRegistry()
	registry.MustRegister(prometheus.NewCounter(prometheus.CounterOpts{Name: "things_total"}))
	hello := func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") }
	loop := func() error {
		if ill.Load() {
			return errors.New("the loop stands still")
		}
		return nil
	}
	return Options{
		BindAddress: "127.0.0.1",
		Port:        port,
		API:         api{},
		Registry:    registry,
		Well:        []Check{{"loop", loop}},
		Ready:       []Check{{"lists", func() error { return nil }}},
		AlwaysAllow: append(AlwaysAllowDefault, "/open/*"),
		Handlers:    map[string]http.Handler{"GET /open/here": http.HandlerFunc(hello)},
	}
}

// During a rotation the old pair stays in use; after it the new one is used.
func TestRotation(t *testing.T) {
	dir := t.TempDir()
	pair := &KeyPair{CertFile: filepath.Join(dir, "crt"), KeyFile: filepath.Join(dir, "key")}
	if _, err := pair.Get(nil); err == nil {
		t.Error("no files, and a certificate")
	}
	use := func(cert, key []byte, want string) {
		t.Helper()
		if err := errors.Join(os.WriteFile(pair.CertFile, cert, 0o600), os.WriteFile(pair.KeyFile, key, 0o600)); err != nil {
			t.Fatal(err)
		}
		pair.checked = time.Time{}
		if got, err := pair.Get(nil); err != nil || got.Leaf.DNSNames[0] != want {
			t.Errorf("want %s: %v", want, err)
		}
	}
	cert1, key1, err1 := SelfSigned([]string{"one", "127.0.0.1"})
	cert2, key2, err2 := SelfSigned([]string{"second"})
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	use(cert1, key1, "one")
	use(cert2, key1, "one")
	use([]byte("half"), key1, "one")
	use(cert2, key2, "second")
}

func TestCheck(t *testing.T) {
	err := Options{BindAddress: "here", Port: 70000, CertFile: "x", TLS: TLS{MinVersion: "1", CipherSuites: []string{"X"},
		Curves: []int32{-1}}}.Check()
	for _, flag := range []string{"--bind-address", "--secure-port", "--tls-private-key-file", "--tls-min-version",
		"--tls-cipher-suites", "--tls-curve-preferences"} {
		if err == nil || !strings.Contains(err.Error(), flag) {
			t.Errorf("%s is not named in: %v", flag, err)
		}
	}
}
