package scheduler

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	corescheduler "github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/core/throttle"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/test/atonce"
)

func TestOutcomeOf(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	for _, c := range []struct {
		err  error
		want corescheduler.Outcome
	}{
		{nil, corescheduler.BindDone},
		{apierrors.NewConflict(pods, "p", errors.New("already assigned")), corescheduler.BindRefused},
		{apierrors.NewNotFound(pods, "p"), corescheduler.BindRefused},
		{apierrors.NewForbidden(pods, "p", errors.New("quota")), corescheduler.BindRefused},
		{apierrors.NewTooManyRequests("busy", 1), corescheduler.BindRefused},
		{fmt.Errorf("before the Throttle: %w", kube.ErrNotLeading), corescheduler.BindRefused},
		{fmt.Errorf("dial: %w", syscall.ECONNREFUSED), corescheduler.BindRefused},
		{fmt.Errorf("read: %w", syscall.ECONNRESET), corescheduler.BindLost},
		{context.DeadlineExceeded, corescheduler.BindLost},
		{apierrors.NewInternalError(errors.New("etcdserver: request timed out")), corescheduler.BindLost},
		{apierrors.NewTimeoutError("late", 1), corescheduler.BindLost},
		{apierrors.NewServiceUnavailable("away"), corescheduler.BindLost},
	} {
		if got := outcomeOf(c.err); got != c.want {
			t.Errorf("%v: outcome %v, want %v", c.err, got, c.want)
		}
	}
}

// TestWritesPassTheThrottle checks that binds, status patches, evictions and Events share one limit, whatever the
// scheduling loop decides at once, and that a fast server gets as many writes as the limit allows.
func TestWritesPassTheThrottle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		config, requests := atonce.RefusingServer(10 * time.Millisecond)
		client, err := kube.NewClientForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		o := Options{Client: client, Events: client, BindsInFlight: 1, Metrics: NewMetrics()}
		writes, events, err := o.throttledClients(ctx)
		if err != nil {
			t.Fatal(err)
		}
		r := remote{writes}
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() {
				_, _ = r.bind(ctx, corescheduler.Decision{Pod: corescheduler.Pod{Namespace: "x", Name: "p"}, Node: "n"})
			})
			all.Go(func() { _ = r.patchStatus(ctx, "x", "p", []byte("{}")) })
			all.Go(func() { _ = r.remove(ctx, "x", "p", "u") })
			all.Go(func() { _ = events.Create(ctx, kube.Events, "x", "", &corev1.Event{}, &corev1.Event{}) })
		}
		all.Wait()
		if most := requests.Most(); most != 1+besideBinds {
			t.Errorf("%d requests at once, want %d", most, 1+besideBinds)
		}
		cancel()
		synctest.Wait()
	})
}

// TestWithdrawnBind: a bind in the throttle's queue ends as withdrawn; one that was sent ends as the server answers.
func TestWithdrawnBind(t *testing.T) {
	asked, answer := make(chan string, 2), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.URL.Path
		<-answer
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Success"}`))
	}))
	defer server.Close()
	client, err := kube.NewClientForConfig(&rest.Config{Host: server.URL, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	limit := throttle.Options{InFlightMax: 1, Tolerance: tolerance}
	writeThrottle := kube.NewThrottle(kube.ThrottleOptions{Component: "test", Options: limit})
	if client, err = client.Throttled(writeThrottle); err != nil {
		t.Fatal(err)
	}
	withdrawn := make(chan struct{})
	ctx := kube.Withdrawable(t.Context(), withdrawn)
	outcomes := make(chan corescheduler.Outcome, 2)
	bind := func(name string) {
		o, _ := remote{client}.bind(ctx, corescheduler.Decision{
			Pod:  corescheduler.Pod{Namespace: "x", Name: name},
			Node: "n",
		})
		outcomes <- o
	}
	go bind("sent")
	if path := <-asked; !strings.Contains(path, "sent") {
		t.Fatalf("request to %s", path)
	}
	go bind("waits")
	close(withdrawn)
	if o := <-outcomes; o != corescheduler.BindWithdrawn {
		t.Errorf("the bind that waits: %v", o)
	}
	close(answer)
	if o := <-outcomes; o != corescheduler.BindDone {
		t.Errorf("the bind that was sent: %v", o)
	}
}
