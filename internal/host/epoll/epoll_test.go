package epoll

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestWaitTellsWhatRang(t *testing.T) {
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
	if rang, err := c.Wait(0); err != nil || len(rang) != 0 {
		t.Fatalf("nothing has happened: %v, %v", rang, err)
	}
	// several notifications may be returned as one, and each new one is returned although the counter is not read
	for range 3 {
		_, _ = unix.Write(fd, one)
		_, _ = unix.Write(fd, one)
		if rang, err := c.Wait(Forever); err != nil || len(rang) != 1 || rang[0] != "other" {
			t.Fatalf("rang %v, %v", rang, err)
		}
		// A negative timeout does not mean forever: a check that took longer than the time until the next one is
		// followed by that one at once.
		if rang, err := c.Wait(-time.Hour); err != nil || len(rang) != 0 {
			t.Fatalf("told twice: %v, %v", rang, err)
		}
	}
	go c.Ring()
	if rang, err := c.Wait(time.Minute); err != nil || len(rang) != 1 || rang[0] != "ring" {
		t.Fatalf("rang %v, %v", rang, err)
	}
	if n := testing.AllocsPerRun(100, func() { c.Ring(); _, _ = c.Wait(Forever) }); n != 0 {
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
