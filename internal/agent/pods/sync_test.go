package pods

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/turns"
	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/host/cri"
)

// patient is a runtime whose stops take their whole grace period.
type patient struct {
	runtimeapi.RuntimeServiceClient
	mu     sync.Mutex
	graces []time.Duration // guarded by mu
}

func (p *patient) StopContainer(ctx context.Context, in *runtimeapi.StopContainerRequest,
	_ ...grpc.CallOption) (*runtimeapi.StopContainerResponse, error) {
	grace := time.Duration(in.Timeout) * time.Second
	p.mu.Lock()
	p.graces = append(p.graces, grace)
	p.mu.Unlock()
	select {
	case <-time.After(grace):
		return &runtimeapi.StopContainerResponse{}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// A stop order that comes between a worker's decision and its action does not wait for the action.
func TestStopOrderBetweenDecisionAndAction(t *testing.T) {
	for _, c := range []struct {
		name  string
		known *podlife.StopOrder // when the worker decided
	}{
		{"nobody had ordered an end", nil},
		{"there was more time", &podlife.StopOrder{Deadline: noon}},
	} {
		synctest.Test(t, func(t *testing.T) {
			runtime := &patient{}
			r := testRunner()
			r.Runtime, r.stops = &cri.Client{RuntimeServiceClient: runtime}, make(chan struct{}, 1)
			e := r.newEntry("uid-1")
			if c.known != nil {
				e.Evict(c.known.Deadline, 0, *c.known)
			}
			e.Evict(podlife.StopOrder{}.Deadline, time.Second, podlife.StopOrder{Remove: true})
			begun := time.Now()
			stop := []podlife.Action{{Kind: podlife.StopContainer, Container: "c", ID: "c1", Grace: time.Hour}}
			if workerOf(r, e).performGroup(t.Context(), nil, c.known, stop, &turns.Slot{}) {
				t.Errorf("%s: the action is told to have succeeded", c.name)
			}
			if took := time.Since(begun); took != 0 || len(runtime.graces) > 0 {
				t.Errorf("%s: the order waited %s for stops with grace %v", c.name, took, runtime.graces)
			}
		})
	}
}

// A stop order that comes during an action ends it.
func TestStopOrderDuringAction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := testRunner()
		r.Runtime, r.stops = &cri.Client{RuntimeServiceClient: &patient{}}, make(chan struct{}, 1)
		e := r.newEntry("uid-1")
		begun := time.Now()
		time.AfterFunc(time.Minute, func() {
			e.Evict(noon, time.Second, podlife.StopOrder{Remove: true})
		})
		workerOf(r, e).performGroup(t.Context(), nil, nil, []podlife.Action{{Kind: podlife.StopContainer, Container: "c",
			ID: "c1", Grace: time.Hour}}, &turns.Slot{})
		if took := time.Since(begun); took != time.Minute {
			t.Errorf("the action ended after %s, want 1m0s", took)
		}
		e.Rest(workerOf(r, e), false, 0, nil) // nothing can be interrupted any more
	})
}

// A pod gives its start slot back before it waits for anything else.
func TestStartSlotIsGivenBackBeforeAStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := testRunner()
		r.Runtime, r.stops = &cri.Client{RuntimeServiceClient: &patient{}}, make(chan struct{}, 1)
		starts := turns.NewStarts(1)
		slot := starts.Slot()
		if err := slot.Take(t.Context(), "default"); err != nil {
			t.Fatal(err)
		}
		stop := []podlife.Action{{Kind: podlife.StopContainer, Container: "c", ID: "c1", Grace: time.Hour}}
		go workerOf(r, r.newEntry("uid-1")).performGroup(t.Context(), nil, nil, stop, slot)
		synctest.Wait()
		if starts.Taken() > 0 {
			t.Error("the slot is held through the grace")
		}
		time.Sleep(2 * time.Hour)
	})
}
