package lab

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/lab/wire"
)

// oneConn is a listener of one connection.
type oneConn chan net.Conn

func (l oneConn) Accept() (net.Conn, error) {
	if conn, ok := <-l; ok {
		return conn, nil
	}
	return nil, net.ErrClosed
}
func (l oneConn) Close() error { close(l); return nil }
func (oneConn) Addr() net.Addr { return &net.UnixAddr{} }

// A command gets its input, and its end is reported even if its input continues.
func TestCommandEndsBeforeItsInput(t *testing.T) {
	here, there := net.Pipe()
	listener := make(oneConn, 1)
	listener <- there
	server := &http.Server{Protocols: new(http.Protocols),
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			lines := bufio.NewReader(r.Body)
			if _, err := lines.ReadBytes('\n'); err != nil { // the command
				t.Error(err)
			}
			said, err := lines.ReadBytes('\n')
			if err == nil {
				err = wire.WriteFrame(w, wire.Stdout, said)
			}
			end, _ := json.Marshal(wire.Exit{})
			if err == nil {
				err = wire.WriteFrame(w, wire.Ended, end)
			}
			if err != nil {
				t.Error(err)
			}
		})}
	server.Protocols.SetUnencryptedHTTP2(true)
	go func() {
		_, _ = io.WriteString(there, `{"Ready":true}`+"\n")
		_ = server.Serve(listener)
	}()
	defer server.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, err := newChannel(ctx, here, nil)
	if err != nil {
		t.Fatal(err)
	}
	input, typed := io.Pipe()
	defer typed.Close()
	go func() { _, _ = io.WriteString(typed, "hello\n") }()
	for _, in := range []io.Reader{input, strings.NewReader("hello\n")} {
		var out strings.Builder
		if err := c.exec(ctx, Command{Args: []string{"head", "-1"}, Stdin: in, Stdout: &out}); err != nil ||
			out.String() != "hello\n" || ctx.Err() != nil {
			t.Errorf("it printed %q, %v, %v", out.String(), err, ctx.Err())
		}
	}
}
