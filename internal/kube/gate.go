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

	"github.com/plimsoll-dev/plimsoll/internal/clock"
	"github.com/plimsoll-dev/plimsoll/internal/core/throttle"
)

// A Gate throttles the writes of one component, those of all its clients, on their way to the API server. core/throttle
// decides from the server's answers how many writes may be in flight and which goes next. Reads are not throttled, nor
// are leases and reviews (see kindOf), which must not be late.
//
// A Gate works below client-go, as an http.RoundTripper, so that every attempt is throttled, the retries of client-go
// included. It is safe for concurrent use.
type Gate struct {
	o GateOptions
	// o and start are set once, by NewGate. The instants given to limiter count from start.
	clock *clock.Clock

	// mu guards what follows.
	mu      sync.Mutex
	limiter *throttle.Limiter
	lines   map[throttle.Kind][]*turn // the writes that wait, by kind, oldest first; those that gave up stay until their turn
	ended   gateCounts
	alarm   *time.Timer
}

// turn is one write that waits. Within a kind the oldest write goes first.
type turn struct {
	begin chan struct{} // closed when the write may begin
	phase turnPhase     // guarded by Gate.mu
}

// A turnPhase says how far a write has come: it waits, it has begun, or its caller stopped waiting.
type turnPhase int

const (
	turnWaits turnPhase = iota
	turnBegan
	turnGaveUp
)

// GateOptions configure a Gate.
type GateOptions struct {
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

// ErrNotLeading is the error of a write that was not sent because this process does not lead; see GateOptions.Leads.
var ErrNotLeading = errors.New("another process leads, or may lead")

// AnswerMaxDefault is below the shortest sensible node-monitor grace period, and at least as long as any Retry-After of
// the API server. Chosen.
const AnswerMaxDefault = 10 * time.Second

// NewGate returns a Gate that has not learned anything about its server yet.
func NewGate(o GateOptions) *Gate {
	if o.AnswerMax == 0 {
		o.AnswerMax = AnswerMaxDefault
	}
	g := &Gate{o: o, clock: clock.New(), lines: map[throttle.Kind][]*turn{}, ended: gateCounts{}}
	g.limiter = throttle.New(g.clock.Now(), o.Options)
	return g
}

// Through returns a client like c, with its own connections, whose writes g throttles.
func (c *Client) Through(g *Gate) (*Client, error) {
	config := c.RESTConfig()
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return &gated{g, next} })
	return NewClientForConfig(config)
}

// As returns a context whose requests count as kind at a Gate. That holds for reads too: use it for those that a write
// needs.
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

// Withdrawable returns a context whose requests end when withdrawn is closed, as long as they wait at a Gate. A request
// that was sent before is not cancelled: a server may finish what its client has given up, and the caller needs to know
// when the request is over.
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
func (g *Gate) Limit() (limit float64, waiting int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, k := range throttle.Kinds() {
		waiting += g.limiter.Waiting(k)
	}
	return g.limiter.Limit(), waiting
}

// enter waits until a write of this kind may begin, and returns the kind as which it counts by then. After an error,
// which is that of ctx, the write must not begin.
func (g *Gate) enter(ctx context.Context, kind throttle.Kind) (throttle.Kind, error) {
	change, changes := ctx.Value(changeKey{}).(kindChange)
	wait := time.Until(change.at)
	if changes && wait <= 0 {
		return change.then, g.queue(ctx, change.then, nil)
	}
	if !changes {
		return kind, g.queue(ctx, kind, nil)
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	err := g.queue(ctx, kind, timer.C)
	if errors.Is(err, errOverdue) {
		return change.then, g.queue(ctx, change.then, nil)
	}
	return kind, err
}

// errOverdue ends the wait of a write whose kind changes.
var errOverdue = errors.New("overdue")

// queue is enter without a change of kind. It returns errOverdue when overdue fires before the write may begin.
func (g *Gate) queue(ctx context.Context, kind throttle.Kind, overdue <-chan time.Time) (err error) {
	withdrawn, _ := ctx.Value(withdrawnKey{}).(<-chan struct{})
	t := &turn{begin: make(chan struct{})}
	g.mu.Lock()
	g.limiter.Want(g.clock.Now(), kind)
	g.lines[kind] = append(g.lines[kind], t)
	g.advance()
	g.mu.Unlock()
	select {
	case <-t.begin:
		return nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-withdrawn:
		err = context.Canceled
	case <-overdue:
		err = errOverdue
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if t.phase == turnBegan { // it was allowed to begin at the same moment
		if err == errOverdue {
			return nil
		}
		g.ended[gateCount{kind: kind, answer: throttle.Withdrawn}]++
		g.limiter.Done(g.clock.Now(), throttle.Outcome{Kind: kind, Answer: throttle.Withdrawn})
		g.advance()
		return err
	}
	t.phase = turnGaveUp
	g.limiter.Quit(kind)
	return err
}

// leave ends a write for which enter succeeded.
func (g *Gate) leave(o throttle.Outcome) {
	g.mu.Lock()
	why := g.limiter.Done(g.clock.Now(), o)
	g.ended[gateCount{kind: o.Kind, answer: o.Answer}]++
	g.advance()
	g.mu.Unlock()
	if why != "" {
		slog.Info("API server slows down or refuses: fewer writes at once", "component", g.o.Component, "why", why)
	}
}

// advance begins the writes that may begin now, and sets the timer for those that may begin later. g.mu is locked.
func (g *Gate) advance() {
	now := g.clock.Now()
	for kind, ok := g.limiter.Next(now); ok; kind, ok = g.limiter.Next(now) {
		line := g.lines[kind]
		for line[0].phase == turnGaveUp {
			line[0], line = nil, line[1:]
		}
		line[0].phase = turnBegan
		close(line[0].begin)
		line[0], g.lines[kind] = nil, line[1:]
	}
	wake := g.limiter.Wake(now)
	switch {
	case wake.IsZero():
		if g.alarm != nil {
			g.alarm.Stop()
		}
	case g.alarm == nil:
		g.alarm = time.AfterFunc(wake.Sub(now), g.ring)
	default:
		g.alarm.Reset(wake.Sub(now))
	}
}

// ring is called by the timer.
func (g *Gate) ring() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.advance()
}

// gated throttles the requests of one client.
type gated struct {
	gate *Gate
	next http.RoundTripper
}

// RoundTrip is part of http.RoundTripper.
func (t *gated) RoundTrip(req *http.Request) (*http.Response, error) {
	resource, subresource := resourceOf(req.URL.Path)
	kind, passes := kindOf(req, resource, subresource)
	if !passes {
		return t.next.RoundTrip(req)
	}
	kind, err := t.gate.enter(req.Context(), kind)
	if err != nil {
		if req.Body != nil {
			_ = req.Body.Close() // the contract of RoundTripper
		}
		return nil, err
	}
	ctx, cancel := context.WithTimeout(req.Context(), t.gate.o.AnswerMax)
	began := time.Now()
	resp, err := t.send(req.WithContext(ctx), kind)
	o := throttle.Outcome{Kind: kind, Class: classOf(req.Method, resource, subresource), Took: time.Since(began)}
	if err != nil && (req.Context().Err() != nil || errors.Is(err, ErrNotLeading)) {
		o.Answer = throttle.Withdrawn // not sent, or given up by the caller: it says nothing about the server
	} else {
		o.Answer, o.RetryAfter = answerOf(resp, err, subresource)
	}
	t.gate.leave(o)
	if err != nil {
		cancel()
		return nil, err
	}
	resp.Body = &cancelOnClose{resp.Body, cancel}
	return resp, nil
}

// send sends the request, unless it is a write that GateOptions.Leads forbids.
func (t *gated) send(req *http.Request, kind throttle.Kind) (*http.Response, error) {
	asks := kind == throttle.Event || kind == throttle.Warning || req.Method == http.MethodGet
	if leads := t.gate.o.Leads; leads == nil || asks || leads() {
		return t.next.RoundTrip(req)
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
// of an overloaded server (429). The two are told apart by the body: an object here, plain text from priority and
// fairness.
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

// kindOf returns what a request is for, and whether it is throttled: the kind in its context, or else that of any
// write. Exceptions are leases, which show that a component or a node is alive, and reviews and tokens, whose callers
// wait for the answer.
func kindOf(req *http.Request, resource, subresource string) (kind throttle.Kind, passes bool) {
	if kind, passes = req.Context().Value(kindKey{}).(throttle.Kind); passes {
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
	if len(parts) > 2 {
		subresource = parts[2]
	}
	if len(parts) > 0 {
		resource = parts[0]
	}
	return resource, subresource
}
