package scheduler

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"

	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// TestRunOptions: the options Name, BindsInFlight, Events, Metrics and Health have effect.
func TestRunOptions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, events := newWire(t), newWire(t)
		client, err := kube.NewClientForConfig(&rest.Config{Host: "http://events.example", Transport: events, QPS: -1})
		if err != nil {
			t.Fatal(err)
		}
		w.detached = true
		w.during(func(context.Context, string) wireFate { return wireFate{late: 50 * time.Millisecond} })
		w.put("nodes", testNode("n", "200"))
		o := Options{Name: "mine", BindsInFlight: 2, Events: client, Health: NewHealth()}
		metrics, stop := startRun(w, o)
		defer stop()
		elapse(time.Second)
		if o.Health.Synced() == nil {
			t.Error("it is ready although no list could be read")
		}
		w.mu.Lock()
		w.detached = false
		w.mu.Unlock()
		elapse(time.Minute)
		if err := o.Health.Synced(); err != nil {
			t.Errorf("it is not ready: %v", err)
		}
		const pods = 100
		for i := range pods {
			pod := wirePod(fmt.Sprint("p", i), "1", 0)
			pod.Spec.SchedulerName = o.Name
			w.put("pods", pod)
		}
		elapse(time.Minute)
		if n := len(w.boundNow()); n != pods || w.atOnce != o.BindsInFlight {
			t.Errorf("%d pods are bound, %d at once; want %d, %d", n, w.atOnce, pods, o.BindsInFlight)
		}
		events.mu.Lock()
		if len(events.told) != pods || len(w.told) != 0 {
			t.Errorf("Events %v, and by the client for binds %v", events.told, w.told)
		}
		events.mu.Unlock()
		for name, want := range map[string]float64{
			"scheduler_schedule_attempts_total":                    pods,
			"scheduler_scheduling_algorithm_duration_seconds":      pods,
			"scheduler_async_api_call_execution_total":             pods,
			"scheduler_framework_extension_point_duration_seconds": pods,
			"scheduler_cache_size":                                 pods + 1, // and the node
		} {
			if got := total(t, metrics, name); got != want {
				t.Errorf("%s: %v, want %v", name, got, want)
			}
		}
	})
}
