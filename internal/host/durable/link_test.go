package durable

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestLink: a link replaces the previous one, also after a crash during an earlier replacement, and no other file is
// left.
func TestLink(t *testing.T) {
	path := filepath.Join(t.TempDir(), "current")
	for _, target := range []string{"/one", "/two"} {
		if err := os.Symlink("/left", filepath.Join(filepath.Dir(path), ".current.new")); err != nil {
			t.Fatal(err)
		}
		if err := Link(target, path); err != nil {
			t.Fatal(err)
		}
		if got, err := os.Readlink(path); err != nil || got != target {
			t.Errorf("leads to %q, %v, want %s", got, err, target)
		}
	}
	if entries, err := os.ReadDir(filepath.Dir(path)); err != nil || len(entries) != 1 {
		t.Errorf("leftovers: %v, %v", entries, err)
	}
	path = filepath.Join(path, "none", "a")
	if err := Link("/one", path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("error %v does not name %s", err, path)
	}
}
