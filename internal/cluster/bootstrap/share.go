package bootstrap

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	tokenapi "k8s.io/cluster-bootstrap/token/api"
	tokenutil "k8s.io/cluster-bootstrap/token/util"

	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// What further servers of a cluster need of the first, its authorities' keys above all, goes by the cluster itself, as
// kubeadm's upload-certs does it: encrypted, in the Secret of a token of its own, so that it ends with the token. The
// key to it is in no object: the user carries it from one machine to the other.

// ServerLife is how long a token for servers lasts: two hours, as kubeadm keeps uploaded certificates.
const ServerLife = 2 * time.Hour

// sharedKey is where a token's Secret has what servers share, encrypted.
const sharedKey = "plimsoll-server"

// certificateKeyBytes is the length of the key, in bytes: AES-256.
const certificateKeyBytes = 32

// ParseCertificateKey reads the key that opens what servers share.
func ParseCertificateKey(text string) ([]byte, error) {
	key, err := hex.DecodeString(text)
	if err != nil || len(key) != certificateKeyBytes {
		return nil, fmt.Errorf("want %d hexadecimal digits, as `plimsoll token create --server` prints them",
			2*certificateKeyBytes)
	}
	return key, nil
}

// ServerToken is a new token for servers, the key that belongs to it, and the Secret that holds it.
type ServerToken struct {
	Token  string
	Key    string // in hexadecimal digits
	Secret *corev1.Secret
}

// UserOf returns the user as whom the bearer of a token is authenticated.
func UserOf(token string) string {
	id, _, _ := strings.Cut(token, ".")
	return tokenapi.BootstrapUserPrefix + id
}

// CreateServerToken creates a token by which machines get shared, and nothing else: it is in no group that may join
// nodes. The caller must allow the token's user to read its Secret.
func CreateServerToken(ctx context.Context, c *kube.Client, life time.Duration, description string,
	shared []byte) (ServerToken, error) {
	token, s, err := newToken(life, description)
	if err != nil {
		return ServerToken{}, fmt.Errorf("create token: %w", err)
	}
	key := make([]byte, certificateKeyBytes)
	if _, err := rand.Read(key); err != nil {
		return ServerToken{}, fmt.Errorf("create token: %w", err)
	}
	if s.Data[sharedKey], err = seal(key, token, shared); err != nil {
		return ServerToken{}, fmt.Errorf("create token: %w", err)
	}
	created := &corev1.Secret{}
	if err := c.Create(ctx, kube.Secrets, metav1.NamespaceSystem, "", s, created); err != nil {
		return ServerToken{}, fmt.Errorf("create token: %w", err)
	}
	return ServerToken{Token: token, Key: hex.EncodeToString(key), Secret: created}, nil
}

// ReadShared reads what servers share, as the bearer of a token.
func ReadShared(ctx context.Context, c *kube.Client, server, token string, key []byte) ([]byte, error) {
	id, _, err := Parts(token)
	if err != nil {
		return nil, err
	}
	s := &corev1.Secret{}
	err = c.Get(ctx, kube.Secrets, metav1.NamespaceSystem, tokenutil.BootstrapTokenSecretName(id), s)
	switch {
	case apierrors.IsUnauthorized(err):
		return nil, &TokenError{ID: id, Server: server, Why: "it has expired, or was deleted"}
	case apierrors.IsForbidden(err), err == nil && len(s.Data[sharedKey]) == 0:
		return nil, &TokenError{ID: id, Server: server, Why: "it is for nodes, not for servers: `plimsoll token create " +
			"--server` makes one for servers"}
	case err != nil:
		return nil, fmt.Errorf("ask %s for what servers share: %w", server, err)
	}
	shared, err := open(key, token, s.Data[sharedKey])
	if err != nil {
		return nil, fmt.Errorf("open what servers share, with token %s: --certificate-key: %w", id, err)
	}
	return shared, nil
}

// seal encrypts text with AES-GCM, for the bearers of a token: its id is authenticated with it.
func seal(key []byte, token string, text []byte) ([]byte, error) {
	aead, id, err := cipherOf(key, token)
	if err != nil {
		return nil, err
	}
	nonce := make([]byte, aead.NonceSize())
	if _, err := rand.Read(nonce); err != nil {
		return nil, err
	}
	return aead.Seal(nonce, nonce, text, id), nil
}

// open is the reverse of seal.
func open(key []byte, token string, sealed []byte) ([]byte, error) {
	aead, id, err := cipherOf(key, token)
	if err != nil {
		return nil, err
	}
	if len(sealed) < aead.NonceSize() {
		return nil, errors.New("there is too little to open")
	}
	text, err := aead.Open(nil, sealed[:aead.NonceSize()], sealed[aead.NonceSize():], id)
	if err != nil {
		return nil, errors.New("it is not the key that was printed with this token")
	}
	return text, nil
}

func cipherOf(key []byte, token string) (cipher.AEAD, []byte, error) {
	id, _, _ := strings.Cut(token, ".")
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, nil, err
	}
	aead, err := cipher.NewGCM(block)
	return aead, []byte(id), err
}
