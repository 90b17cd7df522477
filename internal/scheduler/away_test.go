package scheduler

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	corescheduler "github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
)

// faraway is a cluster whose API server refuses everything for a while, or is slow.
type faraway struct {
	*cluster
	mu    sync.Mutex
	away  bool
	slow  time.Duration // before each answer
	mute  bool          // answers to binds are lost
	asked map[string]int
}

// answer counts a request, and returns an error if the server cannot be reached.
func (f *faraway) answer(ctx context.Context, what string) error {
	f.mu.Lock()
	f.asked[what]++
	away, slow := f.away, f.slow
	f.mu.Unlock()
	if away {
		return fmt.Errorf("dial: %w", syscall.ECONNREFUSED)
	}
	select {
	case <-time.After(slow):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (f *faraway) bind(ctx context.Context, d corescheduler.Decision) (corescheduler.Outcome, error) {
	if err := f.answer(ctx, "bind"); err != nil {
		return outcomeOf(err), err
	}
	outcome, err := f.cluster.bind(ctx, d)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mute {
		return corescheduler.BindLost, errors.New("connection reset")
	}
	return outcome, err
}

func (f *faraway) patchStatus(ctx context.Context, namespace, name string, patch []byte) error {
	if err := f.answer(ctx, "patch"); err != nil {
		return err
	}
	return f.cluster.patchStatus(ctx, namespace, name, patch)
}

func (f *faraway) remove(ctx context.Context, namespace, name string, uid types.UID) error {
	if err := f.answer(ctx, "remove"); err != nil {
		return err
	}
	return f.cluster.remove(ctx, namespace, name, uid)
}

func startFaraway(t *testing.T, limit int) (*faraway, *loop, func()) {
	f := &faraway{cluster: newCluster(t), asked: map[string]int{}}
	m, _, stop := startPrepared(f.cluster, limit, func(m *loop) { m.api = f })
	return f, m, stop
}

// back makes the server available again.
func (f *faraway) back() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.away = false
}

// count returns the number of requests, by kind.
func (f *faraway) count() map[string]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.asked)
}

// eachBoundOnce checks at the end that each pod was bound once.
func (f *faraway) eachBoundOnce(t *testing.T, pods int) {
	t.Helper()
	synctest.Wait()
	f.cluster.mu.Lock()
	defer f.cluster.mu.Unlock()
	if len(f.bound) != pods {
		t.Errorf("%d pods are bound, want %d", len(f.bound), pods)
	}
	for id, n := range f.bound {
		if n != 1 {
			t.Errorf("%s is bound %d times", id, n)
		}
	}
}

// TestServerThatIsAway: while no request is answered for ten minutes, binds, conditions and evictions are tried with
// growing pauses, at most one per pod in each; when the server is available again, nothing is missing.
func TestServerThatIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, m, stop := startFaraway(t, 16)
		defer stop()
		f.away = true
		m.nodeHandler().OnAdd(testNode("n", "100"), true)
		m.nodeHandler().OnAdd(testNode("full", "1"), true)
		f.add(m, onNode(withPriority(testPod("low", "1"), 1), "full"))
		m.submit(context.Background(), synced(m))
		for i := range 20 {
			f.add(m, testPod(fmt.Sprint("p", i), "1"))
		}
		high := withPriority(testPod("high", "1"), 10)
		high.Spec.NodeSelector = map[string]string{"on": "full"}
		full := testNode("full", "1")
		full.Labels = map[string]string{"on": "full"}
		m.nodeHandler().OnUpdate(full, full)
		f.add(m, high)
		elapse(10 * time.Minute)
		f.mu.Lock()
		const tries = 600/10 + 10 // at the longest back-off, after a few shorter ones
		for what, most := range map[string]int{"bind": 20 * tries, "patch": 22 * 2 * tries, "remove": tries} {
			if f.asked[what] > most {
				t.Errorf("%s was asked for %d times in ten minutes, want at most %d", what, f.asked[what], most)
			}
		}
		if f.asked["bind"] < 20*30 {
			t.Errorf("%d requests for binds in ten minutes", f.asked["bind"])
		}
		f.away = false
		f.mu.Unlock()
		time.Sleep(time.Minute)
		f.eachBoundOnce(t, 21)
	})
}

// TestServerThatIsLate: each answer takes 25 s, and the watch shows the effect long before that.
func TestServerThatIsLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, m, stop := startFaraway(t, 16)
		defer stop()
		f.slow = 25 * time.Second
		m.nodeHandler().OnAdd(testNode("n", "100"), true)
		m.submit(context.Background(), synced(m))
		for i := range 100 {
			f.add(m, testPod(fmt.Sprint("p", i), "1"))
		}
		time.Sleep(5 * time.Minute) // seven rounds of 16
		f.eachBoundOnce(t, 100)
		if f.asked["bind"] != 100 || f.asked["patch"] != 0 {
			t.Errorf("requests %v, want each bind once", f.asked)
		}
	})
}

// TestLateWatchAfterLostAnswers: binds succeed, their answers are lost, and the watch shows them a minute later, when
// they have been tried again and refused.
func TestLateWatchAfterLostAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &faraway{cluster: newCluster(t), asked: map[string]int{}, mute: true}
		var seen sync.Map // what the watch has shown
		m, recorder, stop := startPrepared(f.cluster, 16, func(m *loop) {
			m.api = f
			m.lookUp = func(p corescheduler.Pod) *corev1.Pod {
				pod := f.lookUp(p)
				if _, bound := seen.Load(types.UID(p.ID)); !bound {
					pod = onNode(pod.DeepCopy(), "")
				}
				return pod
			}
			shown := f.onBound
			f.onBound = func(pod *corev1.Pod) {
				time.Sleep(time.Minute)
				seen.Store(pod.UID, true)
				shown(pod)
			}
		})
		defer stop()
		m.nodeHandler().OnAdd(testNode("n", "100"), true)
		m.submit(context.Background(), synced(m))
		for i := range 50 {
			f.add(m, testPod(fmt.Sprint("p", i), "1"))
		}
		time.Sleep(3 * time.Minute)
		f.eachBoundOnce(t, 50)
		if n := m.placer.Pending(); n["active"]+n["backoff"]+n["unschedulable"] != 0 {
			t.Errorf("bound pods are counted as pending: %v", n)
		}
		if most := 50 * 12; f.asked["bind"] > most {
			t.Errorf("%d binds were tried, want at most %d", f.asked["bind"], most)
		}
		told := map[string]int{}
		for len(recorder.Events) > 0 {
			told[<-recorder.Events]++
		}
		for i := range 50 {
			if event := fmt.Sprintf("Normal Scheduled Successfully assigned default/p%d to n", i); told[event] != 1 {
				t.Errorf("%d Events: %s", told[event], event)
			}
		}
		if bound := total(t, m.o.Metrics, "scheduler_pod_scheduling_attempts"); bound != 50 {
			t.Errorf("%v pods are counted as bound", bound)
		}
	})
}
