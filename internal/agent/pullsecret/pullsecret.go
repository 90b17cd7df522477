// Package pullsecret finds, among the secrets that a pod names as its imagePullSecrets, the credentials that are meant
// for an image.
//
// A Keyring holds what several secrets say of registries. Asked for an image it gives every credential that covers it,
// the most specific first: which one the registry takes, only a pull can tell (two may stand side by side while a
// password is being changed). It reads no API and pulls nothing.
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

// Keyring is credentials by what they cover. The zero value is empty.
type Keyring struct{ entries []entry }

type entry struct {
	key  string // a registry, or a path below one: registryKey
	auth *runtimeapi.AuthConfig
}

// dockerAuth is an entry of a docker configuration, as `docker login` and `kubectl create secret docker-registry` write
// it.
type dockerAuth struct {
	Username      string `json:"username"`
	Password      string `json:"password"`
	Auth          string `json:"auth"` // base64 of username:password; wins over the two
	IdentityToken string `json:"identitytoken"`
}

// Add takes up a secret of type kubernetes.io/dockerconfigjson or kubernetes.io/dockercfg. Of another one, or one that
// cannot be read, it takes up nothing; the error does not hold what is in it.
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
	slices.SortFunc(found, func(a, b entry) int { return cmp.Compare(a.key, b.key) }) // of a map: any order, so one
	k.entries = append(k.entries, found...)
	return nil
}

// For returns the credentials that cover an image: the longest keys first, those of one key in the order of their
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

// registryKey strips what old clients put around a registry's name: scheme, API version and trailing slash; and gives
// Docker Hub the name that images have.
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

// fullName is an image's name with its registry, which is Docker Hub where the first part can not be a host.
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

// covers reports whether the credentials of a key are meant for an image. A key is a registry, with * in place of parts
// of its name, or a path below one. Another port is another registry.
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

// runtime is the entry in the runtime's form. It names no server: the runtime is told the image, and containerd drops
// credentials whose server it cannot parse as a URL.
func (a dockerAuth) runtime() (*runtimeapi.AuthConfig, error) {
	out := &runtimeapi.AuthConfig{Username: a.Username, Password: a.Password, IdentityToken: a.IdentityToken}
	if a.Auth == "" {
		return out, nil
	}
	text := strings.TrimRight(strings.TrimSpace(a.Auth), "=") // padded or not
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
