package scheduler

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	corescheduler "github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// cluster is an API server with what the scheduler needs. It binds a pod only once, and fails as a test says.
type cluster struct {
	t   *testing.T
	rng *rand.Rand

	mu      sync.Mutex
	pods    map[types.UID]*corev1.Pod
	bound   map[types.UID]int
	patches []string
	trouble bool // refuse some binds, lose some answers
	refuses bool // refuse all binds
	deletes bool // the test deletes pods while their binds are in flight; else a bind of a missing pod is an error

	removed  []string
	protects bool // every deletion is refused
	refused  int

	noWrites int // how many writes to storage fail
	writes   []string

	onBound, onGone func(*corev1.Pod) // the watch
}

func (c *cluster) bind(_ context.Context, d corescheduler.Decision) (corescheduler.Outcome, error) {
	time.Sleep(5 * time.Millisecond) // virtual
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refuses {
		c.refused++
		return corescheduler.BindRefused, errors.New("no")
	}
	luck := 9
	if c.trouble {
		luck = c.rng.IntN(10)
	}
	if luck == 0 {
		return corescheduler.BindRefused, errors.New("no")
	}
	if luck == 1 {
		return corescheduler.BindLost, errors.New("connection reset")
	}
	binding := bindingOf(d)
	pod, err := c.bindable(binding)
	if err != nil {
		return outcomeOf(err), err
	}
	pod = pod.DeepCopy()
	pod.Spec.NodeName = binding.Target.Name
	pod.Annotations = binding.Annotations // the API server adds annotations
	c.pods[pod.UID] = pod
	c.bound[pod.UID]++
	go c.onBound(pod)
	if luck == 2 {
		return corescheduler.BindLost, errors.New("connection reset after the bind")
	}
	return corescheduler.BindDone, nil
}

// bindable returns the pod that b binds, or the API server's refusal. c.mu is held.
func (c *cluster) bindable(b *corev1.Binding) (*corev1.Pod, error) {
	pods := schema.GroupResource{Resource: "pods"}
	pod := c.pods[b.UID]
	switch {
	case pod == nil:
		if !c.deletes {
			c.t.Errorf("a bind of pod %s to %s, which was deleted", b.Name, b.Target.Name)
		}
		for _, other := range c.pods {
			if other.Namespace == b.Namespace && other.Name == b.Name {
				return nil, apierrors.NewConflict(pods, b.Name, fmt.Errorf(
					"precondition failed: UID in precondition: %s, UID in object meta: %s", b.UID, other.UID))
			}
		}
		return nil, apierrors.NewNotFound(pods, b.Name)
	case pod.DeletionTimestamp != nil:
		return nil, apierrors.NewConflict(pods, b.Name, errors.New("pod is being deleted, cannot be assigned to a host"))
	case pod.Spec.NodeName != "":
		return nil, apierrors.NewConflict(pods, b.Name, fmt.Errorf("pod is already assigned to node %q", pod.Spec.NodeName))
	}
	return pod, nil
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

func (c *cluster) lookUp(p corescheduler.Pod) *corev1.Pod {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pods[types.UID(p.ID)]
}

func newCluster(t *testing.T) *cluster {
	return &cluster{t: t, rng: rand.New(rand.NewPCG(1, 2)), pods: map[types.UID]*corev1.Pod{}, bound: map[types.UID]int{}}
}

// set and unset change the API server's state without an event of the watch.
func (c *cluster) set(pod *corev1.Pod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pods[pod.UID] = pod
}

func (c *cluster) unset(pod *corev1.Pod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.pods, pod.UID)
}

func (c *cluster) add(m *loop, pod *corev1.Pod) {
	c.set(pod)
	m.podHandler().OnAdd(pod, false)
}

// where returns the node of a pod; none while it is pending, or when it is gone.
func (c *cluster) where(pod *corev1.Pod) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if pod = c.pods[pod.UID]; pod == nil {
		return ""
	}
	return pod.Spec.NodeName
}

// told returns the status patches, each after the name of its pod.
func (c *cluster) told() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]string(nil), c.patches...)
}

// evicted returns the names of the deleted pods.
func (c *cluster) evicted() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Join(c.removed, " ")
}

func testPod(name, cpu string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)},
		Spec: corev1.PodSpec{SchedulerName: DefaultName, Containers: []corev1.Container{{
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}},
		}}},
	}
}

func testNode(name, cpu string) *corev1.Node {
	has := corev1.ResourceList{
		corev1.ResourceCPU:    resource.MustParse(cpu),
		corev1.ResourceMemory: resource.MustParse("64Gi"),
		corev1.ResourcePods:   resource.MustParse("110"),
	}
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{Allocatable: has}}
}

func withPriority(pod *corev1.Pod, priority int32) *corev1.Pod {
	pod.Spec.Priority = &priority
	return pod
}

func onNode(pod *corev1.Pod, node string) *corev1.Pod {
	pod.Spec.NodeName = node
	return pod
}

// start runs a scheduling loop against c inside a synctest bubble until the returned function is called.
func start(c *cluster, limit int) (*loop, *record.FakeRecorder, func()) {
	return startPrepared(c, limit, func(*loop) {})
}

// startPrepared is start for a scheduling loop that prepare completes before it runs.
func startPrepared(c *cluster, limit int, prepare func(*loop)) (*loop, *record.FakeRecorder, func()) {
	ctx, cancel := context.WithCancel(context.Background())
	recorder := record.NewFakeRecorder(10000)
	profile := corescheduler.DefaultProfile()
	o := Options{Metrics: NewMetrics(), Name: DefaultName, BindsInFlight: limit, Profiles: []corescheduler.Profile{
		{Name: DefaultName, Weights: profile.Weights, Strategy: profile.Strategy},
	}}
	m := newLoop(o, c, func(string) record.EventRecorder { return recorder })
	m.lookUp = c.lookUp
	c.onBound = func(pod *corev1.Pod) {
		time.Sleep(3 * time.Millisecond)
		m.podHandler().OnUpdate(pod, pod)
	}
	c.onGone = func(pod *corev1.Pod) {
		time.Sleep(30 * time.Millisecond) // its termination grace period
		m.podHandler().OnDelete(pod)
	}
	prepare(m)
	done := make(chan struct{})
	go func() { defer close(done); m.run(ctx) }()
	return m, recorder, func() {
		cancel()
		<-done
		m.o.Metrics.count(nil)
		if m.binding < 0 || m.binding < len(m.ahead) {
			c.t.Errorf("%d binds are counted as in flight, %d of them decided ahead", m.binding, len(m.ahead))
		}
		if n := total(c.t, m.o.Metrics, "scheduler_pod_scheduled_after_flush_total"); n != 0 {
			c.t.Errorf("%v pods fit, and only the check of long-waiting pods found them", n)
		}
	}
}

// elapse advances the time of a bubble, and waits until everything that is due has happened. Outside a bubble it
// panics.
func elapse(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func synced(m *loop) fact { return func(_ unit.Instant) { m.synced = true } }

// samples returns how many samples a collector has; a counter with labels has none until something was counted.
func samples(c prometheus.Collector) (n int) {
	out := make(chan prometheus.Metric)
	go func() { c.Collect(out); close(out) }()
	for range out {
		n++
	}
	return n
}

// total returns the sum of a metric over its labels; of a histogram, the sum of the counts.
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
