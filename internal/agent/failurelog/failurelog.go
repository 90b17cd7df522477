// Package failurelog logs an action that fails again and again: when it begins to fail, when the reason changes, once a
// minute while it does not change, and when the action succeeds again.
//
// It decides nothing, retries nothing and counts nothing.
package failurelog

import (
	"log/slog"
	"sync"
	"time"
)

// repeatEvery is how often an unchanged failure is logged again. Chosen: often enough for an operator who has just
// begun to read the log; more often would hide the rest of it.
const repeatEvery = time.Minute

// Log logs the failures of several actions. The zero value is ready. It is safe for concurrent use.
type Log struct {
	mu   sync.Mutex
	last map[string]failure // of the actions that fail, by action; guarded by mu
}

// failure is a failure as it was logged last.
type failure struct {
	text string
	at   time.Time
}

// Failed logs that action failed with err, unless the same was logged within the last minute. attrs are as in slog.
func (l *Log) Failed(action string, err error, attrs ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if last, failing := l.last[action]; failing && last.text == err.Error() && now.Sub(last.at) < repeatEvery {
		return
	}
	if l.last == nil {
		l.last = map[string]failure{}
	}
	l.last[action] = failure{text: err.Error(), at: now}
	slog.Warn(action, append(attrs, "err", err)...)
}

// Succeeded logs that action succeeds again, if it failed before.
func (l *Log) Succeeded(action string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, failing := l.last[action]; failing {
		delete(l.last, action)
		slog.Info(action + ": succeeds again")
	}
}
