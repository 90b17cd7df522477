package probe

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
)

// direct sends each http request over a connection of its own, from the goroutine that asks, and closes the connection
// with the answer's body. http.Transport starts three goroutines for a connection, and has buffers, a pool and timers
// for connections that are used again; a probe's never is. Requests with another scheme, and those that http.Transport
// checks or translates before it sends them (see ordinary), go to http.Transport.
//
// Errors have the texts of http.Transport, which users of the kubelet know; TestDirect compares them.
type direct struct{}

// readers and writers are used for one exchange after the other.
var (
	readers = sync.Pool{New: func() any { return bufio.NewReader(nil) }}
	writers = sync.Pool{New: func() any { return bufio.NewWriter(nil) }}
)

// RoundTrip implements http.RoundTripper for requests without a body.
func (direct) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != "http" || r.Body != nil || !ordinary(r) {
		return transport.RoundTrip(r)
	}
	ctx := r.Context()
	conn, err := dial(ctx, r.URL)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil:
		return nil, err
	}
	a := &answering{conn: conn, ctx: ctx, left: headersMax}
	a.stop = context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	response, err := a.exchange(r)
	if err != nil {
		a.close()
		return nil, a.cause(err)
	}
	a.left = -1
	response.Body = &body{ReadCloser: response.Body, of: a}
	return response, nil
}

// dial connects to the host of u.
func dial(ctx context.Context, u *url.URL) (net.Conn, error) {
	address := u.Host
	if u.Port() == "" { // a redirect may leave it out
		address = net.JoinHostPort(u.Hostname(), "80")
	}
	if to, err := netip.ParseAddrPort(address); err == nil { // nothing to resolve, and only one address to try
		conn, err := dialer().DialTCP(ctx, "tcp", netip.AddrPort{}, to)
		if err != nil {
			if op, ok := err.(*net.OpError); ok { //nolint:errorlint // net.Dialer's own
				op.Source = nil // ":0", which DialContext does not show
			}
			return nil, err // not conn, which would be an interface that is not nil
		}
		return conn, nil
	}
	return dialer().DialContext(ctx, "tcp", address)
}

// ordinary reports whether the host and the header have ASCII characters only, none of them a control character.
// http.Transport refuses headers with others, and translates such names of hosts (IDNA).
func ordinary(r *http.Request) bool {
	if r.URL.Host == "" || !printable(r.URL.Host) || !printable(r.Host) {
		return false
	}
	for name, values := range r.Header {
		if name == "" || strings.ContainsFunc(name, unlikelyInName) || slices.ContainsFunc(values, unprintable) {
			return false
		}
	}
	return true
}

func unlikelyInName(c rune) bool {
	return c != '-' && (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z')
}

func printable(text string) bool {
	return !strings.ContainsFunc(text, func(c rune) bool { return c < ' ' || c > '~' })
}

func unprintable(text string) bool { return !printable(text) }

// answering is a connection on which one request is answered.
type answering struct {
	conn   net.Conn
	ctx    context.Context
	stop   func() bool // ends the watch of ctx
	reader *bufio.Reader
	left   int64 // bytes that the header may still have; -1: it has been read
	closed bool
}

// errHeaders is http.Transport's.
var errHeaders = fmt.Errorf("net/http: server response headers exceeded %d bytes; aborted", headersMax)

func (a *answering) Read(to []byte) (int, error) {
	if a.left == 0 {
		return 0, errHeaders
	}
	if a.left > 0 && int64(len(to)) > a.left {
		to = to[:a.left]
	}
	n, err := a.conn.Read(to)
	if a.left > 0 {
		a.left -= int64(n)
	}
	return n, err
}

// exchange writes the request and reads the answer's header.
func (a *answering) exchange(r *http.Request) (*http.Response, error) {
	if err := a.send(r); err != nil {
		return nil, fmt.Errorf("net/http: HTTP/1.x transport connection broken: %w", err)
	}
	a.reader = readers.Get().(*bufio.Reader)
	a.reader.Reset(a)
	if _, err := a.reader.Peek(1); err != nil {
		return nil, err
	}
	for {
		response, err := http.ReadResponse(a.reader, r)
		if err != nil {
			return nil, fmt.Errorf("net/http: HTTP/1.x transport connection broken: %w", err)
		}
		if response.StatusCode >= 200 || response.StatusCode == http.StatusSwitchingProtocols {
			return response, nil
		}
	}
}

func (a *answering) send(r *http.Request) error {
	out := *r // the caller's request stays as it is
	out.Close = true
	w := writers.Get().(*bufio.Writer)
	w.Reset(a.conn)
	defer func() {
		w.Reset(nil)
		writers.Put(w)
	}()
	if err := out.Write(w); err != nil {
		return err
	}
	return w.Flush()
}

// cause returns why an exchange ended with err: the end of the request's time ends it with an error of the connection.
func (a *answering) cause(err error) error {
	if why := a.ctx.Err(); why != nil {
		return why
	}
	return err
}

func (a *answering) close() {
	if a.closed {
		return
	}
	a.closed = true
	a.stop()
	_ = a.conn.Close()
	if a.reader != nil {
		a.reader.Reset(nil)
		readers.Put(a.reader)
		a.reader = nil
	}
}

// body is the body of an answer.
type body struct {
	io.ReadCloser
	of *answering
}

func (b *body) Read(to []byte) (int, error) {
	if b.of.closed {
		return 0, http.ErrBodyReadAfterClose
	}
	n, err := b.ReadCloser.Read(to)
	if err != nil && err != io.EOF { //nolint:errorlint // io.Reader's contract
		err = b.of.cause(err)
	}
	return n, err
}

// Close does not read what is left of the body: the connection ends with it.
func (b *body) Close() error {
	b.of.close()
	return nil
}
