package podlife

import (
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Life is the memory of one pod between steps. Make one with New.
type Life struct {
	backoffMax time.Duration
	hashes     map[string]string       // by container: of the spec seen last, with what is fixed
	crashes    map[string]*crash       // by container
	troubles   map[string]*trouble     // by troubleKey
	asked      map[string]unit.Instant // by askedKey: when an action was planned last
	askedBy    map[string]unit.Instant // and the moment by which it was to be done
	revive     map[string]string       // by container: id of the run that was stopped in order to run again
	sizes      string                  // wanted at the last step: a resize that failed is worth trying again when they change
	over       *StopOrder              // set once nothing may run any more, though nobody ordered an end
}

// New returns a Life that remembers nothing. backoffMax caps crash back-off; zero means BackoffMax.
func New(backoffMax time.Duration) *Life {
	if backoffMax == 0 {
		backoffMax = BackoffMax
	}
	return &Life{
		backoffMax: backoffMax, hashes: map[string]string{}, crashes: map[string]*crash{}, troubles: map[string]*trouble{},
		revive: map[string]string{},
		asked:  map[string]unit.Instant{}, askedBy: map[string]unit.Instant{},
	}
}

// Failed records that an action of the last decision failed. Pulls are retried with the crash back-off's curve
// beginning at its base, other starts and resizes at its base, stops and removals after a second. reason is a waiting
// reason in upstream's words (ErrImagePull, CreateContainerError, ...).
func (l *Life) Failed(now unit.Instant, a Action, reason, message string) {
	key := troubleKey(a)
	t := l.troubles[key]
	if t == nil || t.reason != reason {
		t = &trouble{}
		l.troubles[key] = t
	}
	t.reason, t.message, t.since, t.attempt = reason, message, now, a.Attempt
	t.tries++
	wait := retryEnd
	switch {
	case pulling[reason]:
		wait = delayAfter(t.tries, BackoffMax)
	case a.Kind == StartContainer || a.Kind == CreateSandbox || a.Kind == Resize:
		wait = backoffBase
	}
	t.retryAt = now.Add(wait)
}

// Retry forgets waits for retries, because something they may have waited for has changed.
func (l *Life) Retry() {
	for _, t := range l.troubles {
		t.retryAt = 0
	}
}

// tidy forgets what can not matter any more.
func (l *Life) tidy(now unit.Instant, spec Spec) {
	if sizes := wanted(spec); sizes != l.sizes {
		delete(l.troubles, resizeKey)
		l.sizes = sizes
	}
	maps.DeleteFunc(l.asked, func(_ string, at unit.Instant) bool { return now >= at.Add(retryEnd) })
	maps.DeleteFunc(l.askedBy, func(key string, _ unit.Instant) bool { return l.asked[key].IsZero() })
	maps.DeleteFunc(l.troubles, func(key string, t *trouble) bool { return strings.HasPrefix(key, endKey) && now >= t.retryAt })
	for _, s := range spec.Containers {
		hash := s.Hash + " " + s.Fixed
		if was, known := l.hashes[s.Name]; known && was != hash { // another image, or more memory, deserves a fresh start
			delete(l.crashes, s.Name)
			delete(l.troubles, s.Name)
		}
		l.hashes[s.Name] = hash
	}
}

// Crash and retry back-off, upstream's curve: the first restart is immediate, then 10 s doubling to 5 min, and a
// container that ran twice the maximum starts afresh (kubelet: crash loop back-off; backOffPeriod,
// MaxContainerBackOff). Raising the base makes crash loops cheaper and recovery slower.
const (
	backoffBase  = 10 * time.Second
	backoffReset = 2
)

// BackoffMax is upstream's default ceiling; a node's configuration may lower it
// (crashLoopBackOff.maxContainerRestartPeriod).
const BackoffMax = 300 * time.Second

// retryEnd is the wait before an end (stop, removal) that failed or had no effect is tried again: the runtime is
// restarting or hung, and a restart of it takes about a second (measured, containerd 1.6).
const retryEnd = time.Second

// crash is the memory of one container's exits.
type crash struct {
	id      string // of the exit already counted
	streak  int    // exits in a row without a long run between them
	readyAt unit.Instant
	delay   time.Duration
}

// stopped is what is known of an end that was ordered, so that the container runs again.
type stopped struct {
	since unit.Wall // the end before it; zero: there is none
}

// note counts an exit once and sets the back-off that follows it. A container that was stopped in order to run again
// (its liveness or startup probe failed) is treated as upstream does, which looks for the last exit before it stops the
// container: the first such stop does not count, and for later ones what has passed since the end before counts as
// waited, if that is long enough; else they wait in full.
func (c *crash) note(now unit.Instant, wall unit.Wall, ended Container, by *stopped, ceiling time.Duration) {
	if c.id == ended.ID {
		return
	}
	if by != nil && by.since == 0 {
		c.id, c.delay, c.readyAt = ended.ID, 0, now
		return
	}
	if ended.StartedAt != 0 && ended.FinishedAt.Sub(ended.StartedAt) >= backoffReset*ceiling {
		c.streak = 0
	}
	c.id, c.delay = ended.ID, delayAfter(c.streak, ceiling)
	if by != nil && ended.FinishedAt.Sub(by.since) >= c.delay {
		c.delay = 0
	}
	// A wall clock that stepped must neither stretch the wait nor make it negative.
	elapsed := min(max(wall.Sub(ended.FinishedAt), 0), c.delay)
	c.readyAt = now.Add(c.delay - elapsed)
	c.streak++
}

// delayAfter returns the wait before the restart that follows streak earlier ones.
func delayAfter(streak int, ceiling time.Duration) time.Duration {
	if streak == 0 {
		return 0
	}
	d := backoffBase
	for i := 1; i < streak && d < ceiling; i++ {
		d *= 2
	}
	return min(d, ceiling)
}

// trouble is the memory of an action that keeps failing.
type trouble struct {
	reason, message string
	attempt         uint32 // of the start that failed
	tries           int
	retryAt         unit.Instant
	since           unit.Instant // of the latest failure
}

// Reasons of failed starts that say more than that the start failed, in upstream's words.
var (
	pulling = map[string]bool{"ErrImagePull": true, "RegistryUnavailable": true, "SignatureValidationFailed": true}
	created = map[string]bool{"RunContainerError": true, "PostStartHookError": true} // there is a container nevertheless
)

// shownFor is how long a failure is reported as itself before it is reported as a back-off. A pull that fails shows
// ErrImagePull, then ImagePullBackOff, as users know it; upstream changes with its next sync of the pod (1 to 2 s).
const shownFor = 2 * time.Second

// sandboxKey is where the trouble of creating a sandbox is kept, resizeKey that of a resize; endKey begins where that
// of ending a thing is. No container has such a name.
const (
	sandboxKey = ""
	resizeKey  = "resize "
	endKey     = "end "
)

// troubleKey tells apart what may fail in one pod: creating its sandbox, starting a container, ending a thing.
func troubleKey(a Action) string {
	switch a.Kind {
	case CreateSandbox:
		return sandboxKey
	case StartContainer:
		return a.Container
	case Resize:
		return resizeKey
	}
	return endKey + a.ID
}

func askedKey(a Action) string {
	if a.Kind == Resize {
		return resizeKey + fmt.Sprint(a.Steps)
	}
	return a.Kind.String() + " " + a.ID
}
