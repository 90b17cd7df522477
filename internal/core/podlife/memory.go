package podlife

import (
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Life is what is remembered of one pod between steps. Make one with New. It is for one goroutine at a time; only Step,
// Failed and Retry change it.
type Life struct {
	backoffMax       time.Duration           // longest crash back-off
	hashes           map[string]string       // by container: Hash and Fixed of the spec last seen
	crashes          map[string]*crash       // by container
	troubles         map[string]*trouble     // by troubleKey: actions that fail
	asked            map[string]unit.Instant // by askedKey: when an action was last planned
	askedBy          map[string]unit.Instant // by askedKey: the moment by which that action was to be done
	restartAfterStop map[string]string       // by container: id of the run that was stopped in order to be started again
	// Sizes that the last spec asked for; when they change, a failed resize is tried again at once.
	sizes string
	// Set once the pod must end for a reason of its own (its containers ended, its deadline passed); then it stays.
	over *StopOrder
}

// New returns a Life that remembers nothing. backoffMax is the longest crash back-off; zero means BackoffMax.
func New(backoffMax time.Duration) *Life {
	if backoffMax == 0 {
		backoffMax = BackoffMax
	}
	return &Life{
		backoffMax: backoffMax, hashes: map[string]string{}, crashes: map[string]*crash{}, troubles: map[string]*trouble{},
		restartAfterStop: map[string]string{},
		asked:            map[string]unit.Instant{}, askedBy: map[string]unit.Instant{},
	}
}

// Failed records that an action of the last decision failed. Failed pulls are retried with exponential back-off that
// starts at backoffBase, other failed starts and resizes after backoffBase, failed stops and removals after a second.
// reason is a waiting reason in upstream's words (ErrImagePull, CreateContainerError, ...).
func (l *Life) Failed(now unit.Instant, a Action, reason, message string) {
	key := troubleKey(a)
	t := l.troubles[key]
	if t == nil || t.reason != reason {
		t = &trouble{}
		l.troubles[key] = t
	}
	t.reason = reason
	t.message = message
	t.since = now
	t.attempt = a.Attempt
	t.tries++
	wait := retryEnd
	switch {
	case pulling[reason]:
		wait = delayAfter(t.tries, BackoffMax)
	case a.Kind == StartContainer || a.Kind == CreateSandbox || a.Kind == Resize:
		wait = backoffBase
	}
	t.retryAt = now.Add(wait)
	t.asked = askedKey(a)
}

// Retry ends all waits before retries, because something that they may have waited for has changed.
func (l *Life) Retry() {
	for _, t := range l.troubles {
		t.retryAt = 0
		delete(l.asked, t.asked)
		delete(l.askedBy, t.asked)
	}
}

// dropOutdated drops entries that no longer matter.
func (l *Life) dropOutdated(now unit.Instant, spec Spec) {
	if sizes := wanted(spec); sizes != l.sizes {
		delete(l.troubles, resizeKey)
		l.sizes = sizes
	}
	maps.DeleteFunc(l.asked, func(_ string, at unit.Instant) bool { return now >= at.Add(retryEnd) })
	maps.DeleteFunc(l.askedBy, func(key string, _ unit.Instant) bool { return l.asked[key].IsZero() })
	maps.DeleteFunc(l.troubles, func(key string, t *trouble) bool {
		return strings.HasPrefix(key, endKey) && now >= t.retryAt
	})
	for _, s := range spec.Containers {
		hash := s.Hash + " " + s.Fixed
		// A changed image or memory size starts without back-off.
		if was, known := l.hashes[s.Name]; known && was != hash {
			delete(l.crashes, s.Name)
			delete(l.troubles, s.Name)
		}
		l.hashes[s.Name] = hash
	}
}

// Back-off of crashes and retries, as upstream: the first restart is immediate, the next waits 10 s, and each further
// one twice as long, up to 5 min. A container that ran for twice the maximum starts again without back-off (kubelet:
// crash loop back-off; backOffPeriod, MaxContainerBackOff). A higher base makes crash loops cheaper and recovery
// slower.
const (
	backoffBase  = 10 * time.Second
	backoffReset = 2
)

// BackoffMax is upstream's default maximum. A node's configuration may lower it
// (crashLoopBackOff.maxContainerRestartPeriod).
const BackoffMax = 300 * time.Second

// retryEnd is the time before a stop or a removal that failed or had no effect is tried again. Then the runtime is
// restarting or hangs, and its restart takes about a second (measured, containerd 1.6).
const retryEnd = time.Second

// crash is what is remembered of one container's exits.
type crash struct {
	id     string // id of the exit that was counted last
	streak int    // exits in a row without a long run in between
	// When the container may be started again, and how long the back-off is.
	readyAt unit.Instant
	delay   time.Duration
}

// stopped is what is known about a container that was stopped in order to be started again.
type stopped struct {
	since unit.Wall // end of the run before it; zero: there was none
}

// countExit counts an exit once, and sets the back-off after it. by is set if the container was stopped in order to be
// started again, because its liveness or startup probe failed. Upstream looks at the last exit before it stops such a
// container, so note does the same: the first such stop does not count. After later ones there is no back-off if at
// least the back-off has passed since the end of the run before. Otherwise the back-off is waited in full.
func (c *crash) countExit(now unit.Instant, wall unit.Wall, ended Container, by *stopped, ceiling time.Duration) {
	if c.id == ended.ID {
		return
	}
	if by != nil && by.since == 0 {
		c.id = ended.ID
		c.delay = 0
		c.readyAt = now
		return
	}
	if ended.StartedAt != 0 && ended.FinishedAt.Sub(ended.StartedAt) >= backoffReset*ceiling {
		c.streak = 0
	}
	c.id, c.delay = ended.ID, delayAfter(c.streak, ceiling)
	if by != nil && ended.FinishedAt.Sub(by.since) >= c.delay {
		c.delay = 0
	}
	// A wall clock that was set must neither lengthen the wait nor make it negative.
	elapsed := min(max(wall.Sub(ended.FinishedAt), 0), c.delay)
	c.readyAt = now.Add(c.delay - elapsed)
	c.streak++
}

// delayAfter returns the back-off before the next restart, after streak earlier exits.
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

// trouble is what is remembered of an action that keeps failing.
type trouble struct {
	reason, message string
	attempt         uint32       // attempt number of the start that failed
	tries           int          // failures in a row with the same reason
	retryAt         unit.Instant // when to retry; zero: at once
	asked           string       // askedKey of the action
	since           unit.Instant // when it last failed
}

// Reasons of failed starts that need special treatment, in upstream's words.
var (
	pulling = map[string]bool{
		ReasonErrImagePull: true, "RegistryUnavailable": true, "SignatureValidationFailed": true,
	}
	// created: reasons of starts that failed after the container had been created.
	created = map[string]bool{ReasonRunContainerError: true, ReasonPostStartHookError: true}
)

// shownFor is how long a failure is reported as itself before it is reported as a back-off. After a failed pull users
// see ErrImagePull, then ImagePullBackOff, as they are used to. Upstream changes at its next sync of the pod (after 1
// to 2 s).
const shownFor = 2 * time.Second

// Keys of troubles: sandboxKey of the creation of a sandbox, resizeKey of a resize. endKey is the prefix for stops and
// removals. No container can have such a name.
const (
	sandboxKey = ""
	resizeKey  = "resize "
	endKey     = "end "
)

// troubleKey returns the key of what an action does: create the sandbox, start a container, resize, or end something.
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
