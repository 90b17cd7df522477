package process

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// locked returns VmLck of this process, in KiB.
func locked(t *testing.T) (kib int) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmLck:"); ok {
			if _, err := fmt.Sscan(rest, &kib); err != nil {
				t.Fatal(err)
			}
		}
	}
	return kib
}

func TestLockMemory(t *testing.T) {
	before := locked(t)
	if err := LockMemory(); errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.EPERM) {
		t.Skipf("needs CAP_IPC_LOCK or a higher RLIMIT_MEMLOCK: %v", err)
	} else if err != nil {
		t.Fatal(err)
	}
	if now := locked(t); now <= before {
		t.Errorf("%d KiB are held, before %d", now, before)
	}
	if err := UnlockMemory(); err != nil {
		t.Fatal(err)
	}
	if now := locked(t); now != 0 {
		t.Errorf("%d KiB are held still", now)
	}
}
