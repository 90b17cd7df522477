package scheduler

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"

	"github.com/plimsoll-dev/plimsoll/internal/core/placement"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// cluster is an API server of the scheduler's interest: it binds once, and it fails as told.
type cluster struct {
	t   *testing.T
	rng *rand.Rand

	mu      sync.Mutex
	pods    map[types.UID]*corev1.Pod
	bound   map[types.UID]int
	patches []string
	trouble bool // refuse some binds, lose some answers

	removed  []string
	protects bool // whoever is asked to remove is refused
	refused  int

	noWrites int // that many writes to storage fail
	writes   []string

	onBound, onGone func(*corev1.Pod) // the watch
}

func (c *cluster) bind(_ context.Context, d placement.Decision) (placement.Outcome, error) {
	time.Sleep(5 * time.Millisecond) // virtual
	c.mu.Lock()
	defer c.mu.Unlock()
	luck := 9
	if c.trouble {
		luck = c.rng.IntN(10)
	}
	if luck == 0 {
		return placement.BindRefused, errors.New("no")
	}
	if luck == 1 {
		return placement.BindLost, errors.New("connection reset")
	}
	pod := c.pods[types.UID(d.Pod.ID)]
	if pod.Spec.NodeName != "" {
		return placement.BindRefused, errors.New("already assigned")
	}
	pod = pod.DeepCopy()
	binding := bindingOf(d)
	pod.Spec.NodeName = binding.Target.Name
	pod.Annotations = binding.Annotations // added, by the API server
	c.pods[pod.UID] = pod
	c.bound[pod.UID]++
	go c.onBound(pod)
	if luck == 2 {
		return placement.BindLost, errors.New("connection reset after the bind")
	}
	return placement.BindDone, nil
}

func (c *cluster) patchStatus(_ context.Context, _, name string, patch []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.patches = append(c.patches, name+" "+string(patch))
	return nil
}

func (c *cluster) remove(_ context.Context, _, name string, uid types.UID) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.protects {
		c.refused++
		return apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, name, errors.New("a webhook says no"))
	}
	pod := c.pods[uid]
	if pod == nil {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, name)
	}
	delete(c.pods, uid)
	c.removed = append(c.removed, name)
	go c.onGone(pod)
	return nil
}

func (c *cluster) pod(_ context.Context, _, name string) (*corev1.Pod, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, pod := range c.pods {
		if pod.Name == name {
			return pod, nil
		}
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, name)
}

func (c *cluster) lookUp(p placement.Pod) *corev1.Pod {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pods[types.UID(p.ID)]
}

func testPod(name, cpu string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)},
		Spec: corev1.PodSpec{SchedulerName: DefaultName, Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)},
		}}}},
	}
}

func testNode(name, cpu string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse("64Gi"), corev1.ResourcePods: resource.MustParse("110"),
	}}}
}

// start runs a mind against c inside a synctest bubble until the returned function is called.
func start(c *cluster, limit int) (*mind, *record.FakeRecorder, func()) {
	return startPrepared(c, limit, func(*mind) {})
}

// startPrepared is start for a mind that prepare completes before it runs.
func startPrepared(c *cluster, limit int, prepare func(*mind)) (*mind, *record.FakeRecorder, func()) {
	ctx, cancel := context.WithCancel(context.Background())
	recorder := record.NewFakeRecorder(10000)
	m := newMind(Options{Metrics: NewMetrics(), Name: DefaultName, BindsInFlight: limit, Profiles: []placement.Profile{{Name: DefaultName, Weights: placement.DefaultProfile().Weights, Strategy: placement.DefaultProfile().Strategy}}}, c, func(string) record.EventRecorder { return recorder })
	m.lookUp = c.lookUp
	c.onBound = func(pod *corev1.Pod) {
		time.Sleep(3 * time.Millisecond)
		m.podHandler().OnUpdate(pod, pod)
	}
	c.onGone = func(pod *corev1.Pod) {
		time.Sleep(30 * time.Millisecond) // its grace
		m.podHandler().OnDelete(pod)
	}
	prepare(m)
	done := make(chan struct{})
	go func() { defer close(done); m.run(ctx) }()
	return m, recorder, func() {
		cancel()
		<-done
		m.o.Metrics.count(nil)
		if n := total(c.t, m.o.Metrics, "scheduler_pod_scheduled_after_flush_total"); n != 0 {
			c.t.Errorf("%v pods had been forgotten", n)
		}
	}
}

func newCluster(t *testing.T) *cluster {
	return &cluster{t: t, rng: rand.New(rand.NewPCG(1, 2)), pods: map[types.UID]*corev1.Pod{}, bound: map[types.UID]int{}}
}

func (c *cluster) add(m *mind, pod *corev1.Pod) {
	c.mu.Lock()
	c.pods[pod.UID] = pod
	c.mu.Unlock()
	m.podHandler().OnAdd(pod, false)
}

// TestBurstThroughTrouble binds 400 pods while the API refuses some binds and loses some answers: each is bound exactly
// once, and no node beyond what it has.
func TestBurstThroughTrouble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.trouble = true
		m, _, stop := start(c, 16)
		defer stop()
		for i := range 10 {
			m.nodeHandler().OnAdd(testNode(fmt.Sprintf("n%d", i), "4"), true)
		}
		for i := range 400 {
			c.add(m, testPod(fmt.Sprintf("p%d", i), "100m"))
		}
		m.tell(context.Background(), synced(m))
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		perNode := map[string]int{}
		for uid, pod := range c.pods {
			perNode[pod.Spec.NodeName]++
			if c.bound[uid] != 1 {
				t.Errorf("%s bound %d times", uid, c.bound[uid])
			}
		}
		for node, n := range perNode {
			if n != 40 {
				t.Errorf("node %q holds %d pods of 100m, want 40 on each", node, n)
			}
		}
	})
}

// TestNothingBeforeTheLists places nothing until both lists are in, however long it takes.
func TestNothingBeforeTheLists(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		m, _, stop := start(c, 16)
		defer stop()
		m.nodeHandler().OnAdd(testNode("n", "1"), true)
		c.add(m, testPod("p", "100m"))
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(c.bound) != 0 {
			t.Fatal("bound before the lists were complete")
		}
		m.tell(context.Background(), synced(m))
		time.Sleep(time.Second)
		synctest.Wait()
		if len(c.bound) != 1 {
			t.Fatal("not bound after the lists were complete")
		}
	})
}

// TestFailureIsTold checks the event and the condition of a pod that fits nowhere, that an unchanged condition is not
// written again, and what becomes of it when a node comes.
func TestFailureIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		m, recorder, stop := start(c, 16)
		defer stop()
		m.nodeHandler().OnAdd(testNode("small", "1"), true)
		c.add(m, testPod("big", "2"))
		m.tell(context.Background(), synced(m))
		time.Sleep(time.Second)
		synctest.Wait()
		const want = "0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling."
		if got := <-recorder.Events; got != "Warning FailedScheduling "+want {
			t.Errorf("event %q", got)
		}
		if len(c.patches) != 1 || !strings.Contains(c.patches[0], `"type":"PodScheduled","observedGeneration"`) && !strings.Contains(c.patches[0], `"reason":"Unschedulable"`) || !strings.Contains(c.patches[0], want) {
			t.Errorf("patches %q", c.patches)
		}
		m.nodeHandler().OnAdd(testNode("large", "4"), false)
		time.Sleep(time.Second)
		synctest.Wait()
		if got := <-recorder.Events; got != "Normal Scheduled Successfully assigned default/big to large" {
			t.Errorf("event %q", got)
		}
	})
}

// TestPreemption lets a pod of high priority come to a full node: the less important pod is marked, deleted and told
// why, and the other takes its place; nobody else is evicted, and the nomination is written down meanwhile.
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
		m.tell(context.Background(), synced(m))
		high := int32(10)
		pod := testPod("high", "1")
		pod.Spec.Priority = &high
		c.add(m, pod)
		time.Sleep(time.Minute)
		synctest.Wait()
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
		m.o.Metrics.count(func() (census, bool) { return m.count(context.Background()) })
		for name, want := range map[string]float64{
			"scheduler_schedule_attempts_total": 2, "scheduler_preemption_attempts_total": 1, "scheduler_preemption_victims": 1,
			"scheduler_pod_scheduling_attempts": 1, "scheduler_pod_scheduling_sli_duration_seconds": 1, "scheduler_cache_size": 3, "scheduler_pending_pods": 0,
		} {
			if got := total(t, m.o.Metrics, name); got != want {
				t.Errorf("%s: %v, want %v", name, got, want)
			}
		}
		patches := strings.Join(c.patches, "\n")
		for _, part := range []string{`low {"metadata"`, `"type":"DisruptionTarget"`, `"reason":"PreemptionByScheduler"`, `"nominatedNodeName":"n"`} {
			if !strings.Contains(patches, part) {
				t.Errorf("no patch has %s: %s", part, patches)
			}
		}
	})
}

// TestRefusedEvictionsBackOff: a victim that nobody may delete is asked for again after growing pauses, not at once.
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
		m.tell(context.Background(), synced(m))
		pod := testPod("high", "1")
		pod.Spec.Priority = &high
		c.add(m, pod)
		time.Sleep(time.Minute)
		synctest.Wait()
		if c.refused < 3 || c.refused > 12 {
			t.Errorf("asked %d times in a minute, want some with pauses up to 10 s", c.refused)
		}
		c.mu.Lock()
		c.protects = false
		c.mu.Unlock()
		time.Sleep(15 * time.Second)
		synctest.Wait()
		if c.bound[pod.UID] != 1 {
			t.Errorf("not bound after its victim could go: removed %v", c.removed)
		}
	})
}

// TestWritesPassTheGate: status patches, evictions and Events are bounded together, whatever the mind decides at once.
func TestWritesPassTheGate(t *testing.T) {
	var mu sync.Mutex
	now, most := 0, 0
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		now++
		most = max(most, now)
		mu.Unlock()
		runtime.Gosched()
		mu.Lock()
		now--
		mu.Unlock()
		w.WriteHeader(http.StatusNotFound)
	}))
	defer h.Close()
	client, err := kube.NewClientForConfig(&rest.Config{Host: h.URL, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Client: client, Events: client, BindsInFlight: 1, Metrics: NewMetrics()}
	writes, events, err := o.behindGate(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r := remote{writes}
	var all sync.WaitGroup
	for range 100 {
		all.Go(func() {
			_, _ = r.bind(t.Context(), placement.Decision{Pod: placement.Pod{Namespace: "x", Name: "p"}, Node: "n"})
		})
		all.Go(func() { _ = r.patchStatus(t.Context(), "x", "p", []byte("{}")) })
		all.Go(func() { _ = r.remove(t.Context(), "x", "p", "u") })
		all.Go(func() { _ = events.Create(t.Context(), kube.Events, "x", "", &corev1.Event{}, &corev1.Event{}) })
	}
	all.Wait()
	if most > 1+besideBinds {
		t.Errorf("%d requests at once, want at most %d", most, 1+besideBinds)
	}
}

// total sums a metric over its labels; of histograms, what was observed.
func total(t *testing.T, m *Metrics, name string) (sum float64) {
	families, err := m.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, x := range f.GetMetric() {
			sum += x.GetCounter().GetValue() + x.GetGauge().GetValue() + float64(x.GetHistogram().GetSampleCount())
		}
		return sum
	}
	t.Errorf("no metric %s", name)
	return 0
}

func synced(m *mind) fact { return func(_ unit.Instant) { m.synced = true } }

func TestOtherSchedulersPodsAreLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		m, _, stop := start(c, 16)
		defer stop()
		m.nodeHandler().OnAdd(testNode("n", "1"), true)
		pod := testPod("p", "100m")
		pod.Spec.SchedulerName = "other"
		c.add(m, pod)
		m.tell(context.Background(), synced(m))
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(c.bound) != 0 {
			t.Error("bound a pod of another scheduler")
		}
	})
}

func TestOutcomeOf(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	for _, c := range []struct {
		err  error
		want placement.Outcome
	}{
		{nil, placement.BindDone},
		{apierrors.NewConflict(pods, "p", errors.New("already assigned")), placement.BindRefused},
		{apierrors.NewNotFound(pods, "p"), placement.BindRefused},
		{apierrors.NewForbidden(pods, "p", errors.New("quota")), placement.BindRefused},
		{apierrors.NewTooManyRequests("busy", 1), placement.BindRefused},
		{fmt.Errorf("dial: %w", syscall.ECONNREFUSED), placement.BindRefused},
		{fmt.Errorf("read: %w", syscall.ECONNRESET), placement.BindLost},
		{context.DeadlineExceeded, placement.BindLost},
		{apierrors.NewInternalError(errors.New("etcdserver: request timed out")), placement.BindLost},
		{apierrors.NewTimeoutError("late", 1), placement.BindLost},
		{apierrors.NewGenericServerResponse(http.StatusServiceUnavailable, "post", pods, "p", "", 0, true), placement.BindLost},
	} {
		if got := outcomeOf(c.err); got != c.want {
			t.Errorf("%v: outcome %v, want %v", c.err, got, c.want)
		}
	}
}
