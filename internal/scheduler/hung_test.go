package scheduler

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	corescheduler "github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// hanging is a cluster where some answers are delayed until a test allows them.
type hanging struct {
	*cluster
	onWire                  bool          // hanging binds were sent, so they cannot be withdrawn
	binds, patches, removes chan struct{} // closed or nil: answered at once
	mu                      sync.Mutex
	removing, most          int
	binding, mostBinds      int
	sent                    map[string]bool // pods whose binds were sent
}

func await(ctx context.Context, gate chan struct{}) {
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
		}
	}
}

func (h *hanging) bind(ctx context.Context, d corescheduler.Decision) (corescheduler.Outcome, error) {
	h.mu.Lock()
	h.binding++
	h.mostBinds = max(h.mostBinds, h.binding)
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		h.binding--
		h.mu.Unlock()
	}()
	for h.binds != nil && !h.onWire && !isClosed(h.binds) { // as in the throttle's queue
		if time.Sleep(time.Millisecond); kube.IsWithdrawn(ctx) {
			return corescheduler.BindWithdrawn, errWithdrawn
		}
	}
	h.mu.Lock()
	h.sent[d.Pod.Name] = true
	h.mu.Unlock()
	await(ctx, h.binds)
	return h.cluster.bind(ctx, d)
}

func (h *hanging) patchStatus(ctx context.Context, namespace, name string, patch []byte) error {
	await(ctx, h.patches)
	h.mu.Lock()
	if h.sent[name] && ctx.Err() == nil && strings.Contains(string(patch), string(corev1.PodScheduled)) {
		h.t.Errorf("a patch says why %s was not placed, although its bind was sent", name)
	}
	h.mu.Unlock()
	return h.cluster.patchStatus(ctx, namespace, name, patch)
}

func (h *hanging) remove(ctx context.Context, namespace, name string, uid types.UID) error {
	h.mu.Lock()
	h.removing++
	h.most = max(h.most, h.removing)
	h.mu.Unlock()
	await(ctx, h.removes)
	h.mu.Lock()
	h.removing--
	h.mu.Unlock()
	return h.cluster.remove(ctx, namespace, name, uid)
}

func isClosed(gate chan struct{}) bool {
	select {
	case <-gate:
		return true
	default:
		return false
	}
}

// startHanging is start with an API server that hangs.
func startHanging(t *testing.T, limit int, h *hanging) (*loop, *record.FakeRecorder, func()) {
	h.cluster, h.sent = newCluster(t), map[string]bool{}
	return startPrepared(h.cluster, limit, func(m *loop) { m.api = h })
}

// TestNoSpinWhileSlotsAreTaken: while no decision may be made, a failed bind that is due does not make the loop spin.
func TestNoSpinWhileSlotsAreTaken(t *testing.T) {
	m := newLoop(Options{Metrics: NewMetrics(), Name: DefaultName, BindsInFlight: 2}, nil, nil)
	m.synced = true
	now := unit.Instant(time.Hour)
	m.placer.NodeSeen(now, translate.SchedulerNode(testNode("n", "4")))
	m.placer.PodSeen(now, translate.SchedulerPod(testPod("p", "1")))
	if !m.mayPlace(now) {
		t.Fatal("no decision may be made although nothing is in flight")
	}
	d, ok := m.placer.Next(now)
	if !ok || d.Node == "" {
		t.Fatalf("not placed: %+v", d)
	}
	m.placer.Bound(now, d.Pod, corescheduler.BindRefused)
	m.binding = 2
	if m.mayPlace(now.Add(hungAfter / 2)) {
		t.Error("a decision is made ahead although binds are answered")
	}
	for _, now := range []unit.Instant{now.Add(hungAfter / 2), now.Add(20 * time.Second), now.Add(time.Hour)} {
		if m.binding = 2; now > m.answered.Add(hungAfter) {
			m.binding += aheadMax
		}
		hung := m.answered.Add(hungAfter)
		if wake := m.wakeAt(now); wake <= now || wake > now.Add(hungAfter) || now < hung && wake != hung {
			t.Errorf("%v after the last answer: the loop runs again in %v", now.Sub(m.answered), wake.Sub(now))
		}
	}
}

// TestHungBindsDelayNoOtherPods: while every slot has a bind without an answer, a pod that fits nowhere gets its
// condition, a pod of high priority preempts, and the pods that were placed meanwhile are bound when the server answers
// again. There are never more binds than slots.
func TestHungBindsDelayNoOtherPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hanging{binds: make(chan struct{})}
		m, recorder, stop := startHanging(t, 2, h)
		defer stop()
		m.nodeHandler().OnAdd(testNode("n", "10"), true)
		h.add(m, onNode(withPriority(testPod("low", "5"), 1), "n"))
		m.submit(context.Background(), synced(m))
		for i := range 5 {
			h.add(m, withPriority(testPod(fmt.Sprint("p", i), "1"), 5))
		}
		elapse(10 * time.Millisecond)
		h.add(m, withPriority(testPod("big", "20"), 5))
		h.add(m, withPriority(testPod("high", "5"), 10))
		elapse(5 * time.Second)
		told := ""
		for len(recorder.Events) > 0 {
			told += <-recorder.Events + "\n"
		}
		if !strings.Contains(told, "Insufficient cpu") || !slices.Contains(h.removed, "low") {
			t.Errorf("patches %q, evicted %v", told, h.removed)
		}
		close(h.binds)
		elapse(time.Minute)
		if len(h.bound) != 6 || h.mostBinds > 2 {
			t.Errorf("%d bound, want all but the big one; %d binds at once, want 2", len(h.bound), h.mostBinds)
		}
	})
}

// TestNoConditionOnBoundPods: conditions wait for a server that accepts no patches. Those of pods bound meanwhile are
// dropped. The others are written once.
func TestNoConditionOnBoundPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hanging{patches: make(chan struct{})}
		m, _, stop := startHanging(t, 100, h)
		defer stop()
		m.nodeHandler().OnAdd(testNode("small", "100m"), true)
		m.submit(context.Background(), synced(m))
		for i := range 30 {
			h.add(m, testPod(fmt.Sprint("p", i), "1"))
		}
		h.add(m, testPod("never", "1000"))
		elapse(time.Second)
		m.nodeHandler().OnAdd(testNode("large", "30"), false)
		elapse(time.Minute)
		early := len(h.bound)
		close(h.patches)
		elapse(time.Minute)
		if early < 20 || len(h.bound) != 30 {
			t.Errorf("%d bound while patches hung, %d after", early, len(h.bound))
		}
		// Those already sent are written before the bind; no others are.
		never := func(patch string) bool { return strings.HasPrefix(patch, "never ") }
		if patches := h.cluster.patches; len(patches) > failureWriters+1 || !slices.ContainsFunc(patches, never) {
			t.Errorf("%d patches: %.300q", len(patches), patches)
		}
	})
}

// TestConditionsAndBindsDoNotOvertake: conditions wait for a server that accepts no patches, and binds for one that
// accepts no binds. The conditions of pods whose binds are sent are not written, whichever is accepted first.
func TestConditionsAndBindsDoNotOvertake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hanging{patches: make(chan struct{}), binds: make(chan struct{}), onWire: true}
		m, _, stop := startHanging(t, 100, h)
		defer stop()
		m.nodeHandler().OnAdd(testNode("small", "100m"), true)
		m.submit(context.Background(), synced(m))
		for i := range 30 {
			h.add(m, testPod(fmt.Sprint("p", i), "1"))
		}
		elapse(time.Second)
		m.nodeHandler().OnAdd(testNode("large", "30"), false)
		elapse(time.Minute)
		if want := 30 - failureWriters; len(h.sent) != want {
			t.Errorf("%d binds were sent, want only those of pods without a patch in flight: %d", len(h.sent), want)
		}
		close(h.patches) // patchStatus checks what was sent
		elapse(time.Minute)
		close(h.binds)
		elapse(time.Minute)
		if n := len(h.cluster.patches); len(h.bound) != 30 || n != failureWriters {
			t.Errorf("%d bound, %d patches; want 30, and the %d that were in flight", len(h.bound), n, failureWriters)
		}
	})
}

// TestExLeaderWritesNothing: a process that may not lead any more sends no evictions, binds and conditions, whatever it
// had decided.
func TestExLeaderWritesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hanging{patches: make(chan struct{})}
		m, recorder, stop := startHanging(t, 10, h)
		defer stop()
		var leads atomic.Bool
		leads.Store(true)
		m.o.Leads = leads.Load
		m.nodeHandler().OnAdd(testNode("n", "1"), true)
		h.add(m, onNode(withPriority(testPod("low", "1"), 1), "n"))
		m.submit(context.Background(), synced(m))
		h.add(m, withPriority(testPod("high", "1"), 10))
		elapse(time.Second) // the victim is being marked
		leads.Store(false)
		close(h.patches)
		m.nodeHandler().OnAdd(testNode("other", "1"), false)
		h.add(m, testPod("another", "1"))
		h.add(m, testPod("unplaced", "20"))
		elapse(time.Minute)
		if len(h.removed) > 0 || len(h.bound) > 0 || len(h.cluster.patches) > 2 { // those already sent
			t.Errorf("removed %v, bound %v, %d patches", h.removed, h.bound, len(h.cluster.patches))
		}
		for len(recorder.Events) > 0 {
			if e := <-recorder.Events; strings.Contains(e, "leads") {
				t.Errorf("an Event: %s", e)
			}
		}
	})
}
