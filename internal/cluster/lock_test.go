package cluster

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// The test binary is also the other process that holds a lock; then the variable lockRole contains the lock's path.
const lockRole = "PLIMSOLL_CLUSTER_TEST_LOCK"

func TestMain(m *testing.M) {
	path := os.Getenv(lockRole)
	if path == "" {
		code := m.Run()
		if builtIn != "" {
			os.RemoveAll(builtIn)
		}
		os.Exit(code)
	}
	if _, err := takeLock(path); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println("locked")
	select {}
}

func lockElsewhere(t *testing.T, path string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env, cmd.Stderr = []string{lockRole + "=" + path}, os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
	if !bufio.NewScanner(out).Scan() {
		t.Fatal("the other process did not lock")
	}
	return cmd
}

// The kernel reports which process holds the lock, and releases the lock when that process ends for any reason.
func TestLockDiesWithItsHolder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	if pid, err := lockHolder(path); pid != 0 || err != nil {
		t.Fatalf("before: %d, %v", pid, err)
	}
	other := lockElsewhere(t, path)
	if _, err := takeLock(path); !errors.Is(err, errLocked) {
		t.Errorf("taking a held lock: %v", err)
	}
	pidfd, err := openHolder(path)
	if err != nil || pidfd < 0 {
		t.Fatalf("hold holder: %d, %v", pidfd, err)
	}
	defer unix.Close(pidfd)
	if pid, err := lockHolder(path); pid != other.Process.Pid || err != nil {
		t.Errorf("holder %d, %v, want %d", pid, err, other.Process.Pid)
	}
	if err := unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0); err != nil {
		t.Fatal(err)
	}
	_ = other.Wait() // killed
	if pid, err := lockHolder(path); pid != 0 || err != nil {
		t.Errorf("after: %d, %v", pid, err)
	}
	l, err := takeLock(path)
	if err != nil {
		t.Fatal(err)
	}
	// Reading our own lock must not release it, as opening and closing the file would.
	if pid, err := lockHolder(path); pid != os.Getpid() || err != nil {
		t.Errorf("our own: %d, %v", pid, err)
	}
	if _, err := takeLock(path); !errors.Is(err, errLocked) {
		t.Errorf("taking our own lock again: %v", err)
	}
	l.release()
	if pid, err := lockHolder(path); pid != 0 || err != nil {
		t.Errorf("released: %d, %v", pid, err)
	}
}
