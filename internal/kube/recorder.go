package kube

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/tools/record/util"
	"k8s.io/client-go/tools/reference"
	"k8s.io/utils/clock"
)

// recorder writes Events, aggregated and filtered as client-go's broadcaster does it. Unlike that, it keeps what waits (the broadcaster
// drops all beyond 1,000), waits for a server that does not answer, and lets no Warning wait behind other Events. Of either it writes one
// after the other; how fast, and what goes before them, is for the Gate of its client to say.
type recorder struct {
	sink       record.EventSink
	correlator *record.EventCorrelator
	source     corev1.EventSource
	lines      map[string]*eventLine // by type of Event
}

// eventLine is the Events of one type that wait.
type eventLine struct {
	mu      sync.Mutex
	waiting []*corev1.Event
	dropped int
	ready   chan struct{}
}

// waitingMax bounds the Events of one type that wait behind those that are being written, at about 1 KiB each. Chosen: a burst of pods on
// a large cluster. What comes beyond is dropped and counted in the log.
const waitingMax = 1 << 15

// NewRecorder returns a recorder that writes Events as component on this host until ctx ends. Before a Gate those of type Warning count
// as throttle.Warning, others as throttle.Event.
func NewRecorder(ctx context.Context, c *Client, component, host string) record.EventRecorder {
	return newRecorder(ctx, eventSink{ctx, c}, corev1.EventSource{Component: component, Host: host})
}

func newRecorder(ctx context.Context, sink record.EventSink, source corev1.EventSource) *recorder {
	r := &recorder{sink: sink, correlator: record.NewEventCorrelator(clock.RealClock{}), source: source, lines: map[string]*eventLine{}}
	for _, kind := range []string{corev1.EventTypeNormal, corev1.EventTypeWarning} {
		line := &eventLine{ready: make(chan struct{}, 1)}
		r.lines[kind] = line
		go r.run(ctx, line)
	}
	return r
}

func (r *recorder) Event(about runtime.Object, kind, reason, message string) {
	r.keep(about, nil, kind, reason, message)
}

func (r *recorder) Eventf(about runtime.Object, kind, reason, format string, args ...any) {
	r.keep(about, nil, kind, reason, fmt.Sprintf(format, args...))
}

func (r *recorder) AnnotatedEventf(about runtime.Object, annotations map[string]string, kind, reason, format string, args ...any) {
	r.keep(about, annotations, kind, reason, fmt.Sprintf(format, args...))
}

func (r *recorder) keep(about runtime.Object, annotations map[string]string, kind, reason, message string) {
	ref, err := reference.GetReference(scheme, about)
	if err != nil {
		slog.Error("event about an unknown object", "reason", reason, "message", message, "err", err)
		return
	}
	now := metav1.Now()
	e := &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Name: util.GenerateEventName(ref.Name, now.UnixNano()), Namespace: ref.Namespace, Annotations: annotations},
		InvolvedObject: *ref, Reason: reason, Message: message, FirstTimestamp: now, LastTimestamp: now, Count: 1, Type: kind,
		Source: r.source, ReportingController: r.source.Component, ReportingInstance: r.source.Host,
	}
	if e.Namespace == "" {
		e.Namespace = metav1.NamespaceDefault
	}
	line := r.lines[kind]
	if line == nil { // an API server refuses other types
		slog.Error("event of an unknown type", "type", kind, "reason", reason, "message", message)
		return
	}
	line.put(e)
}

func (l *eventLine) put(e *corev1.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.waiting) == waitingMax {
		l.dropped++
		return
	}
	l.waiting = append(l.waiting, e)
	select {
	case l.ready <- struct{}{}:
	default:
	}
}

// take returns all that waits, and how many were dropped for want of room.
func (l *eventLine) take() (waiting []*corev1.Event, dropped int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	waiting, dropped = l.waiting, l.dropped
	l.waiting, l.dropped = nil, 0
	return waiting, dropped
}

func (r *recorder) run(ctx context.Context, line *eventLine) {
	for {
		select {
		case <-line.ready:
		case <-ctx.Done():
			return
		}
		events, dropped := line.take()
		if dropped > 0 {
			slog.Warn("events dropped: they came faster than the API server takes them", "dropped", dropped, "waiting", len(events))
		}
		for i, e := range events {
			if ctx.Err() != nil {
				return
			}
			events[i] = nil
			r.write(ctx, e)
		}
	}
}

// write sends one Event, waiting for a server that does not answer. What the server refuses is left: it would refuse it again.
func (r *recorder) write(ctx context.Context, e *corev1.Event) {
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
