package logind_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/host/logind"
	testlogind "github.com/plimsoll-dev/plimsoll/test/logind"
)

// eventually waits for a condition.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

func dial(t *testing.T, bus *testlogind.Bus) (*logind.Conn, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "logind.conf.d")
	conn, err := logind.Dial(t.Context(), bus.Address(), dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	return conn, dir
}

// TestLock: a lock lasts until it is closed, also without the connection.
func TestLock(t *testing.T) {
	bus := testlogind.New(t, 5*time.Second)
	conn, _ := dial(t, bus)
	lock, err := conn.Inhibit(t.Context(), "me", "because")
	if err != nil {
		t.Fatal(err)
	}
	if locks := bus.Locks(); len(locks) != 1 || locks[0] != "me: because" || bus.Held() != 1 {
		t.Errorf("%q, %d held", locks, bus.Held())
	}
	conn.Close()
	if bus.Held() != 1 {
		t.Error("the lock went with the connection")
	}
	if err := lock.Close(); err != nil {
		t.Error(err)
	}
	eventually(t, "the lock is gone", func() bool { return bus.Held() == 0 })
}

// TestWatch: shutdowns that begin and are cancelled are told, and that the connection is lost.
func TestWatch(t *testing.T) {
	bus := testlogind.New(t, 5*time.Second)
	conn, _ := dial(t, bus)
	changes, err := conn.Watch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if is, err := conn.Preparing(t.Context()); is || err != nil {
		t.Errorf("before: %v, %v", is, err)
	}
	bus.Shutdown(true)
	if is := <-changes; !is {
		t.Error("a shutdown that begins was told as cancelled")
	}
	if is, err := conn.Preparing(t.Context()); !is || err != nil {
		t.Errorf("meanwhile: %v, %v", is, err)
	}
	bus.Shutdown(false)
	if is := <-changes; is {
		t.Error("a shutdown that is cancelled was told as begun")
	}
	bus.Drop()
	if _, open := <-changes; open {
		t.Error("the lost connection was not told")
	}
}

// TestDelay: the longest delay is read and raised, in whole seconds, upwards.
func TestDelay(t *testing.T) {
	bus := testlogind.New(t, 5*time.Second)
	conn, dir := dial(t, bus)
	if d, err := conn.DelayMax(t.Context()); d != 5*time.Second || err != nil {
		t.Errorf("%v, %v", d, err)
	}
	file := filepath.Join(dir, "99-kubelet.conf")
	bus.OnReload(func() time.Duration {
		text, err := os.ReadFile(file)
		if err != nil || !strings.Contains(string(text), "[Login]\nInhibitDelayMaxSec=31\n") {
			t.Errorf("%v\n%s", err, text)
		}
		return 31 * time.Second
	})
	if err := conn.SetDelayMax(t.Context(), 30*time.Second+time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if d, err := conn.DelayMax(t.Context()); d != 31*time.Second || err != nil {
		t.Errorf("raised: %v, %v", d, err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("%v, %v", info, err)
	}
}

// TestErrors: what is refused says what was asked, and by whom it was refused.
func TestErrors(t *testing.T) {
	bus := testlogind.New(t, 5*time.Second)
	conn, dir := dial(t, bus)
	bus.Refuse("Inhibit", "not allowed by the policy")
	if _, err := conn.Inhibit(t.Context(), "me", "because"); err == nil ||
		!strings.Contains(err.Error(), "take an inhibitor lock") ||
		!strings.Contains(err.Error(), "not allowed by the policy") {
		t.Errorf("inhibit: %v", err)
	}
	bus.Refuse("KillUnit", "no such unit")
	if err := conn.SetDelayMax(t.Context(), time.Minute); err == nil || !strings.Contains(err.Error(), "no such unit") {
		t.Errorf("reload: %v", err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := conn.SetDelayMax(t.Context(), time.Minute); err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("a directory that cannot be made: %v", err)
	}
	none := filepath.Join(t.TempDir(), "none")
	if _, err := logind.Dial(t.Context(), "unix:path="+none, dir); err == nil || !strings.Contains(err.Error(), none) {
		t.Errorf("no bus: %v", err)
	}
}
