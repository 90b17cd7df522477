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

	"github.com/plimsoll-dev/plimsoll/internal/core/throttle"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// A Gate is what the writes of one component pass through on their way to the API server, those of all its clients:
// core/throttle decides how many may be on their way and which goes next, from what the server's answers say. Reads
// pass it by, and so do leases and reviews (see kindOf), which must not be late.
//
// It stands below client-go, so that every attempt passes it, and what client-go repeats by itself too. It is safe for
// concurrent use.
type Gate struct {
	o     GateOptions
	start time.Time

	mu      sync.Mutex
	limiter *throttle.Limiter
	lines   map[throttle.Kind][]*turn
	ended   gateCounts
	alarm   *time.Timer
}

// turn is one write that waits, first come first served within its kind.
type turn struct {
	begin chan struct{} // closed when it may
	phase turnPhase
}

// A turnPhase is where a write is.
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
	// AnswerMax bounds the wait for the answer to one write that passed; without one by then it has failed. Zero:
	// AnswerMaxDefault.
	AnswerMax time.Duration
	// Leads is asked when the turn of a write has come, right before it is sent: may this process act? It may have
	// waited long, or the process been stopped. A write that it must not make fails with ErrNotLeading. Events and reads
	// are not asked about. Nil: it may.
	Leads func() bool
}

// ErrNotLeading is why a write was not sent; see GateOptions.Leads.
var ErrNotLeading = errors.New("another process leads, or may")

// AnswerMaxDefault is below the shortest sensible grace of a node, and as long as the API server's Retry-After at most.
// Chosen.
const AnswerMaxDefault = 10 * time.Second

// NewGate returns a Gate that knows nothing of its server yet.
func NewGate(o GateOptions) *Gate {
	if o.AnswerMax == 0 {
		o.AnswerMax = AnswerMaxDefault
	}
	g := &Gate{o: o, start: time.Now(), lines: map[throttle.Kind][]*turn{}, ended: gateCounts{}}
	g.limiter = throttle.New(g.now(), o.Options)
	return g
}

// Through returns a client like c, with connections of its own, whose writes pass g.
func (c *Client) Through(g *Gate) (*Client, error) {
	config := c.RESTConfig()
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return &gated{g, next} })
	return NewClientForConfig(config)
}

// As makes requests with this context count as kind at a Gate, reads too: those that a write needs.
func As(ctx context.Context, kind throttle.Kind) context.Context {
	return context.WithValue(ctx, kindKey{}, kind)
}

type kindKey struct{}

// AsUntil makes requests with this context count as first, and those that wait still at the moment of change as then.
func AsUntil(ctx context.Context, first throttle.Kind, change time.Time, then throttle.Kind) context.Context {
	return context.WithValue(As(ctx, first), changeKey{}, kindChange{change, then})
}

type changeKey struct{}

// Withdrawable lets requests with this context end, when withdrawn is closed, as long as they wait before a Gate. What
// was sent by then is let through: a server may finish what a client has given up, and whoever withdraws wants to know
// when it is over.
func Withdrawable(ctx context.Context, withdrawn <-chan struct{}) context.Context {
	return context.WithValue(ctx, withdrawnKey{}, withdrawn)
}

type withdrawnKey struct{}

// IsWithdrawn reports whether requests with ctx are not wanted any more; see Withdrawable.
func IsWithdrawn(ctx context.Context) bool {
	withdrawn, _ := ctx.Value(withdrawnKey{}).(<-chan struct{})
	select {
	case <-withdrawn: // nil blocks
		return true
	default:
		return false
	}
}

// kindChange is what a request that waits counts as from a moment on.
type kindChange struct {
	at   time.Time
	then throttle.Kind
}

func (g *Gate) now() unit.Instant { return unit.Instant(time.Since(g.start)) + 1 }

// Limit is how many writes may be on their way now, and how many wait, for those who watch.
func (g *Gate) Limit() (limit float64, waiting int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, k := range throttle.Kinds() {
		waiting += g.limiter.Waiting(k)
	}
	return g.limiter.Limit(), waiting
}

// enter waits until a write of this kind may begin, and says as what it counts then; an error is ctx's, and then it
// must not.
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

// errOverdue is the end of a wait as one kind.
var errOverdue = errors.New("overdue")

// queue is enter without a change of kind; it ends with errOverdue when overdue says so first.
func (g *Gate) queue(ctx context.Context, kind throttle.Kind, overdue <-chan time.Time) (err error) {
	withdrawn, _ := ctx.Value(withdrawnKey{}).(<-chan struct{})
	t := &turn{begin: make(chan struct{})}
	g.mu.Lock()
	g.limiter.Want(g.now(), kind)
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
	if t.phase == turnBegan { // at the same moment
		if err == errOverdue {
			return nil
		}
		g.ended[gateCount{kind: kind, answer: throttle.Withdrawn}]++
		g.limiter.Done(g.now(), throttle.Outcome{Kind: kind, Answer: throttle.Withdrawn})
		g.advance()
		return err
	}
	t.phase = turnGaveUp
	g.limiter.Quit(kind)
	return err
}

// leave ends a write that entered.
func (g *Gate) leave(o throttle.Outcome) {
	g.mu.Lock()
	why := g.limiter.Done(g.now(), o)
	g.ended[gateCount{kind: o.Kind, answer: o.Answer}]++
	g.advance()
	g.mu.Unlock()
	if why != "" {
		slog.Info("API server pushes back: writes go slower", "component", g.o.Component, "why", why)
	}
}

// advance begins what may begin, and sets the alarm for what may later. g.mu is held.
func (g *Gate) advance() {
	now := g.now()
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

func (g *Gate) ring() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.advance()
}

// gated is a Gate before one connection.
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
			_ = req.Body.Close() // a RoundTripper must
		}
		return nil, err
	}
	ctx, cancel := context.WithTimeout(req.Context(), t.gate.o.AnswerMax)
	began := time.Now()
	resp, err := t.send(req.WithContext(ctx), kind)
	o := throttle.Outcome{Kind: kind, Class: classOf(req.Method, resource, subresource), Took: time.Since(began)}
	if err != nil && (req.Context().Err() != nil || errors.Is(err, ErrNotLeading)) {
		o.Answer = throttle.Withdrawn // by the caller, whatever the server did
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

// send sends what may be sent.
func (t *gated) send(req *http.Request, kind throttle.Kind) (*http.Response, error) {
	asks := kind == throttle.Event || kind == throttle.Warning || req.Method == http.MethodGet
	if leads := t.gate.o.Leads; leads == nil || asks || leads() {
		return t.next.RoundTrip(req)
	}
	if req.Body != nil {
		_ = req.Body.Close() // a RoundTripper must
	}
	return nil, ErrNotLeading
}

// cancelOnClose is the body of an answer that must come within AnswerMax too.
type cancelOnClose struct {
	io.ReadCloser
	cancel context.CancelFunc
}

func (b *cancelOnClose) Close() error {
	defer b.cancel()
	return b.ReadCloser.Close()
}

// classOf names what a request asks of the server.
func classOf(method, resource, subresource string) throttle.Class {
	if subresource != "" {
		resource += "/" + subresource
	}
	return throttle.Class(method + " " + resource)
}

// answerOf says what an answer means to the limit. An eviction that a PodDisruptionBudget refuses is answered with the
// status of a server that has too much to do, but by an object, where priority and fairness answer with text.
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

// retryAfter reads the header of that name, in seconds; the API server writes no dates. Zero: it says nothing.
func retryAfter(resp *http.Response) time.Duration {
	seconds, err := strconv.ParseUint(resp.Header.Get("Retry-After"), 10, 31)
	if err != nil {
		return 0
	}
	return time.Duration(seconds) * time.Second
}

// kindOf says what a request is for, and whether it passes the Gate: what its context says, or else every write. Not
// leases, which are a component's or a node's sign of life; not reviews and tokens, which are questions that somebody
// waits for.
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

// resourceOf reads the path of a request: /api/v1 or /apis/GROUP/VERSION, then namespaces/NAME where there is one, then
// the resource, its name and a subresource. A namespace is a resource itself when nothing follows it.
func resourceOf(path string) (resource, subresource string) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	for i, part := range parts { // a server may be below a path of its own
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
