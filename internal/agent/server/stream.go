package server

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/kube/serving"
)

const (
	// runtimeTime bounds the call that prepares a stream and the handshake with the runtime's streaming server.
	// containerd drops a prepared stream after 60 s.
	runtimeTime = 30 * time.Second
	// runTime bounds a command of /run; the answer must be sent before answerTime.
	runTime = 50 * time.Second
	// refusalBytesMax is how much of an error of the streaming server is passed on.
	refusalBytesMax = 64 << 10
)

// target is the container or pod of a stream.
type target struct {
	namespace, pod, container string
	uid                       types.UID
}

func targetOf(r *http.Request) target {
	return target{namespace: r.PathValue("namespace"), pod: r.PathValue("pod"), container: r.PathValue("container"),
		uid: types.UID(r.PathValue("uid"))}
}

// find returns the pod of t.
func (s *Server) find(t target) (*corev1.Pod, error) {
	for _, p := range s.o.Pods.List() {
		if p.Name == t.pod && p.Namespace == t.namespace && (t.uid == "" || p.UID == t.uid) {
			return p, nil
		}
	}
	return nil, fmt.Errorf("pod %q in namespace %q does not exist on this node: %w", t.pod, t.namespace, ErrNotFound)
}

// runningContainer returns the container of t if a command can run in it.
func (s *Server) runningContainer(t target) (Container, error) {
	if _, err := s.find(t); err != nil {
		return Container{}, err
	}
	c, err := s.o.Pods.Container(t.namespace, t.pod, t.container, t.uid, false)
	if err != nil {
		return Container{}, err
	}
	if c.State != Running {
		return Container{}, fmt.Errorf("container %q in pod %q is not running: it is %s", t.container, t.pod, c.State)
	}
	return c, nil
}

// streamOptions are the query parameters of exec and attach.
type streamOptions struct{ stdin, stdout, stderr, tty bool }

func streamOptionsOf(r *http.Request) (streamOptions, error) {
	q := r.URL.Query()
	on := func(name string) bool { return q.Get(name) == "1" }
	o := streamOptions{stdin: on("input"), stdout: on("output"), stderr: on("error"), tty: on("tty")}
	if o.tty {
		o.stderr = false // a terminal has one output
	}
	if !o.stdin && !o.stdout && !o.stderr {
		return o, errors.New("you must specify at least 1 of stdin, stdout, stderr")
	}
	return o, nil
}

func (s *Server) exec(w http.ResponseWriter, r *http.Request) {
	s.serveProcess(w, r, func(ctx context.Context, c Container, o streamOptions) (string, error) {
		answer, err := s.o.Runtime.Exec(ctx, &runtimeapi.ExecRequest{
			ContainerId: c.ID, Cmd: r.URL.Query()["command"], Tty: o.tty, Stdin: o.stdin, Stdout: o.stdout, Stderr: o.stderr,
		})
		return answer.GetUrl(), err
	})
}

func (s *Server) attach(w http.ResponseWriter, r *http.Request) {
	s.serveProcess(w, r, func(ctx context.Context, c Container, o streamOptions) (string, error) {
		// The process got a terminal, or none, when it started; the client of attach does not determine that.
		answer, err := s.o.Runtime.Attach(ctx, &runtimeapi.AttachRequest{
			ContainerId: c.ID, Tty: c.Tty, Stdin: o.stdin, Stdout: o.stdout, Stderr: o.stderr && !c.Tty,
		})
		return answer.GetUrl(), err
	})
}

// serveProcess serves the streams of a process in the running container that r names; open requests them from the
// runtime.
func (s *Server) serveProcess(w http.ResponseWriter, r *http.Request,
	open func(context.Context, Container, streamOptions) (string, error)) {
	o, err := streamOptionsOf(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.serveStream(w, r, func(ctx context.Context) (string, error) {
		c, err := s.runningContainer(targetOf(r))
		if err != nil {
			return "", err
		}
		return open(ctx, c, o)
	})
}

func (s *Server) portForward(w http.ResponseWriter, r *http.Request) {
	var ports []int32
	if strings.EqualFold(r.Header.Get("Upgrade"), "websocket") { // SPDY names the port of each stream
		for _, text := range strings.Split(strings.Join(r.URL.Query()["port"], ","), ",") {
			port, err := strconv.ParseUint(text, 10, 16)
			if err != nil || port == 0 {
				http.Error(w, fmt.Sprintf("query parameter port: %q: want 1 to 65535", text), http.StatusBadRequest)
				return
			}
			ports = append(ports, int32(port))
		}
	}
	s.serveStream(w, r, func(ctx context.Context) (string, error) {
		t := targetOf(r)
		pod, err := s.find(t)
		if err != nil {
			return "", err
		}
		id, err := s.o.Pods.Sandbox(t.namespace, t.pod, pod.UID)
		if err != nil {
			return "", err
		}
		answer, err := s.o.Runtime.PortForward(ctx, &runtimeapi.PortForwardRequest{PodSandboxId: id, Port: ports})
		return answer.GetUrl(), err
	})
}

// run executes a command to its end and answers with its output. It is older than exec and splits the command at
// spaces.
func (s *Server) run(w http.ResponseWriter, r *http.Request) {
	c, err := s.runningContainer(targetOf(r))
	if err != nil {
		streamError(w, err)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), runTime)
	defer cancel()
	answer, err := s.o.Runtime.ExecSync(ctx, &runtimeapi.ExecSyncRequest{
		ContainerId: c.ID, Cmd: strings.Split(r.FormValue("cmd"), " "), Timeout: int64(runTime / time.Second),
	})
	if err != nil {
		streamError(w, err)
		return
	}
	if answer.ExitCode != 0 {
		w.WriteHeader(http.StatusInternalServerError)
		fmt.Fprintf(w, "command exited with %d: ", answer.ExitCode)
	}
	_, _ = w.Write(answer.Stdout) // a client that disconnected is no error of the agent
	_, _ = w.Write(answer.Stderr)
}

// serveStream connects the client to a stream that prepare made the runtime expect.
func (s *Server) serveStream(w http.ResponseWriter, r *http.Request, prepare func(context.Context) (string, error)) {
	if r.Header.Get("Upgrade") == "" || !strings.Contains(strings.ToLower(r.Header.Get("Connection")), "upgrade") {
		http.Error(w, "Upgrade request required", http.StatusBadRequest)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), runtimeTime)
	defer cancel()
	address, err := prepare(ctx)
	if err != nil {
		streamError(w, err)
		return
	}
	to, err := url.Parse(address)
	if err != nil || to.Host == "" || to.Scheme != "http" && to.Scheme != "https" {
		http.Error(w, fmt.Sprintf("the runtime names %q as the address of the stream: want http or https", address),
			http.StatusBadGateway)
		return
	}
	if err := passOn(ctx, w, r, to, s.o.Config.StreamingConnectionIdleTimeout.Duration); err != nil {
		slog.Info("stream ends", "path", serving.Brief(r.URL.Path), "err", err)
	}
}

// streamError answers with the kubelet's status for an error of the runtime.
func streamError(w http.ResponseWriter, err error) {
	code := http.StatusInternalServerError
	switch {
	case errors.Is(err, ErrNotFound) || status.Code(err) == codes.NotFound:
		code = http.StatusNotFound
	case status.Code(err) == codes.ResourceExhausted:
		code = http.StatusTooManyRequests
		w.Header().Set("Retry-After", "1")
	}
	http.Error(w, err.Error(), code)
}

// passOn sends r to the streaming server at to and answers with its answer. If that is to switch protocols, it copies
// bytes in both directions until one side ends or no byte has passed for idle. ctx bounds the handshake, r's context
// the stream.
func passOn(ctx context.Context, w http.ResponseWriter, r *http.Request, to *url.URL, idle time.Duration) error {
	back, err := dial(ctx, to)
	if err != nil {
		err = fmt.Errorf("connect to the runtime's streaming server: %w", err)
		http.Error(w, err.Error(), http.StatusBadGateway)
		return err
	}
	defer back.Close()
	if end, ok := ctx.Deadline(); ok {
		_ = back.SetDeadline(end) // fails only on a closed connection, which Write will notice
	}
	out := r.Clone(r.Context())
	out.URL = to
	out.Host = to.Host
	out.RequestURI = ""
	out.Body = nil
	out.ContentLength = 0
	out.Header.Del("Authorization") // the runtime uses the token in its URL; the client's credentials are not for it
	out.Header.Del("Cookie")
	in := bufio.NewReader(back)
	answer, err := roundTrip(out, back, in)
	if err != nil {
		err = fmt.Errorf("ask the runtime's streaming server %s: %w", to.Host, err)
		http.Error(w, err.Error(), http.StatusBadGateway)
		return err
	}
	if answer.StatusCode != http.StatusSwitchingProtocols {
		defer answer.Body.Close()
		w.Header().Set("Content-Type", answer.Header.Get("Content-Type"))
		w.WriteHeader(answer.StatusCode)
		_, err := io.Copy(w, io.LimitReader(answer.Body, refusalBytesMax))
		return err
	}
	front, buffered, err := hijack(w)
	if err != nil {
		http.Error(w, "streams need HTTP/1.1: "+err.Error(), http.StatusBadRequest)
		return err
	}
	defer front.Close()
	_ = back.SetDeadline(time.Time{})
	if err := sendHead(buffered.Writer, answer); err != nil {
		return err
	}
	return splice(r.Context(), front, buffered.Reader, back, in, idle)
}

func dial(ctx context.Context, to *url.URL) (net.Conn, error) {
	host, port := to.Hostname(), to.Port()
	if to.Scheme == "https" {
		if port == "" {
			port = "443"
		}
		return (&tls.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort(host, port))
	}
	if port == "" {
		port = "80"
	}
	return (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort(host, port))
}

func roundTrip(out *http.Request, w io.Writer, r *bufio.Reader) (*http.Response, error) {
	if err := out.Write(w); err != nil {
		return nil, err
	}
	return http.ReadResponse(r, out)
}

// sendHead passes on the answer that switches protocols.
func sendHead(w *bufio.Writer, answer *http.Response) error {
	fmt.Fprintf(w, "HTTP/1.1 %s\r\n", answer.Status)
	if err := answer.Header.Write(w); err != nil {
		return err
	}
	_, _ = w.WriteString("\r\n") // a bufio.Writer reports its first error at Flush
	return w.Flush()
}

// errIdle means that a stream was idle for too long.
var errIdle = errors.New("nothing passed for streamingConnectionIdleTimeout")

// splice copies between the two connections until either side ends, ctx ends, or no byte has passed in either direction
// for idle (zero: forever), which is errIdle. Neither supported protocol closes only one direction, so the end of one
// is the end of both; what the runtime has sent by then has been passed on. Every byte counts, also a ping's, as for
// the runtime's own timeout.
func splice(ctx context.Context, front net.Conn, fromFront io.Reader, back net.Conn, fromBack io.Reader,
	idle time.Duration) error {
	closeBoth := func() { front.Close(); back.Close() }
	stop := context.AfterFunc(ctx, closeBoth)
	defer stop()
	watch := newIdleWatch(idle, closeBoth)
	defer watch.stop()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(back, watch.seeing(fromFront)) // an error is the end of the stream, on either side
		closeBoth()
	}()
	_, _ = io.Copy(front, watch.seeing(fromBack))
	closeBoth()
	<-done
	if watch.fired() {
		return errIdle
	}
	return nil
}

// idleWatch calls expire when nothing has been read through it for a while.
type idleWatch struct {
	after  time.Duration
	expire func()

	mu      sync.Mutex
	last    time.Time // when something was read last
	timer   *time.Timer
	expired bool
}

func newIdleWatch(after time.Duration, expire func()) *idleWatch {
	w := &idleWatch{after: after, expire: expire, last: time.Now()}
	if after > 0 {
		w.mu.Lock() // judge waits until the timer is set
		defer w.mu.Unlock()
		w.timer = time.AfterFunc(after, w.check)
	}
	return w
}

// check expires, or sets the timer to the earliest time at which the stream can have been idle for long enough.
func (w *idleWatch) check() {
	if w.judge() {
		w.expire()
	}
}

func (w *idleWatch) judge() (expired bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.timer == nil {
		return false // stopped meanwhile
	}
	left := w.after - time.Since(w.last)
	if w.expired = left <= 0; !w.expired {
		w.timer.Reset(left)
	}
	return w.expired
}

func (w *idleWatch) saw() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last = time.Now()
}

func (w *idleWatch) fired() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.expired
}

func (w *idleWatch) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.timer != nil {
		w.timer.Stop()
		w.timer = nil
	}
}

// seeing returns r, watched.
func (w *idleWatch) seeing(r io.Reader) io.Reader { return watchedReader{r, w} }

type watchedReader struct {
	io.Reader
	watch *idleWatch
}

func (r watchedReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if n > 0 {
		r.watch.saw()
	}
	return n, err
}

// joined returns a context that ends with a or b.
func joined(a, b context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(a)
	stop := context.AfterFunc(b, cancel)
	return ctx, func() { stop(); cancel() }
}
