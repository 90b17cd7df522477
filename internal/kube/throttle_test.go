package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/plimsoll-dev/plimsoll/internal/core/throttle"
	"github.com/plimsoll-dev/plimsoll/test/cost"
)

// held is an API server whose answers wait for the test.
type held struct {
	mu      sync.Mutex
	now     int
	most    int
	came    []string
	arrived chan string
	answer  chan func(http.ResponseWriter)
}

func (h *held) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	h.now++
	h.most = max(h.most, h.now)
	h.came = append(h.came, r.Method+" "+r.URL.Path)
	h.mu.Unlock()
	h.arrived <- r.Method + " " + r.URL.Path
	answer := <-h.answer
	h.mu.Lock()
	h.now--
	h.mu.Unlock()
	answer(w)
}

func okAnswer(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Success"}`)
}

func throttledClient(t *testing.T, h http.Handler, o ThrottleOptions) (*Client, *Throttle) {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	plain, err := NewClientForConfig(&rest.Config{Host: server.URL, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	g := NewThrottle(o)
	c, err := plain.Throttled(g)
	if err != nil {
		t.Fatal(err)
	}
	return c, g
}

// TestThrottleOrdersWrites: over real connections one write at a time is sent, the most important first. Leases, reads
// and reviews are not throttled, except reads that a write needs.
func TestThrottleOrdersWrites(t *testing.T) {
	h := &held{arrived: make(chan string, 100), answer: make(chan func(http.ResponseWriter))}
	c, g := throttledClient(t, h, ThrottleOptions{Component: "test", Options: throttle.Options{InFlightMax: 1,
		Tolerance: throttle.ToleranceDefault}})
	ctx := t.Context()
	var all sync.WaitGroup
	ask := func(do func()) { all.Go(do) }
	waits := func(n int) {
		for _, waiting := g.Limit(); waiting != n; _, waiting = g.Limit() {
			if ctx.Err() != nil {
				t.Fatal("the test is over")
			}
		}
	}
	ask(func() {
		_ = c.Patch(ctx, Pods, "x", "first", types.MergePatchType, []byte("{}"), nil, "status")
	})
	<-h.arrived
	for i, do := range []func(){
		func() {
			_ = c.Create(As(ctx, throttle.Event), Events, "x", "", &corev1.Event{}, &metav1.Status{})
		},
		func() {
			_ = c.Create(As(ctx, throttle.Warning), Events, "x", "", &corev1.Event{}, &metav1.Status{})
		},
		func() { _ = c.Patch(ctx, Pods, "x", "p", types.MergePatchType, []byte("{}"), nil, "status") },
		func() { _ = c.Delete(ctx, Pods, "x", "p", metav1.DeleteOptions{}) },
		func() { _ = c.Patch(ctx, Nodes, "", "n", types.MergePatchType, []byte("{}"), nil) },
		func() { _ = c.Get(As(ctx, throttle.Mark), Leases, "x", "n", &metav1.Status{}) },
	} {
		ask(do)
		waits(i + 1)
	}
	for _, do := range []func(){
		func() { _ = c.Patch(ctx, Leases, "x", "n", types.MergePatchType, []byte("{}"), nil) },
		func() { _ = c.Get(ctx, Pods, "x", "p", &corev1.Pod{}) },
		func() {
			_ = c.Create(ctx, ServiceAccounts, "x", "a", &metav1.Status{}, &metav1.Status{}, "token")
		},
	} {
		ask(do)
		<-h.arrived // although a write is in flight
	}
	if h.most != 4 {
		t.Errorf("%d at once, want the first write and three that pass beside", h.most)
	}
	for range 3 {
		h.answer <- okAnswer
	}
	for range 6 {
		h.answer <- okAnswer
		<-h.arrived
	}
	h.answer <- okAnswer
	all.Wait()
	want := []string{"PATCH /api/v1/nodes/n", "GET /apis/coordination.k8s.io/v1/namespaces/x/leases/n",
		"DELETE /api/v1/namespaces/x/pods/p", "PATCH /api/v1/namespaces/x/pods/p/status", "POST /api/v1/namespaces/x/events",
		"POST /api/v1/namespaces/x/events"}
	if got := h.came[4:]; !slices.Equal(got, want) {
		t.Errorf("came in the order %q, want %q", got, want)
	}
}

// TestThrottleAnswers: which answers count as a refusal by the server. An eviction that a budget refuses does not.
func TestThrottleAnswers(t *testing.T) {
	for _, test := range []struct {
		name   string
		answer func(http.ResponseWriter)
		slower bool
	}{
		{"ok", okAnswer, false},
		{"budget", func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusTooManyRequests)
			fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"TooManyRequests","code":429}`)
		}, false},
		{"conflict", func(w http.ResponseWriter) { w.WriteHeader(http.StatusConflict) }, false},
		{"priority and fairness", func(w http.ResponseWriter) {
			http.Error(w, "Too many requests",
				http.StatusTooManyRequests)
		}, true},
		{"unavailable", func(w http.ResponseWriter) { http.Error(w, "no", http.StatusServiceUnavailable) }, true},
		{"gone", func(http.ResponseWriter) { panic(http.ErrAbortHandler) }, true},
	} {
		c, g := throttledClient(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { test.answer(w) }),
			ThrottleOptions{Options: throttle.Options{InFlightMax: 4, Tolerance: throttle.ToleranceDefault}})
		err := c.Create(t.Context(), Pods, "x", "p", &policyv1.Eviction{}, &metav1.Status{}, "eviction")
		if limit, _ := g.Limit(); limit < 1 != test.slower {
			t.Errorf("%s: limit %v after %v, want it lowered: %v", test.name, limit, err, test.slower)
		}
	}
}

// slowServer answers after a while, or when the request is cancelled.
type slowServer struct{ takes func() time.Duration }

func (s slowServer) RoundTrip(r *http.Request) (*http.Response, error) {
	select {
	case <-time.After(s.takes()):
		return &http.Response{StatusCode: http.StatusOK, Header: http.Header{},
			Body: io.NopCloser(strings.NewReader("ok"))}, nil
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
}

func write(ctx context.Context, via http.RoundTripper, path string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPatch, "http://server"+path, strings.NewReader("{}"))
	if err != nil {
		return err
	}
	resp, err := via.RoundTrip(req)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// TestThrottleGivesUp: a caller that stops waiting frees its place. A server that does not answer delays a write for
// AnswerMax, without the wait at the Throttle.
func TestThrottleGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var hangs atomic.Bool
		hangs.Store(true)
		takes := func() time.Duration {
			if hangs.Load() {
				return time.Hour
			}
			return 5 * time.Millisecond
		}
		g := NewThrottle(ThrottleOptions{Component: "test", Options: throttle.Options{InFlightMax: 1,
			Tolerance: throttle.ToleranceDefault}})
		via := &throttledTransport{g, slowServer{takes}}
		began := time.Now()
		first := make(chan error, 1)
		go func() { first <- write(t.Context(), via, "/api/v1/nodes/a") }()
		synctest.Wait()
		impatient, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := write(impatient, via, "/api/v1/nodes/b"); err == nil || time.Since(began) != time.Second {
			t.Errorf("gave up after %v: %v", time.Since(began), err)
		}
		second := make(chan error, 1)
		go func() { second <- write(t.Context(), via, "/api/v1/nodes/c") }()
		synctest.Wait()
		hangs.Store(false)
		if err := <-first; err == nil || time.Since(began) != AnswerMaxDefault {
			t.Errorf("the first ended after %v: %v", time.Since(began), err)
		}
		if err := <-second; err != nil || time.Since(began) > AnswerMaxDefault+time.Second {
			t.Errorf("the second ended after %v: %v", time.Since(began), err)
		}
		if _, waiting := g.Limit(); waiting != 0 || g.limiter.InFlight() != 0 {
			t.Errorf("%d wait, %d in flight at the end", waiting, g.limiter.InFlight())
		}
	})
}

// TestThrottleUnderLoad: many writes at once, some of which are cancelled at any moment. In the end none is left at the
// Throttle.
func TestThrottleUnderLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewThrottle(ThrottleOptions{Options: throttle.Options{InFlightMax: 7, Tolerance: throttle.ToleranceDefault}})
		via := &throttledTransport{g, slowServer{func() time.Duration { return 5 * time.Millisecond }}}
		var all sync.WaitGroup
		for i := range 3000 {
			all.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i%1500+1)*time.Millisecond)
				defer cancel()
				path := []string{"/api/v1/nodes/n", "/api/v1/namespaces/x/events", "/api/v1/namespaces/x/pods/p/status"}[i%3]
				_ = write(ctx, via, path)
			})
		}
		all.Wait()
		if _, waiting := g.Limit(); waiting != 0 || g.limiter.InFlight() != 0 {
			t.Errorf("%d wait, %d in flight at the end", waiting, g.limiter.InFlight())
		}
		if err := write(t.Context(), via, "/api/v1/nodes/n"); err != nil {
			t.Errorf("after the crowd: %v", err)
		}
	})
}

func TestResourceOf(t *testing.T) {
	for path, want := range map[string]string{
		"/api/v1/nodes/n":                                    "nodes ",
		"/api/v1/nodes/n/status":                             "nodes status",
		"/api/v1/namespaces/x/pods/p/binding":                "pods binding",
		"/api/v1/namespaces/x":                               "namespaces ",
		"/api/v1/namespaces/x/status":                        "namespaces status",
		"/api/v1/namespaces/x/events":                        "events ",
		"/apis/coordination.k8s.io/v1/namespaces/x/leases/n": "leases ",
		"/below/k8s/apis/policy/v1/namespaces/x/a/b/c":       "a c",
		"/apis/authentication.k8s.io/v1/tokenreviews":        "tokenreviews ",
		"/api/v1/namespaces/x/serviceaccounts/builder/token": "serviceaccounts token",
		"":        " ",
		"/apis":   " ",
		"/readyz": "readyz ",
	} {
		if resource, subresource := resourceOf(path); resource+" "+subresource != want {
			t.Errorf("%s: %s %s, want %s", path, resource, subresource, want)
		}
	}
}

func FuzzResourceOf(f *testing.F) {
	cost.Attack(f, "/api/v1/namespaces/x/pods/p/status")
	f.Fuzz(func(t *testing.T, path string) {
		defer cost.Spend(t, len(path))()
		resource, subresource := resourceOf(path)
		if !strings.Contains(path, resource) || !strings.Contains(path, subresource) ||
			strings.Contains(resource+subresource, "/") {
			t.Errorf("%q: %q %q", path, resource, subresource)
		}
	})
}

// refusing refuses the first write, with a Retry-After of three seconds.
type refusing struct{ came []time.Time }

func (r *refusing) RoundTrip(*http.Request) (*http.Response, error) {
	r.came = append(r.came, time.Now())
	resp := &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("ok"))}
	if len(r.came) == 1 {
		resp.StatusCode = http.StatusTooManyRequests
		resp.Header.Set("Content-Type", "text/plain; charset=utf-8")
		resp.Header.Set("Retry-After", "3")
	}
	return resp, nil
}

// TestThrottleHonoursRetryAfter: after a refusal nothing is sent before its Retry-After.
func TestThrottleHonoursRetryAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &refusing{}
		via := &throttledTransport{NewThrottle(ThrottleOptions{Options: throttle.Options{InFlightMax: 4,
			Tolerance: throttle.ToleranceDefault}}), server}
		for range 3 {
			if err := write(t.Context(), via, "/api/v1/nodes/n"); err != nil {
				t.Fatal(err)
			}
		}
		if len(server.came) != 3 || server.came[1].Sub(server.came[0]) != 3*time.Second {
			t.Errorf("came at %v", server.came)
		}
	})
}

// TestThrottleMetrics: the metrics of a Throttle while one write waits after a refusal.
func TestThrottleMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewThrottle(ThrottleOptions{Options: throttle.Options{InFlightMax: 4, Tolerance: throttle.ToleranceDefault}})
		registry := prometheus.NewRegistry()
		ctx, cancel := context.WithCancel(t.Context())
		if err := g.Register(ctx, registry); err != nil {
			t.Fatal(err)
		}
		via := &throttledTransport{g, &refusing{}}
		if err := write(ctx, via, "/api/v1/nodes/n"); err != nil {
			t.Fatal(err)
		}
		go func() { _ = write(ctx, via, "/api/v1/namespaces/x/events") }()
		synctest.Wait()
		got := samples(t, registry)
		for name, want := range map[string]float64{
			"plimsoll_api_writes_limit":                              0.5, // half of one, after the refusal
			"plimsoll_api_writes_in_flight":                          0,
			"plimsoll_api_writes_waiting{kind=event}":                1,
			"plimsoll_api_writes_waiting{kind=mark}":                 0,
			"plimsoll_api_writes_total{answer=refused,kind=mark}":    1,
			"plimsoll_api_writes_total{answer=answered,kind=event}":  0,
			"plimsoll_api_writes_total{answer=withdrawn,kind=event}": 0,
		} {
			if got[name] != want {
				t.Errorf("%s is %v, want %v", name, got[name], want)
			}
		}
		cancel()
		synctest.Wait()
		if got := samples(t, registry); len(got) != 0 {
			t.Errorf("after its end: %v", got)
		}
	})
}

// samples returns the values in a registry, by name and labels.
func samples(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			name := f.GetName()
			if labels != nil {
				name += "{" + strings.Join(labels, ",") + "}"
			}
			out[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return out
}

// TestThrottleWhileNotLeading: a write whose turn comes while another process leads is not sent, and the next one gets
// its place. Reads and Events are sent.
func TestThrottleWhileNotLeading(t *testing.T) {
	var sent, leads atomic.Int32
	c, g := throttledClient(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		sent.Add(1)
		okAnswer(w)
	}), ThrottleOptions{
		Component: "test", Options: throttle.Options{InFlightMax: 1, Tolerance: throttle.ToleranceDefault},
		Leads: func() bool { return leads.Load() > 0 },
	})
	ctx := t.Context()
	write := func() error {
		return c.Patch(ctx, Pods, "x", "p", types.MergePatchType, []byte("{}"), nil, "status")
	}
	for range 3 {
		if err := write(); !errors.Is(err, ErrNotLeading) || sent.Load() > 0 {
			t.Fatalf("%v, %d sent", err, sent.Load())
		}
	}
	event := c.Create(ctx, Events, "x", "", &corev1.Event{}, &metav1.Status{})
	read := c.Get(As(ctx, throttle.Mark), Pods, "x", "p", &metav1.Status{})
	leads.Store(1)
	if err := errors.Join(event, read, write()); err != nil || sent.Load() != 3 {
		t.Errorf("%v, %d sent", err, sent.Load())
	}
	if _, waiting := g.Limit(); waiting != 0 {
		t.Errorf("%d wait still", waiting)
	}
}
