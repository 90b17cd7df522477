// Package bootstrap lets another machine join a cluster with a token. It uses kubeadm's objects, so that kubeadm's
// tokens and clients work with this cluster, and ours with kubeadm's.
//
// # Model
//
// A bootstrap token is a Secret with an id and a secret part. Until it expires, it authenticates its bearer as a member
// of Group. kube-controller-manager also signs the ConfigMap cluster-info with it, which anyone may read. So a machine
// that has the token and a hash of the authority's key can verify the answer of an unknown server (Discover). From then
// on it verifies the server's certificate. With the token it requests its first certificate (Identity), in the same way
// as the agent's TLS bootstrap (kube/certrequest); later requests are made with that certificate.
//
// # Invariants
//
//   - An answer of an unverified server is used only after both its signature and the hash of its authority were
//     verified.
//   - A key is stored on disk, readable only by its owner, before a certificate for it is requested. It never leaves
//     the machine.
//
// # What it does not do
//
// It approves nothing: upstream's controllers approve clients' certificates, and package cluster those of servers.
package bootstrap

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	tokenapi "k8s.io/cluster-bootstrap/token/api"
	tokenutil "k8s.io/cluster-bootstrap/token/util"

	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// Group is the group of the bearers of a token for joining. The RBAC objects of package cluster say what it may do.
const Group = "system:bootstrappers:plimsoll:nodes"

// DefaultLife is how long a token is valid by default: a day, as kubeadm's.
const DefaultLife = 24 * time.Hour

// A Token lets machines join.
type Token struct {
	ID          string    `json:"id"`
	Expires     time.Time `json:"expires,omitzero"` // zero: never
	Description string    `json:"description,omitempty"`
	Joins       bool      `json:"joins"`             // it authenticates and signs cluster-info; joining needs both
	Servers     bool      `json:"servers,omitempty"` // it is for servers; else for nodes
}

// Parts splits a token into id and secret.
func Parts(token string) (id, secret string, err error) {
	parts := pattern.FindStringSubmatch(token)
	if parts == nil {
		return "", "", fmt.Errorf("want ID.SECRET, of 6 and 16 lower case letters and digits, as `plimsoll " +
			"token create` prints it")
	}
	return parts[1], parts[2], nil
}

var (
	pattern   = regexp.MustCompile(tokenapi.BootstrapTokenPattern)
	idPattern = regexp.MustCompile(tokenapi.BootstrapTokenIDPattern)
)

// CreateToken creates a token by which nodes join and returns its text. life is how long it is valid; zero: for ever.
func CreateToken(ctx context.Context, c *kube.Client, life time.Duration, description string) (string, error) {
	token, s, err := newToken(life, description)
	if err != nil {
		return "", fmt.Errorf("create token: %w", err)
	}
	s.Data[tokenapi.BootstrapTokenExtraGroupsKey] = []byte(Group)
	if err := c.Create(ctx, kube.Secrets, metav1.NamespaceSystem, "", s, &corev1.Secret{}); err != nil {
		return "", fmt.Errorf("create token: %w", err)
	}
	return token, nil
}

// newToken returns a new token, in no group, and its Secret.
func newToken(life time.Duration, description string) (string, *corev1.Secret, error) {
	token, err := tokenutil.GenerateBootstrapToken()
	if err != nil {
		return "", nil, err
	}
	id, secret, err := Parts(token)
	if err != nil {
		return "", nil, err
	}
	s := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Name:      tokenutil.BootstrapTokenSecretName(id),
			Namespace: metav1.NamespaceSystem,
		},
		Type: tokenapi.SecretTypeBootstrapToken,
		Data: map[string][]byte{
			tokenapi.BootstrapTokenIDKey:               []byte(id),
			tokenapi.BootstrapTokenSecretKey:           []byte(secret),
			tokenapi.BootstrapTokenUsageSigningKey:     []byte("true"),
			tokenapi.BootstrapTokenUsageAuthentication: []byte("true"),
		},
	}
	if life > 0 {
		s.Data[tokenapi.BootstrapTokenExpirationKey] = []byte(time.Now().Add(life).UTC().Format(time.RFC3339))
	}
	if description != "" {
		s.Data[tokenapi.BootstrapTokenDescriptionKey] = []byte(description)
	}
	return token, s, nil
}

// ListTokens returns all tokens without their secrets, sorted by id.
func ListTokens(ctx context.Context, c *kube.Client) ([]Token, error) {
	secrets := &corev1.SecretList{}
	only := metav1.ListOptions{FieldSelector: "type=" + string(tokenapi.SecretTypeBootstrapToken)}
	if err := c.List(ctx, kube.Secrets, metav1.NamespaceSystem, only, secrets); err != nil {
		return nil, fmt.Errorf("list tokens: %w", err)
	}
	tokens := []Token{}
	for i := range secrets.Items {
		tokens = append(tokens, tokenOf(&secrets.Items[i]))
	}
	slices.SortFunc(tokens, func(a, b Token) int { return strings.Compare(a.ID, b.ID) })
	return tokens, nil
}

func tokenOf(s *corev1.Secret) Token {
	says := func(key string) bool { return string(s.Data[key]) == "true" }
	t := Token{
		ID:          string(s.Data[tokenapi.BootstrapTokenIDKey]),
		Description: string(s.Data[tokenapi.BootstrapTokenDescriptionKey]),
		Joins:       says(tokenapi.BootstrapTokenUsageSigningKey) && says(tokenapi.BootstrapTokenUsageAuthentication),
		Servers:     len(s.Data[sharedKey]) > 0,
	}
	if text := string(s.Data[tokenapi.BootstrapTokenExpirationKey]); text != "" {
		t.Expires, _ = time.Parse(time.RFC3339, text) // a text that is no time is invalid for the API server, too
		t.Joins = t.Joins && !t.Expires.IsZero()
	}
	return t
}

// DeleteToken deletes a token, which is given by its id or as a whole.
func DeleteToken(ctx context.Context, c *kube.Client, token string) error {
	id, _, _ := strings.Cut(token, ".")
	if !idPattern.MatchString(id) {
		return fmt.Errorf("delete token %q: want the id, 6 lower case letters and digits, as `plimsoll token "+
			"list` prints it", id)
	}
	err := ForgetToken(ctx, c, id)
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("delete token %s: there is none (see `plimsoll token list`)", id)
	}
	return err
}

// ForgetToken deletes a token, given as a whole. If it does not exist, the error is the API server's.
func ForgetToken(ctx context.Context, c *kube.Client, token string) error {
	id, _, _ := strings.Cut(token, ".")
	err := c.Delete(ctx, kube.Secrets, metav1.NamespaceSystem, tokenutil.BootstrapTokenSecretName(id),
		metav1.DeleteOptions{})
	if err != nil {
		return fmt.Errorf("delete token %s: %w", id, err)
	}
	return nil
}
