package scheduler

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"

	"github.com/plimsoll-dev/plimsoll/internal/core/placement"
	"github.com/plimsoll-dev/plimsoll/internal/core/throttle"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// hanging is a cluster of which some answers do not come until they are let go.
type hanging struct {
	*cluster
	onWire                  bool          // binds that hang were sent: they cannot be withdrawn
	binds, patches, removes chan struct{} // closed: answered at once; nil: likewise
	mu                      sync.Mutex
	removing, most          int
	binding, mostBinds      int
	sent                    map[string]bool // pods whose binds were
}

func await(ctx context.Context, gate chan struct{}) {
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
		}
	}
}

func (h *hanging) bind(ctx context.Context, d placement.Decision) (placement.Outcome, error) {
	h.mu.Lock()
	h.binding++
	h.mostBinds = max(h.mostBinds, h.binding)
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		h.binding--
		h.mu.Unlock()
	}()
	for h.binds != nil && !h.onWire && !isClosed(h.binds) { // as before a Gate
		if time.Sleep(time.Millisecond); kube.IsWithdrawn(ctx) {
			return placement.BindWithdrawn, errWithdrawn
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
		h.t.Errorf("of %s is written why it was not placed, and its bind was sent", name)
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

// startHanging is start with an API that hangs.
func startHanging(t *testing.T, limit int, h *hanging) (*mind, *record.FakeRecorder, func()) {
	h.cluster, h.sent = newCluster(t), map[string]bool{}
	return startPrepared(h.cluster, limit, func(m *mind) { m.api = h })
}

func withPriority(pod *corev1.Pod, priority int32) *corev1.Pod {
	pod.Spec.Priority = &priority
	return pod
}

func onNode(pod *corev1.Pod, node string) *corev1.Pod {
	pod.Spec.NodeName = node
	return pod
}

// TestNoSpinWhileSlotsAreTaken: a failed bind that is due is no reason to look again at once while no decision may be
// made.
func TestNoSpinWhileSlotsAreTaken(t *testing.T) {
	m := newMind(Options{Metrics: NewMetrics(), Name: DefaultName, BindsInFlight: 2}, nil, nil)
	m.synced = true
	now := unit.Instant(time.Hour)
	m.placer.NodeSeen(now, kube.PlacementNode(testNode("n", "4")))
	m.placer.PodSeen(now, kube.PlacementPod(testPod("p", "1")))
	if !m.mayPlace(now) {
		t.Fatal("no decision may be made although nothing is in flight")
	}
	d, ok := m.placer.Next(now)
	if !ok || d.Node == "" {
		t.Fatalf("not placed: %+v", d)
	}
	m.placer.Bound(now, d.Pod, placement.BindRefused)
	m.binding = 2
	for _, now := range []unit.Instant{now.Add(hungAfter / 2), now.Add(20 * time.Second), now.Add(time.Hour)} {
		if m.binding = 2; now > m.answered.Add(hungAfter) {
			m.binding += aheadMax
		}
		if wake := m.wakeAt(now); wake <= now || wake > now.Add(hungAfter) {
			t.Errorf("%v after the last answer: look again in %v", now.Sub(m.answered), wake.Sub(now))
		}
	}
}

// TestHungBindsHoldUpNobody: while every slot has a bind that is not answered, a pod that fits nowhere hears of it, an
// important one evicts, and what was placed meanwhile is bound when the server is back; never more binds than slots are
// sent.
func TestHungBindsHoldUpNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hanging{binds: make(chan struct{})}
		m, recorder, stop := startHanging(t, 2, h)
		defer stop()
		m.nodeHandler().OnAdd(testNode("n", "10"), true)
		h.add(m, onNode(withPriority(testPod("low", "5"), 1), "n"))
		m.tell(context.Background(), synced(m))
		for i := range 5 {
			h.add(m, withPriority(testPod(fmt.Sprint("p", i), "1"), 5))
		}
		time.Sleep(10 * time.Millisecond)
		h.add(m, withPriority(testPod("big", "20"), 5))
		h.add(m, withPriority(testPod("high", "5"), 10))
		time.Sleep(5 * time.Second)
		synctest.Wait()
		told := ""
		for len(recorder.Events) > 0 {
			told += <-recorder.Events + "\n"
		}
		if !strings.Contains(told, "Insufficient cpu") || !slices.Contains(h.removed, "low") {
			t.Errorf("told %q, evicted %v", told, h.removed)
		}
		close(h.binds)
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(h.bound) != 6 || h.mostBinds > 2 {
			t.Errorf("%d bound, want all but the big one; %d binds at once, want 2", len(h.bound), h.mostBinds)
		}
	})
}

// TestNoConditionOnBoundPods: why pods were not placed waits for a server that takes no patches. Those that are bound
// meanwhile are left alone; the others get their condition, once.
func TestNoConditionOnBoundPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hanging{patches: make(chan struct{})}
		m, _, stop := startHanging(t, 100, h)
		defer stop()
		m.nodeHandler().OnAdd(testNode("small", "100m"), true)
		m.tell(context.Background(), synced(m))
		for i := range 30 {
			h.add(m, testPod(fmt.Sprint("p", i), "1"))
		}
		h.add(m, testPod("never", "1000"))
		time.Sleep(time.Second)
		synctest.Wait()
		m.nodeHandler().OnAdd(testNode("large", "30"), false)
		time.Sleep(time.Minute)
		synctest.Wait()
		early := len(h.bound)
		close(h.patches)
		time.Sleep(time.Minute)
		synctest.Wait()
		if early < 20 || len(h.bound) != 30 {
			t.Errorf("%d bound while patches hung, %d after", early, len(h.bound))
		}
		// Those that were on the wire are written, before the bind; no others.
		if len(h.cluster.patches) > failureWriters+1 || !slices.ContainsFunc(h.cluster.patches, func(p string) bool { return strings.HasPrefix(p, "never ") }) {
			t.Errorf("%d patches: %.300q", len(h.cluster.patches), h.cluster.patches)
		}
	})
}

// TestConditionsAndBindsDoNotOvertake: why pods were not placed waits for a server that takes no patches, their binds for
// one that takes no binds. What was to be written of those whose binds are sent is not, whichever is let go first.
func TestConditionsAndBindsDoNotOvertake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hanging{patches: make(chan struct{}), binds: make(chan struct{}), onWire: true}
		m, _, stop := startHanging(t, 100, h)
		defer stop()
		m.nodeHandler().OnAdd(testNode("small", "100m"), true)
		m.tell(context.Background(), synced(m))
		for i := range 30 {
			h.add(m, testPod(fmt.Sprint("p", i), "1"))
		}
		time.Sleep(time.Second)
		synctest.Wait()
		m.nodeHandler().OnAdd(testNode("large", "30"), false)
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(h.sent) != 30-failureWriters {
			t.Errorf("%d binds were sent, want those of pods of which nothing is being written: %d", len(h.sent), 30-failureWriters)
		}
		close(h.patches) // patchStatus looks at what was sent
		time.Sleep(time.Minute)
		synctest.Wait()
		close(h.binds)
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(h.bound) != 30 || len(h.cluster.patches) != failureWriters {
			t.Errorf("%d bound, %d patches; want 30, and %d that were on the wire", len(h.bound), len(h.cluster.patches), failureWriters)
		}
	})
}

// TestNoEvictionThatIsNotNeeded: evictions that wait for their turn are not made any more for pods that have found a
// place, or are gone, meanwhile; nor when another leads, nor of who goes anyhow.
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
			m.tell(context.Background(), synced(m))
			var late []*corev1.Pod
			for i := range evictors + waiting {
				pod := withPriority(testPod(fmt.Sprint("high", i), "1"), 10)
				pod.Spec.NodeSelector = map[string]string{"for": pod.Name}
				h.add(m, pod)
				time.Sleep(time.Second)
				synctest.Wait()
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
					h.cluster.mu.Lock()
					delete(h.pods, pod.UID)
					h.cluster.mu.Unlock()
					m.podHandler().OnDelete(pod)
				case "bound by another":
					bound := onNode(pod.DeepCopy(), "elsewhere")
					h.cluster.mu.Lock()
					h.pods[pod.UID] = bound
					h.cluster.mu.Unlock()
					m.podHandler().OnUpdate(pod, bound)
				case "another leads":
					deposed.Store(true)
				case "the victim goes by itself":
					h.cluster.mu.Lock()
					victim := h.pods[types.UID(fmt.Sprint("uid-low", evictors+i))].DeepCopy()
					victim.DeletionTimestamp = &metav1.Time{Time: time.Now()}
					h.pods[victim.UID] = victim
					h.cluster.mu.Unlock()
				}
			}
			time.Sleep(time.Second)
			synctest.Wait()
			close(h.removes)
			time.Sleep(time.Minute)
			synctest.Wait()
			if len(h.removed) != evictors {
				t.Errorf("%s: evicted %v, want those that were on the wire", how, h.removed)
			}
			if n := strings.Count(strings.Join(h.told(), ""), "DisruptionTarget"); n != evictors {
				t.Errorf("%s: %d victims are marked, want those that were on the wire", how, n)
			}
			close(h.binds)
			time.Sleep(time.Minute)
			synctest.Wait()
		})
	}
}

// TestEvictionsAreBounded: a hundred pods that each evict one at once ask for a few deletions at a time, and all get
// their place.
func TestEvictionsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hanging{removes: make(chan struct{})}
		m, _, stop := startHanging(t, 100, h)
		defer stop()
		for i := range 100 {
			m.nodeHandler().OnAdd(testNode(fmt.Sprint("n", i), "1"), true)
			h.add(m, onNode(withPriority(testPod(fmt.Sprint("low", i), "1"), 1), fmt.Sprint("n", i)))
		}
		m.tell(context.Background(), synced(m))
		for i := range 100 {
			h.add(m, withPriority(testPod(fmt.Sprint("high", i), "1"), 10))
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if h.most == 0 || h.most > besideBinds {
			t.Errorf("%d deletions at once, want at most %d", h.most, besideBinds)
		}
		close(h.removes)
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(h.bound) != 100 {
			t.Errorf("%d bound", len(h.bound))
		}
	})
}

// TestExLeaderWritesNothing: a process that may lead no more evicts, binds and explains nothing, whatever it had
// decided.
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
		m.tell(context.Background(), synced(m))
		h.add(m, withPriority(testPod("high", "1"), 10))
		time.Sleep(time.Second)
		synctest.Wait() // the victim is being marked
		leads.Store(false)
		close(h.patches)
		m.nodeHandler().OnAdd(testNode("other", "1"), false)
		h.add(m, testPod("another", "1"))
		h.add(m, testPod("unplaced", "20"))
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(h.removed) > 0 || len(h.bound) > 0 || len(h.cluster.patches) > 2 { // those that were on the wire
			t.Errorf("removed %v, bound %v, %d patches", h.removed, h.bound, len(h.cluster.patches))
		}
		for len(recorder.Events) > 0 {
			if e := <-recorder.Events; strings.Contains(e, "leads") {
				t.Errorf("told: %s", e)
			}
		}
	})
}

// TestEventsCarryTheirProfilesName, and so does the mark on the victim of a preemption.
func TestEventsCarryTheirProfilesName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		m, _, stop := start(c, 10)
		defer stop()
		second := placement.DefaultProfile()
		second.Name = "second"
		m.o.Profiles = append(m.o.Profiles, second)
		var mu sync.Mutex
		told := map[string]*record.FakeRecorder{}
		m.recorder = func(profile string) record.EventRecorder {
			mu.Lock()
			defer mu.Unlock()
			if told[profile] == nil {
				told[profile] = record.NewFakeRecorder(100)
			}
			return told[profile]
		}
		m.nodeHandler().OnAdd(testNode("n", "1"), true)
		c.add(m, onNode(withPriority(testPod("low", "1"), 1), "n"))
		m.tell(context.Background(), synced(m))
		high := withPriority(testPod("high", "1"), 10)
		high.Spec.SchedulerName = "second"
		c.add(m, high)
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(told) != 1 || len(told["second"].Events) != 3 {
			t.Errorf("told as %v", told)
		}
		if !strings.Contains(strings.Join(c.patches, ""), "second: preempting to accommodate") {
			t.Errorf("patches %q", c.patches)
		}
	})
}

// TestLatest: of what was put about one object only the latest is done, never two at once about one, and none that was
// withdrawn.
func TestLatest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		l := newLatest[string, int]()
		var mu sync.Mutex
		var did []int
		busy := map[int]int{}
		go l.run(ctx, 3, func(ctx context.Context, v int) {
			mu.Lock()
			if busy[v/100]++; busy[v/100] > 1 {
				t.Errorf("two at once about %d", v/100)
			}
			mu.Unlock()
			time.Sleep(time.Second)
			mu.Lock()
			defer mu.Unlock()
			busy[v/100]--
			if !kube.IsWithdrawn(ctx) {
				did = append(did, v)
			}
		})
		l.put("a", 100)
		synctest.Wait()
		l.put("a", 101)
		l.put("a", 102) // in place of 101, after 100
		l.put("b", 200)
		l.put("c", 300)
		l.put("d", 400) // all three workers are busy
		synctest.Wait()
		if l.withdraw("d") != nil {
			t.Error("d is being done")
		}
		l.put("d", 401)
		done := l.withdraw("c")
		<-done
		time.Sleep(10 * time.Second)
		synctest.Wait()
		slices.Sort(did)
		if !slices.Equal(did, []int{100, 102, 200, 401}) {
			t.Errorf("did %v", did)
		}
		cancel()
		synctest.Wait()
	})
}

// TestHealth: a scheduler is alive before it runs and while it works or waits, not when one turn does not end; it is
// ready when it has its first lists.
func TestHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		m, _, stop := start(c, 10)
		defer stop()
		h := m.o.Health
		h.running.Store(true)
		if h.Synced() == nil {
			t.Error("ready before the first lists")
		}
		m.tell(context.Background(), func(unit.Instant) { m.synced = true; h.synced.Store(true) })
		time.Sleep(time.Hour)
		synctest.Wait()
		if h.Synced() != nil || h.Alive() != nil {
			t.Errorf("waits for an hour: %v, %v", h.Synced(), h.Alive())
		}
		release := make(chan struct{})
		m.tell(context.Background(), func(unit.Instant) { <-release })
		time.Sleep(stuckAfter + time.Second)
		synctest.Wait()
		if h.Alive() == nil {
			t.Error("alive, and one turn does not end")
		}
		close(release)
		synctest.Wait()
		if h.Alive() != nil {
			t.Errorf("goes on: %v", h.Alive())
		}
	})
}

// TestOthersNominate: where another nominates a waiting pod, it goes as soon as it fits there, whatever else is free;
// not when the nomination was taken back, and what we nominated ourselves is not undone by what the API shows late.
func TestOthersNominate(t *testing.T) {
	for _, takenBack := range []bool{false, true} {
		chosen := map[string]int{}
		for i := range 8 { // the choice among equals differs by the pod's name
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t)
				m, _, stop := start(c, 10)
				defer stop()
				m.nodeHandler().OnAdd(testNode("small", "100m"), true)
				m.tell(context.Background(), synced(m))
				pod := testPod(fmt.Sprint("p", i), "1")
				c.add(m, pod)
				time.Sleep(time.Second)
				synctest.Wait()
				show := func(nominated string) {
					pod = pod.DeepCopy()
					pod.Status.NominatedNodeName = nominated
					c.mu.Lock()
					c.pods[pod.UID] = pod
					c.mu.Unlock()
					m.podHandler().OnUpdate(pod, pod)
					synctest.Wait()
				}
				show("late")
				if takenBack {
					show("")
				}
				begin, told := make(chan struct{}), make(chan struct{})
				go m.tell(context.Background(), func(unit.Instant) { close(told); <-begin })
				<-told
				for _, name := range []string{"a", "b", "late", "c", "d"} { // heard before the next decision
					m.nodeHandler().OnAdd(testNode(name, "4"), false)
				}
				close(begin)
				time.Sleep(time.Minute)
				synctest.Wait()
				chosen[c.pods[pod.UID].Spec.NodeName]++
			})
		}
		if late := chosen["late"] == 8; late == takenBack {
			t.Errorf("taken back %v: placed %v", takenBack, chosen)
		}
	}
}

// TestDeviceClassIsNamed: a pod that asks for an extended resource which a device class serves hears so, by the name of
// the class; not any more when the class is gone, nor of a resource that none serves.
func TestDeviceClassIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		m, recorder, stop := start(c, 16)
		defer stop()
		m.nodeHandler().OnAdd(testNode("n", "4"), true)
		gpu := "example.com/gpu"
		class := &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "big-gpus"}, Spec: resourcev1.DeviceClassSpec{ExtendedResourceName: &gpu}}
		m.tell(context.Background(), func(now unit.Instant) { m.classSeen(now, class) })
		m.tell(context.Background(), synced(m))
		ask := func(name, what string) string {
			pod := testPod(name, "1")
			pod.Spec.Containers[0].Resources.Requests[corev1.ResourceName(what)] = resource.MustParse("1")
			c.add(m, pod)
			time.Sleep(time.Second)
			synctest.Wait()
			return <-recorder.Events
		}
		const rest = " serves it: dynamic resource allocation is not supported)"
		for _, q := range []struct{ what, want string }{
			{gpu, `1 Insufficient example.com/gpu (device class "big-gpus"` + rest},
			{"deviceclass.resource.kubernetes.io/other", `(device class "other"` + rest},
			{"example.com/fpga", "1 Insufficient example.com/fpga."},
		} {
			if got := ask(strings.ReplaceAll(q.what, "/", "."), q.what); !strings.Contains(got, q.want) {
				t.Errorf("%s: %s, want %s", q.what, got, q.want)
			}
		}
		m.tell(context.Background(), func(now unit.Instant) { m.classGone(now, "big-gpus") })
		if got := ask("later", gpu); strings.Contains(got, "class") {
			t.Errorf("the class is gone: %s", got)
		}
	})
}

// preemptInFlight lets a pod of high priority come while the bind of a less important one is on its way to the only
// node, and lets binds be answered then. It returns what was told.
func preemptInFlight(t *testing.T, h *hanging) (told []string) {
	m, recorder, stop := startHanging(t, 10, h)
	defer stop()
	m.nodeHandler().OnAdd(testNode("n", "1"), true)
	m.tell(context.Background(), synced(m))
	h.add(m, withPriority(testPod("low", "1"), 1))
	time.Sleep(50 * time.Millisecond)
	h.add(m, withPriority(testPod("high", "1"), 10))
	time.Sleep(50 * time.Millisecond)
	close(h.binds)
	time.Sleep(time.Minute)
	synctest.Wait()
	if h.bound["uid-high"] != 1 {
		t.Errorf("bound %v, want high", h.bound)
	}
	for len(recorder.Events) > 0 {
		if e := <-recorder.Events; strings.Contains(e, "Preempted") {
			told = append(told, e)
		}
	}
	return told
}

// TestVictimInFlightIsTakenBack: a victim whose bind has not been sent is not deleted. It waits for its turn.
func TestVictimInFlightIsTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hanging{binds: make(chan struct{})}
		told := preemptInFlight(t, h)
		if len(h.removed) > 0 || h.bound["uid-low"] > 0 || h.pods["uid-low"] == nil {
			t.Errorf("removed %v, bound %v", h.removed, h.bound)
		}
		if want := []string{"Normal Preempted Preempted by pod uid-high on node n (in kube-scheduler memory)."}; !slices.Equal(told, want) {
			t.Errorf("told %q, want %q", told, want)
		}
	})
}

// TestVictimBoundAllTheSame: a victim whose bind was sent by then is deleted as a bound one.
func TestVictimBoundAllTheSame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hanging{binds: make(chan struct{}), onWire: true}
		told := preemptInFlight(t, h)
		if !slices.Equal(h.removed, []string{"low"}) || h.bound["uid-low"] != 1 {
			t.Errorf("removed %v, bound %v", h.removed, h.bound)
		}
		if want := []string{"Normal Preempted Preempted by pod uid-high on node n"}; !slices.Equal(told, want) {
			t.Errorf("told %q, want %q", told, want)
		}
	})
}

// TestHeldVictimIsTakenBack at once: its bind waits for a slot, and those before it hang.
func TestHeldVictimIsTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hanging{binds: make(chan struct{}), onWire: true}
		m, recorder, stop := startHanging(t, 1, h)
		defer stop()
		m.nodeHandler().OnAdd(testNode("other", "1"), true)
		m.tell(context.Background(), synced(m))
		h.add(m, withPriority(testPod("hangs", "1"), 1))
		time.Sleep(50 * time.Millisecond)
		m.nodeHandler().OnAdd(testNode("n", "1"), true)
		h.add(m, withPriority(testPod("low", "1"), 1))
		time.Sleep(2 * hungAfter)
		h.add(m, withPriority(testPod("high", "1"), 10))
		h.add(m, withPriority(testPod("higher", "1"), 20))
		time.Sleep(2 * hungAfter)
		synctest.Wait()
		told := ""
		for len(recorder.Events) > 0 {
			told += <-recorder.Events + "\n"
		}
		if !strings.Contains(told, "(in kube-scheduler memory)") || len(h.bound) > 0 {
			t.Errorf("while the bind before it hangs: told %q, bound %v", told, h.bound)
		}
		close(h.binds)
		time.Sleep(time.Minute)
		synctest.Wait()
		if h.bound["uid-low"] > 0 || h.bound["uid-high"] != 1 || h.bound["uid-higher"] != 1 || len(h.pods) > 4 {
			t.Errorf("bound %v, removed %v", h.bound, h.removed)
		}
	})
}

// TestWithdrawnBind: a bind that waits before the Gate ends as withdrawn; one that was sent ends as the server says.
func TestWithdrawnBind(t *testing.T) {
	asked, answer := make(chan string, 2), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.URL.Path
		<-answer
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Success"}`))
	}))
	defer server.Close()
	client, err := kube.NewClientForConfig(&rest.Config{Host: server.URL, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	gate := kube.NewGate(kube.GateOptions{Component: "test", Options: throttle.Options{InFlightMax: 1, Tolerance: tolerance}})
	if client, err = client.Through(gate); err != nil {
		t.Fatal(err)
	}
	withdrawn := make(chan struct{})
	ctx := kube.Withdrawable(t.Context(), withdrawn)
	outcomes := make(chan placement.Outcome, 2)
	bind := func(name string) {
		o, _ := remote{client}.bind(ctx, placement.Decision{Pod: placement.Pod{Namespace: "x", Name: name}, Node: "n"})
		outcomes <- o
	}
	go bind("sent")
	if path := <-asked; !strings.Contains(path, "sent") {
		t.Fatalf("asked %s", path)
	}
	go bind("waits")
	close(withdrawn)
	if o := <-outcomes; o != placement.BindWithdrawn {
		t.Errorf("the bind that waits: %v", o)
	}
	close(answer)
	if o := <-outcomes; o != placement.BindDone {
		t.Errorf("the bind that was sent: %v", o)
	}
}
