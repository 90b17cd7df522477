package cluster

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestRemoveState: while something is left in the state directory, the lock is, too: `down --purge` that comes
// meanwhile must know the directory as its own.
func TestRemoveState(t *testing.T) {
	l := layout{Options{StateDir: filepath.Join(t.TempDir(), "s"), RunDir: filepath.Join(t.TempDir(), "r")}}
	stays := filepath.Join(l.o.StateDir, "agent", "stays")
	if err := os.MkdirAll(filepath.Dir(stays), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{l.lock(), stays, filepath.Join(l.o.StateDir, "zero")} {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.Command("chattr", "+i", stays).CombinedOutput(); err != nil {
		t.Skipf("needs root, and a file system with immutable files: chattr: %v: %s", err, out)
	}
	err := l.removeState()
	left, _ := filepath.Glob(filepath.Join(l.o.StateDir, "*"))
	if ours := l.checkOurs(); err == nil || ours != nil {
		t.Errorf("removed with error %v, left %q, then %v", err, left, ours)
	}
	if out, err := exec.Command("chattr", "-i", stays).CombinedOutput(); err != nil {
		t.Fatalf("chattr: %v: %s", err, out)
	}
	if err := l.removeState(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(l.o.StateDir); !os.IsNotExist(err) {
		t.Errorf("the directory is left: %v", err)
	}
}
