// Package pullsecret finds the credentials for an image among a pod's imagePullSecrets, and in the docker configuration
// of the node.
//
// A Keyring has the registry credentials of several secrets and files. For an image it returns every credential that
// matches, the most specific first. Only a pull can show which one the registry accepts (two may be valid while a
// password is being changed). The package reads no API and pulls nothing; Files reads the node's own configuration.
package pullsecret

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/imageaccess"
)

// Keyring is a set of credentials with what they apply to. The zero value is empty.
type Keyring struct{ entries []entry }

type entry struct {
	key string // a registry, or a path below one: registryKey
	Credential
}

// Credential is what a registry may accept, and its source: a secret, or a service account's token. Without either it
// is the node's own, and all pods may use it.
type Credential struct {
	Auth    *runtimeapi.AuthConfig
	Secret  *imageaccess.Secret
	Account *imageaccess.Account
}

// dockerAuth is an entry of a docker configuration, as written by `docker login` and `kubectl create secret
// docker-registry`.
type dockerAuth struct {
	Username      string `json:"username"`
	Password      string `json:"password"`
	Auth          string `json:"auth"` // base64 of username:password; takes precedence over the two
	IdentityToken string `json:"identitytoken"`
	Email         string `json:"email"` // not used for pulls; it is part of the hash (sum)
}

// Add adds the credentials of a secret of type kubernetes.io/dockerconfigjson or kubernetes.io/dockercfg. A secret of
// another type, or one that cannot be read, is an error and adds nothing. The error does not contain the secret's
// content.
func (k *Keyring) Add(secret *corev1.Secret) error {
	switch secret.Type {
	case corev1.SecretTypeDockerConfigJson:
		return k.addText(corev1.DockerConfigJsonKey, secret.Data[corev1.DockerConfigJsonKey], secret)
	case corev1.SecretTypeDockercfg:
		return k.addText(corev1.DockerConfigKey, secret.Data[corev1.DockerConfigKey], secret)
	default:
		return fmt.Errorf("type %q: want %q or %q", secret.Type, corev1.SecretTypeDockerConfigJson,
			corev1.SecretTypeDockercfg)
	}
}

// addText adds a docker configuration: config.json, or the old form without "auths" around it. of is the secret that it
// comes from; nil: a file of the node.
func (k *Keyring) addText(name string, text []byte, of *corev1.Secret) error {
	var auths map[string]dockerAuth
	into := any(&auths)
	if name == corev1.DockerConfigJsonKey {
		into = &struct{ Auths *map[string]dockerAuth }{&auths}
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	var found []entry
	for server, a := range auths {
		auth, err := a.runtime()
		if err != nil {
			return fmt.Errorf("server %q: %w", server, err)
		}
		e := entry{key: registryKey(server), Credential: Credential{Auth: auth}}
		if of != nil {
			e.Secret = &imageaccess.Secret{UID: string(of.UID), Namespace: of.Namespace, Name: of.Name, Sum: sum(auth, a.Email)}
		}
		found = append(found, e)
	}
	// Iterating a map has no fixed order.
	slices.SortFunc(found, func(a, b entry) int { return cmp.Compare(a.key, b.key) })
	k.entries = append(k.entries, found...)
	return nil
}

// AddPassword adds a user's password for the images that a pattern covers. account is the service account for whose
// token a plugin returned it; nil: it asked for no token.
func (k *Keyring) AddPassword(pattern, username, password string, account *imageaccess.Account) {
	k.entries = append(k.entries, entry{key: registryKey(pattern), Credential: Credential{
		Auth: &runtimeapi.AuthConfig{Username: username, Password: password}, Account: account,
	}})
}

// For returns the credentials that cover an image: the longest keys first, those of one key in the order of their
// secrets.
func (k *Keyring) For(image string) []Credential {
	var found []entry
	for _, e := range k.entries {
		if covers(e.key, FullName(image)) {
			found = append(found, e)
		}
	}
	slices.SortStableFunc(found, func(a, b entry) int {
		return cmp.Or(cmp.Compare(len(b.key), len(a.key)), cmp.Compare(b.key, a.key))
	})
	var out []Credential
	for _, e := range found {
		out = append(out, e.Credential)
	}
	return out
}

// registryKey strips the scheme, the API version and the trailing slash that old clients put around a registry's name,
// and gives Docker Hub the name that it has in images.
func registryKey(server string) string {
	server = strings.TrimPrefix(strings.TrimPrefix(server, "https://"), "http://")
	host, below, _ := strings.Cut(strings.TrimRight(server, "/"), "/")
	if version, rest, _ := strings.Cut(below, "/"); version == "v1" || version == "v2" {
		below = rest
	}
	if host == "index.docker.io" || host == "registry-1.docker.io" {
		host = dockerHub
	}
	if below == "" {
		return host
	}
	return host + "/" + below
}

const dockerHub = "docker.io"

// FullName returns an image's name with its registry. That is Docker Hub if the first part of the name cannot be a
// host.
func FullName(image string) string {
	first, rest, found := strings.Cut(image, "/")
	switch {
	case !found:
		return dockerHub + "/library/" + image
	case first == "index.docker.io":
		return dockerHub + "/" + rest
	case strings.ContainsAny(first, ".:") || first == "localhost":
		return image
	}
	return dockerHub + "/" + image
}

// Covers reports whether a pattern of a credential provider plugin or of its configuration covers an image.
func Covers(pattern, image string) bool { return covers(registryKey(pattern), FullName(image)) }

// covers reports whether the credentials of a key are meant for an image. A key is a registry, with * in place of parts
// of its name, or a path below one. Another port is another registry.
func covers(key, image string) bool {
	registry, below, _ := strings.Cut(key, "/")
	of, name, _ := strings.Cut(image, "/")
	if !strings.HasPrefix(name, below) || below != "" && len(name) > len(below) && !strings.ContainsRune("/:@",
		rune(name[len(below)])) {
		return false
	}
	host, port := splitPort(registry)
	ofHost, ofPort := splitPort(of)
	parts, ofParts := strings.Split(host, "."), strings.Split(ofHost, ".")
	if port != ofPort || len(parts) != len(ofParts) {
		return false
	}
	for i := range parts {
		if ok, err := path.Match(parts[i], ofParts[i]); err != nil || !ok {
			return false
		}
	}
	return true
}

func splitPort(registry string) (host, port string) {
	host, port, err := net.SplitHostPort(registry)
	if err != nil {
		return registry, ""
	}
	return host, port
}

// sum returns the SHA-256 of a credential, with which records compare the contents of secrets. As in the kubelet
// (1.36.3), it is the hash of the AuthConfig as JSON.
func sum(auth *runtimeapi.AuthConfig, email string) string {
	text, err := json.Marshal(struct {
		Username      string `json:"username,omitempty"`
		Password      string `json:"password,omitempty"`
		Email         string `json:"email,omitempty"`
		IdentityToken string `json:"identitytoken,omitempty"`
	}{Username: auth.Username, Password: auth.Password, Email: email, IdentityToken: auth.IdentityToken})
	if err != nil {
		return ""
	}
	return fmt.Sprintf("%x", sha256.Sum256(text))
}

// runtime translates the entry for the runtime. The result names no server: the runtime knows the image, and containerd
// drops credentials whose server it cannot parse as a URL.
func (a dockerAuth) runtime() (*runtimeapi.AuthConfig, error) {
	out := &runtimeapi.AuthConfig{Username: a.Username, Password: a.Password, IdentityToken: a.IdentityToken}
	if a.Auth == "" {
		return out, nil
	}
	text := strings.TrimRight(strings.TrimSpace(a.Auth), "=") // with or without padding
	plain, err := base64.RawStdEncoding.DecodeString(text)
	if err != nil {
		return nil, fmt.Errorf("auth: %w", err)
	}
	user, password, ok := strings.Cut(string(plain), ":")
	if !ok {
		return nil, fmt.Errorf("auth: want base64 of username:password")
	}
	out.Username = user
	out.Password = strings.TrimRight(password, "\x00")
	return out, nil
}
