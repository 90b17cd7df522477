package containerruntime

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestParseMirror(t *testing.T) {
	for text, want := range map[string]Mirror{
		"http://127.0.0.1:5000":                      {"_default", "http://127.0.0.1:5000"},
		"docker.io=https://mirror.example/docker":    {"docker.io", "https://mirror.example/docker"},
		"registry.example:5000=http://[fd00::1]:80":  {"registry.example:5000", "http://[fd00::1]:80"},
		"https://mirror.example/path=with/equals/in": {"_default", "https://mirror.example/path=with/equals/in"},
	} {
		if got, err := ParseMirror(text); err != nil || got != want {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	for text, want := range map[string]string{
		"":                            `URL ""`,
		"mirror.example":              "want [REGISTRY=]http[s]://HOST",
		"docker.io=mirror.example":    `URL "mirror.example"`,
		"../..=http://a":              `registry "../.."`,
		"_default=http://a":           `registry "_default"`,
		"docker.io/library=http://a":  `registry "docker.io/library"`,
		"docker.io=http://user:pw@a":  "without user",
		"docker.io=ftp://a":           "want [REGISTRY=]http[s]",
		"docker.io=http://a?ns=other": "without user and query",
	} {
		if got, err := ParseMirror(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %+v, %v, want %q", text, got, err, want)
		}
	}
}

// TestMirrors: each start writes the files of its mirrors, removes other files of ours, and does not change the user's.
func TestMirrors(t *testing.T) {
	dir := t.TempDir()
	prepare := func(mirrors ...Mirror) error {
		return (&Instance{options: Options{StateDir: dir, Mirrors: mirrors}}).prepareMirrors()
	}
	if err := prepare(Mirror{"docker.io", "http://127.0.0.1:5000"}, Mirror{allRegistries, "https://b"}, Mirror{"docker.io",
		"https://a"}); err != nil {
		t.Fatal(err)
	}
	at := func(registry string) string { return filepath.Join(dir, "registries", registry, "hosts.toml") }
	text, err := os.ReadFile(at("docker.io"))
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "hosts.toml", string(text))
	if err := os.MkdirAll(filepath.Dir(at("mine")), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(at("mine"), []byte("server = \"http://mine\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := prepare(Mirror{allRegistries, "https://b"}); err != nil {
		t.Fatal(err)
	}
	for registry, want := range map[string]bool{"docker.io": false, allRegistries: true, "mine": true} {
		if _, err := os.Stat(at(registry)); (err == nil) != want {
			t.Errorf("file of %s: %v, want it there: %v", registry, err, want)
		}
	}
	err = prepare(Mirror{"mine", "http://other"})
	if err == nil || !strings.Contains(err.Error(), at("mine")+" was not written by plimsoll: add http://other to it") {
		t.Errorf("the user's file has the same name: %v", err)
	}
	if text, err := os.ReadFile(at("mine")); err != nil || string(text) != "server = \"http://mine\"\n" {
		t.Errorf("the user's file was changed: %q, %v", text, err)
	}
}
