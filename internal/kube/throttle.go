package kube

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/plimsoll-dev/plimsoll/internal/clock"
	"github.com/plimsoll-dev/plimsoll/internal/core/throttle"
)

// A Throttle limits how many writes of one component, through all its clients, are in flight to the API server.
// core/throttle decides from the server's answers how many writes may be in flight and which goes next. Reads are not
// throttled, nor are leases and reviews (see kindOf), which must not be late.
//
// A Throttle works below client-go, as an http.RoundTripper, so that every attempt is throttled, the retries of
// client-go included. It is safe for concurrent use.
type Throttle struct {
	o     ThrottleOptions
	clock *clock.Clock // gives the instants that limiter gets. o and clock are set once, by NewThrottle

	// mu guards what follows.
	mu      sync.Mutex
	limiter *throttle.Limiter // decides which write goes next
	// the writes that wait, by kind, oldest first; a write that gave up stays until its turn
	queues map[throttle.Kind][]*waitingWrite
	ended  writeCounts // how many writes have ended
	timer  *time.Timer // fires when advance has something to do without an answer; nil: it has not
}

// waitingWrite is one write that waits. Within a kind the oldest write goes first.
type waitingWrite struct {
	begin chan struct{} // closed when the write may begin
	phase writePhase    // guarded by Throttle.mu
}

// A writePhase says how far a write has come: it waits, it has begun, or its caller stopped waiting.
type writePhase int

const (
	writeWaits writePhase = iota
	writeBegan
	writeGaveUp
)

// ThrottleOptions configure a Throttle.
type ThrottleOptions struct {
	Component string // for the log
	throttle.Options
	// AnswerMax bounds the wait for the answer to one write; a write that got no answer by then has failed. Zero:
	// AnswerMaxDefault.
	AnswerMax time.Duration
	// Leads reports whether this process may act. It is called right before a write is sent, since the write may have
	// waited long, or the process may have been stopped. A write is not sent and fails with ErrNotLeading when Leads
	// returns false. It is not called for Events and reads. Nil: every write may be sent.
	Leads func() bool
}

// ErrNotLeading is the error of a write that was not sent because this process does not lead; see
// ThrottleOptions.Leads.
var ErrNotLeading = errors.New("another process leads, or may lead")

// AnswerMaxDefault is below the shortest sensible node-monitor grace period, and at least as long as any Retry-After of
// the API server. Chosen.
const AnswerMaxDefault = 10 * time.Second

// NewThrottle returns a Throttle that has not learned anything about its server yet.
func NewThrottle(o ThrottleOptions) *Throttle {
	if o.AnswerMax == 0 {
		o.AnswerMax = AnswerMaxDefault
	}
	t := &Throttle{o: o, clock: clock.New(), queues: map[throttle.Kind][]*waitingWrite{}, ended: writeCounts{}}
	t.limiter = throttle.New(t.clock.Now(), o.Options)
	return t
}

// Throttled returns a client like c, with its own connections, whose writes t throttles.
func (c *Client) Throttled(t *Throttle) (*Client, error) {
	return c.Wrapped(func(next http.RoundTripper) http.RoundTripper { return &throttledTransport{t, next} })
}

// Wrapped returns a client like c, with its own connections, whose requests go through wrap's RoundTripper.
func (c *Client) Wrapped(wrap func(http.RoundTripper) http.RoundTripper) (*Client, error) {
	config := c.RESTConfig()
	config.Wrap(wrap)
	return NewClientForConfig(config)
}

// Clients returns clients like writes and events, which share t, and registers t's measurements until ctx ends.
func (t *Throttle) Clients(
	ctx context.Context, registry prometheus.Registerer, writes, events *Client,
) (throttledWrites, throttledEvents *Client, err error) {
	if err := t.Register(ctx, registry); err != nil {
		return nil, nil, err
	}
	if throttledWrites, err = writes.Throttled(t); err != nil {
		return nil, nil, err
	}
	throttledEvents, err = events.Throttled(t)
	return throttledWrites, throttledEvents, err
}

// As returns a context whose requests count as kind at a Throttle. That holds for reads too: use it for those that a
// write needs.
func As(ctx context.Context, kind throttle.Kind) context.Context {
	return context.WithValue(ctx, kindKey{}, kind)
}

type kindKey struct{}

// AsUntil returns a context whose requests count as first, and from the moment of change on as then, if they still
// wait.
func AsUntil(ctx context.Context, first throttle.Kind, change time.Time, then throttle.Kind) context.Context {
	return context.WithValue(As(ctx, first), changeKey{}, kindChange{change, then})
}

type changeKey struct{}

// Withdrawable returns a context whose requests end when withdrawn is closed, as long as they wait at a Throttle. A
// request that was sent before is not cancelled: a server may finish what its client has given up, and the caller needs
// to know when the request is over.
func Withdrawable(ctx context.Context, withdrawn <-chan struct{}) context.Context {
	return context.WithValue(ctx, withdrawnKey{}, withdrawn)
}

type withdrawnKey struct{}

// IsWithdrawn reports whether the withdrawn channel of ctx is closed; see Withdrawable.
func IsWithdrawn(ctx context.Context) bool {
	withdrawn, _ := ctx.Value(withdrawnKey{}).(<-chan struct{})
	select {
	case <-withdrawn: // a nil channel blocks: not withdrawable
		return true
	default:
		return false
	}
}

// kindChange says that a waiting request counts as another kind from a moment on.
type kindChange struct {
	at   time.Time
	then throttle.Kind
}

// Limit returns how many writes may be in flight now, and how many wait. It is for reports.
func (t *Throttle) Limit() (limit float64, waiting int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, k := range throttle.Kinds() {
		waiting += t.limiter.Waiting(k)
	}
	return t.limiter.Limit(), waiting
}

// begin waits until a write of this kind may begin, and returns the kind as which it counts by then. After an error,
// which is that of ctx, the write must not begin.
func (t *Throttle) begin(ctx context.Context, kind throttle.Kind) (throttle.Kind, error) {
	change, changes := ctx.Value(changeKey{}).(kindChange)
	wait := time.Until(change.at)
	if changes && wait <= 0 {
		return change.then, t.queue(ctx, change.then, nil)
	}
	if !changes {
		return kind, t.queue(ctx, kind, nil)
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	err := t.queue(ctx, kind, timer.C)
	if errors.Is(err, errOverdue) {
		return change.then, t.queue(ctx, change.then, nil)
	}
	return kind, err
}

// errOverdue ends the wait of a write whose kind changes.
var errOverdue = errors.New("overdue")

// queue is begin without a change of kind. It returns errOverdue when overdue fires before the write may begin.
func (t *Throttle) queue(ctx context.Context, kind throttle.Kind, overdue <-chan time.Time) (err error) {
	withdrawn, _ := ctx.Value(withdrawnKey{}).(<-chan struct{})
	w := &waitingWrite{begin: make(chan struct{})}
	t.mu.Lock()
	t.limiter.Want(t.clock.Now(), kind)
	t.queues[kind] = append(t.queues[kind], w)
	t.advance()
	t.mu.Unlock()
	select {
	case <-w.begin:
		return nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-withdrawn:
		err = context.Canceled
	case <-overdue:
		err = errOverdue
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if w.phase == writeBegan { // it was allowed to begin at the same moment
		if err == errOverdue {
			return nil
		}
		t.ended[writeCount{kind: kind, answer: throttle.Withdrawn}]++
		t.limiter.Done(t.clock.Now(), throttle.Outcome{Kind: kind, Answer: throttle.Withdrawn})
		t.advance()
		return err
	}
	w.phase = writeGaveUp
	t.limiter.Quit(kind)
	return err
}

// end ends a write for which begin succeeded.
func (t *Throttle) end(o throttle.Outcome) {
	t.mu.Lock()
	why := t.limiter.Done(t.clock.Now(), o)
	t.ended[writeCount{kind: o.Kind, answer: o.Answer}]++
	t.advance()
	t.mu.Unlock()
	if why != "" {
		slog.Info("API server answers slowly or refuses writes: fewer are sent at once", "component", t.o.Component,
			"why", why)
	}
}

// advance begins the writes that may begin now, and sets the timer for those that may begin later. t.mu is locked.
func (t *Throttle) advance() {
	now := t.clock.Now()
	for kind, ok := t.limiter.Next(now); ok; kind, ok = t.limiter.Next(now) {
		queue := t.queues[kind]
		for queue[0].phase == writeGaveUp {
			queue[0], queue = nil, queue[1:]
		}
		queue[0].phase = writeBegan
		close(queue[0].begin)
		queue[0], t.queues[kind] = nil, queue[1:]
	}
	wake := t.limiter.Wake(now)
	switch {
	case wake.IsZero():
		if t.timer != nil {
			t.timer.Stop()
		}
	case t.timer == nil:
		t.timer = time.AfterFunc(wake.Sub(now), t.onTimer)
	default:
		t.timer.Reset(wake.Sub(now))
	}
}

// onTimer is called by the timer.
func (t *Throttle) onTimer() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.advance()
}

// throttledTransport throttles the requests of one client.
type throttledTransport struct {
	throttle *Throttle
	next     http.RoundTripper
}

// RoundTrip is part of http.RoundTripper.
func (rt *throttledTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	resource, subresource := resourceOf(req.URL.Path)
	kind, throttled := kindOf(req, resource, subresource)
	if !throttled {
		return rt.next.RoundTrip(req)
	}
	kind, err := rt.throttle.begin(req.Context(), kind)
	if err != nil {
		if req.Body != nil {
			_ = req.Body.Close() // the contract of RoundTripper
		}
		return nil, err
	}
	ctx, cancel := context.WithTimeout(req.Context(), rt.throttle.o.AnswerMax)
	began := time.Now()
	resp, err := rt.send(req.WithContext(ctx), kind)
	o := throttle.Outcome{Kind: kind, Class: classOf(req.Method, resource, subresource), Took: time.Since(began)}
	if err != nil && (req.Context().Err() != nil || errors.Is(err, ErrNotLeading)) {
		o.Answer = throttle.Withdrawn // not sent, or given up by the caller: it says nothing about the server
	} else {
		o.Answer, o.RetryAfter = answerOf(resp, err, subresource)
	}
	rt.throttle.end(o)
	if err != nil {
		cancel()
		return nil, err
	}
	resp.Body = &cancelOnClose{resp.Body, cancel}
	return resp, nil
}

// send sends the request, unless it is a write that ThrottleOptions.Leads forbids.
func (rt *throttledTransport) send(req *http.Request, kind throttle.Kind) (*http.Response, error) {
	asks := kind == throttle.Event || kind == throttle.Warning || req.Method == http.MethodGet
	if leads := rt.throttle.o.Leads; leads == nil || asks || leads() {
		return rt.next.RoundTrip(req)
	}
	if req.Body != nil {
		_ = req.Body.Close() // the contract of RoundTripper
	}
	return nil, ErrNotLeading
}

// cancelOnClose is the body of an answer. It cancels the request's context, which ends after AnswerMax, when it is
// closed: the body must arrive within AnswerMax too.
type cancelOnClose struct {
	io.ReadCloser
	cancel context.CancelFunc
}

func (b *cancelOnClose) Close() error {
	defer b.cancel()
	return b.ReadCloser.Close()
}

// classOf groups requests by what they ask of the server: its latencies are compared within a class.
func classOf(method, resource, subresource string) throttle.Class {
	if subresource != "" {
		resource += "/" + subresource
	}
	return throttle.Class(method + " " + resource)
}

// answerOf says what an answer means for the limit. An eviction that a PodDisruptionBudget refuses has the status code
// of an overloaded server (429). The body tells them apart: it is an object for the eviction, and plain text from
// priority and fairness.
func answerOf(resp *http.Response, err error, subresource string) (throttle.Answer, time.Duration) {
	switch {
	case err != nil:
		return throttle.Failed, 0
	case resp.StatusCode == http.StatusTooManyRequests:
		if subresource == "eviction" && !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/plain") {
			return throttle.Answered, 0
		}
		return throttle.Refused, retryAfter(resp)
	case resp.StatusCode >= http.StatusInternalServerError:
		return throttle.Failed, retryAfter(resp)
	}
	return throttle.Answered, 0
}

// retryAfter returns the Retry-After header in seconds; the API server writes no dates there. Zero: there is none.
func retryAfter(resp *http.Response) time.Duration {
	seconds, err := strconv.ParseUint(resp.Header.Get("Retry-After"), 10, 31)
	if err != nil {
		return 0
	}
	return time.Duration(seconds) * time.Second
}

// kindOf returns the kind of a request: that in its context, or else the one for its method and resource. throttled is
// false for reads without a kind, for leases, which show that a component or a node is alive, and for reviews and
// tokens, whose callers wait for the answer.
func kindOf(req *http.Request, resource, subresource string) (kind throttle.Kind, throttled bool) {
	if kind, throttled = req.Context().Value(kindKey{}).(throttle.Kind); throttled {
		return kind, true
	}
	switch req.Method {
	case http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete:
	default:
		return 0, false
	}
	switch {
	case resource == "leases", strings.HasSuffix(resource, "reviews"), subresource == "token":
		return 0, false
	case resource == "nodes":
		return throttle.Mark, true
	case resource == "events":
		return throttle.Event, true
	case subresource == "binding":
		return throttle.Bind, true
	case subresource == "eviction", resource == "pods" && req.Method == http.MethodDelete:
		return throttle.Evict, true
	}
	return throttle.Status, true
}

// resourceOf returns the resource and the subresource of a request's path. The path is /api/v1 or /apis/GROUP/VERSION,
// then namespaces/NAME for a namespaced resource, then the resource, the object's name and a subresource. A namespace
// is the resource itself when nothing follows it.
func resourceOf(path string) (resource, subresource string) {
	parts := partsOf(path)
	if len(parts) > 2 {
		subresource = parts[2]
	}
	if len(parts) > 0 {
		resource = parts[0]
	}
	return resource, subresource
}

// partsOf returns the parts of a request's path from the resource on.
func partsOf(path string) []string {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	for i, part := range parts { // the API may be served below a prefix
		if part == "api" {
			parts = parts[min(i+2, len(parts)):]
			break
		}
		if part == "apis" {
			parts = parts[min(i+3, len(parts)):]
			break
		}
	}
	if len(parts) > 2 && parts[0] == "namespaces" && parts[2] != "status" && parts[2] != "finalize" {
		parts = parts[2:]
	}
	return parts
}
