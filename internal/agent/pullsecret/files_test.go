package pullsecret

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestFiles: the first file that can be read counts, the others do not, and it is read again after a while.
func TestFiles(t *testing.T) {
	root, home := t.TempDir(), t.TempDir()
	t.Chdir(t.TempDir())
	now := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	f := NewFiles(root, home)
	f.now = func() time.Time { return now }
	users := func() (users []string) {
		t.Helper()
		ring, err := f.Keyring()
		if err != nil {
			t.Error(err)
		}
		for _, auth := range ring.For("r.example.com/app") {
			users = append(users, auth.Auth.Username)
		}
		return users
	}
	if got := users(); got != nil {
		t.Errorf("without files: %q", got)
	}
	put(t, filepath.Join(home, ".docker/config.json"), `{"auths":{"r.example.com":{"username":"home"}}}`)
	put(t, filepath.Join(root, ".dockercfg"), `{"r.example.com":{"username":"old"}}`)
	if got := users(); got != nil {
		t.Errorf("before the time was over: %q", got)
	}
	for _, step := range []struct{ path, text, want string }{
		{"", "", "home"},
		{"config.json", `{"auths":{"https://r.example.com/v1/":{"auth":"cm9vdDp4"}}}`, "root"},
	} {
		if step.path != "" {
			put(t, filepath.Join(root, step.path), step.text)
		}
		now = now.Add(filesLife)
		if got := strings.Join(users(), " "); got != step.want {
			t.Errorf("%s: %q, want %q", step.path, got, step.want)
		}
	}
	put(t, filepath.Join(root, "config.json"), `{"auths":`)
	now = now.Add(filesLife)
	ring, err := f.Keyring()
	if err == nil || !strings.Contains(err.Error(), filepath.Join(root, "config.json")) ||
		strings.Contains(err.Error(), "auths") {
		t.Errorf("a file that is torn: %v", err)
	}
	if auths := ring.For("r.example.com/app"); len(auths) != 1 || auths[0].Auth.Username != "home" {
		t.Errorf("beside it: %v", auths)
	}
	put(t, filepath.Join(root, "config.json"), strings.Repeat(" ", fileMax+1))
	now = now.Add(filesLife)
	if _, err := f.Keyring(); err == nil || !strings.Contains(err.Error(), "want a regular file of at most 1048576") {
		t.Errorf("a file without end: %v", err)
	}
}
