package pods

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/hook"
	"github.com/plimsoll-dev/plimsoll/internal/agent/podentry"
	"github.com/plimsoll-dev/plimsoll/internal/agent/turns"
	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/host/cri"
)

// While more containers than there are slots take an hour to end, half of them in their preStop hooks, the next one is
// still stopped at once.
func TestStopsDoNotWaitForOthersGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		runtime := &patient{}
		r := testRunner()
		r.Runtime, r.stops = &cri.Client{RuntimeServiceClient: runtime}, turns.NewPlaces(2)
		stop := func(grace time.Duration, pod *corev1.Pod) {
			e := r.newEntry("uid-1")
			_ = workerOf(r, e).stopContainer(t.Context(), pod, podlife.Action{Kind: podlife.StopContainer, Container: "zeta",
				ID: "c", Grace: grace})
		}
		hooked := testPod()
		hooked.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{
			PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 3000}},
		}
		for range 4 {
			go stop(time.Hour, nil)
			go stop(time.Hour, hooked)
		}
		synctest.Wait()
		begun := time.Now()
		stop(time.Second, nil)
		// There are two slots: the four earlier ones take their turns, and then this one.
		if waited := time.Since(begun) - time.Second; waited > 2*signalTime {
			t.Errorf("a stop waited %s for others, want at most %s", waited, 2*signalTime)
		}
		time.Sleep(2 * time.Hour)
	})
}

// endless is a runtime whose commands in containers never end by themselves.
type endless struct{ ended chan error }

func (h *endless) ExecSync(
	ctx context.Context, _ *runtimeapi.ExecSyncRequest, _ ...grpc.CallOption,
) (*runtimeapi.ExecSyncResponse, error) {
	<-ctx.Done()
	h.ended <- ctx.Err()
	return nil, ctx.Err()
}

// hangingHook returns a pod whose container zeta runs and has a postStart hook that hangs.
func hangingHook(t *testing.T) (r *Runner, e *podentry.Entry, commands *endless) {
	r, commands = testRunner(), &endless{make(chan error, 1)}
	e = r.newEntry("uid-1")
	r.ctx, r.Hooks = t.Context(), hook.Runner{Runtime: commands}
	pod := testPod()
	e.Set(pod, noon)
	c := &pod.Spec.Containers[0]
	c.Lifecycle = &corev1.Lifecycle{
		PostStart: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"hang"}}},
	}
	workerOf(r, e).view.Containers["c1"] = podlife.Container{ID: "c1", Name: "zeta", State: podlife.Running}
	workerOf(r, e).postStart(pod, c, podlife.Action{Kind: podlife.StartContainer, Container: "zeta"}, "c1") // returns
	return r, e, commands
}

func TestPostStartHook(t *testing.T) {
	for _, c := range []struct {
		name string
		end  func(r *Runner, e *podentry.Entry)
	}{
		{"the pod is to end", func(_ *Runner, e *podentry.Entry) {
			e.Evict(noon, time.Minute, podlife.StopOrder{Remove: true})
		}},
		{"the container is to stop", func(r *Runner, e *podentry.Entry) {
			r.Runtime, r.stops = &cri.Client{RuntimeServiceClient: &patient{}}, turns.NewPlaces(1)
			_ = workerOf(r, e).stopContainer(r.ctx, nil, podlife.Action{ID: "c1"})
		}},
		{"the container has ended", func(r *Runner, e *podentry.Entry) {
			workerOf(r, e).view.Containers["c1"] = podlife.Container{ID: "c1", Name: "zeta", State: podlife.Exited}
			workerOf(r, e).followHooks()
		}},
	} {
		synctest.Test(t, func(t *testing.T) {
			r, e, commands := hangingHook(t)
			if got := e.Snapshot().Hooks["c1"]; got != podlife.HookRuns {
				t.Errorf("%s: while the hook runs podlife is told %v", c.name, got)
			}
			c.end(r, e)
			if err := <-commands.ended; !errors.Is(err, context.Canceled) {
				t.Errorf("%s: the hook ended with %v", c.name, err)
			}
			synctest.Wait()
			if got := e.Snapshot().Hooks["c1"]; got != podlife.HookOver {
				t.Errorf("%s: afterwards podlife is told %v", c.name, got)
			}
		})
	}
}

// If the process is gone and the runtime does not say so, the stop does not wait for the end of the grace period.
func TestStopEndsWithTheProcess(t *testing.T) {
	for _, hooked := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			r, pod := testRunner(), testPod()
			e := r.newEntry("uid-1")
			r.Runtime, r.stops = &cri.Client{RuntimeServiceClient: &patient{}}, turns.NewPlaces(1)
			if hooked {
				pod.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{
					PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 3000}},
				}
			}
			time.AfterFunc(time.Minute, func() { e.Exited("c") })
			begun := time.Now()
			stop := podlife.Action{Kind: podlife.StopContainer, Container: "zeta", ID: "c", Grace: time.Hour}
			if err := workerOf(r, e).stopContainer(t.Context(), pod, stop); err != nil {
				t.Errorf("with a preStop hook %t: the container has ended, and that is a failure: %v", hooked, err)
			}
			if took := time.Since(begun); took != time.Minute+overtimeMax {
				t.Errorf("with a preStop hook %t: the stop took %s, want %s", hooked, took, time.Minute+overtimeMax)
			}
			e.Rest(workerOf(r, e), false, 0, nil) // no exit is awaited any more
		})
	}
}

// slowVolumes report that SetUp began, and never finish it.
type slowVolumes struct {
	Volumes
	asked chan struct{}
}

func (v slowVolumes) SetUp(ctx context.Context, _ *corev1.Pod) error {
	close(v.asked)
	<-ctx.Done()
	return ctx.Err()
}

// A pod that failed to start may still have its slot. It gives the slot back before it sets up its volumes again.
func TestVolumesAreSetUpWithoutStartSlot(t *testing.T) {
	for name, start := range map[string]func(context.Context, *Runner, *podentry.Entry, *turns.Slot) error{
		"sandbox": func(ctx context.Context, r *Runner, e *podentry.Entry, slot *turns.Slot) error {
			return workerOf(r, e).createSandbox(ctx, testPod(), podlife.Action{Kind: podlife.CreateSandbox}, slot)
		},
		"container": func(ctx context.Context, r *Runner, e *podentry.Entry, slot *turns.Slot) error {
			w := workerOf(r, e)
			w.view.Sandboxes["s"] = podlife.Sandbox{ID: "s", IPs: []string{"192.0.2.7"}}
			return w.startContainer(ctx, testPod(), podlife.Action{Kind: podlife.StartContainer, Container: "zeta", ID: "s"},
				slot)
		},
	} {
		r, starts := testRunner(), turns.NewStarts(1)
		slot := starts.Slot()
		volumes := slowVolumes{asked: make(chan struct{})}
		r.Volumes = volumes
		ctx, cancel := context.WithCancel(t.Context())
		if err := slot.Take(ctx, "default"); err != nil {
			t.Fatal(err)
		}
		over := make(chan error)
		go func() { over <- start(ctx, r, r.newEntry("uid-1"), slot) }()
		<-volumes.asked
		if starts.Taken() > 0 {
			t.Errorf("%s: the slot is held while volumes are made", name)
		}
		cancel()
		if err := <-over; err == nil {
			t.Errorf("%s: no volumes, and no error", name)
		}
	}
}
