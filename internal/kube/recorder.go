package kube

import (
	"context"
	"fmt"
	"hash/maphash"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/tools/record/util"
	"k8s.io/client-go/tools/reference"
	"k8s.io/utils/clock"

	"github.com/plimsoll-dev/plimsoll/internal/core/throttle"
	"github.com/plimsoll-dev/plimsoll/internal/kube/scheme"
)

// Recorders write Events under the names of several components. They aggregate and filter them as client-go's
// broadcaster does. They differ from the broadcaster in three ways: they keep more than 1,000 Events that wait, they
// retry until the server answers, and no Warning waits behind other Events. Events about one object are written one
// after the other, those about different objects concurrently. The Throttle of their client decides how fast, and which
// writes go first. Recorders are safe for concurrent use.
type Recorders struct {
	ctx        context.Context         // ends the lanes' goroutines
	sink       eventWriter             // sends the Events
	correlator *record.EventCorrelator // client-go's aggregation and filter; it locks itself
	seed       maphash.Seed            // of the hash that chooses the lane of an object
	queues     map[string]*eventQueue  // by type of Event; set once
	away       atomic.Bool             // the server does not answer, and one lane has logged it
	running    atomic.Int64            // how many lanes have a goroutine
	held       atomic.Pointer[Held]    // see Hold; nil: nothing is held back
}

// Held returns a channel that is closed when Events need no longer be held back. It returns nil when they need not be
// held back now.
type Held func() <-chan struct{}

// eventWriter sends Events to the API server. since is when the Event happened.
type eventWriter interface {
	create(ctx context.Context, since time.Time, e *corev1.Event) (*corev1.Event, error)
	patch(ctx context.Context, since time.Time, e *corev1.Event, data []byte) (*corev1.Event, error)
}

const (
	// waitingMax bounds the Events of one type that wait behind those that are being written, at about 1 KiB each.
	// Chosen for a burst of pods on a large cluster. Further Events are dropped, and counted in the log and by Dropped.
	waitingMax = 1 << 15
	// eventLanes is how many Events of one type are written at once. Chosen: as many as the binds that a server on two
	// cores processes at a time, and half of the scheduler's BindsInFlight; Events and binds then keep up with each
	// other.
	eventLanes = 32
	// passMax is how many Events of one object and source client-go's filter passes at once (defaultSpamBurst in
	// tools/record/events_cache.go).
	passMax = 25
	// waitingOfObjectMax bounds the waiting Events about one object. With the one that is being written they are
	// passMax: more would be filtered, and the filter would drop the newest.
	waitingOfObjectMax = passMax - 1
	// RememberedDefault is how many Events, objects with a type of Event, and groups of similar Events client-go's
	// broadcaster remembers (maxLruCacheEntries in tools/record/events_cache.go): 5 MiB when there were as many. What
	// is forgotten is the oldest: when it comes again, it is written as a new Event instead of being counted.
	RememberedDefault = 4096
)

// eventQueue is the queue of the Events of one type.
type eventQueue struct {
	lanes   [eventLanes]eventLane
	waiting atomic.Int64 // how many wait, in all lanes
	dropped atomic.Int64 // how many were dropped since the last log message about it
	lost    atomic.Int64 // how many were dropped since the start
}

// eventLane is the queue of the Events about some of the objects, oldest first. Its goroutine runs while Events wait.
// mu guards all fields.
type eventLane struct {
	mu      sync.Mutex
	running bool                                       // the lane has a goroutine
	waiting []*waitingEvent                            // in the order in which they are sent
	about   map[corev1.ObjectReference][]*waitingEvent // the waiting Events by their object
}

// waitingEvent is an Event that was not sent yet. If the same Event is recorded again meanwhile, it is counted here:
// times grows, and since stays the time of the first. The lane's mutex guards it until take returns it.
type waitingEvent struct {
	*corev1.Event
	since time.Time
	times int
}

// NewRecorder returns a recorder that writes Events as component on this host until ctx ends. At a Throttle those of
// type Warning count as throttle.Warning, others as throttle.Event.
func NewRecorder(ctx context.Context, c *Client, component, host string) record.EventRecorder {
	return newRecorders(ctx, eventSink{c: c}).As(component, host)
}

// NewHeldRecorder is NewRecorder for a process that at times does what users wait for, and that Events would delay.
// Nothing is held back before hold is called. remembered replaces RememberedDefault.
func NewHeldRecorder(
	ctx context.Context, c *Client, component, host string, remembered int,
) (recorder record.EventRecorder, hold func(Held)) {
	r := newRecordersOf(ctx, eventSink{c: c}, remembered)
	return r.As(component, host), func(held Held) { r.held.Store(&held) }
}

// NewRecorders returns recorders for a process that records an Event for each of its other writes. At a Throttle these
// Events wait behind those writes for a while and then keep up with them (throttle.EventKind).
func NewRecorders(ctx context.Context, c *Client) *Recorders {
	return newRecorders(ctx, eventSink{c: c, keepsUp: true})
}

func newRecorders(ctx context.Context, sink eventWriter) *Recorders {
	return newRecordersOf(ctx, sink, RememberedDefault)
}

func newRecordersOf(ctx context.Context, sink eventWriter, remembered int) *Recorders {
	options := record.CorrelatorOptions{LRUCacheSize: remembered, Clock: clock.RealClock{}}
	r := &Recorders{
		ctx: ctx, sink: sink, correlator: record.NewEventCorrelatorWithOptions(options), seed: maphash.MakeSeed(),
		queues: map[string]*eventQueue{},
	}
	for _, kind := range []string{corev1.EventTypeNormal, corev1.EventTypeWarning} {
		r.queues[kind] = &eventQueue{}
	}
	return r
}

// As returns the recorder that writes as component on host.
func (r *Recorders) As(component, host string) record.EventRecorder {
	return recorder{r, corev1.EventSource{Component: component, Host: host}}
}

// Dropped returns how many Events were dropped because too many waited.
func (r *Recorders) Dropped() (n int64) {
	for _, queue := range r.queues {
		n += queue.lost.Load()
	}
	return n
}

// recorder writes as one component.
type recorder struct {
	*Recorders
	source corev1.EventSource
}

func (r recorder) Event(about runtime.Object, kind, reason, message string) {
	r.keep(about, nil, kind, reason, message)
}

func (r recorder) Eventf(about runtime.Object, kind, reason, format string, args ...any) {
	r.keep(about, nil, kind, reason, fmt.Sprintf(format, args...))
}

func (r recorder) AnnotatedEventf(about runtime.Object, annotations map[string]string, kind, reason, format string,
	args ...any) {
	r.keep(about, annotations, kind, reason, fmt.Sprintf(format, args...))
}

func (r recorder) keep(about runtime.Object, annotations map[string]string, kind, reason, message string) {
	ref, err := reference.GetReference(scheme.Scheme, about)
	if err != nil {
		slog.Error("event about an unknown object", "reason", reason, "message", message, "err", err)
		return
	}
	queue := r.queues[kind]
	if queue == nil { // the API server refuses other types
		slog.Error("event of an unknown type", "type", kind, "reason", reason, "message", message)
		return
	}
	now := metav1.Now()
	e := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: util.GenerateEventName(ref.Name, now.UnixNano()), Namespace: ref.Namespace,
			Annotations: annotations},
		InvolvedObject: *ref, Reason: reason, Message: message, FirstTimestamp: now, LastTimestamp: now, Count: 1, Type: kind,
		Source: r.source, ReportingController: r.source.Component, ReportingInstance: r.source.Host,
	}
	if e.Namespace == "" {
		e.Namespace = metav1.NamespaceDefault
	}
	lane := &queue.lanes[maphash.String(r.seed, ref.Namespace+"/"+ref.Name)%eventLanes]
	if lane.put(queue, &waitingEvent{Event: e, since: now.Time, times: 1}) {
		r.running.Add(1)
		go r.run(queue, lane)
	}
}

// put queues e, and reports whether the caller must start the lane's goroutine. When the same Event already waits, it
// is counted there. When too many wait about an object, the oldest of them is dropped.
func (l *eventLane) put(queue *eventQueue, e *waitingEvent) (run bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	object := e.object()
	for _, w := range l.about[object] {
		if w.sameAs(e) {
			w.times++
			w.LastTimestamp = e.LastTimestamp
			return false
		}
	}
	if ofIt := l.about[object]; len(ofIt) >= waitingOfObjectMax {
		*ofIt[0] = waitingEvent{} // its place in the queue stays, empty
		l.about[object] = slices.Delete(ofIt, 0, 1)
		queue.waiting.Add(-1)
	}
	if queue.waiting.Load() >= waitingMax {
		queue.dropped.Add(1)
		queue.lost.Add(1)
		return false
	}
	queue.waiting.Add(1)
	if l.about == nil {
		l.about = map[corev1.ObjectReference][]*waitingEvent{}
	}
	l.waiting, l.about[object] = append(l.waiting, e), append(l.about[object], e)
	run, l.running = !l.running, true
	return run
}

// object returns the reference to the object that the Event is about, without its field path and resourceVersion.
func (e *waitingEvent) object() corev1.ObjectReference {
	object := e.InvolvedObject
	object.FieldPath, object.ResourceVersion = "", ""
	return object
}

// sameAs reports whether two Events about one object have the same content.
func (e *waitingEvent) sameAs(o *waitingEvent) bool {
	return e.Reason == o.Reason && e.Message == o.Message && e.Source == o.Source &&
		e.InvolvedObject.FieldPath == o.InvolvedObject.FieldPath && len(e.Annotations)+len(o.Annotations) == 0
}

// take returns the next Event. It returns nil, and the lane has stopped, if there is none.
func (l *eventLane) take(queue *eventQueue) *waitingEvent {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.waiting) > 0 {
		e := l.waiting[0]
		l.waiting[0], l.waiting = nil, l.waiting[1:]
		if e.Event == nil {
			continue
		}
		queue.waiting.Add(-1)
		object := e.object()
		if l.about[object] = slices.Delete(l.about[object], 0, 1); len(l.about[object]) == 0 {
			delete(l.about, object)
		}
		return e
	}
	l.running = false
	l.waiting = nil
	l.about = nil
	return nil
}

// Flush waits until all Events are written, but not longer than most.
func (r *Recorders) Flush(most time.Duration) {
	over := time.NewTimer(most)
	defer over.Stop()
	for r.running.Load() > 0 {
		select {
		case <-time.After(flushPoll):
		case <-over.C:
			slog.Warn("events lost at the end of the process: the API server did not accept them in time",
				"lanes", r.running.Load())
			return
		}
	}
}

// flushPoll is how often Flush checks. Chosen: short compared with the end of a process.
const flushPoll = 5 * time.Millisecond

// run is the goroutine of a lane.
func (r *Recorders) run(queue *eventQueue, lane *eventLane) {
	defer r.running.Add(-1)
	for e := lane.take(queue); e != nil && r.ctx.Err() == nil; e = lane.take(queue) {
		if dropped := queue.dropped.Swap(0); dropped > 0 {
			slog.Warn("events dropped: they came faster than the API server accepts them", "dropped", dropped,
				"waiting", queue.waiting.Load())
		}
		r.await(e)
		r.write(e)
	}
}

// await waits while Events are held back. Warnings are not held back, and core/throttle says for how long other Events
// may be.
func (r *Recorders) await(e *waitingEvent) {
	held := r.held.Load()
	if held == nil || e.Type == corev1.EventTypeWarning || (*held)() == nil {
		return
	}
	over := time.NewTimer(time.Until(e.since.Add(throttle.BusyMax)))
	defer over.Stop()
	for until := (*held)(); until != nil; until = (*held)() {
		select {
		case <-until:
		case <-over.C:
			return
		case <-r.ctx.Done():
			return
		}
	}
}

// keptMax bounds for how long an Event is sent again and again to a server that is overloaded or fails. A server would
// have deleted the Event itself after that time (--event-ttl of the API server, an hour).
const keptMax = time.Hour

// temporaryError is the error of a server that may accept the same request later.
type temporaryError struct{ error }

func (e temporaryError) Unwrap() error { return e.error }

// markTemporary returns a temporaryError if the server may accept the Event later and the Event, which waits since
// then, is younger than keptMax. It returns other errors unchanged.
func markTemporary(err error, since time.Time) error {
	temporary := apierrors.IsTooManyRequests(err) || apierrors.IsInternalError(err) ||
		apierrors.IsServiceUnavailable(err) || apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err)
	if temporary && time.Since(since) < keptMax {
		return temporaryError{err}
	}
	return err
}

// write sends one Event. It retries while the server does not answer or is temporarily unable. An Event that the server
// refuses is dropped: the server would refuse it again.
func (r *Recorders) write(w *waitingEvent) {
	e, patch, isNew := r.correlate(w)
	if e == nil {
		return
	}
	written, err := untilAnsweredLogging(r.ctx, func() (*corev1.Event, error) {
		if !isNew {
			if written, err := r.sink.patch(r.ctx, w.since, e, patch); !apierrors.IsNotFound(err) {
				return written, markTemporary(err, w.since)
			}
			e.ResourceVersion = "" // the stored Event has expired meanwhile
		}
		written, err := r.sink.create(r.ctx, w.since, e)
		return written, markTemporary(err, w.since)
	}, func(err error) {
		if r.away.CompareAndSwap(false, true) { // log it once, not from each lane
			logNoAnswer(err)
		}
	})
	switch {
	case err == nil:
		r.away.Store(false)
		r.correlator.UpdateState(written)
	case r.ctx.Err() == nil && !apierrors.IsAlreadyExists(err) && !apierrors.HasStatusCause(err,
		corev1.NamespaceTerminatingCause):
		slog.Warn("event refused", "object", e.InvolvedObject.Namespace+"/"+e.InvolvedObject.Name, "reason", e.Reason,
			"err", err)
	}
}

// correlate passes each occurrence of the Event to the correlator, and returns the result for the last one; nil:
// nothing is to be written. isNew: the server has no Event of this series yet.
func (r *Recorders) correlate(w *waitingEvent) (e *corev1.Event, patch []byte, isNew bool) {
	for i := range min(w.times, passMax) { // more would be filtered
		result, err := r.correlator.EventCorrelate(w.Event)
		if err != nil || result.Skip {
			break
		}
		isNew = isNew || i == 0 && result.Event.Count <= 1
		e, patch = result.Event, result.Patch
	}
	return e, patch, isNew
}
