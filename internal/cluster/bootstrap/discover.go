package bootstrap

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	tokenapi "k8s.io/cluster-bootstrap/token/api"
	"k8s.io/cluster-bootstrap/token/jws"

	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// clockSkewMax is how far the clocks of a machine and of the server may be apart, in either direction. Chosen:
// kube-controller-manager dates certificates back by five minutes (signer.go of its package signer). With a greater
// difference a new certificate might not be valid yet.
const clockSkewMax = 5 * time.Minute

// infoBytesMax bounds what is read of an unverified server's answer: a ConfigMap has 1 MiB at most.
const infoBytesMax = 2 << 20

// infoPath is the path of the ConfigMap cluster-info, which can be read without credentials.
const infoPath = "/api/v1/namespaces/kube-public/configmaps/" + tokenapi.ConfigMapClusterInfo

// hashPrefix names the only kind of hash: SHA-256 of the authority's public key, in hexadecimal digits.
const hashPrefix = "sha256:"

// HashOf returns the hash of an authority, by which a machine that joins recognizes it.
func HashOf(authority *x509.Certificate) string {
	sum := sha256.Sum256(authority.RawSubjectPublicKeyInfo)
	return hashPrefix + hex.EncodeToString(sum[:])
}

// ParseHash checks a hash.
func ParseHash(text string) error {
	digits, ok := strings.CutPrefix(text, hashPrefix)
	if sum, err := hex.DecodeString(digits); !ok || err != nil || len(sum) != sha256.Size {
		return fmt.Errorf("want %s and 64 hexadecimal digits, as `plimsoll token create` prints it", hashPrefix)
	}
	return nil
}

// ParseServer checks the address of an API server, and returns it in the form https://HOST:PORT.
func ParseServer(text string) (string, error) {
	full := text
	if !strings.Contains(full, "://") {
		full = "https://" + full
	}
	u, err := url.Parse(full)
	if err != nil || u.Scheme != "https" || u.Hostname() == "" || u.Port() == "" || u.Path != "" &&
		u.Path != "/" || u.User != nil || u.RawQuery != "" {
		return "", fmt.Errorf("server %q: want https://HOST:PORT", text)
	}
	return "https://" + u.Host, nil
}

// A Seed is what a machine needs to know to join a cluster.
type Seed struct {
	Server string // https://HOST:PORT
	Token  string
	Hash   string        // of the authority
	Within time.Duration // bounds the wait for the server; 0: discoverWithin
}

// discoverWithin bounds the wait for a server's answer (chosen: it takes some 20 ms, and on a server that has just
// started and is busy, seconds).
const discoverWithin = 20 * time.Second

// Discover asks the server for the authority of its cluster, in PEM form, and checks the answer: it must be signed with
// the token, and the authority must have the hash. now is this machine's time.
func (s Seed) Discover(ctx context.Context, now time.Time) (authority []byte, err error) {
	id, secret, err := Parts(s.Token)
	if err != nil {
		return nil, err
	}
	within := s.Within
	if within == 0 {
		within = discoverWithin
	}
	bounded, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	info, err := s.readInfo(bounded, now)
	if err != nil && bounded.Err() != nil && ctx.Err() == nil {
		return nil, fmt.Errorf("ask %s for its cluster: no answer within %s: %w: is it busy, or cut off? run this again",
			s.Server, within, err)
	}
	if err != nil {
		return nil, fmt.Errorf("ask %s for its cluster: %w", s.Server, err)
	}
	text := info.Data[tokenapi.KubeConfigKey]
	signature, signed := info.Data[tokenapi.JWSSignatureKeyPrefix+id]
	switch {
	case text == "":
		return nil, fmt.Errorf("ask %s for its cluster: its ConfigMap kube-public/%s has no %s", s.Server,
			tokenapi.ConfigMapClusterInfo, tokenapi.KubeConfigKey)
	case !signed:
		return nil, &TokenError{ID: id, Server: s.Server, Why: "the cluster does not know it: it is wrong, it " +
			"has expired, or it was deleted"}
	case !jws.DetachedTokenIsValid(signature, text, id, secret):
		return nil, &TokenError{ID: id, Server: s.Server, Why: "its second part is wrong, or the server is not " +
			"the one that it was made for"}
	}
	return checkAuthority([]byte(text), s.Hash)
}

// Signed returns nil if cluster-info is signed with a token, so that machines with the token can discover the cluster.
func Signed(ctx context.Context, c *kube.Client, token string) error {
	id, _, _ := strings.Cut(token, ".")
	info := &corev1.ConfigMap{}
	if err := c.Get(ctx, kube.ConfigMaps, metav1.NamespacePublic, tokenapi.ConfigMapClusterInfo, info); err != nil {
		return err
	}
	if info.Data[tokenapi.JWSSignatureKeyPrefix+id] == "" {
		return fmt.Errorf("kube-controller-manager has not signed ConfigMap kube-public/%s with token %s yet",
			tokenapi.ConfigMapClusterInfo, id)
	}
	return nil
}

// TokenError says that a cluster does not accept a token.
type TokenError struct{ ID, Server, Why string }

func (e *TokenError) Error() string {
	return fmt.Sprintf("use token %s at %s: %s (on the server, `plimsoll token create` makes another)", e.ID,
		e.Server, e.Why)
}

// readInfo fetches cluster-info from a server that cannot be verified yet.
func (s Seed) readInfo(ctx context.Context, now time.Time) (*corev1.ConfigMap, error) {
	client := &http.Client{Transport: &http.Transport{
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, // the answer is verified, see Discover
		DisableKeepAlives: true,
	}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.Server+infoPath, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", "application/json")
	answer, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(io.LimitReader(answer.Body, infoBytesMax))
	if err != nil {
		return nil, err
	}
	switch answer.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound, http.StatusForbidden, http.StatusUnauthorized:
		return nil, fmt.Errorf("it has no ConfigMap kube-public/%s for machines that join: if `plimsoll up` "+
			"runs there, it needs --bind-address with an address that this machine reaches", tokenapi.ConfigMapClusterInfo)
	default:
		return nil, fmt.Errorf("it answers %s: %.200s", answer.Status, body)
	}
	if there, err := http.ParseTime(answer.Header.Get("Date")); err == nil {
		if skew := now.Sub(there); skew > clockSkewMax || skew < -clockSkewMax {
			return nil, fmt.Errorf("this machine's clock says %s, the server's %s: set the one that is wrong "+
				"(certificates are valid by the clock)",
				now.UTC().Format(time.RFC3339), there.UTC().Format(time.RFC3339))
		}
	}
	info := &corev1.ConfigMap{}
	if err := json.Unmarshal(body, info); err != nil {
		return nil, fmt.Errorf("it does not answer as an API server: %w", err)
	}
	return info, nil
}

// checkAuthority returns the authority in a kubeconfig, if it has the hash.
func checkAuthority(kubeconfig []byte, hash string) ([]byte, error) {
	config, err := clientcmd.Load(kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read the cluster's kubeconfig: %w", err)
	}
	if len(config.Clusters) != 1 {
		return nil, fmt.Errorf("read the cluster's kubeconfig: it has %d clusters, want 1", len(config.Clusters))
	}
	for _, cluster := range config.Clusters {
		authority, err := ParseAuthority(cluster.CertificateAuthorityData)
		if err != nil {
			return nil, fmt.Errorf("read the cluster's kubeconfig: %w", err)
		}
		if subtle.ConstantTimeCompare([]byte(HashOf(authority)), []byte(strings.ToLower(hash))) != 1 {
			return nil, fmt.Errorf("compare the authority: the server's has the hash %s, not %s: it is another "+
				"cluster, or someone intercepts the connection", HashOf(authority), hash)
		}
		return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: authority.Raw}), nil
	}
	return nil, errors.New("unreachable")
}

// ParseAuthority reads one certificate in PEM form.
func ParseAuthority(text []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE" {
		return nil, errors.New("authority: want a certificate in PEM form")
	}
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("authority: %w", err)
	}
	return c, nil
}
