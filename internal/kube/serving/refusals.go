package serving

import (
	"log/slog"
	"net/http"
	"sync/atomic"

	"golang.org/x/time/rate"
)

const (
	// How many refusals are logged per second, and how many at once. Chosen: a misconfigured scraper is visible, and a
	// scan of the port writes less than a gigabyte per month.
	refusalsPerSecond = 1
	refusalsAtOnce    = 20
	// textMax is how much of a client's text goes into the log or into an answer, in bytes. Chosen: existing paths are
	// shorter, except those with the names of a pod and a container, of 253 and 63.
	textMax = 512
)

// Refusals logs refused requests, shortened and at a limited rate. The zero Refusals is ready to use.
type Refusals struct {
	limit   atomic.Pointer[rate.Limiter]
	unsaid  atomic.Int64 // refusals since the last log line that were not logged
	logging *slog.Logger // nil: slog.Default
}

// Log logs that r was refused with that status. user sent it; empty: not known.
func (l *Refusals) Log(r *http.Request, status int, user string, err error) {
	if l.limit.Load() == nil {
		l.limit.CompareAndSwap(nil, rate.NewLimiter(refusalsPerSecond, refusalsAtOnce))
	}
	if !l.limit.Load().Allow() {
		l.unsaid.Add(1)
		return
	}
	log := l.logging
	if log == nil {
		log = slog.Default()
	}
	log.Info("request refused", "status", status, "method", Brief(r.Method), "path", Brief(r.URL.Path), "user",
		Brief(user),
		"from", r.RemoteAddr, "err", Brief(err.Error()), "unsaid", l.unsaid.Swap(0))
}

// Brief returns the beginning of a client's text, for a log or an answer.
func Brief(text string) string {
	if len(text) <= textMax {
		return text
	}
	return text[:textMax] + "..."
}
