package pods

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"path"
	"strings"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// dockerConfig is the content of a kubernetes.io/dockerconfigjson secret.
type dockerConfig struct {
	Auths map[string]dockerAuth `json:"auths"`
}

type dockerAuth struct {
	Username      string `json:"username"`
	Password      string `json:"password"`
	Auth          string `json:"auth"` // base64 of username:password
	IdentityToken string `json:"identitytoken"`
}

// pullSecrets finds the credentials for an image among the pod's imagePullSecrets; nil means none. Secrets that do not
// exist are passed over, as upstream does: the pull itself then says what it lacks.
func (r *Runner) pullSecrets(ctx context.Context, pod *corev1.Pod, image string) (*runtimeapi.AuthConfig, error) {
	best, bestLen := (*runtimeapi.AuthConfig)(nil), -1
	for _, ref := range pod.Spec.ImagePullSecrets {
		secret, err := r.Env.Objects.Secret(ctx, pod.Namespace, ref.Name)
		if err != nil {
			r.Recorder.Eventf(pod, corev1.EventTypeWarning, "FailedToRetrieveImagePullSecret", "Unable to retrieve image pull secret %s/%s: %v", pod.Namespace, ref.Name, err)
			continue
		}
		config, err := parseDockerConfig(secret)
		if err != nil {
			return nil, fmt.Errorf("read image pull secret %s/%s: %w", pod.Namespace, ref.Name, err)
		}
		for server, auth := range config.Auths {
			key := registryKey(server)
			if len(key) > bestLen && covers(key, fullName(image)) {
				a, err := auth.runtime(key)
				if err != nil {
					return nil, fmt.Errorf("read image pull secret %s/%s: server %q: %w", pod.Namespace, ref.Name, server, err)
				}
				best, bestLen = a, len(key)
			}
		}
	}
	return best, nil
}

func parseDockerConfig(s *corev1.Secret) (dockerConfig, error) {
	var config dockerConfig
	switch s.Type {
	case corev1.SecretTypeDockerConfigJson:
		return config, json.Unmarshal(s.Data[corev1.DockerConfigJsonKey], &config)
	case corev1.SecretTypeDockercfg:
		return config, json.Unmarshal(s.Data[corev1.DockerConfigKey], &config.Auths)
	}
	return config, fmt.Errorf("type %q: want %q", s.Type, corev1.SecretTypeDockerConfigJson)
}

// registryKey strips what old clients put around a registry's name: scheme, trailing slash and API version; and gives Docker
// Hub the name that images have.
func registryKey(server string) string {
	server = strings.TrimPrefix(strings.TrimPrefix(server, "https://"), "http://")
	server = strings.TrimRight(server, "/")
	server = strings.TrimSuffix(strings.TrimSuffix(server, "/v1"), "/v2")
	if server == "index.docker.io" || server == "registry-1.docker.io" {
		return dockerHub
	}
	return server
}

const dockerHub = "docker.io"

// fullName is an image's name with its registry, which is Docker Hub where the first part can not be a host.
func fullName(image string) string {
	first, _, found := strings.Cut(image, "/")
	switch {
	case !found:
		return dockerHub + "/library/" + image
	case strings.ContainsAny(first, ".:") || first == "localhost":
		return image
	}
	return dockerHub + "/" + image
}

// covers reports whether the credentials of a key are meant for an image. A key is a registry, with * in place of parts of
// its name, or a path below one.
func covers(key, image string) bool {
	host, below, _ := strings.Cut(key, "/")
	registry, name, _ := strings.Cut(image, "/")
	parts, of := strings.Split(host, "."), strings.Split(registry, ".")
	if len(parts) != len(of) || below != "" && name != below && !strings.HasPrefix(name, below+"/") && !strings.HasPrefix(name, below+":") && !strings.HasPrefix(name, below+"@") {
		return false
	}
	for i := range parts {
		if ok, err := path.Match(parts[i], of[i]); err != nil || !ok {
			return false
		}
	}
	return true
}

func (a dockerAuth) runtime(server string) (*runtimeapi.AuthConfig, error) {
	out := &runtimeapi.AuthConfig{Username: a.Username, Password: a.Password, IdentityToken: a.IdentityToken, ServerAddress: server}
	if a.Auth != "" {
		plain, err := base64.StdEncoding.DecodeString(a.Auth)
		if err != nil {
			return nil, fmt.Errorf("auth: %w", err)
		}
		user, password, ok := strings.Cut(string(plain), ":")
		if !ok {
			return nil, fmt.Errorf("auth: want base64 of username:password")
		}
		out.Username, out.Password = cmp.Or(out.Username, user), cmp.Or(out.Password, strings.TrimRight(password, "\x00"))
	}
	return out, nil
}
