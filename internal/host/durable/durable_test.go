package durable

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestWriteReplacesAndProtects(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a")
	if err := os.WriteFile(path, []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	// A crash between create and rename leaves a file behind. It must neither prevent the next write nor become part of
	// it.
	if err := os.WriteFile(filepath.Join(filepath.Dir(path), ".a.new"), []byte("a longer leftover"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := Write(path, []byte("new")); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "new" {
		t.Fatalf("content %q, %v, want new", got, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != fileMode {
		t.Fatalf("mode %v, %v, want 0600", info.Mode(), err)
	}
	if entries, _ := os.ReadDir(filepath.Dir(path)); len(entries) != 1 {
		t.Fatalf("leftovers: %v", entries)
	}
}

func TestWriteIfChanged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a")
	for i, c := range []struct {
		content string
		mode    os.FileMode // set before the write; 0 leaves it
		wrote   bool
	}{
		{"one", 0, true}, {"one", 0, false}, {"two", 0, true}, {"two", 0o644, true}, {"two", 0, false},
	} {
		if c.mode != 0 {
			if err := os.Chmod(path, c.mode); err != nil {
				t.Fatal(err)
			}
		}
		if wrote, err := WriteIfChanged(path, []byte(c.content)); err != nil || wrote != c.wrote {
			t.Errorf("write %d: %v, %v, want %v", i, wrote, err, c.wrote)
		}
	}
}

func TestWriteNamesThePath(t *testing.T) {
	path := filepath.Join(t.TempDir(), "gone", "a")
	if err := Write(path, nil); err == nil || !strings.Contains(err.Error(), path) {
		t.Fatalf("error %v does not name %s", err, path)
	}
}
