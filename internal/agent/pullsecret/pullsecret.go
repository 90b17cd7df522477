// Package pullsecret finds the credentials for an image among a pod's imagePullSecrets.
//
// A Keyring has the registry credentials of several secrets. For an image it returns every credential that matches, the
// most specific first. Only a pull can show which one the registry accepts (two may be valid while a password is being
// changed). The package reads no API and pulls nothing.
package pullsecret

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Keyring is a set of credentials with what they apply to. The zero value is empty.
type Keyring struct{ entries []entry }

type entry struct {
	key  string // a registry, or a path below one, in the form of registryKey
	auth *runtimeapi.AuthConfig
}

// dockerAuth is an entry of a docker configuration, as written by `docker login` and `kubectl create secret
// docker-registry`.
type dockerAuth struct {
	Username      string `json:"username"`
	Password      string `json:"password"`
	Auth          string `json:"auth"` // base64 of username:password; takes precedence over the two
	IdentityToken string `json:"identitytoken"`
}

// Add adds the credentials of a secret of type kubernetes.io/dockerconfigjson or kubernetes.io/dockercfg. A secret of
// another type, or one that cannot be read, is an error and adds nothing. The error does not contain the secret's
// content.
func (k *Keyring) Add(secret *corev1.Secret) error {
	auths, err := parse(secret)
	if err != nil {
		return err
	}
	var found []entry
	for server, a := range auths {
		auth, err := a.runtime()
		if err != nil {
			return fmt.Errorf("server %q: %w", server, err)
		}
		found = append(found, entry{key: registryKey(server), auth: auth})
	}
	// a map has no order; this gives it one
	slices.SortFunc(found, func(a, b entry) int { return cmp.Compare(a.key, b.key) })
	k.entries = append(k.entries, found...)
	return nil
}

// For returns the credentials for an image: the longest keys first, those with the same key in the order of their
// secrets.
func (k *Keyring) For(image string) []*runtimeapi.AuthConfig {
	var found []entry
	for _, e := range k.entries {
		if covers(e.key, fullName(image)) {
			found = append(found, e)
		}
	}
	slices.SortStableFunc(found, func(a, b entry) int {
		return cmp.Or(cmp.Compare(len(b.key), len(a.key)), cmp.Compare(b.key, a.key))
	})
	var auths []*runtimeapi.AuthConfig
	for _, e := range found {
		auths = append(auths, e.auth)
	}
	return auths
}

func parse(s *corev1.Secret) (map[string]dockerAuth, error) {
	var auths map[string]dockerAuth
	key, into := corev1.DockerConfigKey, any(&auths)
	switch s.Type {
	case corev1.SecretTypeDockerConfigJson:
		key, into = corev1.DockerConfigJsonKey, &struct{ Auths *map[string]dockerAuth }{&auths}
	case corev1.SecretTypeDockercfg:
	default:
		return nil, fmt.Errorf("type %q: want %q or %q", s.Type, corev1.SecretTypeDockerConfigJson, corev1.SecretTypeDockercfg)
	}
	if err := json.Unmarshal(s.Data[key], into); err != nil {
		return nil, fmt.Errorf("%s: %w", key, err)
	}
	return auths, nil
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

// fullName returns an image's name with its registry. The registry is Docker Hub if the first part cannot be a host.
func fullName(image string) string {
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

// covers reports whether the credentials of a key apply to an image. A key is a registry, in which * may replace parts
// of the name, or a path below a registry. Another port is another registry.
func covers(key, image string) bool {
	registry, below, _ := strings.Cut(key, "/")
	of, name, _ := strings.Cut(image, "/")
	if !strings.HasPrefix(name, below) || below != "" && len(name) > len(below) && !strings.ContainsRune("/:@", rune(name[len(below)])) {
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

// runtime returns the entry in the runtime's form, without a server: the runtime knows the image, and containerd drops
// credentials whose server it cannot parse as a URL.
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
