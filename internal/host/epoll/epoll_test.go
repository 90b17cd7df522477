package epoll

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestWaitReturnsNotifications(t *testing.T) {
	c, err := New()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Add(Source{Name: "other", FD: fd}); err != nil {
		t.Fatal(err)
	}
	if notified, err := c.Wait(0); err != nil || len(notified) != 0 {
		t.Fatalf("nothing has happened: %v, %v", notified, err)
	}
	// several notifications may be returned as one, and each new one is returned although the counter is not read
	for range 3 {
		_, _ = unix.Write(fd, one)
		_, _ = unix.Write(fd, one)
		if notified, err := c.Wait(Forever); err != nil || len(notified) != 1 || notified[0] != "other" {
			t.Fatalf("notified %v, %v", notified, err)
		}
		// A negative timeout does not mean forever: if a check took longer than the time until the next one, the next one
		// follows at once.
		if notified, err := c.Wait(-time.Hour); err != nil || len(notified) != 0 {
			t.Fatalf("returned twice: %v, %v", notified, err)
		}
	}
	go c.Wake()
	if notified, err := c.Wait(time.Minute); err != nil || len(notified) != 1 || notified[0] != "wake" {
		t.Fatalf("notified %v, %v", notified, err)
	}
	if n := testing.AllocsPerRun(100, func() { c.Wake(); _, _ = c.Wait(Forever) }); n != 0 {
		t.Errorf("a wait allocates %v times", n)
	}
}

func TestAddClosesWhatItRefuses(t *testing.T) {
	c, err := New()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Add(Source{Name: "nothing", FD: -1}); err == nil {
		t.Error("a source without descriptor was taken")
	}
}
