package bootstrap

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/cluster-bootstrap/token/jws"

	"github.com/plimsoll-dev/plimsoll/test/cost"
)

const (
	tokenID     = "abcdef"
	tokenSecret = "0123456789abcdef"
)

type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
	pem  []byte
}

func newAuthority(t *testing.T) authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "test"},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(time.Hour),
		KeyUsage:              x509.KeyUsageCertSign,
		IsCA:                  true,
		BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return authority{cert: cert, key: key, pem: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

func kubeconfig(authority []byte) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Config\nclusters:\n- name: \"\"\n  cluster:\n    server: "+
		"https://x:1\n    certificate-authority-data: %s\n",
		base64.StdEncoding.EncodeToString(authority))
}

// TestDiscover: an answer is accepted only if it is signed with the token, has the authority with the given hash, and
// comes from a server with the same time.
func TestDiscover(t *testing.T) {
	a, another := newAuthority(t), newAuthority(t)
	text := kubeconfig(a.pem)
	signature, err := jws.ComputeDetachedSignature(text, tokenID, tokenSecret)
	if err != nil {
		t.Fatal(err)
	}
	good := map[string]string{"kubeconfig": text, "jws-kubeconfig-" + tokenID: signature}
	with := func(key, value string) map[string]string {
		data := map[string]string{"kubeconfig": good["kubeconfig"], "jws-kubeconfig-" + tokenID: signature}
		data[key] = value
		return data
	}
	for _, c := range []struct {
		name   string
		data   map[string]string // nil: no ConfigMap
		token  string
		hash   string
		ahead  time.Duration // this machine's clock before the server's
		reason string        // empty: the answer is accepted
	}{
		{name: "right", data: good},
		{name: "hash in capitals", data: good, hash: "sha256:" + strings.ToUpper(HashOf(a.cert)[7:])},
		{name: "an unknown token", data: good, token: "zzzzzz." + tokenSecret, reason: "use token zzzzzz"},
		{name: "a wrong secret", data: good, token: tokenID + ".0123456789abcdee", reason: "its second part is wrong"},
		{name: "no token", data: good, token: "abc", reason: "want ID.SECRET"},
		{name: "another authority", data: good, hash: HashOf(another.cert), reason: "it is another cluster"},
		{name: "a changed answer", data: with("kubeconfig", kubeconfig(another.pem)),
			hash: HashOf(another.cert), reason: "its second part is wrong"},
		{name: "an empty answer", data: map[string]string{}, reason: "has no kubeconfig"},
		{name: "not prepared", reason: "--bind-address"},
		{name: "a clock that is fast", data: good, ahead: time.Hour, reason: "clock"},
		{name: "a clock that is slow", data: good, ahead: -time.Hour, reason: "clock"},
		{name: "a clock that is a little fast", data: good, ahead: time.Minute},
	} {
		server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if c.data == nil || r.URL.Path != infoPath {
				http.NotFound(w, r)
				return
			}
			_ = json.NewEncoder(w).Encode(corev1.ConfigMap{Data: c.data})
		}))
		seed := Seed{Server: server.URL, Token: c.token, Hash: c.hash}
		if c.token == "" {
			seed.Token = tokenID + "." + tokenSecret
		}
		if c.hash == "" {
			seed.Hash = HashOf(a.cert)
		}
		got, err := seed.Discover(t.Context(), time.Now().Add(c.ahead))
		switch {
		case c.reason == "" && (err != nil || string(got) != string(a.pem)):
			t.Errorf("%s: %v", c.name, err)
		case c.reason != "" && (err == nil || !strings.Contains(err.Error(), c.reason)):
			t.Errorf("%s: %v, want %q", c.name, err, c.reason)
		case err != nil && strings.Contains(err.Error(), tokenSecret):
			t.Errorf("%s: the error has the secret: %v", c.name, err)
		}
		server.Close()
	}
	gone := httptest.NewTLSServer(nil)
	gone.Close()
	if _, err := (Seed{Server: gone.URL, Token: tokenID + "." + tokenSecret}).Discover(t.Context(),
		time.Now()); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("no server: %v", err)
	}
	stopped, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := (Seed{Server: gone.URL, Token: tokenID + "." + tokenSecret}).Discover(stopped, time.Now()); err == nil {
		t.Error("it goes on when its caller has stopped")
	}
}

func TestParse(t *testing.T) {
	for text, want := range map[string]string{
		"https://a:6443": "https://a:6443", "a:6443": "https://a:6443", "https://[::1]:1/": "https://[::1]:1",
		"": "", "a": "", "http://a:1": "", "https://a": "", "https://u@a:1": "", "https://a:1/path": "",
		"https://a:1?x=y": "",
	} {
		got, err := ParseServer(text)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("server %q: %q, %v", text, got, err)
		}
	}
	for text, ok := range map[string]bool{
		"sha256:" + strings.Repeat("a0", 32): true,
		"sha256:" + strings.Repeat("A0", 32): true,
		strings.Repeat("a0", 32):             false,
		"sha256:a0":                          false,
		"sha256:" + strings.Repeat("g0", 32): false,
		"sha1:" + strings.Repeat("a0", 20):   false,
	} {
		if err := ParseHash(text); (err == nil) != ok {
			t.Errorf("hash %q: %v", text, err)
		}
	}
}

// TestDiscoverDoesNotWait: a server that accepts connections and says nothing, or not all, is given up.
func TestDiscoverDoesNotWait(t *testing.T) {
	release := make(chan struct{})
	for name, say := range map[string]func(http.ResponseWriter){
		"nothing": func(http.ResponseWriter) {},
		"half": func(w http.ResponseWriter) {
			_, _ = w.Write([]byte("{"))
			w.(http.Flusher).Flush()
		},
	} {
		server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			say(w)
			select {
			case <-release:
			case <-r.Context().Done():
			}
		}))
		seed := Seed{Server: server.URL, Token: tokenID + "." + tokenSecret, Within: 200 * time.Millisecond}
		_, err := seed.Discover(t.Context(), time.Now())
		if err == nil || !strings.Contains(err.Error(), "no answer within 200ms") {
			t.Errorf("%s: %v", name, err)
		}
		server.Close()
	}
	close(release)
}

// TestDue: a certificate is requested exactly if the present one cannot be used.
func TestDue(t *testing.T) {
	a, another := newAuthority(t), newAuthority(t)
	dir := t.TempDir()
	ip := net.IPv4(10, 0, 0, 2)
	i := Identity{Cert: filepath.Join(dir, "c.crt"), Key: filepath.Join(dir, "c.key"), Node: "n", Server: true, IP: ip}
	if why, _ := i.Due(a.cert, time.Now()); why != "there is none" {
		t.Errorf("none: %q", why)
	}
	key, err := i.ensureKey()
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(i.Key); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key has mode %v: %v", info.Mode(), err)
	}
	if again, err := i.ensureKey(); err != nil || !again.Public().(*ecdsa.PublicKey).Equal(key.Public()) {
		t.Errorf("the key changes: %v", err)
	}
	issue := func(name string, ip net.IP, life time.Duration) {
		template := &x509.Certificate{
			SerialNumber: big.NewInt(2),
			Subject:      pkix.Name{CommonName: name},
			IPAddresses:  []net.IP{ip},
			NotBefore:    time.Now(),
			NotAfter:     time.Now().Add(life),
		}
		der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
		if err == nil {
			err = os.WriteFile(i.Cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	issue("system:node:n", ip, 3*time.Hour)
	for _, c := range []struct {
		name      string
		identity  Identity
		authority authority
		after     time.Duration
		why       string
		expired   bool
	}{
		{"new", i, a, 0, "", false},
		{"before its last third", i, a, 119 * time.Minute, "", false},
		{"in its last third", i, a, 121 * time.Minute, "it expires soon", false},
		{"at its end", i, a, 181 * time.Minute, "it has expired", true},
		{"another authority", i, another, 0, "another authority signed it", false},
		{"another node", Identity{Cert: i.Cert, Key: i.Key, Node: "m"}, a, 0, "it is of system:node:n", false},
		{"another address", Identity{Cert: i.Cert, Key: i.Key, Node: "n", Server: true, IP: net.IPv4(10, 0, 0,
			3)}, a, 0, "it is for another address", false},
		{"a client has no address", Identity{Cert: i.Cert, Key: i.Key, Node: "n"}, a, 0, "", false},
	} {
		if why, expired := c.identity.Due(c.authority.cert, time.Now().Add(c.after)); why != c.why || expired != c.expired {
			t.Errorf("%s: %q, expired %v; want %q, %v", c.name, why, expired, c.why, c.expired)
		}
	}
	if err := os.WriteFile(i.Key, []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	if why, _ := i.Due(a.cert, time.Now()); why == "" {
		t.Error("a damaged key suits")
	}
	if _, err := i.ensureKey(); err != nil {
		t.Errorf("a damaged key is not replaced: %v", err)
	}
	if why, _ := i.Due(a.cert, time.Now()); !strings.Contains(why, "does not belong") {
		t.Errorf("the certificate of another key: %q", why)
	}
}

// FuzzCheckAuthority: no answer of an unverified server makes the check panic or accept another authority.
func FuzzCheckAuthority(f *testing.F) {
	cost.Attack(f, kubeconfig([]byte("x")))
	f.Fuzz(func(t *testing.T, text string) {
		defer cost.Spend(t, len(text))()
		if _, err := checkAuthority([]byte(text), "sha256:"); err == nil {
			t.Error("an authority without a hash is accepted")
		}
	})
}

// TestSeal: what servers share is opened with the key and the token that it was made with, and not otherwise.
func TestSeal(t *testing.T) {
	key, err := ParseCertificateKey(strings.Repeat("0f", certificateKeyBytes))
	if err != nil {
		t.Fatal(err)
	}
	text := []byte("the authority's key")
	sealed, err := seal(key, tokenID+"."+tokenSecret, text)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(sealed), "key") {
		t.Error("it is not encrypted")
	}
	if got, err := open(key, tokenID+"."+tokenSecret, sealed); err != nil || string(got) != string(text) {
		t.Errorf("%q, %v", got, err)
	}
	again, err := seal(key, tokenID+"."+tokenSecret, text)
	if err != nil || string(again) == string(sealed) {
		t.Errorf("sealed twice it is the same: %v", err)
	}
	other := strings.Clone(string(key))
	changed := append([]byte(nil), sealed...)
	changed[len(changed)-1] ^= 1
	for name, try := range map[string]func() ([]byte, error){
		"another key":   func() ([]byte, error) { return open(append([]byte{1}, other[1:]...), tokenID, sealed) },
		"another token": func() ([]byte, error) { return open(key, "zzzzzz."+tokenSecret, sealed) },
		"changed":       func() ([]byte, error) { return open(key, tokenID, changed) },
		"cut":           func() ([]byte, error) { return open(key, tokenID, sealed[:5]) },
		"nothing":       func() ([]byte, error) { return open(key, tokenID, nil) },
	} {
		if got, err := try(); err == nil {
			t.Errorf("%s: opened: %q", name, got)
		}
	}
	for _, bad := range []string{"", "12", strings.Repeat("0g", certificateKeyBytes), strings.Repeat("00",
		certificateKeyBytes+1)} {
		if _, err := ParseCertificateKey(bad); err == nil || bad != "" && strings.Contains(err.Error(), bad) && len(bad) > 2 {
			t.Errorf("key %q: %v", bad, err)
		}
	}
}

// TestTokenPurposes: the list says what a token is for.
func TestTokenPurposes(t *testing.T) {
	_, nodes, err := newToken(0, "")
	if err != nil {
		t.Fatal(err)
	}
	if got := tokenOf(nodes); !got.Joins || got.Servers {
		t.Errorf("for nodes: %+v", got)
	}
	nodes.Data[sharedKey] = []byte("x")
	if got := tokenOf(nodes); !got.Joins || !got.Servers {
		t.Errorf("for servers: %+v", got)
	}
}
