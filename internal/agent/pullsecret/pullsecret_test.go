package pullsecret

import (
	"encoding/base64"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/test/cost"
)

func TestCovers(t *testing.T) {
	for _, c := range []struct {
		server, image string
		want          bool
	}{
		{"https://index.docker.io/v1/", "nginx", true},
		{"https://index.docker.io/v1/", "nginx:1.27", true},
		{"https://index.docker.io/v1/", "team/app", true},
		{"https://index.docker.io/v1/", "index.docker.io/team/app", true},
		{"registry-1.docker.io", "docker.io/team/app", true},
		{"https://index.docker.io/v1/", "registry.example/app", false},
		{"https://registry.example/v2/", "registry.example/app:1", true},
		{"http://registry.example/v2/team", "registry.example/team/app", true},
		{"http://registry.example/v2/team", "registry.example/app", false},
		{"https://index.docker.io/v1/team", "team/app", true},
		{"registry.example/v1x", "registry.example/app", false},
		{"registry.example:5000", "registry.example:5000/app", true},
		{"registry.example", "registry.example:5000/app", false},
		{"registry.*", "registry.example:5000/app", false},
		{"registry.*:5000", "registry.example:5000/app", true},
		{"registry.example/team", "registry.example/team/app", true},
		{"registry.example/team/app", "registry.example/team/app@sha256:00", true},
		{"registry.example/team", "registry.example/teamwork/app", false},
		{"*.example", "registry.example/app", true},
		{"*.example", "a.b.example/app", false},
		{"[", "registry.example/app", false},
		{"localhost", "localhost/app", true},
		{"", "nginx", false},
	} {
		if got := covers(registryKey(c.server), FullName(c.image)); got != c.want {
			t.Errorf("%q for %q: %v", c.server, c.image, got)
		}
	}
}

func modern(content string) *corev1.Secret {
	return &corev1.Secret{Type: corev1.SecretTypeDockerConfigJson,
		Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte(content)}}
}

func old(content string) *corev1.Secret {
	return &corev1.Secret{Type: corev1.SecretTypeDockercfg,
		Data: map[string][]byte{corev1.DockerConfigKey: []byte(content)}}
}

func TestAdd(t *testing.T) {
	padded := base64.StdEncoding.EncodeToString([]byte("user:pass:word\x00\x00"))
	unpadded := base64.RawStdEncoding.EncodeToString([]byte("user:pass:word"))
	if !strings.HasSuffix(padded, "=") || strings.HasSuffix(unpadded, "=") || len(unpadded)%4 == 0 {
		t.Fatalf("%q and %q do not differ in their padding", padded, unpadded)
	}
	for name, s := range map[string]*corev1.Secret{
		"padded":                 modern(`{"auths":{"r.example":{"auth":"` + padded + `"}}}`),
		"unpadded":               modern(`{"auths":{"r.example":{"auth":"` + unpadded + `"}}}`),
		"auth wins":              modern(`{"auths":{"r.example":{"username":"x","password":"y","auth":"` + padded + `"}}}`),
		"plain":                  modern(`{"auths":{"r.example":{"username":"user","password":"pass:word"}},"HttpHeaders":{"a":"b"}}`),
		"of old":                 old(`{"r.example":{"username":"user","password":"pass:word"}}`),
		"of old, with its email": old(`{"https://r.example/v1/":{"auth":"` + padded + `","email":"a@b"}}`),
	} {
		var k Keyring
		if err := k.Add(s); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got := k.For("r.example/app:1")
		if len(got) != 1 || got[0].Auth.Username != "user" || got[0].Auth.Password != "pass:word" ||
			got[0].Auth.ServerAddress != "" {
			t.Errorf("%s: got %v", name, got)
		}
	}
	noColon := base64.StdEncoding.EncodeToString([]byte("no colon"))
	for _, c := range []struct {
		secret *corev1.Secret
		want   string
	}{
		{modern(`{`), "unexpected end"},
		{modern(`{"auths":[]}`), "cannot unmarshal"},
		{modern(``), "unexpected end"},
		{modern(`{"auths":{"a.example":{"username":"u"},"r.example":{"auth":"!"}}}`),
			`server "r.example": auth: illegal base64`},
		{old(`{"r.example":{"auth":"` + noColon + `"}}`), "want base64 of username:password"},
		{&corev1.Secret{Type: "Opaque"}, `type "Opaque": want "kubernetes.io/dockerconfigjson"`},
	} {
		var k Keyring
		err := k.Add(c.secret)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "no colon") {
			t.Errorf("%s: got %v, want %q", c.secret.Data, err, c.want)
		}
		if got := k.For("a.example/app"); got != nil {
			t.Errorf("%s: took up %v of a secret that it refused", c.secret.Data, got)
		}
	}
}

// TestEveryCredential: all credentials that match the image, the most specific first; those of one registry in the
// order of the pod's secrets.
func TestEveryCredential(t *testing.T) {
	var k Keyring
	for _, s := range []*corev1.Secret{
		modern(`{"auths":{"r.example":{"username":"1"},"r.example/team":{"username":"2"},"elsewhere.example":{"username":"3"}}}`),
		old(`{"http://r.example/v2/":{"username":"4"},"r.example/team/app":{"username":"5"},"*.example":{"username":"6"}}`),
	} {
		if err := k.Add(s); err != nil {
			t.Fatal(err)
		}
	}
	for image, want := range map[string][]string{
		"r.example/team/app:1": {"5", "2", "1", "4", "6"},
		"r.example/other":      {"1", "4", "6"},
		"other.example/team":   {"6"},
		"nginx":                nil,
	} {
		var got []string
		for _, a := range k.For(image) {
			got = append(got, a.Auth.Username)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", image, got, want)
		}
	}
}

func FuzzCovers(f *testing.F) {
	cost.Attack(f, "https://index.docker.io/v1/", "nginx:1")
	cost.Attack(f, "*.example/[", "a.example/b@sha256:0")
	f.Fuzz(func(t *testing.T, server, image string) {
		defer cost.Spend(t, len(server)+len(image))()
		key := registryKey(server)
		if covers(key, FullName(image)) && !strings.ContainsAny(key, "*?[\\") && !strings.HasPrefix(FullName(image), key) {
			t.Errorf("key %q of %q covers %q", key, server, FullName(image))
		}
	})
}

func FuzzAdd(f *testing.F) {
	cost.Attack(f, `{"auths":{"r.example":{"auth":"dTpw"}}}`)
	cost.Attack(f, `{"r.example":{"auth":"dTpw="}}`)
	f.Fuzz(func(t *testing.T, content string) {
		defer cost.Spend(t, len(content))()
		for _, s := range []*corev1.Secret{modern(content), old(content)} {
			var k Keyring
			if err := k.Add(s); err != nil && k.entries != nil {
				t.Errorf("%q: %v, and took up %v", content, err, k.entries)
			}
		}
	})
}
