package supervise

import (
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/plimsoll-dev/plimsoll/internal/host/link"
)

// A child ends by the signal that its spec names, when it is stopped and when it is replaced.
func TestEndSignal(t *testing.T) {
	x := open(t, t.TempDir(), Backoff{})
	spec := childSpec(x.dir, "a", "user")
	spec.End, spec.Grace = unix.SIGUSR1, time.Hour
	x.apply(spec)
	awaitLog(t, spec.Log, "ready")
	first := x.pid("a")
	spec.Argv = append(spec.Argv, "--other")
	if x.apply(spec) || x.pid("a") == first {
		t.Error("it was not replaced")
	}
	x.await("a second one", func(s Status) bool { return s.PID != 0 && s.PID != first })
	x.Stop(t.Context(), "a", 20*time.Second)
}

// A child runs in the network namespace that its spec names. It is replaced if the namespace was made again meanwhile.
func TestNamespace(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes a network namespace")
	}
	x := open(t, t.TempDir(), Backoff{})
	spec := childSpec(x.dir, "a", "polite")
	spec.Namespace = fmt.Sprintf("supervise-%d", os.Getpid())
	t.Cleanup(func() {
		if err := link.DeleteNamespace(spec.Namespace); err != nil {
			t.Error(err)
		}
	})
	if _, err := x.Apply(t.Context(), spec); err == nil {
		t.Error("it runs in a namespace that does not exist")
	}
	last := 0
	for range 2 {
		if err := link.EnsureNamespace(spec.Namespace); err != nil {
			t.Fatal(err)
		}
		x.apply(spec)
		pid := x.pid("a")
		if pid == last {
			t.Error("it was not replaced")
		}
		last = pid
		want, err := link.Namespace(spec.Namespace)
		if err != nil {
			t.Fatal(err)
		}
		var is unix.Stat_t
		err = unix.Stat(fmt.Sprintf("/proc/%d/ns/net", pid), &is)
		if got := fmt.Sprintf("%d:%d", is.Dev, is.Ino); err != nil || got != want {
			t.Errorf("it is in %s, want %s, %v", got, want, err)
		}
		if !x.apply(spec) {
			t.Error("it was replaced, and nothing has changed")
		}
		if err := link.DeleteNamespace(spec.Namespace); err != nil {
			t.Fatal(err)
		}
	}
}
