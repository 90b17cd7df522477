package probe

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// answerWith is a server that reads a request's header and sends text; then it closes the connection, or, with hold,
// waits for the other side.
func answerWith(t *testing.T, text string, hold bool) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				for seen := ""; !strings.HasSuffix(seen, "\r\n\r\n"); {
					buffer := make([]byte, 4096)
					n, err := conn.Read(buffer)
					if err != nil {
						return
					}
					seen += string(buffer[:n])
				}
				_, _ = io.WriteString(conn, text)
				if hold {
					_, _ = io.Copy(io.Discard, conn)
				}
			}()
		}
	}()
	return "http://" + listener.Addr().String() + "/path?q=1"
}

// said is what a client learns: the status, the header, the body and the error.
func said(ctx context.Context, by http.RoundTripper, url string) string {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err.Error()
	}
	response, err := (&http.Client{Transport: by}).Do(request)
	if err != nil {
		return err.Error()
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	return fmt.Sprint(response.Status, response.Header, response.ContentLength, len(body),
		string(body[:min(len(body), 100)]), err)
}

// TestDirect: whatever a server sends, direct says of it what http.Transport says.
func TestDirect(t *testing.T) {
	const ok = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
	for name, answer := range map[string]string{
		"plain":               ok,
		"until the end":       "HTTP/1.1 200 OK\r\n\r\nhello",
		"1.0":                 "HTTP/1.0 200 OK\r\nA: b\r\n\r\nhello",
		"chunked":             "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
		"no body":             "HTTP/1.1 204 No Content\r\n\r\n",
		"an error":            "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 3\r\n\r\nno\n",
		"continue":            "HTTP/1.1 100 Continue\r\n\r\n" + ok,
		"early hints":         "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + ok,
		"nothing":             "",
		"garbage":             "SSH-2.0-OpenSSH_9.2\r\n",
		"a TLS alert":         "\x15\x03\x01\x00\x02\x02\x0a",
		"half a status":       "HTTP/1.1 20",
		"half a header":       "HTTP/1.1 200 OK\r\nContent-Le",
		"a bad header":        "HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
		"a bad status":        "HTTP/1.1 abc OK\r\n\r\n",
		"a bad length":        "HTTP/1.1 200 OK\r\nContent-Length: -7\r\n\r\n",
		"half a body":         "HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello",
		"a bad chunk":         "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nhello",
		"long headers":        "HTTP/1.1 200 OK\r\nA: " + strings.Repeat("x", headersMax-100) + "\r\n\r\n",
		"too long headers":    "HTTP/1.1 200 OK\r\nA: " + strings.Repeat("x", headersMax) + "\r\n\r\n",
		"a long body":         "HTTP/1.1 200 OK\r\n\r\n" + strings.Repeat("x", 2*headersMax),
		"a redirect to where": "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
		"a bad redirect":      "HTTP/1.1 302 Found\r\nLocation: ://\r\nContent-Length: 0\r\n\r\n",
	} {
		url := answerWith(t, answer, false)
		got := said(t.Context(), direct{}, url)
		if want := said(t.Context(), transport, url); got != want {
			t.Errorf("%s: %.300q, http.Transport: %.300q", name, got, want)
		}
	}
	if got, want := said(t.Context(), direct{}, "http://127.0.0.1:1/"), said(t.Context(), transport,
		"http://127.0.0.1:1/"); got != want {
		t.Errorf("refused: %q, want %q", got, want)
	}
}

// TestDirectOddRequests: what http.Transport refuses to send, or translates, is not sent otherwise by direct.
func TestDirectOddRequests(t *testing.T) {
	url := answerWith(t, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", false)
	for name, change := range map[string]func(*http.Request){
		"a line feed in a value":  func(r *http.Request) { r.Header.Set("A", "b\nC: d") },
		"a NUL in a value":        func(r *http.Request) { r.Header.Set("A", "\x00") },
		"a space in a name":       func(r *http.Request) { r.Header["A b"] = []string{"c"} },
		"no name":                 func(r *http.Request) { r.Header[""] = []string{"c"} },
		"an umlaut in a value":    func(r *http.Request) { r.Header.Set("A", "\u00fc") },
		"a bad Host":              func(r *http.Request) { r.Host = "a b\r\nC: d" },
		"no host":                 func(r *http.Request) { r.URL.Host = "" },
		"a host of other letters": func(r *http.Request) { r.URL.Host = "b\u00fccher.invalid:80" },
	} {
		var said [2]string
		for i, by := range []http.RoundTripper{direct{}, transport} {
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
			if err != nil {
				t.Fatal(err)
			}
			change(request)
			response, err := by.RoundTrip(request)
			said[i] = fmt.Sprint(err)
			if err == nil {
				said[i] = response.Status
				response.Body.Close()
			}
		}
		if said[0] != said[1] {
			t.Errorf("%s: %q, http.Transport: %q", name, said[0], said[1])
		}
	}
}

// TestDirectEnds: the end of a request's context ends it, wherever it is, with the context's error.
func TestDirectEnds(t *testing.T) {
	for name, answer := range map[string]string{
		"before the answer": "",
		"in the header":     "HTTP/1.1 200 OK\r\n",
		"in the body":       "HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello",
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if got := said(ctx, direct{}, answerWith(t, answer, true)); !strings.HasSuffix(got, "context deadline exceeded") {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// BenchmarkHTTP is one probe by HTTP, its server's share included.
func BenchmarkHTTP(b *testing.B) {
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer server.Close()
	for _, by := range []http.RoundTripper{direct{}, transport} {
		b.Run(fmt.Sprintf("%T", by), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if got := said(b.Context(), by, server.URL); !strings.HasPrefix(got, "200") {
					b.Fatal(got)
				}
			}
		})
	}
}
