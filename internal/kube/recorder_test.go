package kube

import (
	"context"
	"fmt"
	"net/url"
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
	s.created = append(s.created, e)
	return e, nil
}

func (s *sink) Update(e *corev1.Event) (*corev1.Event, error) { return e, nil }

func (s *sink) Patch(e *corev1.Event, _ []byte) (*corev1.Event, error) {
	s.patched++
	return e, nil
}

func eventPod(i int) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: fmt.Sprint("p", i), UID: types.UID(fmt.Sprint(i))}}
}

// TestPatientRecorder: a burst far beyond what client-go's broadcaster keeps is written whole, slowly while something else is
// under way and then at full speed; a server that is away is waited for, and one that refuses is not asked again.
func TestPatientRecorder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var busy atomic.Bool
		busy.Store(true)
		s := &sink{}
		r := newPatientRecorder(ctx, s, "test", busy.Load)
		r.Event(eventPod(-1), corev1.EventTypeNormal, "Broken", "refused")
		for i := range 5000 {
			r.Eventf(eventPod(i), corev1.EventTypeNormal, "Scheduled", "to %d", i)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if n := len(s.created); n < 80 || n > 100 {
			t.Errorf("%d events in 10 s while busy, want not quite 10 a second", n)
		}
		busy.Store(false)
		s.away.Store(true)
		time.Sleep(time.Minute)
		s.away.Store(false)
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if len(s.created) != 5000 {
			t.Errorf("%d events were written, want all 5000", len(s.created))
		}
		for range 3 {
			r.Event(eventPod(7), corev1.EventTypeWarning, "FailedScheduling", "again")
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if len(s.created) != 5001 || s.patched != 2 {
			t.Errorf("%d events, %d patches: want one more event that says it happened three times", len(s.created), s.patched)
		}
		e := s.created[0]
		if e.Name == "" || e.Namespace != "x" || e.Source.Component != "test" || e.InvolvedObject.Kind != "Pod" || e.InvolvedObject.Name != "p0" {
			t.Errorf("event %+v", e)
		}
	})
}

// TestPatientRecorderIsBounded: what is beyond its bound is dropped, and the caller never waits.
func TestPatientRecorderIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s := &sink{}
		s.away.Store(true)
		r := newPatientRecorder(ctx, s, "test", func() bool { return false })
		for i := range 3 * waitingMax {
			r.Event(eventPod(i), corev1.EventTypeNormal, "Scheduled", "")
		}
		if len(r.waiting) > waitingMax || r.dropped == 0 {
			t.Errorf("%d wait, %d dropped", len(r.waiting), r.dropped)
		}
	})
}
