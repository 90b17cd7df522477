package lifecycle

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/tools/record"

	corelifecycle "github.com/plimsoll-dev/plimsoll/internal/core/lifecycle"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/core/wellknown"
	"github.com/plimsoll-dev/plimsoll/internal/journal"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// server is an API server with one node, its lease and its pods. It checks resourceVersions.
type server struct {
	mu        sync.Mutex
	down      bool
	node      *corev1.Node
	renewed   time.Time
	podReady  map[string]string  // latest patch of a pod's status
	deleted   []string           // deleted pods, with the kind of deletion
	refuse    map[string][]error // errors for deletions of a pod, in order, before one succeeds
	gone      bool               // the node is deleted
	writes    int
	conflicts int
	version   int

	watch      func(*corev1.Node) // gets every change, late
	podPatched func(version int)  // called before the answer
}

func (s *server) ready(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down {
		return errors.New("connection refused")
	}
	return nil
}

func (s *server) lease(context.Context, string) (*coordinationv1.Lease, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return testLease(s.renewed), nil
}

func testLease(renewed time.Time) *coordinationv1.Lease {
	t := metav1.NewMicroTime(renewed)
	return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Spec: coordinationv1.LeaseSpec{RenewTime: &t}}
}

func (s *server) patchNode(
	_ context.Context, name string, t types.PatchType, body []byte, _ ...string,
) (*corev1.Node, error) {
	time.Sleep(10 * time.Millisecond) // virtual
	s.mu.Lock()
	defer s.mu.Unlock()
	var head struct{ Metadata metav1.ObjectMeta }
	if err := json.Unmarshal(body, &head); err != nil {
		return nil, err
	}
	if head.Metadata.ResourceVersion != s.node.ResourceVersion {
		s.conflicts++
		return nil, apierrors.NewConflict(schema.GroupResource{Resource: "nodes"}, name, errors.New("changed"))
	}
	original, err := json.Marshal(s.node)
	if err != nil {
		return nil, err
	}
	merged := &corev1.Node{}
	if t == types.MergePatchType {
		var taints struct {
			Spec struct{ Taints []corev1.Taint }
		}
		if err := json.Unmarshal(body, &taints); err != nil {
			return nil, err
		}
		merged = s.node.DeepCopy()
		merged.Spec.Taints = taints.Spec.Taints
	} else {
		out, err := strategicpatch.StrategicMergePatch(original, body, corev1.Node{})
		if err != nil {
			return nil, err
		}
		if err := json.Unmarshal(out, merged); err != nil {
			return nil, err
		}
	}
	s.writes++
	s.store(merged)
	return merged, nil
}

// store makes a new version current; the watch gets it 100 ms later.
func (s *server) store(n *corev1.Node) {
	s.version++
	n.ResourceVersion = strconv.Itoa(s.version)
	s.node = n
	if s.watch != nil {
		time.AfterFunc(100*time.Millisecond, func() { s.watch(n) })
	}
}

func (s *server) patchPodStatus(_ context.Context, _, name string, body []byte) (string, error) {
	s.mu.Lock()
	s.podReady[name] = string(body)
	s.version++
	version, patched := s.version, s.podPatched
	s.mu.Unlock()
	if patched != nil {
		patched(version)
	}
	return strconv.Itoa(version), nil
}

func (s *server) getNode(_ context.Context, name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "nodes"}, name)
	}
	return nil
}

func (s *server) deletePod(_ context.Context, _, name string, o metav1.DeleteOptions) error {
	how := "deleted"
	if o.GracePeriodSeconds != nil {
		how = "removed"
	}
	return s.end(name, how)
}

func (s *server) evictPod(_ context.Context, e *policyv1.Eviction) error {
	return s.end(e.Name, "evicted")
}

func (s *server) end(name, how string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if errs := s.refuse[name]; len(errs) > 0 {
		s.refuse[name] = errs[1:]
		return errs[0]
	}
	s.deleted = append(s.deleted, name+" "+how)
	return nil
}

// edit changes the node as its agent or a user would.
func (s *server) edit(f func(*corev1.Node)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.node.DeepCopy()
	f(n)
	s.store(n)
}

func (s *server) describe() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for _, c := range s.node.Status.Conditions {
		out = append(out, string(c.Type)+"="+string(c.Status))
	}
	for _, t := range s.node.Spec.Taints {
		out = append(out, strings.TrimPrefix(t.Key, "node.kubernetes.io/")+":"+string(t.Effect))
	}
	return strings.Join(out, " ")
}

func condition(t corev1.NodeConditionType, s corev1.ConditionStatus) corev1.NodeCondition {
	return corev1.NodeCondition{Type: t, Status: s, LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now()}
}

// inBubble runs test with a controller and one Ready node that has the taint of new nodes.
func inBubble(t *testing.T, test func(t *testing.T, s *server, c *controller)) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		s := &server{podReady: map[string]string{}, refuse: map[string][]error{}, renewed: time.Now()}
		log, err := journal.NewLog("lifecycle", journal.BytesMax, "")
		if err != nil {
			t.Fatal(err)
		}
		o := Options{Monitor: corelifecycle.Defaults(), WritesInFlight: 4, Metrics: NewMetrics(), Journal: log}
		c := newController(o, s,
			recorders{nodes: record.NewFakeRecorder(1000), evictions: record.NewFakeRecorder(1000)})
		s.watch = func(n *corev1.Node) { c.nodeHandler().OnUpdate(nil, n) }
		s.mu.Lock()
		s.store(&corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u"},
			Spec: corev1.NodeSpec{
				Taints: []corev1.Taint{
					{Key: wellknown.TaintNotReady, Effect: corev1.TaintEffectNoSchedule},
					{Key: "example.com/mine", Effect: corev1.TaintEffectNoSchedule},
				},
			},
			Status: corev1.NodeStatus{
				Conditions: []corev1.NodeCondition{
					condition(corev1.NodeReady, corev1.ConditionTrue), condition(corev1.NodeMemoryPressure, corev1.ConditionFalse),
				},
			},
		})
		s.mu.Unlock()
		var done sync.WaitGroup
		done.Go(func() { c.run(ctx) })
		done.Go(func() { c.probe(ctx) })
		c.sendRenewals(ctx, []kube.Renewal{{Name: "n", Renewed: unit.WallOf(s.renewed)}})
		// A second node stays alive: if every node were silent, none would be tainted for eviction.
		c.nodeHandler().OnAdd(&corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "other", UID: "o"},
			Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{condition(corev1.NodeReady, corev1.ConditionTrue)}},
		}, true)
		done.Go(func() {
			for ctx.Err() == nil {
				c.sendRenewals(ctx, []kube.Renewal{{Name: "other", Renewed: unit.WallOf(time.Now())}})
				select {
				case <-time.After(10 * time.Second):
				case <-ctx.Done():
				}
			}
		})
		c.post(func(unit.Instant) { c.synced = true })
		test(t, s, c)
		cancel()
		done.Wait()
	})
}

// wait lets d pass and waits until everything is idle.
func wait(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

const healthy = "Ready=True MemoryPressure=False example.com/mine:NoSchedule"

func TestTaintOfNewNodeIsRemovedAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, s *server, _ *controller) {
		wait(200 * time.Millisecond) // the watch takes 100 ms, the write 10 ms
		if got := s.describe(); got != healthy || s.writes != 1 {
			t.Errorf("after 200 ms: %s (%d writes)", got, s.writes)
		}
	})
}

func TestSilentNode(t *testing.T) {
	inBubble(t, func(t *testing.T, s *server, c *controller) {
		c.podHandler().OnAdd(bound("p", 300), false)
		wait(49 * time.Second)
		if got := s.describe(); got != healthy {
			t.Errorf("after 49 s: %s", got)
		}
		wait(2 * time.Second)
		const want = "Ready=Unknown MemoryPressure=Unknown DiskPressure=Unknown PIDPressure=Unknown " +
			"example.com/mine:NoSchedule unreachable:NoSchedule unreachable:NoExecute"
		if got := s.describe(); got != want {
			t.Errorf("after 51 s: %s", got)
		}
		if s.node.Status.Conditions[0].Reason != "NodeStatusUnknown" ||
			s.node.Status.Conditions[2].Reason != "NodeStatusNeverUpdated" {
			t.Errorf("reasons %q, %q", s.node.Status.Conditions[0].Reason, s.node.Status.Conditions[2].Reason)
		}
		if !strings.Contains(s.podReady["p"], `"status":"False"`) {
			t.Errorf("pod patch %q", s.podReady["p"])
		}
		if s.writes != 3 {
			t.Errorf("%d writes, want 3: taint off, conditions, taints", s.writes)
		}
		if n, seconds := c.reactions(t); n != 1 || seconds < 0.02 || seconds > 1 {
			t.Errorf("%d reactions to a silent node, after %v s", n, seconds) // two writes of 10 ms
		}
		// The agent is back.
		s.edit(func(n *corev1.Node) {
			n.Status.Conditions = []corev1.NodeCondition{
				condition(corev1.NodeReady, corev1.ConditionTrue), condition(corev1.NodeMemoryPressure, corev1.ConditionFalse),
			}
		})
		wait(time.Second)
		if got := s.describe(); got != healthy {
			t.Errorf("after its return: %s", got)
		}
	})
}

// reactions returns how many silent nodes were marked, and the sum of the seconds that it took.
func (c *controller) reactions(t *testing.T) (count uint64, seconds float64) {
	t.Helper()
	families, err := c.metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "plimsoll_lifecycle_silent_node_reaction_seconds" {
			h := f.GetMetric()[0].GetHistogram()
			return h.GetSampleCount(), h.GetSampleSum()
		}
	}
	t.Fatal("no metric has the reactions to silent nodes")
	return 0, 0
}

// TestWatchThatLags: the lease is renewed, but the watch does not bring that. The read before the node is marked does.
func TestWatchThatLags(t *testing.T) {
	inBubble(t, func(t *testing.T, s *server, _ *controller) {
		for range 30 {
			wait(10 * time.Second)
			s.mu.Lock()
			s.renewed = time.Now()
			s.mu.Unlock()
		}
		if got := s.describe(); got != healthy {
			t.Errorf("after 5 min of renewals that no watch brought: %s", got)
		}
	})
}

// TestConflict: a user edits the node at the moment when it is marked. The write fails and is repeated on the version
// that the watch brings; the user's taint survives.
func TestConflict(t *testing.T) {
	inBubble(t, func(t *testing.T, s *server, c *controller) {
		wait(time.Second)
		c.post(func(now unit.Instant) {
			s.edit(func(n *corev1.Node) {
				n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: "example.com/theirs", Effect: corev1.TaintEffectNoExecute})
				n.Spec.Unschedulable = true
			})
			stale := c.latest["n"].DeepCopy()
			stale.Spec.Unschedulable = true
			c.monitor.NodeSeen(now, 0, corelifecycle.Node{
				Name:     "n",
				UID:      "u",
				Cordoned: true,
				Status:   map[corelifecycle.ConditionType]corelifecycle.Status{corelifecycle.Ready: corelifecycle.True},
			})
		})
		wait(2 * time.Second)
		const want = "Ready=True MemoryPressure=False example.com/mine:NoSchedule example.com/theirs:NoExecute " +
			"unschedulable:NoSchedule"
		if got := s.describe(); got != want {
			t.Errorf("got %s", got)
		}
	})
}

func TestNoNodeIsMarkedWhileTheAPIServerIsAway(t *testing.T) {
	inBubble(t, func(t *testing.T, s *server, _ *controller) {
		wait(time.Second)
		s.mu.Lock()
		s.down = true
		s.mu.Unlock()
		wait(10 * time.Minute)
		if got := s.describe(); got != healthy {
			t.Errorf("while the API server is away: %s", got)
		}
		s.mu.Lock()
		s.down = false
		s.mu.Unlock()
		wait(45 * time.Second)
		if got := s.describe(); got != healthy {
			t.Errorf("45 s after the API server's return: %s", got)
		}
		wait(15 * time.Second)
		if got := s.describe(); !strings.HasPrefix(got, "Ready=Unknown") {
			t.Errorf("60 s after the API server's return: %s", got)
		}
	})
}

func TestOptionsAreChecked(t *testing.T) {
	err := Run(context.Background(), Options{Client: nil})
	if err == nil || !strings.Contains(err.Error(), "no API client") {
		t.Errorf("got %v", err)
	}
}

func TestOlder(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{{"9", "10", true}, {"10", "9", false}, {"9", "9", false}, {"x", "9", false}} {
		if got := older(c.a, c.b); got != c.want {
			t.Errorf("older(%s, %s) = %v", c.a, c.b, got)
		}
	}
}
