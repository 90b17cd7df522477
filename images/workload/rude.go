package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Fast answers are sent in blocks, slow ones a byte at a time.
const (
	rudeBlock  = 16 << 10
	rudePeriod = 100 * time.Millisecond
)

// rude answers HTTP requests as no server should, according to the request's path, so that the client itself must give
// up.
//
//	/hang      nothing, for ever
//	/drip      a header, then a byte of the body every tenth of a second
//	/endless   a body without end, as fast as it is read
//	/headers   headers without end, as fast as they are read
//	/slow      a header every tenth of a second
//	/early     interim answers (103) without end
//	/loop      a redirect to itself
//	/away?to=  a redirect to another address
//	/garbage   bytes that are not HTTP
//	/reset     the connection is reset
//
// The answers to /loop and /away end by themselves; the others end when the client disconnects.
func rude(ctx context.Context, p process, flags *flag.FlagSet, args []string) error {
	port := flags.Int("port", 8080, "TCP port")
	if err := noArgs(flags, args); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", ":"+strconv.Itoa(*port))
	if err != nil {
		return err
	}
	defer listener.Close()
	defer context.AfterFunc(ctx, func() { listener.Close() })()
	p.printf("answering rudely on %s\n", listener.Addr())
	for {
		conn, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		go func() {
			defer conn.Close()
			request, err := http.ReadRequest(bufio.NewReader(conn))
			if err != nil {
				return // not HTTP: TLS, or a client that only connects
			}
			answerRudely(ctx, conn, request)
		}()
	}
}

const rudeHead = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"

// answerRudely sends what the path selects, until the client disconnects.
func answerRudely(ctx context.Context, conn net.Conn, request *http.Request) {
	send := func(text string) bool {
		_, err := conn.Write([]byte(text))
		return err == nil && ctx.Err() == nil
	}
	slowly := func(text string) {
		for send(text) && pause(ctx, rudePeriod) {
		}
	}
	fast := func(text string) {
		for send(text) {
		}
	}
	switch request.URL.Path {
	case "/hang":
		<-ctx.Done()
	case "/drip":
		if send(rudeHead + "\r\n") {
			slowly("x")
		}
	case "/endless":
		if send(rudeHead + "\r\n") {
			fast(strings.Repeat("x", rudeBlock))
		}
	case "/headers":
		if send(rudeHead) {
			fast("X-" + strings.Repeat("x", 62) + ": " + strings.Repeat("y", rudeBlock) + "\r\n")
		}
	case "/slow":
		if send(rudeHead) {
			slowly("X-More: y\r\n")
		}
	case "/early":
		fast("HTTP/1.1 103 Early Hints\r\nLink: " + strings.Repeat("l", 1000) + "\r\n\r\n")
	case "/loop":
		send("HTTP/1.1 302 Found\r\nLocation: /loop\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
	case "/away":
		send(fmt.Sprintf("HTTP/1.1 302 Found\r\nLocation: %s\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
			request.URL.Query().Get("to")))
	case "/garbage":
		fast(strings.Repeat("\x00\xff\r\n", rudeBlock/4))
	case "/reset":
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // without this, closing sends a FIN and not a RST
		}
	}
}

// dial opens connections and keeps them open without sending anything.
func dial(ctx context.Context, p process, flags *flag.FlagSet, args []string) error {
	count := flags.Int("count", 1, "connections to keep open")
	rest, err := parse(flags, args)
	if err != nil {
		return err
	}
	if len(rest) != 1 {
		return usagef("want one HOST:PORT, got %d arguments", len(rest))
	}
	var dialer net.Dialer
	open := 0
	for range *count {
		conn, err := dialer.DialContext(ctx, "tcp", rest[0])
		if err != nil {
			p.printf("%v\n", err)
			break
		}
		defer conn.Close()
		open++
	}
	p.printf("%d connections are open\n", open)
	<-ctx.Done()
	return nil
}
