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
			t.Errorf("%d deletions were tried in a minute, want a few, with pauses up to 10 s", c.refused)
		}
		c.mu.Lock()
		c.protects = false
		c.mu.Unlock()
		elapse(15 * time.Second)
		if c.bound[pod.UID] != 1 {
			t.Errorf("not bound after its victim could be deleted: removed %v", c.removed)
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

// TestVictimThatCannotBeDeleted: if one victim cannot be deleted, the victims after it are not deleted, because there
// would be no room anyway.
func TestVictimThatCannotBeDeleted(t *testing.T) {
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
			t.Errorf("evicted %q, %d tries for the victim that cannot be deleted", c.evicted(), c.refused)
		}
	})
}

// TestNeedlessEvictionsAreDropped: evictions that wait are dropped if their preemptor has been placed or is gone, if
// another process leads, or if the victim is being deleted anyway.
func TestNeedlessEvictionsAreDropped(t *testing.T) {
	const waiting = 4
	for _, how := range []string{
		"placed", "deleted", "bound by another", "another leads", "the victim is being deleted anyway",
	} {
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
				case "the victim is being deleted anyway":
					victim := h.lookUp(corescheduler.Pod{ID: corescheduler.PodID(fmt.Sprint("uid-low", evictors+i))}).DeepCopy()
					victim.DeletionTimestamp = &metav1.Time{Time: time.Now()}
					h.set(victim)
				}
			}
			elapse(time.Second)
			close(h.removes)
			elapse(2 * time.Second)
			if len(h.removed) != evictors {
				t.Errorf("%s: evicted %v, want those whose requests were in flight", how, h.removed)
			}
			if n := strings.Count(strings.Join(h.told(), ""), "DisruptionTarget"); n != evictors {
				t.Errorf("%s: %d victims are marked, want those whose requests were in flight", how, n)
			}
			close(h.binds)
			elapse(time.Minute)
		})
	}
}

// answering is a cluster with given answers to writes about victims. now returns the victim's state after that; nil: it
// has not changed.
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

// TestVictimsThatAreGone: if a victim is gone, or another pod has its name, when its condition is written or it is
// deleted, the eviction has not failed. If the request is refused, it has.
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
		{delete: lost, now: is(func(p *corev1.Pod) {
			p.DeletionTimestamp = &metav1.Time{Time: time.Now()}
		}, no), failed: true},
		{delete: no, now: is(func(p *corev1.Pod) {
			p.DeletionTimestamp = &metav1.Time{Time: time.Now()}
		}, nil), failed: true},
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
				t.Errorf("mark: %v, delete: %v: the victim has an Event: %v", q.patch, q.delete, told)
			}
		})
	}
}

// TestMarkedVictims: if a victim already has the condition with its reason, the condition is not written again before
// the victim is deleted.
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
