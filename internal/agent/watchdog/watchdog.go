// Package watchdog tells systemd that the agent is ready, that its loops turn, and that it needs more time to start, as
// core/watchdog decides. A unit with WatchdogSec= is started again when an agent's loops stand still; pods run on
// meanwhile.
//
// # Model
//
// Run turns from the agent's start on. Before the agent starts its loops, it hands them over by Watch. A loop notes
// when it turns, and is asked for that; the answer takes no lock, so that a loop that waits for a lock is seen to stand
// still.
//
// It is no check of health: a runtime or an API server that does not answer is no reason to start the agent again. A
// systemd that cannot be told is a warning, and the agent goes on.
package watchdog

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/agent/failurelog"
	"github.com/plimsoll-dev/plimsoll/internal/clock"
	"github.com/plimsoll-dev/plimsoll/internal/core/watchdog"
	"github.com/plimsoll-dev/plimsoll/internal/host/sdnotify"
)

// shortest is the shortest timeout without a warning. Chosen: a busy machine may not run the agent for half a second.
const shortest = time.Second

// Loop is a loop of the agent.
type Loop struct {
	Name   string
	Turned func() time.Time // when it last turned; zero: never yet
	Works  func() bool      // it no longer waits for what it needs to begin
}

// Watchdog tells systemd about the agent.
type Watchdog struct {
	service sdnotify.Service
	clock   *clock.Clock
	core    *watchdog.Watchdog
	begun   chan []Loop // of Watch, for Run
	loops   []Loop      // Run's own
	stuck   []string    // as logged last
	log     failurelog.Log
}

// New returns the Watchdog of an agent of which each turn of a loop takes loopMax at most. It takes the service from
// the environment, so that no child process of the agent sees it.
func New(loopMax time.Duration) *Watchdog {
	service, err := sdnotify.Take()
	if err != nil {
		slog.Warn("this service of systemd", "err", err)
	}
	if w := service.Watchdog; w > 0 && w < shortest {
		slog.Warn("WatchdogSec= of the unit is short: systemd may end an agent that is only busy", "timeout", w,
			"want at least", shortest)
	}
	return &Watchdog{
		service: service,
		clock:   clock.New(),
		core:    watchdog.New(watchdog.Config{Timeout: service.Watchdog, LoopMax: loopMax}),
		begun:   make(chan []Loop, 1),
	}
}

// Watch hands over the loops, which are about to start. It is called once.
func (w *Watchdog) Watch(loops ...Loop) { w.begun <- loops }

// Run tells systemd until ctx ends, or until there is nothing more to say.
func (w *Watchdog) Run(ctx context.Context) {
	if !w.service.Exists() {
		return
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case w.loops = <-w.begun:
		case <-timer.C:
		}
		now := w.clock.Now()
		d := w.core.Step(now, w.look())
		w.tell(d)
		if d.Wake.IsZero() {
			return
		}
		timer.Reset(d.Wake.Sub(now))
	}
}

// look returns the loops as they are now.
func (w *Watchdog) look() []watchdog.Loop {
	var out []watchdog.Loop
	for _, l := range w.loops {
		seen := watchdog.Loop{Name: l.Name, Works: l.Works()}
		if at := l.Turned(); !at.IsZero() {
			seen.Turned = w.clock.Instant(at)
		}
		out = append(out, seen)
	}
	return out
}

// tell carries out a decision.
func (w *Watchdog) tell(d watchdog.Decision) {
	if !slices.Equal(d.Stuck, w.stuck) {
		w.stuck = d.Stuck
		if names := strings.Join(d.Stuck, ", "); names != "" {
			slog.Error("loops of the agent stand still; systemd is not told that the agent lives, and starts it again if its "+
				"unit has a watchdog", "loops", names, "WatchdogSec", w.service.Watchdog)
		} else {
			slog.Info("all loops of the agent turn again")
		}
	}
	var messages []string
	if d.Extend > 0 {
		messages = append(messages, sdnotify.Extend(d.Extend))
	}
	if d.Ready {
		messages = append(messages, sdnotify.Ready)
		slog.Info("the agent is ready", "WatchdogSec", w.service.Watchdog)
	}
	if d.Alive {
		messages = append(messages, sdnotify.Alive)
	}
	const action = "tell systemd about the agent"
	if err := w.service.Tell(messages...); err != nil {
		w.log.Failed(action, err)
	} else if len(messages) > 0 {
		w.log.Succeeded(action)
	}
}
