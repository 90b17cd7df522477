package process

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func start(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	c := exec.Command(name, args...)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	return c
}

func always() bool { return true }

func TestExitIsReportedOnce(t *testing.T) {
	e, err := NewExits()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan int, 64)
	var started []*exec.Cmd
	for i := range 32 {
		c := start(t, "sleep", "1000")
		started = append(started, c)
		if _, err := e.Watch(c.Process.Pid, always, func() { done <- i }); err != nil {
			t.Fatal(err)
		}
	}
	for i, c := range started {
		if err := c.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		if got := <-done; got != i {
			t.Fatalf("process %d was killed, exit of %d reported", i, got)
		}
	}
	if len(done) != 0 {
		t.Fatalf("%d exits reported twice", len(done))
	}
}

func TestCancelledWatchStaysSilent(t *testing.T) {
	e, err := NewExits()
	if err != nil {
		t.Fatal(err)
	}
	quiet, other := start(t, "sleep", "1000"), start(t, "sleep", "1000")
	done := make(chan string, 2)
	cancel, err := e.Watch(quiet.Process.Pid, always, func() { done <- "quiet" })
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Watch(other.Process.Pid, always, func() { done <- "other" }); err != nil {
		t.Fatal(err)
	}
	cancel()
	cancel() // twice is allowed
	_ = quiet.Process.Kill()
	_ = quiet.Wait()
	_ = other.Process.Kill()
	if got := <-done; got != "other" {
		t.Fatalf("got the exit of %q", got)
	}
}

func TestGoneOrReusedPidIsAnError(t *testing.T) {
	e, err := NewExits()
	if err != nil {
		t.Fatal(err)
	}
	c := start(t, "sleep", "1000")
	if _, err := e.Watch(c.Process.Pid, func() bool { return false }, func() { t.Error("called") }); !errors.Is(err,
		unix.ESRCH) {
		t.Errorf("another process under the same pid: got %v, want ESRCH", err)
	}
	_ = c.Process.Kill()
	_ = c.Wait()
	if _, err := e.Watch(c.Process.Pid, always, func() { t.Error("called") }); !errors.Is(err, unix.ESRCH) {
		t.Errorf("a process that is gone: got %v, want ESRCH", err)
	}
}

// A zombie does not count as running, nor does a process whose cgroup has another name.
func TestLives(t *testing.T) {
	e, err := NewExits()
	if err != nil {
		t.Fatal(err)
	}
	group, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	name, _, _ := strings.Cut(string(group), "\n")
	c := start(t, "sleep", "1000")
	if !e.Lives(c.Process.Pid, name) || e.Lives(c.Process.Pid, "no such group") {
		t.Errorf("in group %q: %t, in another one: %t", name, e.Lives(c.Process.Pid, name), e.Lives(c.Process.Pid,
			"no such group"))
	}
	gone := make(chan struct{})
	if _, err := e.Watch(c.Process.Pid, always, func() { close(gone) }); err != nil {
		t.Fatal(err)
	}
	_ = c.Process.Kill()
	<-gone
	if e.Lives(c.Process.Pid, name) {
		t.Error("it lives before its parent has waited for it")
	}
	_ = c.Wait()
	if e.Lives(c.Process.Pid, name) {
		t.Error("it lives after its end")
	}
}
