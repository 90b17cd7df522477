package scheduler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	corescheduler "github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
)

// TestPreemption adds a pod of high priority to a full node: the pod of lower priority gets the condition and is
// deleted, with an Event, and the other takes its place. No other pod is evicted, and the nomination is in the status
// meanwhile.
func TestPreemption(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		m, recorder, stop := start(c, 16)
		defer stop()
		m.nodeHandler().OnAdd(testNode("n", "2"), true)
		for name, priority := range map[string]int32{"low": 1, "mid": 5} {
			pod := testPod(name, "1")
			pod.Spec.NodeName, pod.Spec.Priority = "n", &priority
			c.add(m, pod)
		}
		m.submit(context.Background(), synced(m))
		high := int32(10)
		pod := testPod("high", "1")
		pod.Spec.Priority = &high
		c.add(m, pod)
		elapse(time.Minute)
		if !slices.Equal(c.removed, []string{"low"}) || c.bound[pod.UID] != 1 {
			t.Fatalf("evicted %v, bound %v", c.removed, c.bound)
		}
		var events []string
		for len(recorder.Events) > 0 {
			events = append(events, <-recorder.Events)
		}
		slices.Sort(events)
		want := []string{
			"Normal Preempted Preempted by pod uid-high on node n",
			"Normal Scheduled Successfully assigned default/high to n",
			"Warning FailedScheduling 0/1 nodes are available: 1 Insufficient cpu.",
		}
		if !slices.Equal(events, want) {
			t.Errorf("events %q, want %q", events, want)
		}
		m.o.Metrics.count(func() (loopState, bool) { return m.count(context.Background()) })
		for name, want := range map[string]float64{
			"scheduler_schedule_attempts_total":             2,
			"scheduler_preemption_attempts_total":           1,
			"scheduler_preemption_victims":                  1,
			"scheduler_pod_scheduling_attempts":             1,
			"scheduler_pod_scheduling_sli_duration_seconds": 1,
			"scheduler_cache_size":                          3,
			"scheduler_pending_pods":                        0,
		} {
			if got := total(t, m.o.Metrics, name); got != want {
				t.Errorf("%s: %v, want %v", name, got, want)
			}
		}
		patches := strings.Join(c.patches, "\n")
		for _, part := range []string{
			`low {"metadata"`, `"type":"DisruptionTarget"`, `"reason":"PreemptionByScheduler"`, `"nominatedNodeName":"n"`,
		} {
			if !strings.Contains(patches, part) {
				t.Errorf("no patch has %s: %s", part, patches)
			}
		}
	})
}

// TestRefusedEvictionsBackOff: if the deletion of a victim is refused, it is tried again after growing pauses.
func TestRefusedEvictionsBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.protects = true
		m, _, stop := start(c, 16)
		defer stop()
		m.nodeHandler().OnAdd(testNode("n", "1"), true)
		low, high := int32(1), int32(10)
		victim := testPod("low", "1")
		victim.Spec.NodeName, victim.Spec.Priority = "n", &low
		c.add(m, victim)
		m.submit(context.Background(), synced(m))
		pod := testPod("high", "1")
		pod.Spec.Priority = &high
		c.add(m, pod)
		elapse(time.Minute)
		if c.refused < 3 || c.refused > 12 {
			t.Errorf("asked %d times in a minute, want some with pauses up to 10 s", c.refused)
		}
		c.mu.Lock()
		c.protects = false
		c.mu.Unlock()
		elapse(15 * time.Second)
		if c.bound[pod.UID] != 1 {
			t.Errorf("not bound after its victim could go: removed %v", c.removed)
		}
	})
}

// protecting is a cluster where one pod cannot be deleted.
type protecting struct {
	*cluster
	name string
}

func (p *protecting) remove(ctx context.Context, namespace, name string, uid types.UID) error {
	if name == p.name {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.refused++
		return apierrors.NewForbidden(corev1.Resource("pods"), name, errors.New("a webhook says no"))
	}
	return p.cluster.remove(ctx, namespace, name, uid)
}

// TestOneThatMayNotBeEvicted: if one victim cannot be deleted, the victims after it are not deleted, because there
// would be no room anyway.
func TestOneThatMayNotBeEvicted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		m, _, stop := startPrepared(c, 16, func(m *loop) { m.api = &protecting{c, "low"} })
		defer stop()
		m.nodeHandler().OnAdd(testNode("n", "2"), true)
		c.add(m, onNode(withPriority(testPod("low", "1"), 2), "n"))
		c.add(m, onNode(withPriority(testPod("lower", "1"), 1), "n"))
		m.submit(context.Background(), synced(m))
		c.add(m, withPriority(testPod("high", "2"), 10))
		elapse(time.Minute)
		if c.evicted() != "" || c.refused < 3 {
			t.Errorf("evicted %q, asked %d times for the one that may not be", c.evicted(), c.refused)
		}
	})
}

// TestNoEvictionThatIsNotNeeded: evictions that wait are dropped if their preemptor has been placed, or is gone; if
// another process leads; and if the victim is being deleted anyway.
func TestNoEvictionThatIsNotNeeded(t *testing.T) {
	const waiting = 4
	for _, how := range []string{"placed", "deleted", "bound by another", "another leads", "the victim goes by itself"} {
		synctest.Test(t, func(t *testing.T) {
			h := &hanging{removes: make(chan struct{}), binds: make(chan struct{})}
			m, _, stop := startHanging(t, 100, h)
			defer stop()
			var deposed atomic.Bool
			m.o.Leads = func() bool { return !deposed.Load() }
			for i := range evictors + waiting {
				node := testNode(fmt.Sprint("n", i), "1")
				node.Labels = map[string]string{"for": fmt.Sprint("high", i)}
				m.nodeHandler().OnAdd(node, true)
				h.add(m, onNode(withPriority(testPod(fmt.Sprint("low", i), "1"), 1), node.Name))
			}
			m.submit(context.Background(), synced(m))
			var late []*corev1.Pod
			for i := range evictors + waiting {
				pod := withPriority(testPod(fmt.Sprint("high", i), "1"), 10)
				pod.Spec.NodeSelector = map[string]string{"for": pod.Name}
				h.add(m, pod)
				elapse(10 * time.Millisecond)
				if i >= evictors {
					late = append(late, pod)
				}
			}
			for i, pod := range late {
				switch how {
				case "placed":
					node := testNode(fmt.Sprint("new", i), "1")
					node.Labels = map[string]string{"for": pod.Name}
					m.nodeHandler().OnAdd(node, false)
				case "deleted":
					h.unset(pod)
					m.podHandler().OnDelete(pod)
				case "bound by another":
					bound := onNode(pod.DeepCopy(), "elsewhere")
					h.set(bound)
					m.podHandler().OnUpdate(pod, bound)
				case "another leads":
					deposed.Store(true)
				case "the victim goes by itself":
					victim := h.lookUp(corescheduler.Pod{ID: corescheduler.PodID(fmt.Sprint("uid-low", evictors+i))}).DeepCopy()
					victim.DeletionTimestamp = &metav1.Time{Time: time.Now()}
					h.set(victim)
				}
			}
			elapse(time.Second)
			close(h.removes)
			elapse(2 * time.Second)
			if len(h.removed) != evictors {
				t.Errorf("%s: evicted %v, want those that were on the wire", how, h.removed)
			}
			if n := strings.Count(strings.Join(h.told(), ""), "DisruptionTarget"); n != evictors {
				t.Errorf("%s: %d victims are marked, want those that were on the wire", how, n)
			}
			close(h.binds)
			elapse(time.Minute)
		})
	}
}

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
// busy one does, a hundred pods that preempt three each are placed within two seconds: 600 writes, one after another
// per preemptor.
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

// TestEvictionsAreBounded: a hundred pods that each preempt one at the same time cause a few deletions at a time, and
// all are placed.
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
// and then lets binds be answered. It returns the Events.
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

// TestVictimInFlight: a victim whose bind was not sent is not deleted, and waits; one whose bind was sent by then is
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
		{name: "before the Throttle", told: said + " (in kube-scheduler memory)."}, // and no pod is evicted
		{name: "on the wire", sent: true, told: said, removed: []string{"low"}, bound: 1},
	} {
		t.Run(q.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := &hanging{binds: make(chan struct{}), onWire: q.sent}
				told, evictions := preemptInFlight(t, h)
				if !slices.Equal(told, []string{q.told}) || int(evictions) != len(q.removed) {
					t.Errorf("told %q, want %q; %v evictions", told, q.told, evictions)
				}
				left := h.pods["uid-low"] != nil
				if !slices.Equal(h.removed, q.removed) || h.bound["uid-low"] != q.bound || left == q.sent {
					t.Errorf("removed %v, bound %v, still there: %v", h.removed, h.bound, left)
				}
			})
		})
	}
}

// TestHeldVictimIsTakenBack: a victim whose bind waits for a slot, behind binds that hang, is forgotten at once. So is
// the pod that took its place, for a pod of still higher priority.
func TestHeldVictimIsTakenBack(t *testing.T) {
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
			t.Errorf("while the bind before low hangs: told %q", told)
		}
		here("higher", 20)
		elapse(2 * hungAfter)
		if told := told(); !strings.Contains(told, "Preempted by pod uid-higher on node n (in kube-scheduler memory)") {
			t.Errorf("while the bind before high hangs: told %q", told)
		}
		if len(h.bound) > 0 {
			t.Errorf("bound %v, and binds hang", h.bound)
		}
		close(h.binds)
		elapse(time.Minute)
		for name, times := range map[string]int{"hangs": 1, "held": 1, "low": 0, "high": 0, "higher": 1} {
			if n := h.bound[types.UID("uid-"+name)]; n != times {
				t.Errorf("%s is bound %d times, want %d; removed %v", name, n, times, h.removed)
			}
		}
		if m.binding != 0 || len(m.ahead)+len(m.flights) > 0 {
			t.Errorf("at the end %d binds, %d held and %d flights are left", m.binding, len(m.ahead), len(m.flights))
		}
	})
}

// TestVictimThatIsWrittenAboutIsTakenBack: a victim whose bind waits for a status patch that hangs is forgotten at
// once.
func TestVictimThatIsWrittenAboutIsTakenBack(t *testing.T) {
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
			t.Errorf("told %q, low is on %q", told, h.where(low))
		}
		close(h.patches)
		elapse(time.Minute)
		if h.bound["uid-high"] != 1 || h.bound["uid-low"] != 0 || len(h.removed) > 0 {
			t.Errorf("bound %v, removed %v", h.bound, h.removed)
		}
	})
}

// TestNoFurtherVictims: the remaining victims are not deleted if their preemptor is gone, being deleted or bound
// meanwhile.
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

// answering is a cluster with a given answer to writes about victims. now is the victim's state after that, if it has
// changed.
type answering struct {
	*cluster
	patch, delete error
	now           func(*corev1.Pod) (*corev1.Pod, error)
}

func (a *answering) pod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	pod, err := a.cluster.pod(ctx, namespace, name)
	if err == nil && a.now != nil {
		return a.now(pod.DeepCopy())
	}
	return pod, err
}

func (a *answering) patchStatus(ctx context.Context, namespace, name string, patch []byte) error {
	if strings.Contains(string(patch), string(corev1.DisruptionTarget)) && a.patch != nil {
		return a.patch
	}
	return a.cluster.patchStatus(ctx, namespace, name, patch)
}

func (a *answering) remove(context.Context, string, string, types.UID) error { return a.delete }

// TestVictimsThatAreGone: a victim that is gone, or has another UID, when its condition is written or it is deleted, is
// no failure of the eviction; a refusal is.
func TestVictimsThatAreGone(t *testing.T) {
	pods := corev1.Resource("pods")
	gone, other := apierrors.NewNotFound(pods, "low"), apierrors.NewConflict(pods, "low", errors.New("another UID"))
	no := apierrors.NewForbidden(pods, "low", errors.New("a webhook says no"))
	lost := errors.New("connection reset")
	is := func(change func(*corev1.Pod), err error) func(*corev1.Pod) (*corev1.Pod, error) {
		return func(pod *corev1.Pod) (*corev1.Pod, error) {
			change(pod)
			return pod, err
		}
	}
	for _, q := range []struct {
		patch, delete error
		now           func(*corev1.Pod) (*corev1.Pod, error)
		failed        bool
	}{
		{patch: gone}, {delete: gone}, {delete: other}, {patch: no, failed: true}, {delete: no, failed: true},
		{delete: lost, failed: true},
		{delete: lost, now: is(func(*corev1.Pod) {}, gone)},
		{delete: lost, now: is(func(p *corev1.Pod) { p.UID = "another" }, nil)},
		{delete: lost, now: is(func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Now()} }, nil)},
		{delete: lost, now: is(func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Now()} }, no), failed: true},
		{delete: no, now: is(func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Now()} }, nil), failed: true},
	} {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t)
			m, recorder, stop := startPrepared(c, 10, func(m *loop) { m.api = &answering{c, q.patch, q.delete, q.now} })
			defer stop()
			m.nodeHandler().OnAdd(testNode("n", "1"), true)
			c.add(m, onNode(withPriority(testPod("low", "1"), 1), "n"))
			m.submit(context.Background(), synced(m))
			c.add(m, withPriority(testPod("high", "1"), 10))
			elapse(time.Minute)
			if n := total(t, m.o.Metrics, "scheduler_preemption_goroutines_execution_total"); (n > 1) != q.failed {
				t.Errorf("mark: %v, delete: %v: tried %v times in a minute", q.patch, q.delete, n)
			}
			told := false
			for len(recorder.Events) > 0 {
				told = strings.Contains(<-recorder.Events, "Preempted") || told
			}
			if told != (q.patch == nil && !q.failed) {
				t.Errorf("mark: %v, delete: %v: the victim is told: %v", q.patch, q.delete, told)
			}
		})
	}
}

// TestMarkedVictims: a victim that has the condition with its reason already does not get it again before it is
// deleted.
func TestMarkedVictims(t *testing.T) {
	for _, marked := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t)
			m, _, stop := start(c, 10)
			defer stop()
			m.nodeHandler().OnAdd(testNode("n", "1"), true)
			victim := onNode(withPriority(testPod("low", "1"), 1), "n")
			if marked {
				victim.Status.Conditions = []corev1.PodCondition{{
					Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonPreemptionByScheduler,
					Message: DefaultName + ": preempting to accommodate a higher priority pod",
				}}
			}
			c.add(m, victim)
			m.submit(context.Background(), synced(m))
			c.add(m, withPriority(testPod("high", "1"), 10))
			elapse(time.Minute)
			told := strings.Contains(strings.Join(c.told(), ""), "DisruptionTarget")
			if c.evicted() != "low" || told == marked {
				t.Errorf("evicted %q; it was marked before: %v, and is marked: %v", c.evicted(), marked, told)
			}
		})
	}
}
