package scheduler

import (
	"context"
	"fmt"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	corescheduler "github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/kube/topology"
)

// queueing is a cluster behind a throttle in which writes about pods wait until a test allows them.
type queueing struct {
	*cluster
	open chan struct{}
}

func (q *queueing) wait(ctx context.Context) error {
	for !isClosed(q.open) {
		if time.Sleep(time.Millisecond); kube.IsWithdrawn(ctx) || ctx.Err() != nil {
			return context.Canceled
		}
	}
	return nil
}

func (q *queueing) patchStatus(ctx context.Context, namespace, name string, patch []byte) error {
	if err := q.wait(ctx); err != nil {
		return err
	}
	return q.cluster.patchStatus(ctx, namespace, name, patch)
}

func (q *queueing) remove(ctx context.Context, namespace, name string, uid types.UID) error {
	if err := q.wait(ctx); err != nil {
		return err
	}
	return q.cluster.remove(ctx, namespace, name, uid)
}

// TestWithdrawnByTheWatch: requests in the throttle's queue about a pod that others bind, or that is gone, are not
// sent: its condition, and the eviction of its victims.
func TestWithdrawnByTheWatch(t *testing.T) {
	for how, happens := range map[string]func(q *queueing, m *loop, pod *corev1.Pod){
		"bound by another": func(q *queueing, m *loop, pod *corev1.Pod) {
			bound := onNode(pod.DeepCopy(), "elsewhere")
			q.set(bound)
			m.podHandler().OnUpdate(pod, bound)
		},
		"going": func(q *queueing, m *loop, pod *corev1.Pod) {
			going := pod.DeepCopy()
			going.DeletionTimestamp = &metav1.Time{Time: time.Now()}
			q.set(going)
			m.podHandler().OnUpdate(pod, going)
		},
		"deleted": func(q *queueing, m *loop, pod *corev1.Pod) {
			q.unset(pod)
			m.podHandler().OnDelete(pod)
		},
		"deleted while the watch was down": func(q *queueing, m *loop, pod *corev1.Pod) {
			q.unset(pod)
			m.podHandler().OnDelete(cache.DeletedFinalStateUnknown{Key: "default/" + pod.Name, Obj: pod})
		},
		"created again while the watch was down": func(q *queueing, m *loop, pod *corev1.Pod) {
			other := pod.DeepCopy()
			other.UID, other.Spec.SchedulerName = pod.UID+"-2", "another"
			q.unset(pod)
			q.set(other)
			m.podHandler().OnUpdate(pod, other)
		},
	} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := &queueing{newCluster(t), make(chan struct{})}
				m, recorder, stop := startPrepared(q.cluster, 10, func(m *loop) { m.api = q })
				defer stop()
				m.nodeHandler().OnAdd(testNode("n", "1"), true)
				q.add(m, onNode(withPriority(testPod("low", "1"), 1), "n"))
				m.submit(context.Background(), synced(m))
				high, big := withPriority(testPod("high", "1"), 10), testPod("big", "20")
				q.add(m, high)
				q.add(m, big)
				elapse(time.Second)
				if n := len(recorder.Events); n != 2 {
					t.Fatalf("%d Events, want one for each pod that fits nowhere", n)
				}
				for _, pod := range []*corev1.Pod{high, big} {
					happens(q, m, pod)
				}
				elapse(time.Second)
				close(q.open)
				elapse(time.Minute)
				if told := q.told(); len(told) != 0 || len(q.removed) != 0 {
					t.Errorf("patches %q, removed %q; want none", told, q.removed)
				}
				if n := samples(m.o.Metrics.evictions); n != 0 {
					t.Errorf("%d results of evictions counted, want none: the one eviction was withdrawn", n)
				}
			})
		})
	}
}

// TestMissedEvents: a waiting pod gets the room that another pod leaves, however the watch shows that. It gets it at
// once, not only by the check of long-waiting pods. It gets no room that only seems to be free.
func TestMissedEvents(t *testing.T) {
	missed := func(key string, obj any) any { return cache.DeletedFinalStateUnknown{Key: key, Obj: obj} }
	for how, q := range map[string]struct {
		happens func(c *cluster, m *loop, holds *corev1.Pod)
		want    string
	}{
		"the pod is deleted": {func(_ *cluster, m *loop, holds *corev1.Pod) { m.podHandler().OnDelete(holds) }, "n"},
		"the pod's deletion was missed": {func(_ *cluster, m *loop, holds *corev1.Pod) {
			m.podHandler().OnDelete(missed("default/holds", holds))
		}, "n"},
		"the pod was replaced": {func(_ *cluster, m *loop, holds *corev1.Pod) {
			other := testPod("holds", "1")
			other.UID, other.Spec.SchedulerName = "another", "another"
			m.podHandler().OnUpdate(holds, other)
		}, "n"},
		"the node's allocatable grows": {func(_ *cluster, m *loop, _ *corev1.Pod) {
			m.nodeHandler().OnUpdate(testNode("n", "1"), testNode("n", "2"))
		}, "n"},
		"a node is added": {func(_ *cluster, m *loop, _ *corev1.Pod) {
			m.nodeHandler().OnAdd(testNode("new", "1"), false)
		}, "new"},
		"the node is deleted, then its pod": {func(_ *cluster, m *loop, holds *corev1.Pod) {
			m.nodeHandler().OnDelete(testNode("n", "1"))
			m.podHandler().OnDelete(holds)
		}, ""},
		"the node's deletion was missed": {func(_ *cluster, m *loop, holds *corev1.Pod) {
			m.nodeHandler().OnDelete(missed("n", testNode("n", "1")))
			m.podHandler().OnDelete(holds)
		}, ""},
		"the node is created again": {func(_ *cluster, m *loop, holds *corev1.Pod) {
			m.nodeHandler().OnDelete(testNode("n", "1"))
			m.podHandler().OnDelete(holds)
			m.nodeHandler().OnAdd(testNode("n", "1"), false)
		}, "n"},
	} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t)
				m, _, stop := start(c, 10)
				defer stop()
				m.nodeHandler().OnAdd(testNode("n", "1"), true)
				holds, waits := onNode(testPod("holds", "1"), "n"), testPod("waits", "1")
				c.add(m, holds)
				m.submit(context.Background(), synced(m))
				c.add(m, waits)
				elapse(time.Minute)
				if on := c.where(waits); on != "" {
					t.Fatalf("it is on %s", on)
				}
				q.happens(c, m, holds)
				elapse(time.Second)
				if on := c.where(waits); on != q.want {
					t.Errorf("it is on %q, want %q", on, q.want)
				}
			})
		})
	}
}

// TestPreemptorOfALostNode: if the node on which a pod is nominated is deleted, the pod preempts elsewhere at once.
func TestPreemptorOfALostNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		m, _, stop := start(c, 10)
		defer stop()
		ends := c.onGone
		c.onGone = func(pod *corev1.Pod) {
			if pod.Name == "slow" {
				time.Sleep(time.Hour) // its termination grace period
			}
			ends(pod)
		}
		for i, name := range []string{"slow", "quick"} {
			m.nodeHandler().OnAdd(testNode("n-"+name, "1"), true)
			c.add(m, onNode(withPriority(testPod(name, "1"), int32(i+1)), "n-"+name))
		}
		m.submit(context.Background(), synced(m))
		high := withPriority(testPod("high", "1"), 10)
		c.add(m, high)
		elapse(time.Minute)
		if c.evicted() != "slow" || c.where(high) != "" {
			t.Fatalf("evicted %q, high is on %q", c.evicted(), c.where(high))
		}
		m.nodeHandler().OnDelete(testNode("n-slow", "1"))
		elapse(2 * time.Second)
		if c.evicted() != "slow quick" || c.where(high) != "n-quick" {
			t.Errorf("evicted %q, high is on %q; want room made on the other node", c.evicted(), c.where(high))
		}
		elapse(time.Hour)
	})
}

// TestFollowed: each change of an object reaches the scheduling loop, also a deletion that the watch missed.
func TestFollowed(t *testing.T) {
	m := newLoop(Options{Metrics: NewMetrics(), Name: DefaultName}, nil, nil)
	var told []string
	h := followed(m, as[*corev1.Namespace],
		func(_ unit.Instant, n *corev1.Namespace) { told = append(told, "seen "+n.Name+" "+n.Labels["is"]) },
		func(_ unit.Instant, namespace, name string) { told = append(told, "gone "+namespace+name) })
	named := func(name, is string) *corev1.Namespace {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"is": is}}}
	}
	h.OnAdd(named("a", "new"), false)
	h.OnUpdate(named("a", "new"), named("a", "changed"))
	h.OnDelete(named("a", "changed"))
	h.OnDelete(cache.DeletedFinalStateUnknown{Key: "b", Obj: named("b", "")})
	h.OnDelete(cache.DeletedFinalStateUnknown{Key: "c"}) // the object is not known
	m.nodeHandler().OnDelete(cache.DeletedFinalStateUnknown{Key: "c"})
	m.podHandler().OnDelete(cache.DeletedFinalStateUnknown{Key: "c"})
	m.applyFacts()
	if got, want := fmt.Sprintf("%q", told), `["seen a new" "seen a changed" "gone a" "gone b"]`; got != want {
		t.Errorf("facts %s, want %s", got, want)
	}
}

// TestNothingIsKeptOfBoundPods: nothing is kept of a pod that fits nowhere, or whose bind had no answer, once it is
// bound, deleted or created again.
func TestNothingIsKeptOfBoundPods(t *testing.T) {
	profiles := []corescheduler.Profile{{Name: DefaultName}}
	m := newLoop(Options{Metrics: NewMetrics(), Name: DefaultName, Profiles: profiles}, nil, nil)
	for name, happens := range map[string]func(pod *corev1.Pod){
		"bound":   func(pod *corev1.Pod) { m.podHandler().OnUpdate(pod, onNode(pod.DeepCopy(), "n")) },
		"deleted": func(pod *corev1.Pod) { m.podHandler().OnDelete(pod) },
		"another": func(pod *corev1.Pod) {
			other := pod.DeepCopy()
			other.UID = "another"
			m.podHandler().OnUpdate(pod, other)
		},
	} {
		pod := testPod(name, "1")
		m.rejected[corescheduler.PodID(pod.UID)] = rejected{profile: DefaultName}
		m.unknownBinds[corescheduler.PodID(pod.UID)] = placed{}
		happens(pod)
		m.applyFacts()
		if len(m.rejected) != 0 || len(m.unknownBinds) != 0 {
			t.Errorf("%s: counted: %v; unknown binds: %v", name, m.rejected, m.unknownBinds)
		}
	}
}

// TestTrimmed: only what rules read is kept of objects that select pods.
func TestTrimmed(t *testing.T) {
	labels := map[string]string{"app": "web"}
	template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}}
	selector := &metav1.LabelSelector{MatchLabels: labels}
	for _, q := range []struct{ whole, kept runtime.Object }{
		{
			&corev1.ReplicationController{
				Spec:   corev1.ReplicationControllerSpec{Selector: labels, Template: &template},
				Status: corev1.ReplicationControllerStatus{Replicas: 1},
			},
			&corev1.ReplicationController{Spec: corev1.ReplicationControllerSpec{Selector: labels}},
		},
		{
			&appsv1.ReplicaSet{
				Spec:   appsv1.ReplicaSetSpec{Selector: selector, Template: template},
				Status: appsv1.ReplicaSetStatus{Replicas: 1},
			},
			&appsv1.ReplicaSet{Spec: appsv1.ReplicaSetSpec{Selector: selector}},
		},
		{
			&appsv1.StatefulSet{
				Spec: appsv1.StatefulSetSpec{
					Selector: selector, Template: template, VolumeClaimTemplates: make([]corev1.PersistentVolumeClaim, 1),
				},
				Status: appsv1.StatefulSetStatus{Replicas: 1},
			},
			&appsv1.StatefulSet{Spec: appsv1.StatefulSetSpec{Selector: selector}},
		},
	} {
		if trim(q.whole); !reflect.DeepEqual(q.whole, q.kept) {
			t.Errorf("kept %+v, want %+v", q.whole, q.kept)
		}
	}
	report := &topology.Object{Zones: make([]topology.Zone, 1), TopologyPolicies: []string{"x"}}
	if trimReport(report); report.Zones != nil || report.TopologyPolicies != nil {
		t.Errorf("kept %+v", report)
	}
}
