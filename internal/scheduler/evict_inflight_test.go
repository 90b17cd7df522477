package scheduler

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// slow is a cluster that takes the same time for each patch and each deletion, however many there are at once.
type slow struct {
	*cluster
	takes time.Duration
}

func (s slow) patchStatus(ctx context.Context, namespace, name string, patch []byte) error {
	time.Sleep(s.takes)
	return s.cluster.patchStatus(ctx, namespace, name, patch)
}

func (s slow) remove(ctx context.Context, namespace, name string, uid types.UID) error {
	time.Sleep(s.takes)
	return s.cluster.remove(ctx, namespace, name, uid)
}

// TestEvictionsKeepAServerBusy: with a server that takes 50 ms per answer and processes many requests at once, as a
// busy one does, a hundred pods that preempt three each are placed within two seconds. That takes 600 writes, one at a
// time for each preemptor.
func TestEvictionsKeepAServerBusy(t *testing.T) {
	const pods, victims = 100, 3
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		m, _, stop := startPrepared(c, BindsInFlightDefault, func(m *loop) { m.api = slow{c, 50 * time.Millisecond} })
		defer stop()
		for i := range pods {
			node := testNode(fmt.Sprint("n", i), fmt.Sprint(victims))
			m.nodeHandler().OnAdd(node, true)
			for k := range victims {
				c.add(m, onNode(withPriority(testPod(fmt.Sprint("low", i, "-", k), "1"), 1), node.Name))
			}
		}
		m.submit(context.Background(), synced(m))
		for i := range pods {
			c.add(m, withPriority(testPod(fmt.Sprint("high", i), fmt.Sprint(victims)), 10))
		}
		elapse(2 * time.Second)
		if len(c.removed) != pods*victims || len(c.bound) != pods {
			t.Errorf("after two seconds %d pods are evicted and %d bound", len(c.removed), len(c.bound))
		}
		elapse(time.Minute)
	})
}

// TestEvictionsAreBounded: a hundred pods that preempt one pod each at the same time cause at most evictors deletions
// at a time, and all are placed.
func TestEvictionsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hanging{removes: make(chan struct{})}
		m, _, stop := startHanging(t, 100, h)
		defer stop()
		for i := range 100 {
			m.nodeHandler().OnAdd(testNode(fmt.Sprint("n", i), "1"), true)
			h.add(m, onNode(withPriority(testPod(fmt.Sprint("low", i), "1"), 1), fmt.Sprint("n", i)))
		}
		m.submit(context.Background(), synced(m))
		for i := range 100 {
			h.add(m, withPriority(testPod(fmt.Sprint("high", i), "1"), 10))
		}
		elapse(time.Minute)
		if h.most == 0 || h.most > evictors {
			t.Errorf("%d deletions at once, want at most %d", h.most, evictors)
		}
		close(h.removes)
		elapse(time.Minute)
		if len(h.bound) != 100 {
			t.Errorf("%d bound", len(h.bound))
		}
	})
}

// preemptInFlight adds a pod of high priority while the bind of a pod of lower priority to the only node is in flight,
// and then answers the binds. It returns the Events and the number of evictions.
func preemptInFlight(t *testing.T, h *hanging) (told []string, evictions float64) {
	m, recorder, stop := startHanging(t, 10, h)
	defer stop()
	m.nodeHandler().OnAdd(testNode("n", "1"), true)
	m.submit(context.Background(), synced(m))
	h.add(m, withPriority(testPod("low", "1"), 1))
	elapse(hungAfter / 2)
	h.add(m, withPriority(testPod("high", "1"), 10))
	elapse(hungAfter / 2)
	close(h.binds)
	elapse(time.Minute)
	if h.bound["uid-high"] != 1 {
		t.Errorf("bound %v, want high", h.bound)
	}
	for len(recorder.Events) > 0 {
		if e := <-recorder.Events; strings.Contains(e, "Preempted") || strings.Contains(e, "binding to") {
			told = append(told, e)
		}
	}
	m.o.Metrics.evictions.WithLabelValues("success") // the counter may not exist yet
	return told, total(t, m.o.Metrics, "scheduler_preemption_goroutines_execution_total")
}

// TestVictimInFlight: a victim whose bind was not sent yet is not deleted, and waits. A victim whose bind was sent is
// deleted as a bound pod.
func TestVictimInFlight(t *testing.T) {
	const said = "Normal Preempted Preempted by pod uid-high on node n"
	for _, q := range []struct {
		name    string
		sent    bool
		told    string
		removed []string
		bound   int
	}{
		{name: "before the Throttle", told: said + " (in kube-scheduler memory)."}, // no pod is deleted
		{name: "on the wire", sent: true, told: said, removed: []string{"low"}, bound: 1},
	} {
		t.Run(q.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := &hanging{binds: make(chan struct{}), onWire: q.sent}
				told, evictions := preemptInFlight(t, h)
				if !slices.Equal(told, []string{q.told}) || int(evictions) != len(q.removed) {
					t.Errorf("Events %q, want %q; %v evictions", told, q.told, evictions)
				}
				left := h.pods["uid-low"] != nil
				if !slices.Equal(h.removed, q.removed) || h.bound["uid-low"] != q.bound || left == q.sent {
					t.Errorf("removed %v, bound %v, the victim exists: %v", h.removed, h.bound, left)
				}
			})
		})
	}
}

// TestVictimDecidedAhead: a victim whose bind waits for a slot, behind binds that hang, is forgotten at once. So is the
// pod that took its place, for a pod of still higher priority.
func TestVictimDecidedAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hanging{binds: make(chan struct{}), onWire: true}
		m, recorder, stop := startHanging(t, 1, h)
		defer stop()
		m.nodeHandler().OnAdd(testNode("other", "2"), true)
		m.submit(context.Background(), synced(m))
		h.add(m, testPod("hangs", "1"))
		elapse(hungAfter / 2)
		node := testNode("n", "1")
		node.Labels = map[string]string{"is": "n"}
		m.nodeHandler().OnAdd(node, true)
		here := func(name string, priority int32) {
			pod := withPriority(testPod(name, "1"), priority)
			pod.Spec.NodeSelector = node.Labels
			h.add(m, pod)
		}
		h.add(m, testPod("held", "1")) // before low, and not a victim
		here("low", 1)
		elapse(2 * hungAfter)
		told := func() (told string) {
			for len(recorder.Events) > 0 {
				told += <-recorder.Events + "\n"
			}
			return told
		}
		here("high", 10)
		elapse(2 * hungAfter)
		if told := told(); !strings.Contains(told, "Preempted by pod uid-high on node n (in kube-scheduler memory)") {
			t.Errorf("while the bind before low hangs: Events %q", told)
		}
		here("higher", 20)
		elapse(2 * hungAfter)
		if told := told(); !strings.Contains(told, "Preempted by pod uid-higher on node n (in kube-scheduler memory)") {
			t.Errorf("while the bind before high hangs: Events %q", told)
		}
		if len(h.bound) > 0 {
			t.Errorf("bound %v although binds hang", h.bound)
		}
		close(h.binds)
		elapse(time.Minute)
		for name, times := range map[string]int{"hangs": 1, "held": 1, "low": 0, "high": 0, "higher": 1} {
			if n := h.bound[types.UID("uid-"+name)]; n != times {
				t.Errorf("%s is bound %d times, want %d; removed %v", name, n, times, h.removed)
			}
		}
		if m.binding != 0 || len(m.ahead)+len(m.flights) > 0 {
			t.Errorf("at the end, %d binds, %d decisions ahead and %d flights are left", m.binding, len(m.ahead), len(m.flights))
		}
	})
}

// TestVictimBehindStatusPatch: a victim whose bind waits for a status patch that hangs is forgotten at once.
func TestVictimBehindStatusPatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hanging{patches: make(chan struct{})}
		m, recorder, stop := startHanging(t, 10, h)
		defer stop()
		m.nodeHandler().OnAdd(testNode("small", "100m"), true)
		m.submit(context.Background(), synced(m))
		low := withPriority(testPod("low", "1"), 1)
		h.add(m, low)
		elapse(time.Second)
		m.nodeHandler().OnAdd(testNode("n", "1"), false)
		elapse(time.Second)
		h.add(m, withPriority(testPod("high", "1"), 10))
		elapse(2 * time.Second)
		told := ""
		for len(recorder.Events) > 0 {
			told += <-recorder.Events + "\n"
		}
		if !strings.Contains(told, "(in kube-scheduler memory)") || h.where(low) != "" {
			t.Errorf("Events %q, low is on %q", told, h.where(low))
		}
		close(h.patches)
		elapse(time.Minute)
		if h.bound["uid-high"] != 1 || h.bound["uid-low"] != 0 || len(h.removed) > 0 {
			t.Errorf("bound %v, removed %v", h.bound, h.removed)
		}
	})
}

// TestNoFurtherVictims: the remaining victims are not deleted if their preemptor is gone, is being deleted, or was
// bound meanwhile.
func TestNoFurtherVictims(t *testing.T) {
	for how, happens := range map[string]func(pod *corev1.Pod){
		"bound": func(pod *corev1.Pod) { pod.Spec.NodeName = "elsewhere" },
		"going": func(pod *corev1.Pod) { pod.DeletionTimestamp = &metav1.Time{Time: time.Now()} },
		"gone":  func(pod *corev1.Pod) { pod.UID = "" },
	} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := &hanging{removes: make(chan struct{})}
				m, _, stop := startHanging(t, 10, h)
				defer stop()
				m.nodeHandler().OnAdd(testNode("n", "2"), true)
				for _, name := range []string{"low1", "low2"} {
					h.add(m, onNode(withPriority(testPod(name, "1"), 1), "n"))
				}
				m.submit(context.Background(), synced(m))
				high := withPriority(testPod("high", "2"), 10)
				h.add(m, high)
				elapse(time.Second)
				changed := high.DeepCopy()
				if happens(changed); changed.UID == "" {
					h.unset(high)
				} else {
					h.set(changed)
				}
				close(h.removes) // before the event of the watch
				elapse(time.Second)
				if len(h.removed) != 1 {
					t.Errorf("evicted %v, want one", h.removed)
				}
				if changed.UID == "" {
					m.podHandler().OnDelete(high)
				} else {
					m.podHandler().OnUpdate(high, changed)
				}
				elapse(time.Minute)
				if len(h.removed) != 1 || m.evictions.waiting() > 0 {
					t.Errorf("evicted %v, want one; %d wait", h.removed, m.evictions.waiting())
				}
			})
		})
	}
}
