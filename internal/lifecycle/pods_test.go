package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"github.com/plimsoll-dev/plimsoll/internal/core/throttle"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/core/wellknown"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/test/atonce"
)

// bound returns a Ready pod on node n that tolerates a lost node for that many seconds.
func bound(name string, seconds int64) *corev1.Pod {
	toleration := func(key string) corev1.Toleration {
		return corev1.Toleration{
			Key:               key,
			Operator:          corev1.TolerationOpExists,
			Effect:            corev1.TaintEffectNoExecute,
			TolerationSeconds: &seconds,
		}
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name + "-uid"), Generation: 3},
		Spec: corev1.PodSpec{
			NodeName:    "n",
			Tolerations: []corev1.Toleration{toleration(wellknown.TaintNotReady), toleration(wellknown.TaintUnreachable)},
		},
		Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}
}

func (s *server) ended() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	slices.Sort(s.deleted)
	return strings.Join(s.deleted, ", ")
}

func TestPodsLeaveASilentNode(t *testing.T) {
	inBubble(t, func(t *testing.T, s *server, c *controller) {
		c.podHandler().OnAdd(bound("p", 30), false)
		wait(79 * time.Second)
		if got := s.ended(); got != "" {
			t.Errorf("29 s after the taint: %s", got)
		}
		wait(2 * time.Second)
		if got := s.ended(); got != "p deleted" {
			t.Errorf("31 s after the taint: %s", got)
		}
		for _, part := range []string{
			`"uid":"p-uid"`, `"type":"DisruptionTarget"`, `"reason":"DeletionByTaintManager"`, `"observedGeneration":3`,
		} {
			if !strings.Contains(s.podReady["p"], part) {
				t.Errorf("no %s in %s", part, s.podReady["p"])
			}
		}
		wait(10 * time.Minute) // the watch is slow to bring the deletion: there must be no second request
		if got := s.ended(); got != "p deleted" {
			t.Errorf("later: %s", got)
		}
	})
}

// TestAnswerThatComesAfterTheWatch: a pod is marked not Ready while its node returns. Its agent reports Ready at once,
// and the watch brings that before the answer to the mark. The agent's report counts: when the node is silent again,
// the pod is marked again.
func TestAnswerThatComesAfterTheWatch(t *testing.T) {
	inBubble(t, func(t *testing.T, s *server, c *controller) {
		var patches atomic.Int32
		s.podPatched = func(version int) {
			if patches.Add(1) == 1 {
				again := bound("p", 3600)
				again.ResourceVersion = strconv.Itoa(version + 100)
				c.podHandler().OnUpdate(bound("p", 3600), again)
				wait(time.Second)
				s.mu.Lock()
				s.version += 200
				s.mu.Unlock()
			}
		}
		first := bound("p", 3600)
		first.ResourceVersion = "1"
		c.podHandler().OnAdd(first, false)
		wait(3 * time.Minute)
		if n := patches.Load(); n != 2 {
			t.Errorf("marked not Ready %d times, want once for each time that it was Ready", n)
		}
	})
}

// TestEvictionsAreRetriedUntilDone: unlike upstream, which gives up after five attempts in 50 ms.
func TestEvictionsAreRetriedUntilDone(t *testing.T) {
	inBubble(t, func(t *testing.T, s *server, c *controller) {
		for range 12 {
			s.refuse["p"] = append(s.refuse["p"], errors.New("etcdserver: request timed out"))
		}
		c.podHandler().OnAdd(bound("p", 0), false)
		wait(70 * time.Second)
		if got := s.ended(); got != "" {
			t.Errorf("after 20 s of failures: %s", got)
		}
		wait(time.Minute)
		if got := s.ended(); got != "p deleted" {
			t.Errorf("a minute later: %s", got)
		}
	})
}

func TestBudgetsAreRespectedWhenAsked(t *testing.T) {
	inBubble(t, func(t *testing.T, s *server, c *controller) {
		c.post(func(unit.Instant) { c.o.RespectBudgets = true })
		for range 5 {
			s.refuse["p"] = append(s.refuse["p"],
				apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 0))
		}
		c.podHandler().OnAdd(bound("p", 0), false)
		wait(52 * time.Second)
		if got := s.ended(); got != "" {
			t.Errorf("the eviction was refused, but: %s", got)
		}
		wait(30 * time.Second)
		if got := s.ended(); got != "p evicted" {
			t.Errorf("when the budget allows it: %s", got)
		}
	})
}

func TestPodsOfADeletedNodeAreCollected(t *testing.T) {
	inBubble(t, func(t *testing.T, s *server, c *controller) {
		c.podHandler().OnAdd(bound("p", 300), false)
		wait(time.Second)
		c.nodeHandler().OnDelete(s.node)
		wait(50 * time.Second)
		if got := s.ended(); got != "" {
			t.Errorf("the API server has the node, but: %s", got) // the watch was wrong
		}
		s.mu.Lock()
		s.gone = true
		s.mu.Unlock()
		wait(15 * time.Second)
		if got := s.ended(); got != "p removed" {
			t.Errorf("when the node is gone: %s", got)
		}
		if !strings.Contains(s.podReady["p"], `"phase":"Failed"`) || !strings.Contains(s.podReady["p"], "DeletionByPodGC") {
			t.Errorf("status patch %s", s.podReady["p"])
		}
	})
}

func TestTerminatingPodsOfANodeOutOfServiceAreRemoved(t *testing.T) {
	inBubble(t, func(t *testing.T, s *server, c *controller) {
		p := bound("p", 300)
		now := metav1.Now()
		p.DeletionTimestamp = &now
		c.podHandler().OnAdd(p, false)
		wait(52 * time.Second)
		if got := s.ended(); got != "" {
			t.Errorf("the node is silent, not out of service, but: %s", got)
		}
		s.edit(func(n *corev1.Node) {
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{
				Key:    wellknown.TaintOutOfService,
				Effect: corev1.TaintEffectNoExecute,
			})
		})
		wait(time.Second)
		if got := s.ended(); got != "p removed" {
			t.Errorf("out of service: %s", got)
		}
	})
}

func TestNothingIsWrittenWithoutTheLead(t *testing.T) {
	inBubble(t, func(t *testing.T, s *server, c *controller) {
		wait(time.Second)
		before := s.writes
		c.post(func(unit.Instant) { c.o.Leads = func() bool { return false } })
		c.podHandler().OnAdd(bound("p", 0), false)
		wait(5 * time.Minute)
		if s.writes != before || s.ended() != "" || len(s.podReady) > 0 {
			t.Errorf("%d writes, pods %q %v", s.writes-before, s.ended(), s.podReady)
		}
	})
}

// TestLanes: evictions that the server does not answer do not delay marks, because each kind of write has workers of
// its own.
func TestLanes(t *testing.T) {
	l := newLanes(2)
	hang, marked := make(chan struct{}), make(chan struct{})
	for range 100 {
		l[throttle.Evict].put(func(context.Context) { <-hang })
	}
	l[throttle.Mark].put(func(context.Context) { close(marked) })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		l.run(ctx)
		close(done)
	}()
	<-marked
	cancel()
	close(hang)
	<-done
}

// TestWaitingEvictionsAreRenewed: pods must be evicted, and the server is slow. Meanwhile the node returns: pods whose
// eviction was not sent yet stay.
func TestWaitingEvictionsAreRenewed(t *testing.T) {
	inBubble(t, func(t *testing.T, s *server, c *controller) {
		turns := make(chan struct{})
		for i := range 10 {
			c.podHandler().OnAdd(bound(fmt.Sprint("p", i), 5), false)
		}
		wait(52 * time.Second) // they are marked not Ready
		s.mu.Lock()
		s.podPatched = func(int) { <-turns }
		s.mu.Unlock()
		wait(5 * time.Second)
		s.edit(func(n *corev1.Node) {
			n.Status.Conditions = []corev1.NodeCondition{condition(corev1.NodeReady, corev1.ConditionTrue)}
		})
		wait(time.Second)
		close(turns)
		wait(time.Minute)
		if got := strings.Count(s.ended(), "deleted"); got != 4 {
			t.Errorf("%d pods ended, want the 4 whose evictions were in flight: %s", got, s.ended())
		}
		cancelled := 0
		for events := c.evictions.(*record.FakeRecorder).Events; len(events) > 0; {
			if strings.Contains(<-events, "Cancelling deletion of Pod") {
				cancelled++
			}
		}
		if cancelled != 6 {
			t.Errorf("%d Events about cancellations, want 6", cancelled)
		}
	})
}

// TestWaitingMarkIsRenewed: a node changes again and again while its mark waits behind other writes. The mark is
// written once, for the node's current version. Otherwise, with thousands of waiting writes, each would fail because of
// its version and wait again.
func TestWaitingMarkIsRenewed(t *testing.T) {
	inBubble(t, func(t *testing.T, s *server, c *controller) {
		wait(time.Second)
		before := s.writes
		meanwhile := func(edits ...func(*corev1.Node)) {
			turns := make(chan struct{})
			for range 4 { // as many as there are workers
				c.lanes[throttle.Mark].put(func(context.Context) { <-turns })
			}
			for i, edit := range edits {
				s.edit(func(n *corev1.Node) {
					n.Labels = map[string]string{"round": strconv.Itoa(i)}
					edit(n)
				})
				wait(time.Second)
			}
			close(turns)
			wait(time.Second)
		}
		cordon := func(n *corev1.Node) { n.Spec.Unschedulable = true }
		uncordon := func(n *corev1.Node) { n.Spec.Unschedulable = false }
		meanwhile(cordon, cordon, cordon)
		if got := s.describe(); !strings.Contains(got, "unschedulable:NoSchedule") || s.writes != before+1 ||
			s.conflicts != 0 {
			t.Errorf("cordoned: %s: %d writes, %d conflicts; want one and none", got, s.writes-before, s.conflicts)
		}
		meanwhile(uncordon, cordon)
		if got := s.describe(); !strings.Contains(got, "unschedulable:NoSchedule") || s.writes != before+1 ||
			s.conflicts != 0 {
			t.Errorf("not cordoned any more: %s: %d writes, %d conflicts; want no more", got, s.writes-before, s.conflicts)
		}
	})
}

// TestWritesPassTheThrottle: however many writes are decided at once, the API server gets only as many at a time as the
// limit allows, including Events and the reads that writes need.
func TestWritesPassTheThrottle(t *testing.T) {
	for _, may := range []int{1, 5} {
		synctest.Test(t, func(t *testing.T) {
			config, requests := atonce.RefusingServer(10 * time.Millisecond)
			client, err := kube.NewClientForConfig(config)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			o := Options{Client: client, Events: client, WritesInFlight: may, Metrics: NewMetrics()}
			writes, events, err := o.throttledClients(ctx)
			if err != nil {
				t.Fatal(err)
			}
			var all sync.WaitGroup
			for range 50 {
				r, marks := remote{writes}, kube.As(ctx, throttle.Mark)
				all.Go(func() { _, _ = r.lease(marks, "n") })
				all.Go(func() { _, _ = r.patchNode(marks, "n", types.MergePatchType, []byte("{}")) })
				all.Go(func() { _, _ = r.patchPodStatus(marks, "x", "p", []byte("{}")) })
				all.Go(func() { _ = r.deletePod(ctx, "x", "p", metav1.DeleteOptions{}) })
				all.Go(func() { _ = events.Create(ctx, kube.Events, "x", "", &corev1.Event{}, &corev1.Event{}) })
			}
			all.Wait()
			if most := requests.Most(); most != may {
				t.Errorf("%d requests at once, want %d", most, may)
			}
			cancel()
			synctest.Wait()
		})
	}
}
