package pods

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/hook"
	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/host/cri"
)

// TestPreStopThatWasBegun: when it is a container's turn to stop, the stop waits for the hook that was begun before,
// within the rest of the grace period. It does not run the hook again, and gives SIGTERM the remaining time. If the
// container ends, its hook ends too.
func TestPreStopThatWasBegun(t *testing.T) {
	for _, c := range []struct {
		name       string
		turn       time.Duration // when the stop comes, after the hook has begun
		left       time.Duration // what is left of the grace period then
		noHook     bool
		want, took time.Duration // grace in the runtime; what the stop takes
	}{
		{"the hook runs on", 5 * time.Second, 55 * time.Second, false, 40 * time.Second, 55 * time.Second},
		{"the hook has ended", 25 * time.Second, 35 * time.Second, false, 35 * time.Second, 35 * time.Second},
		{"the grace was shortened", 5 * time.Second, 10 * time.Second, false, preStopLeaves, 10*time.Second + preStopLeaves},
		{"the grace is over", 5 * time.Second, 2 * time.Second, true, 2 * time.Second, 2 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			runtime, r := &patient{}, testRunner()
			e := r.newEntry("uid-1")
			r.Runtime, r.stops = &cri.Client{RuntimeServiceClient: runtime}, make(chan struct{}, 1)
			r.ctx, r.Hooks = t.Context(), hook.Runner{}
			pod := testPod()
			e.Set(pod, noon)
			side := &pod.Spec.InitContainers[1]
			side.Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 20}}}
			w := workerOf(r, e)
			w.view.Containers["c1"] = podlife.Container{ID: "c1", Name: "side", State: podlife.Running}
			begin := podlife.Action{Kind: podlife.BeginPreStop, Container: "side", ID: "c1", Grace: time.Minute}
			w.beginPreStop(pod, begin)
			w.beginPreStop(pod, begin) // a second time it begins nothing
			if all := w.containers(e.Snapshot()); len(all) != 1 || !all[0].PreStop {
				t.Errorf("%s: podlife is told %+v", c.name, all)
			}
			time.Sleep(c.turn)
			began := time.Now()
			stop := podlife.Action{Kind: podlife.StopContainer, Container: "side", ID: "c1", Grace: c.left, NoHook: c.noHook}
			if err := w.stopContainer(t.Context(), pod, stop); err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
			if took := time.Since(began); took != c.took || !slices.Equal(runtime.graces, []time.Duration{c.want}) {
				t.Errorf("%s: it took %s, want %s; graces in the runtime %s, want %s", c.name, took, c.took, runtime.graces, c.want)
			}
			w.view.Containers["c1"] = podlife.Container{ID: "c1", Name: "side", State: podlife.Exited}
			w.followHooks()
			if e.PreStop("c1") != nil {
				t.Errorf("%s: the hook of a container that has ended is kept", c.name)
			}
			r.workers.Wait() // no hook outlives its container
		})
	}
}
