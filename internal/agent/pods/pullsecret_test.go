package pods

import (
	"encoding/base64"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestCredentialsCoverImages(t *testing.T) {
	for _, c := range []struct {
		server, image string
		want          bool
	}{
		{"https://index.docker.io/v1/", "nginx", true},
		{"https://index.docker.io/v1/", "nginx:1.27", true},
		{"https://index.docker.io/v1/", "team/app", true},
		{"registry-1.docker.io", "docker.io/team/app", true},
		{"https://index.docker.io/v1/", "registry.example/app", false},
		{"https://registry.example/v2/", "registry.example/app:1", true},
		{"registry.example:5000", "registry.example:5000/app", true},
		{"registry.example", "registry.example:5000/app", false},
		{"registry.example/team", "registry.example/team/app", true},
		{"registry.example/team/app", "registry.example/team/app@sha256:00", true},
		{"registry.example/team", "registry.example/teamwork/app", false},
		{"*.example", "registry.example/app", true},
		{"*.example", "a.b.example/app", false},
		{"[", "registry.example/app", false},
		{"localhost", "localhost/app", true},
		{"", "nginx", false},
	} {
		if got := covers(registryKey(c.server), fullName(c.image)); got != c.want {
			t.Errorf("%q for %q: %v", c.server, c.image, got)
		}
	}
}

func TestParseDockerConfig(t *testing.T) {
	auth := base64.StdEncoding.EncodeToString([]byte("user:pass:word\x00"))
	modern := &corev1.Secret{Type: corev1.SecretTypeDockerConfigJson, Data: map[string][]byte{".dockerconfigjson": []byte(`{"auths":{"r.example":{"auth":"` + auth + `"}}}`)}}
	old := &corev1.Secret{Type: corev1.SecretTypeDockercfg, Data: map[string][]byte{".dockercfg": []byte(`{"r.example":{"username":"user","password":"pass:word"}}`)}}
	for _, s := range []*corev1.Secret{modern, old} {
		config, err := parseDockerConfig(s)
		if err != nil {
			t.Fatal(err)
		}
		got, err := config.Auths["r.example"].runtime("r.example")
		if err != nil || got.Username != "user" || got.Password != "pass:word" || got.ServerAddress != "r.example" {
			t.Errorf("%s: got %+v, %v", s.Type, got, err)
		}
	}
	for _, c := range []struct{ content, want string }{{`{`, "unexpected end"}, {`{"auths":[]}`, "cannot unmarshal"}} {
		bad := &corev1.Secret{Type: corev1.SecretTypeDockerConfigJson, Data: map[string][]byte{".dockerconfigjson": []byte(c.content)}}
		if _, err := parseDockerConfig(bad); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.content, err, c.want)
		}
	}
	if _, err := parseDockerConfig(&corev1.Secret{Type: "Opaque"}); err == nil || !strings.Contains(err.Error(), `type "Opaque": want "kubernetes.io/dockerconfigjson"`) {
		t.Errorf("another type of secret: %v", err)
	}
	for _, auth := range []string{"!", base64.StdEncoding.EncodeToString([]byte("no colon"))} {
		if _, err := (dockerAuth{Auth: auth}).runtime("r"); err == nil || strings.Contains(err.Error(), "no colon") {
			t.Errorf("auth %q: %v", auth, err)
		}
	}
}

func FuzzRegistryKey(f *testing.F) {
	f.Add("https://index.docker.io/v1/", "nginx:1")
	f.Add("*.example/[", "a.example/b@sha256:0")
	f.Fuzz(func(t *testing.T, server, image string) {
		covers(registryKey(server), fullName(image)) // must not panic
	})
}
