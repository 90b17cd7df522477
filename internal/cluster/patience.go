package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/cluster/progress"
)

// patience bounds a start by its progress: a start is given up when none of its steps has ended for as long as the
// limit. A slow machine gets the time that it needs, because there is a limited number of steps, and each ends once.
type patience struct {
	limit time.Duration

	mu    sync.Mutex
	timer *time.Timer // guarded by mu; nil: no start is bounded
}

// A stalledError is the cause of the end of a start that was given up.
type stalledError struct{ limit time.Duration }

func (e *stalledError) Error() string {
	return fmt.Sprintf("no step of the start ended within %s (--timeout; a machine that is only slow needs a longer one)",
		e.limit)
}

// bound returns a context that ends, with a stalledError as its cause, when no step has ended for the limit. The caller
// must call stop, once or more.
func (p *patience) bound(ctx context.Context) (bounded context.Context, stop context.CancelFunc) {
	bounded, cancel := context.WithCancelCause(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.timer = time.AfterFunc(p.limit, func() { cancel(&stalledError{p.limit}) })
	return bounded, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.timer != nil {
			p.timer.Stop()
		}
		p.timer = nil
		cancel(nil)
	}
}

// renew begins the limit anew.
func (p *patience) renew() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.timer != nil {
		p.timer.Reset(p.limit)
	}
}

// patientSink renews the patience with each step that ends well.
type patientSink struct {
	progress.Sink
	patience *patience
}

func (s patientSink) Show(e progress.Event) {
	if e.Phase == progress.Done {
		s.patience.renew()
	}
	s.Sink.Show(e)
}

// stalled returns the stalledError that ended a context; nil: it runs, or ended otherwise.
func stalled(ctx context.Context) *stalledError {
	var s *stalledError
	errors.As(context.Cause(ctx), &s)
	return s
}

// withCause adds to an error of work that a stalledError ended that cause, where the error does not have it.
func withCause(ctx context.Context, err error) error {
	if s := stalled(ctx); err != nil && s != nil && !errors.As(err, new(*stalledError)) {
		return fmt.Errorf("%w: %w", s, err)
	}
	return err
}
