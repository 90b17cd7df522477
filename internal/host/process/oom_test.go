package process

import (
	"net"
	"os"
	"path/filepath"
	"testing"
)

func TestOOMScoreAdj(t *testing.T) {
	child := start(t, "sleep", "60")
	for _, want := range []int{500, 1000} { // raising is always allowed
		if err := SetOOMScoreAdj(child.Process.Pid, want); err != nil {
			t.Fatal(err)
		}
		if got, err := OOMScoreAdj(child.Process.Pid); err != nil || got != want {
			t.Errorf("%d, %v, want %d", got, err, want)
		}
	}
	if _, err := OOMScoreAdj(1 << 30); err == nil {
		t.Error("a process that is not there has a score")
	}
}

func TestListener(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	if _, err := Listener(path); err == nil {
		t.Error("somebody listens on a socket that is not there")
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if pid, err := Listener(path); err != nil || pid != os.Getpid() {
		t.Errorf("%d, %v, want %d", pid, err, os.Getpid())
	}
}
