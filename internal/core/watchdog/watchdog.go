// Package watchdog decides what systemd is told about a service (sd_notify(3)): that it is ready, that it lives, and
// that it needs more time to start.
//
// # Model
//
// A service is its loops. Each has a moment at which it last turned, and does its work from some moment on. The service
// is ready when all of them work. Until then it may wait for others without a bound, such as a container runtime that
// is not there yet: systemd is asked for more time again and again. From then on systemd hears that the service lives,
// twice in each timeout of its watchdog.
//
// A loop that has not turned for LoopMax stands still. Then systemd hears nothing, and starts the service again when
// the timeout is over. That holds during the start, too: time counts from the start of the loops.
//
// # Invariants
//
//   - Ready is said once, and Alive never before it.
//   - While no loop stands still, Alive is said at most half a timeout after the last time, and Extend ends at least
//     extendEvery after the next one.
//
// It is no check of health: what a loop waits for with a bound (a runtime, an API server) does not matter here. The
// caller knows the loops and speaks to systemd (agent/watchdog).
package watchdog

import (
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

const (
	// extendBy is how much more time a start is given, and extendEvery how often. Chosen: systemd allows a start 90 s by
	// default (DefaultTimeoutStartSec), and two requests may be lost. The longer, the later a start that hangs is ended.
	extendBy    = 90 * time.Second
	extendEvery = 30 * time.Second
	// readyEvery is how often loops that began are asked whether they work. Chosen: nobody notices that delay, and it
	// costs nothing that could be measured.
	readyEvery = 250 * time.Millisecond
	// aliveMin is the shortest pause between two messages. Chosen: a shorter timeout than twice that is a mistake, and the
	// agent should not spend its time on it.
	aliveMin = 100 * time.Millisecond
)

// Config is what the service is watched for.
type Config struct {
	Timeout time.Duration // of the watchdog (WatchdogSec= of the unit); 0: there is none
	LoopMax time.Duration // how long a turn of a loop may take
}

// Loop is a loop of the service, as it is now.
type Loop struct {
	Name   string
	Turned unit.Instant // when it last turned; zero: never yet
	Works  bool         // it no longer waits for what it needs to begin
}

// Decision is what to tell systemd now.
type Decision struct {
	Ready  bool          // the service is ready
	Alive  bool          // it lives
	Extend time.Duration // it needs that much more time to start; 0: say nothing
	// Stuck are the names of the loops that stand still, in the order of the loops.
	Stuck []string
	// Wake is when Step must be called again at the latest; zero: never again.
	Wake unit.Instant
}

// Watchdog is the state of a service. It is for one goroutine at a time.
type Watchdog struct {
	c       Config
	ready   bool
	began   unit.Instant // when the loops were started; zero: not yet
	extends unit.Instant // when more time is asked for next; valid before ready
	lives   unit.Instant // when Alive is said next; valid after ready
}

// New returns the Watchdog of a service that begins to start.
func New(c Config) *Watchdog { return &Watchdog{c: c} }

// Step decides what to say now. loops are the service's; none: they are not started yet.
func (w *Watchdog) Step(now unit.Instant, loops []Loop) Decision {
	if w.began.IsZero() && len(loops) > 0 {
		w.began = now
	}
	var d Decision
	works := len(loops) > 0
	for _, l := range loops {
		if now.Sub(max(l.Turned, w.began)) > w.c.LoopMax {
			d.Stuck = append(d.Stuck, l.Name)
		}
		works = works && l.Works && !l.Turned.IsZero()
	}
	if !w.ready && works && len(d.Stuck) == 0 {
		w.ready = true
		w.lives = now
		d.Ready = true
	}
	switch {
	case !w.ready:
		w.start(now, &d, len(loops) > 0)
	case w.c.Timeout > 0:
		w.live(now, &d)
	}
	return d
}

// start asks for more time while nothing stands still.
func (w *Watchdog) start(now unit.Instant, d *Decision, begun bool) {
	if now >= w.extends {
		w.extends = now.Add(extendEvery)
		if len(d.Stuck) == 0 {
			d.Extend = extendBy
		}
	}
	d.Wake = w.extends
	if begun {
		d.Wake = d.Wake.Earlier(now.Add(readyEvery))
	}
}

// live says that the service lives, unless something stands still.
func (w *Watchdog) live(now unit.Instant, d *Decision) {
	if now >= w.lives {
		w.lives = now.Add(max(w.c.Timeout/2, aliveMin))
		d.Alive = len(d.Stuck) == 0
	}
	d.Wake = w.lives
}
