package serving

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/time/rate"
)

// pipes is a listener for which the test holds the clients' ends.
type pipes struct {
	net.Listener
	conns chan net.Conn
}

func (p pipes) Accept() (net.Conn, error) { return <-p.conns, nil }

// join connects a client and returns both ends.
func join(t *testing.T, c *Crowd, p pipes) (m *member, client net.Conn) {
	t.Helper()
	client, server := net.Pipe()
	p.conns <- server
	conn, err := c.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return conn.(*member), client
}

func isOpen(m *member) bool {
	m.crowd.mu.Lock()
	defer m.crowd.mu.Unlock()
	return !m.closed
}

func TestCrowd(t *testing.T) {
	p := pipes{conns: make(chan net.Conn, 2)}
	refused := 0
	c := NewCrowd(p, 3, func() { refused++ })
	busy, _ := join(t, c, p)
	c.move(busy, nil)
	idle, _ := join(t, c, p)
	c.move(idle, nil)
	c.state(idle, http.StateIdle)
	first, firstClient := join(t, c, p)
	c.state(first, http.StateActive) // half a request
	second, _ := join(t, c, p)
	if isOpen(first) || !isOpen(second) || !isOpen(idle) || !isOpen(busy) {
		t.Error("the newcomer did not take the place of the stranger that came first")
	}
	if _, err := firstClient.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("who lost its place reads %v", err)
	}
	c.state(first, http.StateActive)
	c.move(first, nil) // its request was admitted too late
	c.move(second, nil)
	third, _ := join(t, c, p)
	if isOpen(idle) || !isOpen(third) {
		t.Error("with no stranger, the newcomer did not take the place of the idle one")
	}
	c.move(third, nil)
	late, lateClient := net.Pipe()
	p.conns <- late
	end := make(chan struct{})
	go func() {
		defer close(end)
		conn, _ := c.Accept() // it returns once there is a place
		conn.Close()
	}()
	if _, err := lateClient.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("while all are busy, a newcomer reads %v", err)
	}
	third.Close()
	third.Close()
	_, next := net.Pipe()
	p.conns <- next
	<-end
	if refused != 1 {
		t.Errorf("%d were refused, want 1", refused)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open != 2 || c.strangers.Len() != 0 || c.idle.Len() != 0 {
		t.Errorf("%d are open, %d of them strangers and %d idle, want the two that are busy", c.open, c.strangers.Len(),
			c.idle.Len())
	}
}

// TestServerTimes: no client can occupy a connection for ever by sending only a part of a request.
func TestServerTimes(t *testing.T) {
	s := newServer(http.NotFoundHandler(), nil)
	if s.ReadHeaderTimeout <= 0 || s.ReadTimeout <= 0 || s.WriteTimeout <= 0 || s.IdleTimeout <= 0 {
		t.Errorf("some time has no bound: %+v", s)
	}
}

// TestRefusals: a flood of refusals with long paths makes a bounded log, which contains the number of refusals that
// were left out.
func TestRefusals(t *testing.T) {
	var out bytes.Buffer
	l := Refusals{logging: slog.New(slog.NewTextHandler(&out, nil))}
	long := strings.Repeat("x", 1<<20)
	r := httptest.NewRequest(http.MethodGet, "/"+long, nil)
	for range 1000 {
		l.Log(r, http.StatusUnauthorized, long, errors.New(long))
	}
	if lines := strings.Count(out.String(), "\n"); lines < refusalsAtOnce || out.Len() > lines*(3*textMax+400) {
		t.Errorf("%d lines of %d bytes together", lines, out.Len())
	}
	l.limit.Load().SetLimit(rate.Inf)
	l.Log(r, http.StatusUnauthorized, "", errors.New("no"))
	said, unsaid := 0, 0
	for line := range strings.Lines(out.String()) {
		_, count, _ := strings.Cut(strings.TrimSpace(line), "unsaid=")
		n, err := strconv.Atoi(count)
		if err != nil {
			t.Fatal(err)
		}
		said, unsaid = said+1, unsaid+n
	}
	if said+unsaid != 1001 || said > 500 {
		t.Errorf("%d refusals are in the log and %d said to be missing, of 1001", said, unsaid)
	}
}
