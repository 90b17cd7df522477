package lab

import (
	"net"
	"slices"
	"testing"
	"time"
)

// cable is the guest's end of a port.
type cable struct {
	*port
	net.Conn
}

func plugIn(t *testing.T, n *Network) cable {
	t.Helper()
	p, err := n.plug()
	if err != nil {
		t.Fatal(err)
	}
	p.on.Store(true)
	conn, err := net.FileConn(p.there)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(); p.there.Close() })
	return cable{p, conn}
}

func (c cable) sends(t *testing.T, frame []byte) {
	t.Helper()
	if _, err := c.Conn.Write(frame); err != nil {
		t.Fatal(err)
	}
}

// gets checks that the next frame that arrives is this one.
func (c cable) gets(t *testing.T, want []byte) {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, frameMax)
	n, err := c.Conn.Read(got)
	if err != nil || !slices.Equal(got[:n], want) {
		t.Fatalf("got %x, %v; want %x", got[:n], err, want)
	}
}

// TestNetwork: a frame goes to its receiver if the network knows it, else to everyone but the sender; nothing waits for
// a guest that is switched off or gone.
func TestNetwork(t *testing.T) {
	frame := func(to, from byte, text string) []byte {
		return append([]byte{2, 0, 0, 0, 0, to, 2, 0, 0, 0, 0, from}, text...)
	}
	var n Network
	a, c := plugIn(t, &n), plugIn(t, &n)
	b := plugIn(t, &n) // the last, so that what it has got is decided for c, too
	a.sends(t, []byte("short"))
	hello := frame(0xff, 'a', "hello")
	a.sends(t, hello)
	b.gets(t, hello)
	c.gets(t, hello)
	answer := frame('a', 'b', "answer")
	b.sends(t, answer)
	a.gets(t, answer)
	later := frame('b', 'a', "only to b")
	a.sends(t, later)
	b.gets(t, later)
	all := frame(0xff, 'b', "to all")
	b.sends(t, all)
	a.gets(t, all)
	c.gets(t, all) // and neither answer nor later, which were not for it

	c.on.Store(false)
	a.sends(t, frame(0xff, 'a', "while c is off"))
	b.gets(t, frame(0xff, 'a', "while c is off"))
	c.on.Store(true)
	a.sends(t, hello)
	b.gets(t, hello)
	c.gets(t, hello)

	if err := b.unplug(); err != nil {
		t.Fatal(err)
	}
	a.sends(t, frame('b', 'a', "to nobody that is known"))
	c.gets(t, frame('b', 'a', "to nobody that is known"))
}

// TestNetworkDoesNotWait: a guest that reads nothing does not stop the others.
func TestNetworkDoesNotWait(t *testing.T) {
	var n Network
	a, b := plugIn(t, &n), plugIn(t, &n)
	deaf := plugIn(t, &n)
	frame := []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 'a'}
	for range 4 * frameQueue {
		a.sends(t, frame)
		b.gets(t, frame)
	}
	if err := deaf.unplug(); err != nil {
		t.Error(err)
	}
}
