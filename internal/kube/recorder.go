package kube

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/tools/record/util"
	"k8s.io/client-go/tools/reference"
	"k8s.io/utils/clock"
)

// patientRecorder is for who has thousands of Events at once and something more urgent to send. Like client-go's broadcaster
// it writes them one after the other, aggregated and filtered in the same way; unlike that, it keeps what waits (the broadcaster
// drops all beyond 1,000), holds nothing up, and gives way.
type patientRecorder struct {
	sink       record.EventSink
	correlator *record.EventCorrelator
	source     corev1.EventSource
	busy       func() bool

	mu      sync.Mutex
	waiting []*corev1.Event
	dropped int
	ready   chan struct{}
}

const (
	// waitingMax bounds the Events that wait behind those that are being written, at about 1 KiB each. Chosen: a burst of pods
	// on a large cluster. What comes beyond is dropped and counted in the log.
	waitingMax = 1 << 15
	// yieldPause is between two Events while something more urgent is under way: 10 a second. An Event costs the API server nearly
	// as much as a bind does, of which it takes some 800 a second on two cores (measured 2026-11-20): 50 Events a second would be a
	// sixteenth of that, 10 are an eightieth (reckoned). Raised, Events of a burst come later, and of a very long one more are dropped.
	yieldPause = 100 * time.Millisecond
	// yieldTimes is how many times as long as the last Event took the pause is at least: a server that takes long is busy with
	// what is more urgent. Chosen: one Event for hundreds of binds on a server that is at its limit.
	yieldTimes = 4
)

// NewPatientRecorder returns a recorder that writes Events as component until ctx ends, slowly while busy says so.
func NewPatientRecorder(ctx context.Context, c *Client, component string, busy func() bool) record.EventRecorder {
	return newPatientRecorder(ctx, eventSink{ctx, c}, component, busy)
}

func newPatientRecorder(ctx context.Context, sink record.EventSink, component string, busy func() bool) *patientRecorder {
	r := &patientRecorder{
		sink: sink, correlator: record.NewEventCorrelator(clock.RealClock{}), source: corev1.EventSource{Component: component},
		busy: busy, ready: make(chan struct{}, 1),
	}
	go r.run(ctx)
	return r
}

func (r *patientRecorder) Event(about runtime.Object, kind, reason, message string) {
	r.keep(about, nil, kind, reason, message)
}

func (r *patientRecorder) Eventf(about runtime.Object, kind, reason, format string, args ...any) {
	r.keep(about, nil, kind, reason, fmt.Sprintf(format, args...))
}

func (r *patientRecorder) AnnotatedEventf(about runtime.Object, annotations map[string]string, kind, reason, format string, args ...any) {
	r.keep(about, annotations, kind, reason, fmt.Sprintf(format, args...))
}

func (r *patientRecorder) keep(about runtime.Object, annotations map[string]string, kind, reason, message string) {
	ref, err := reference.GetReference(scheme, about)
	if err != nil {
		slog.Error("event about an unknown object", "reason", reason, "message", message, "err", err)
		return
	}
	now := metav1.Now()
	e := &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Name: util.GenerateEventName(ref.Name, now.UnixNano()), Namespace: ref.Namespace, Annotations: annotations},
		InvolvedObject: *ref, Reason: reason, Message: message, FirstTimestamp: now, LastTimestamp: now, Count: 1, Type: kind,
		Source: r.source, ReportingController: r.source.Component,
	}
	if e.Namespace == "" {
		e.Namespace = metav1.NamespaceDefault
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.waiting) == waitingMax {
		r.dropped++
		return
	}
	r.waiting = append(r.waiting, e)
	select {
	case r.ready <- struct{}{}:
	default:
	}
}

// take returns all that waits, and how many were dropped for want of room.
func (r *patientRecorder) take() (waiting []*corev1.Event, dropped int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	waiting, dropped = r.waiting, r.dropped
	r.waiting, r.dropped = nil, 0
	return waiting, dropped
}

func (r *patientRecorder) run(ctx context.Context) {
	for {
		select {
		case <-r.ready:
		case <-ctx.Done():
			return
		}
		events, dropped := r.take()
		if dropped > 0 {
			slog.Warn("events dropped: they came faster than the API server takes them", "dropped", dropped, "waiting", len(events))
		}
		took := time.Duration(0)
		for i, e := range events {
			events[i] = nil
			if r.busy() {
				select {
				case <-time.After(max(yieldPause, yieldTimes*took)):
				case <-ctx.Done():
				}
			}
			if ctx.Err() != nil {
				return
			}
			began := time.Now()
			r.write(ctx, e)
			took = min(time.Since(began), time.Second)
		}
	}
}

// write sends one Event, waiting for a server that does not answer. What the server refuses is left: it would refuse it again.
func (r *patientRecorder) write(ctx context.Context, e *corev1.Event) {
	result, err := r.correlator.EventCorrelate(e)
	if err != nil || result.Skip {
		return
	}
	e = result.Event
	written, err := patiently(ctx, func() (*corev1.Event, error) {
		if e.Count > 1 {
			if written, err := r.sink.Patch(e, result.Patch); !apierrors.IsNotFound(err) {
				return written, err
			}
			e.ResourceVersion = "" // it has expired meanwhile
		}
		return r.sink.Create(e)
	})
	switch {
	case err == nil:
		r.correlator.UpdateState(written)
	case ctx.Err() == nil && !apierrors.IsAlreadyExists(err) && !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		slog.Warn("event refused", "object", e.InvolvedObject.Namespace+"/"+e.InvolvedObject.Name, "reason", e.Reason, "err", err)
	}
}
