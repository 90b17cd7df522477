package kube

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// sink is an API server that takes a millisecond for an Event, when it is there.
type sink struct {
	away    atomic.Bool
	mu      sync.Mutex
	created []*corev1.Event
	patched int
}

func (s *sink) Create(e *corev1.Event) (*corev1.Event, error) {
	if s.away.Load() {
		return nil, &url.Error{Op: "Post", URL: "/", Err: syscall.ECONNREFUSED}
	}
	time.Sleep(time.Millisecond)
	if e.Reason == "Broken" {
		return nil, apierrors.NewBadRequest("no")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.created = append(s.created, e)
	return e, nil
}

// has returns the place of the Event about the pod of this name; below zero: there is none.
func (s *sink) has(pod string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.IndexFunc(s.created, func(e *corev1.Event) bool { return e.InvolvedObject.Name == pod })
}

func (s *sink) Update(e *corev1.Event) (*corev1.Event, error) { return e, nil }

func (s *sink) Patch(e *corev1.Event, _ []byte) (*corev1.Event, error) {
	s.patched++
	return e, nil
}

func eventPod(i int) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: fmt.Sprint("p", i), UID: types.UID(fmt.Sprint(i))}}
}

// TestRecorder: a burst far beyond what client-go's broadcaster keeps is written whole, Warnings before those that came earlier; a
// server that is away is waited for, and one that refuses is not asked again.
func TestRecorder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s := &sink{}
		r := newRecorder(ctx, s, corev1.EventSource{Component: "test", Host: "here"})
		r.Event(eventPod(-1), corev1.EventTypeNormal, "Broken", "refused")
		for i := range 5000 {
			r.Eventf(eventPod(i), corev1.EventTypeNormal, "Scheduled", "to %d", i)
		}
		r.Event(eventPod(9999), corev1.EventTypeWarning, "FailedScheduling", "no room")
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		if at := s.has("p9999"); at < 0 {
			t.Errorf("the Warning is not among the %d first Events", len(s.created))
		}
		s.away.Store(true)
		time.Sleep(time.Minute)
		s.away.Store(false)
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if len(s.created) != 5001 {
			t.Errorf("%d events were written, want all 5001", len(s.created))
		}
		for range 3 {
			r.Event(eventPod(7), corev1.EventTypeWarning, "FailedScheduling", "again")
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if len(s.created) != 5002 || s.patched != 2 {
			t.Errorf("%d events, %d patches: want one more event that says it happened three times", len(s.created), s.patched)
		}
		e := s.created[max(s.has("p0"), 0)]
		if e.Name == "" || e.Namespace != "x" || e.Source.Component != "test" || e.ReportingInstance != "here" || e.InvolvedObject.Kind != "Pod" || e.InvolvedObject.Name != "p0" {
			t.Errorf("event %+v", e)
		}
	})
}

// TestRecorderIsBounded: what is beyond its bound is dropped, and the caller never waits.
func TestRecorderIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s := &sink{}
		s.away.Store(true)
		r := newRecorder(ctx, s, corev1.EventSource{Component: "test"})
		for i := range 3 * waitingMax {
			r.Event(eventPod(i), corev1.EventTypeNormal, "Scheduled", "")
		}
		line := r.lines[corev1.EventTypeNormal]
		if len(line.waiting) > waitingMax || line.dropped == 0 {
			t.Errorf("%d wait, %d dropped", len(line.waiting), line.dropped)
		}
	})
}
