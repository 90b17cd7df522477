package serving

import (
	"container/list"
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"sync"
)

// Crowd is a listener that bounds how many connections a server has open, so that no client, authenticated or not, uses
// up the file descriptors that the process needs for its own work. A connection is in one of three states:
//
//	stranger    no request of it was admitted so far
//	idle        admitted before, between requests
//	busy        a request of it was admitted and is being answered, or its stream is open
//
// When the listener is full, a new connection replaces the oldest stranger, or else the connection that has been idle
// longest; while all are busy, the new one is closed at once. So strangers replace each other, and hardly ever an
// admitted client. A client keeps its place if it is admitted before new strangers fill all places.
type Crowd struct {
	net.Listener
	max     int
	refused func() // called for each new connection that is closed because all others are busy

	mu        sync.Mutex // guards what follows, and the members' fields
	open      int        // connections that have a place
	strangers list.List  // of *member, oldest first
	idle      list.List  // of *member, longest idle first
}

// NewCrowd returns a listener on l with at most max open connections. refused, if not nil, is called for each
// connection that finds no place.
func NewCrowd(l net.Listener, max int, refused func()) *Crowd {
	if refused == nil {
		refused = func() {}
	}
	return &Crowd{Listener: l, max: max, refused: refused}
}

// Attach makes server report the states of its connections to c. It is called before the server serves c.
func (c *Crowd) Attach(server *http.Server) {
	server.ConnState = c.state
	server.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		return context.WithValue(ctx, memberKey{}, memberOf(conn))
	}
}

type memberKey struct{}

// Admitted records that a request with this context may be answered: its connection is no longer a stranger.
func Admitted(ctx context.Context) {
	if m, ok := ctx.Value(memberKey{}).(*member); ok && m != nil {
		m.crowd.move(m, nil)
	}
}

// member is an open connection of a Crowd.
type member struct {
	net.Conn
	crowd *Crowd

	// crowd.mu guards these.
	in     *list.List // the list that contains it; nil: busy or closed
	place  *list.Element
	known  bool // a request was admitted once
	closed bool
}

// Accept waits for a connection that finds a place.
func (c *Crowd) Accept() (net.Conn, error) {
	for {
		conn, err := c.Listener.Accept()
		if err != nil {
			return nil, err
		}
		m := &member{Conn: conn, crowd: c}
		leaves, ok := c.enter(m)
		if leaves != nil {
			_ = leaves.Close() // its server notices when it reads
		}
		if ok {
			return m, nil
		}
		_ = conn.Close()
		c.refused()
	}
}

// enter gives m a place. If that was the place of another connection, it returns that one, which must be closed.
func (c *Crowd) enter(m *member) (leaves *member, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open >= c.max {
		first := c.strangers.Front()
		if first == nil {
			first = c.idle.Front()
		}
		if first == nil {
			return nil, false
		}
		leaves = first.Value.(*member)
		c.leave(leaves)
	}
	c.open++
	m.in, m.place = &c.strangers, c.strangers.PushBack(m)
	return leaves, true
}

// leave frees m's place, once.
func (c *Crowd) leave(m *member) {
	if m.closed {
		return
	}
	m.closed = true
	c.open--
	c.unlist(m)
}

func (c *Crowd) unlist(m *member) {
	if m.in != nil {
		m.in.Remove(m.place)
		m.in, m.place = nil, nil
	}
}

// move puts m, which is no stranger from now on, into a list: that of the idle ones, or none for a busy one.
func (c *Crowd) move(m *member, to *list.List) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m.closed {
		return
	}
	c.unlist(m)
	m.known = true
	if to != nil {
		m.in, m.place = to, to.PushBack(m)
	}
}

func (m *member) isKnown() bool {
	m.crowd.mu.Lock()
	defer m.crowd.mu.Unlock()
	return m.known
}

// Close closes the connection and frees its place.
func (m *member) Close() error {
	m.crowd.mu.Lock()
	m.crowd.leave(m)
	m.crowd.mu.Unlock()
	return m.Conn.Close()
}

// state follows the state of the server's connections. A stranger stays one whatever it sends.
func (c *Crowd) state(conn net.Conn, state http.ConnState) {
	m := memberOf(conn)
	if m == nil || !m.isKnown() {
		return
	}
	switch state {
	case http.StateIdle:
		c.move(m, &c.idle)
	case http.StateActive:
		c.move(m, nil)
	}
}

func memberOf(conn net.Conn) *member {
	if t, ok := conn.(*tls.Conn); ok {
		conn = t.NetConn()
	}
	m, _ := conn.(*member)
	return m
}
