package kube

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"runtime"
	"slices"
	"strings"
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

	"github.com/plimsoll-dev/plimsoll/internal/core/throttle"
)

// sink is an API server that needs a millisecond per Event while it is up.
type sink struct {
	away    atomic.Bool
	mu      sync.Mutex
	created []*corev1.Event
	patched int
	said    []string // the messages in the order of arrival
}

func (s *sink) create(_ context.Context, _ time.Time, e *corev1.Event) (*corev1.Event, error) {
	if s.away.Load() {
		return nil, &url.Error{Op: "Post", URL: "/", Err: syscall.ECONNREFUSED}
	}
	time.Sleep(time.Millisecond)
	if e.Reason == "Broken" {
		return nil, apierrors.NewBadRequest("no")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.created, s.said = append(s.created, e), append(s.said, e.Message)
	return e, nil
}

// indexOf returns the index of the Event about the pod of this name; below zero: there is none.
func (s *sink) indexOf(pod string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.IndexFunc(s.created, func(e *corev1.Event) bool { return e.InvolvedObject.Name == pod })
}

func (s *sink) patch(_ context.Context, _ time.Time, e *corev1.Event, _ []byte) (*corev1.Event, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.patched++
	s.said = append(s.said, e.Message)
	return e, nil
}

func eventPod(i int) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: fmt.Sprint("p", i),
		UID: types.UID(fmt.Sprint(i))}}
}

// TestRecorder: a burst with far more Events than client-go's broadcaster keeps is written completely, Warnings before
// earlier Events. Events wait for a server that does not answer. An Event that the server refuses is not sent again.
func TestRecorder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s := &sink{}
		r := newRecorders(ctx, s).As("test", "here")
		r.Event(eventPod(-1), corev1.EventTypeNormal, "Broken", "refused")
		for i := range 5000 {
			r.Eventf(eventPod(i), corev1.EventTypeNormal, "Scheduled", "to %d", i)
		}
		r.Event(eventPod(9999), corev1.EventTypeWarning, "FailedScheduling", "no room")
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		if at := s.indexOf("p9999"); at < 0 {
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
			time.Sleep(time.Second)
			synctest.Wait()
		}
		if len(s.created) != 5002 || s.patched != 2 {
			t.Errorf("%d events, %d patches: want one more event that says it happened three times", len(s.created), s.patched)
		}
		e := s.created[max(s.indexOf("p0"), 0)]
		if e.Name == "" || e.Namespace != "x" || e.Source.Component != "test" || e.ReportingInstance != "here" ||
			e.InvolvedObject.Kind != "Pod" || e.InvolvedObject.Name != "p0" {
			t.Errorf("event %+v", e)
		}
	})
}

// TestEventsAreRetried: an Event is sent again to an overloaded or failing server until that accepts it, but not for
// longer than the server would have kept it. After other refusals it is not sent again.
func TestEventsAreRetried(t *testing.T) {
	for name, q := range map[string]struct {
		refusal error
		lasts   time.Duration
		written int
		tries   int // upper bound
	}{
		"too much to do":    {apierrors.NewTooManyRequests("busy", 1), 10 * time.Minute, 1, 100},
		"its store is away": {apierrors.NewInternalError(errors.New("etcdserver: no leader")), 10 * time.Minute, 1, 100},
		"it begins":         {apierrors.NewServiceUnavailable("not yet"), 10 * time.Minute, 1, 100},
		"it takes too long": {apierrors.NewTimeoutError("it took a minute", 1), 10 * time.Minute, 1, 100},
		"it gave up":        {apierrors.NewServerTimeout(corev1.Resource("events"), "create", 1), 10 * time.Minute, 1, 100},
		"it fails for good": {apierrors.NewInternalError(errors.New("webhook")), 3 * time.Hour, 0, 600},
		"it says no":        {apierrors.NewForbidden(corev1.Resource("events"), "", errors.New("no")), time.Minute, 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				s := &refusingSink{refusal: q.refusal}
				newRecorders(ctx, s).As("test", "").Event(eventPod(0), corev1.EventTypeNormal, "Scheduled", "")
				time.Sleep(q.lasts)
				s.mu.Lock()
				s.refusal = nil
				s.mu.Unlock()
				time.Sleep(time.Minute)
				synctest.Wait()
				if len(s.created) != q.written || s.tries > q.tries {
					t.Errorf("%d Events are written, after %d tries; want %d, %d", len(s.created), s.tries, q.written, q.tries)
				}
			})
		})
	}
}

// refusingSink is a sink that returns refusal while that is set.
type refusingSink struct {
	sink
	refusal error
	tries   int
}

func (s *refusingSink) create(ctx context.Context, since time.Time, e *corev1.Event) (*corev1.Event, error) {
	s.mu.Lock()
	s.tries++
	refusal := s.refusal
	s.mu.Unlock()
	if refusal != nil {
		return nil, refusal
	}
	return s.sink.create(ctx, since, e)
}

// TestFlush waits until all Events are written, or for the given time.
func TestFlush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s := &sink{}
		all := newRecorders(ctx, s)
		for i := range 1000 {
			all.As("test", "").Event(eventPod(i), corev1.EventTypeNormal, "Scheduled", "")
		}
		if all.Flush(time.Minute); len(s.created) != 1000 {
			t.Errorf("%d of 1000 Events are written", len(s.created))
		}
		began := time.Now()
		if all.Flush(time.Minute); time.Since(began) > 0 {
			t.Errorf("it waits %v for nothing", time.Since(began))
		}
		s.away.Store(true)
		all.As("test", "").Event(eventPod(0), corev1.EventTypeNormal, "Again", "")
		if all.Flush(time.Minute); time.Since(began) > time.Minute {
			t.Errorf("it waits %v", time.Since(began))
		}
	})
}

// TestRecorderIsBounded: Events beyond the bound are dropped, and the caller never blocks.
func TestRecorderIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s := &sink{}
		s.away.Store(true)
		all := newRecorders(ctx, s)
		r := all.As("test", "")
		for i := range 3 * waitingMax {
			r.Event(eventPod(i), corev1.EventTypeNormal, "Scheduled", "")
		}
		synctest.Wait()
		if n := all.queues[corev1.EventTypeNormal].waiting.Load(); n > waitingMax || all.Dropped() < waitingMax {
			t.Errorf("%d wait, %d dropped", n, all.Dropped())
		}
	})
}

// TestEventsOfOneObjectAreBounded: repetitions of a waiting Event are counted in it, and a pod that fails with ever new
// messages keeps only its share of waiting Events, including the newest.
func TestEventsOfOneObjectAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s := &sink{}
		s.away.Store(true)
		all := newRecorders(ctx, s)
		r := all.As("test", "")
		r.Event(eventPod(0), corev1.EventTypeNormal, "Scheduled", "is being written")
		synctest.Wait()
		for i := range 7 {
			pod := eventPod(0)
			pod.ResourceVersion = fmt.Sprint(i)
			r.Event(pod, corev1.EventTypeNormal, "Again", "and again")
		}
		for i := range 1000 {
			r.Eventf(eventPod(1), corev1.EventTypeWarning, "FailedScheduling", "the %dth reason", i)
			if i == 0 {
				synctest.Wait() // the Event is being written
			}
		}
		if n := all.queues[corev1.EventTypeWarning].waiting.Load(); n > waitingOfObjectMax {
			t.Errorf("%d Events about one pod wait", n)
		}
		s.away.Store(false)
		time.Sleep(time.Minute)
		synctest.Wait()
		for _, e := range s.created {
			if e.Reason == "Again" && e.Count != 7 {
				t.Errorf("count %d, want 7", e.Count)
			}
		}
		reasons := slices.DeleteFunc(s.said, func(said string) bool { return !strings.Contains(said, "th reason") })
		if n := len(reasons); n != 1+waitingOfObjectMax || !strings.Contains(reasons[n-1], "the 999th reason") {
			t.Errorf("%d reasons were written, want the first and the last %d: %q", n, waitingOfObjectMax, reasons)
		}
	})
}

// TestEventsThatDiffer: waiting Events about one object are merged if they are equal. One with another reason, message,
// source, part of the object or annotations is written separately.
func TestEventsThatDiffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s := &sink{}
		s.away.Store(true)
		all := newRecorders(ctx, s)
		r, pod := all.As("test", "here"), eventPod(0)
		r.Event(pod, corev1.EventTypeNormal, "First", "is being written")
		synctest.Wait()
		part := &corev1.ObjectReference{
			APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID,
			FieldPath: "spec.containers{c}",
		}
		r.Event(pod, corev1.EventTypeNormal, "Pulling", "image a")
		r.Event(pod, corev1.EventTypeNormal, "Pulled", "image a")
		r.Event(pod, corev1.EventTypeNormal, "Pulling", "image b")
		all.As("other", "here").Event(pod, corev1.EventTypeNormal, "Pulling", "image a")
		r.Event(part, corev1.EventTypeNormal, "Pulling", "image a")
		for _, annotations := range []map[string]string{nil, {"note": "one"}, {"note": "two"}, nil} {
			r.AnnotatedEventf(pod, annotations, corev1.EventTypeNormal, "Noted", "%d notes", 2)
		}
		r.AnnotatedEventf(pod, map[string]string{"note": "three"}, corev1.EventTypeNormal, "Noted", "one more")
		time.Sleep(time.Minute)
		r.Event(pod, corev1.EventTypeNormal, "Pulling", "image a")
		s.away.Store(false)
		time.Sleep(time.Minute)
		synctest.Wait()
		var told []string
		for _, e := range s.created {
			told = append(told, fmt.Sprint(e.Reason, " ", e.Message, " ", e.Source.Component, " ", e.InvolvedObject.FieldPath,
				" ", e.Count,
				" in ", e.LastTimestamp.Sub(e.FirstTimestamp.Time), e.Annotations))
		}
		want := []string{
			"First is being written test  1 in 0s map[]",
			"Pulling image a test  2 in 1m0s map[]",
			"Pulled image a test  1 in 0s map[]",
			"Pulling image b test  1 in 0s map[]",
			"Pulling image a other  1 in 0s map[]",
			"Pulling image a test spec.containers{c} 1 in 0s map[]",
			"Noted 2 notes test  2 in 0s map[]",
			"Noted one more test  1 in 0s map[note:three]",
		}
		if !slices.Equal(told, want) || s.patched != 2 {
			t.Errorf("%d patches, want 2, and Events\n%s\nwant\n%s", s.patched, strings.Join(told, "\n"),
				strings.Join(want, "\n"))
		}
	})
}

// TestEventsThatExpire: an Event that the server no longer has is created again; one that it has is patched with its
// new count.
func TestEventsThatExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s := &store{t: t, has: map[string]int32{}}
		r := newRecorders(ctx, s).As("test", "")
		again := func(want string) {
			t.Helper()
			r.Event(eventPod(0), corev1.EventTypeWarning, "FailedScheduling", "no room")
			time.Sleep(time.Second)
			synctest.Wait()
			if got := fmt.Sprint(s.has); got != want {
				t.Errorf("the server has %s, want %s", got, want)
			}
		}
		again("map[event1:1]")
		again("map[event1:2]")
		again("map[event1:3]")
		s.has = map[string]int32{}
		again("map[event2:4]")
		again("map[event2:5]")
	})
}

// store is an API server that names its stored Events and counts how often each happened.
type store struct {
	t    *testing.T
	has  map[string]int32
	made int
}

func (s *store) create(_ context.Context, _ time.Time, e *corev1.Event) (*corev1.Event, error) {
	if e.ResourceVersion != "" {
		s.t.Errorf("what is new is said to be version %s of something", e.ResourceVersion)
	}
	s.made++
	e = e.DeepCopy()
	e.Name, e.ResourceVersion = fmt.Sprint("event", s.made), "1"
	s.has[e.Name] = e.Count
	return e, nil
}

func (s *store) patch(_ context.Context, _ time.Time, e *corev1.Event, _ []byte) (*corev1.Event, error) {
	if s.has[e.Name] == 0 {
		return nil, apierrors.NewNotFound(corev1.Resource("events"), e.Name)
	}
	s.has[e.Name] = e.Count
	return e, nil
}

// TestEventsOfNoNamespace: Events about cluster-scoped objects, such as nodes, are in the default namespace. Invalid
// Events are left out.
func TestEventsOfNoNamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s := &sink{}
		r := newRecorders(ctx, s).As("test", "")
		r.Event(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, corev1.EventTypeNormal, "Starting", "")
		r.Event(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, "Alarm", "Starting", "of no type that there is")
		r.Event(nil, corev1.EventTypeNormal, "Starting", "about nothing")
		time.Sleep(time.Second)
		synctest.Wait()
		if len(s.created) != 1 || s.created[0].Namespace != metav1.NamespaceDefault ||
			s.created[0].InvolvedObject.Namespace != "" {
			t.Errorf("created %+v", s.created)
		}
	})
}

// TestEventsKeepUpWithBinds: binds are sent as fast as the server accepts them, and more always wait. Each bind's Event
// is written soon after the bind; without keepsUp only a few per cent of the Events are. Warnings wait about a second.
func TestEventsKeepUpWithBinds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		writes := NewThrottle(ThrottleOptions{Options: throttle.Options{InFlightMax: 16, Tolerance: 30}})
		s := &throttledSink{throttle: writes, took: map[throttle.Kind]int{}}
		all := newRecorders(ctx, s)
		r := all.As("test", "")
		bound := 0
		for range 32 {
			go func() {
				for ctx.Err() == nil && s.write(As(ctx, throttle.Bind)) == nil {
					s.mu.Lock()
					n := bound
					bound++
					s.mu.Unlock()
					r.Event(eventPod(n), corev1.EventTypeNormal, "Scheduled", "")
				}
			}()
		}
		for range 120 {
			time.Sleep(time.Second)
			r.Event(eventPod(-1), corev1.EventTypeWarning, "FailedScheduling", time.Now().String())
		}
		cancel()
		time.Sleep(time.Second)
		synctest.Wait()
		events := s.took[throttle.Event] + s.took[throttle.Overdue] + s.took[throttle.Warning]
		if all.Dropped() > 0 || bound < 5000 || 4*events < 3*bound {
			t.Errorf("%d binds, %d Events, %d of them overdue, %d dropped", bound, events, s.took[throttle.Overdue],
				all.Dropped())
		}
		if waiting := all.queues[corev1.EventTypeWarning].waiting.Load(); waiting > 2 {
			t.Errorf("%d Warnings wait", waiting)
		}
	})
}

// throttledSink is an API server behind a Throttle that needs 10 ms per write.
type throttledSink struct {
	throttle *Throttle
	mu       sync.Mutex
	took     map[throttle.Kind]int
}

func (s *throttledSink) write(ctx context.Context) error {
	kind, err := s.throttle.begin(ctx, ctx.Value(kindKey{}).(throttle.Kind))
	if err != nil {
		return err
	}
	time.Sleep(10 * time.Millisecond)
	s.throttle.end(throttle.Outcome{Kind: kind, Class: "x", Took: 10 * time.Millisecond})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.took[kind]++
	return nil
}

func (s *throttledSink) create(ctx context.Context, since time.Time, e *corev1.Event) (*corev1.Event, error) {
	return e, s.write(eventSink{keepsUp: true}.as(ctx, since, e))
}

func (s *throttledSink) patch(ctx context.Context, since time.Time, e *corev1.Event, _ []byte) (*corev1.Event, error) {
	return s.create(ctx, since, e)
}

// TestHeldEventsWait: while Events are held back, a Warning is written at once. Other Events are written when they are
// no longer held back, or when they have waited as long as core/throttle allows.
func TestHeldEventsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s := &sink{}
		all := newRecorders(ctx, s)
		recorder := all.As("test", "")
		var busy atomic.Pointer[chan struct{}]
		held := Held(func() <-chan struct{} {
			if c := busy.Load(); c != nil {
				return *c
			}
			return nil
		})
		all.held.Store(&held)
		began := time.Now()
		recorder.Event(eventPod(0), corev1.EventTypeNormal, "Pulled", "")
		if all.Flush(time.Minute); time.Since(began) > time.Second {
			t.Errorf("nothing is held back, and an Event took %v", time.Since(began))
		}
		for _, c := range []struct{ busyFor, wait time.Duration }{
			{3 * time.Second, 3 * time.Second}, {time.Minute, throttle.BusyMax},
		} {
			calm := make(chan struct{})
			busy.Store(&calm)
			time.AfterFunc(c.busyFor, func() {
				busy.Store(nil)
				close(calm)
			})
			began = time.Now()
			synctest.Wait()
			before := len(s.created)
			recorder.Event(eventPod(1), corev1.EventTypeNormal, "Started", c.busyFor.String())
			recorder.Event(eventPod(1), corev1.EventTypeWarning, "Failed", c.busyFor.String())
			time.Sleep(time.Second)
			synctest.Wait()
			if n := len(s.created) - before; n != 1 || s.created[before].Type != corev1.EventTypeWarning {
				t.Errorf("busy for %v: after a second %d are written, want the Warning", c.busyFor, n)
			}
			all.Flush(time.Hour)
			if took := time.Since(began).Round(time.Second); took != c.wait {
				t.Errorf("busy for %v: it took %v, want %v", c.busyFor, took, c.wait)
			}
			<-calm
		}
	})
}

// TestRecorderForgets: a recorder that remembers few Events keeps no more memory after many pods than after some, and
// counts an Event that comes again among the newest.
func TestRecorderForgets(t *testing.T) {
	const (
		remembered = 256
		some, many = 2 * remembered, 40 * remembered // pods with an Event each
		moreMax    = 512 << 10                       // bytes: 50 a pod; a recorder that forgets none keeps 1 KiB a pod
	)
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s := &forgetfulSink{}
		all := newRecordersOf(ctx, s, remembered)
		r := all.As("test", "here")
		live := func() int64 {
			synctest.Wait()
			runtime.GC()
			runtime.GC() // what a sync.Pool holds outlives the first
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return int64(m.HeapAlloc)
		}
		var before int64
		for i := range many {
			if i == some {
				before = live()
			}
			r.Eventf(eventPod(i), corev1.EventTypeNormal, "Started", "container of pod %d", i)
			synctest.Wait()
		}
		if more := live() - before; more > moreMax {
			t.Errorf("%d KiB more after %d pods than after %d", more>>10, many, some)
		}
		r.Eventf(eventPod(many-1), corev1.EventTypeNormal, "Started", "container of pod %d", many-1)
		r.Eventf(eventPod(0), corev1.EventTypeNormal, "Started", "container of pod %d", 0)
		synctest.Wait()
		if s.created != many+1 || s.patched != 1 {
			t.Errorf("created %d and counted %d, want %d and 1", s.created, s.patched, many+1)
		}
		runtime.KeepAlive(all)
	})
}

// forgetfulSink is an API server that counts writes and keeps nothing.
type forgetfulSink struct{ created, patched int }

func (s *forgetfulSink) create(_ context.Context, _ time.Time, e *corev1.Event) (*corev1.Event, error) {
	s.created++
	return e, nil
}

func (s *forgetfulSink) patch(_ context.Context, _ time.Time, e *corev1.Event, _ []byte) (*corev1.Event, error) {
	s.patched++
	return e, nil
}
