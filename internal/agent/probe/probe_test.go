package probe

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// node is a Prober in virtual time, with a runtime whose commands answer what the test sets.
type node struct {
	*Prober
	mu      sync.Mutex
	exit    map[string]int32 // by container id
	err     error
	asked   map[string]int
	changes map[types.UID]int
	events  []string
}

func (n *node) ExecSync(ctx context.Context, in *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asked[in.ContainerId]++
	return &runtimeapi.ExecSyncResponse{ExitCode: n.exit[in.ContainerId], Stderr: []byte("no")}, n.err
}

func (n *node) set(id string, exit int32) { n.mu.Lock(); n.exit[id] = exit; n.mu.Unlock() }
func (n *node) count(id string) int       { n.mu.Lock(); defer n.mu.Unlock(); return n.asked[id] }

// Event implements the recorder; the others are not used.
func (n *node) Event(o runtime.Object, kind, reason, message string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.events = append(n.events, fmt.Sprintf("%s %s %s: %s", o.(*corev1.ObjectReference).FieldPath, kind, reason, message))
}
func (n *node) Eventf(runtime.Object, string, string, string, ...any)                             {}
func (n *node) AnnotatedEventf(runtime.Object, map[string]string, string, string, string, ...any) {}

func bubble(t *testing.T, test func(t *testing.T, n *node)) {
	synctest.Test(t, func(t *testing.T) {
		n := &node{exit: map[string]int32{}, asked: map[string]int{}, changes: map[types.UID]int{}}
		ctx, cancel := context.WithCancel(context.Background())
		n.Prober = New(ctx, Options{
			Runtime: execs(n.ExecSync), Recorder: n, Registry: prometheus.NewRegistry(),
			Changed: func(uid types.UID) { n.mu.Lock(); n.changes[uid]++; n.mu.Unlock() },
		})
		test(t, n)
		cancel()
		synctest.Wait()
	})
}

func execProbe(period, failures int32) *corev1.Probe {
	return &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"check"}}},
		PeriodSeconds: period, FailureThreshold: failures, SuccessThreshold: 1, TimeoutSeconds: 1}
}

func podOf(uid string, c corev1.Container) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: uid, UID: types.UID(uid)},
		Spec: corev1.PodSpec{Containers: []corev1.Container{c}}}
}

func (n *node) expect(t *testing.T, when, uid string, want podlife.Probes) {
	t.Helper()
	if got := n.Results(types.UID(uid))["c"]; got != want {
		t.Errorf("%s: %+v, want %+v", when, got, want)
	}
}

func TestLifeOfAContainer(t *testing.T) {
	bubble(t, func(t *testing.T, n *node) {
		pod := podOf("u1", corev1.Container{Name: "c", ReadinessProbe: execProbe(5, 2), LivenessProbe: execProbe(10, 2)})
		n.Track(pod, "10.0.0.1", nil, false)
		n.expect(t, "before it runs", "u1", podlife.Probes{Unready: true})
		one := map[string]Container{"c": {ID: "one", StartedAt: time.Now()}}
		n.Track(pod, "10.0.0.1", one, false)
		n.expect(t, "at first", "u1", podlife.Probes{Unready: true})
		time.Sleep(1500 * time.Millisecond)
		n.expect(t, "asked", "u1", podlife.Probes{})
		n.set("one", 1)
		time.Sleep(30 * time.Second)
		n.expect(t, "failing", "u1", podlife.Probes{Unready: true, Dead: true, Message: "Container c failed liveness probe"})
		if n.changes["u1"] != 3 {
			t.Errorf("%d changes told, want ready, unready, dead", n.changes["u1"])
		}
		// The next run starts from the beginning.
		n.Track(pod, "10.0.0.1", nil, false)
		n.expect(t, "between runs", "u1", podlife.Probes{Unready: true})
		n.Track(pod, "10.0.0.1", map[string]Container{"c": {ID: "two", StartedAt: time.Now()}}, false)
		time.Sleep(1500 * time.Millisecond)
		n.expect(t, "the second run", "u1", podlife.Probes{})
		// While the pod is terminated, readiness probes still run, and no liveness failure is reported.
		n.set("two", 1)
		n.Track(pod, "10.0.0.1", map[string]Container{"c": {ID: "two"}}, true)
		time.Sleep(time.Minute)
		n.expect(t, "stopping", "u1", podlife.Probes{Unready: true})
		before := n.count("two")
		n.Untrack("u1")
		n.Untrack("u1")
		time.Sleep(time.Minute)
		if n.count("two") != before || n.Results("u1") != nil || n.queue.Len() != 0 {
			t.Errorf("probes go on after the pod is gone")
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		if len(n.events) < 4 || n.events[0] != "spec.containers{c} Warning Unhealthy: Readiness probe failed: no" {
			t.Errorf("events: %q", n.events)
		}
	})
}

// A probe that the runtime cannot answer changes nothing and is tried three times.
func TestRuntimeAway(t *testing.T) {
	bubble(t, func(t *testing.T, n *node) {
		pod := podOf("u1", corev1.Container{Name: "c", LivenessProbe: execProbe(1, 1)})
		n.Track(pod, "", map[string]Container{"c": {ID: "one", StartedAt: time.Now()}}, false)
		time.Sleep(1500 * time.Millisecond)
		n.mu.Lock()
		n.err = errors.New("unavailable")
		n.asked = map[string]int{}
		n.mu.Unlock()
		time.Sleep(10 * time.Second)
		n.expect(t, "runtime away", "u1", podlife.Probes{})
		if got := n.count("one"); got != 10*triesMax {
			t.Errorf("asked %d times", got)
		}
	})
}

// A new agent starts with the results that the one before had reported, and does not run all probes at once.
func TestAdoption(t *testing.T) {
	bubble(t, func(t *testing.T, n *node) {
		yes := true
		const pods = 100
		for i := range pods {
			uid := fmt.Sprint("u", i)
			pod := podOf(uid, corev1.Container{Name: "c", StartupProbe: execProbe(10, 3), ReadinessProbe: execProbe(10, 3)})
			ready := i%2 == 0
			pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", ContainerID: "containerd://" + uid,
				Started: &yes, Ready: ready}}
			n.Track(pod, "", map[string]Container{"c": {ID: uid, StartedAt: time.Now().Add(-time.Hour)}}, false)
			n.expect(t, "adopted", uid, podlife.Probes{Unready: !ready})
		}
		synctest.Wait()
		asked := func() (sum int) {
			n.mu.Lock()
			defer n.mu.Unlock()
			for _, a := range n.asked {
				sum += a
			}
			return sum
		}
		if now := asked(); now > pods/10 {
			t.Errorf("%d of %d probed at once", now, pods)
		}
		time.Sleep(10*time.Second + 50*time.Millisecond) // probes begin up to 50 ms after they are due
		if all := asked(); all < pods || all > 2*pods {
			t.Errorf("%d probes in the first period of %d containers", all, pods)
		}
	})
}

// Pods without probes cost nothing, and plain init containers have no probes.
func TestNoProbes(t *testing.T) {
	bubble(t, func(t *testing.T, n *node) {
		pod := podOf("u1", corev1.Container{Name: "c"})
		pod.Spec.InitContainers = []corev1.Container{{Name: "i", ReadinessProbe: execProbe(1, 1)}}
		n.Track(pod, "", map[string]Container{"c": {ID: "one"}, "i": {ID: "two"}}, false)
		if n.Results("u1") != nil || len(n.pods) != 0 {
			t.Error("tracked")
		}
	})
}

// BenchmarkStepDue measures the bookkeeping of one probe among many containers.
func BenchmarkStepDue(b *testing.B) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	p := New(ctx, Options{Changed: func(types.UID) {}})
	var runs []*run
	for i := range 500 {
		pod := podOf(fmt.Sprint("u", i), corev1.Container{Name: "c", ReadinessProbe: &corev1.Probe{PeriodSeconds: 3600,
			InitialDelaySeconds: 3600}})
		p.Track(pod, "", map[string]Container{"c": {ID: fmt.Sprint(i), StartedAt: time.Now()}}, false)
		runs = append(runs, p.pods[pod.UID].runs["c"])
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		p.mu.Lock()
		p.step(runs[i%len(runs)])
		p.mu.Unlock()
		i++
	}
}

// The result for a container whose liveness probe failed includes the probe's own termination grace period.
func TestDeadTellsGrace(t *testing.T) {
	bubble(t, func(t *testing.T, n *node) {
		seven := int64(7)
		liveness := execProbe(5, 1)
		liveness.TerminationGracePeriodSeconds = &seven
		n.set("one", 1)
		n.Track(podOf("u1", corev1.Container{Name: "c", LivenessProbe: liveness}), "10.0.0.1",
			map[string]Container{"c": {ID: "one", StartedAt: time.Now()}}, false)
		time.Sleep(30 * time.Second)
		if got := n.Results("u1")["c"]; !got.Dead || got.Grace == nil || *got.Grace != 7*time.Second {
			t.Errorf("after its probe failed: %+v, want dead with a grace of 7s", got)
		}
	})
}

// TestClockWasSet: the wall clock was set forward or back since the agent started. A container that starts then is
// probed after its initial delay, as any other.
func TestClockWasSet(t *testing.T) {
	const minute = unit.Instant(time.Minute)
	const now = 100 * minute
	wall := time.Date(2026, 11, 29, 11, 39, 22, 0, time.UTC)
	for _, c := range []struct {
		started time.Time
		want    unit.Instant
	}{
		{wall, now},
		{wall.Add(-time.Minute), now - minute},
		{wall.Add(time.Minute), now}, // the clock was set back since
		{wall.Add(-335 * 24 * time.Hour), 1},
		{time.Time{}, 1},
	} {
		if got := began(now, wall, c.started); got != c.want {
			t.Errorf("at %v, a container that started at %v began at %v, want %v", wall, c.started, got, c.want)
		}
	}
	bubble(t, func(t *testing.T, n *node) {
		pod := podOf("a", corev1.Container{Name: "c", ReadinessProbe: execProbe(1, 1)})
		n.Track(pod, "", map[string]Container{"c": {ID: "one", StartedAt: time.Now().Add(335 * 24 * time.Hour)}}, false)
		time.Sleep(3 * time.Second)
		synctest.Wait()
		n.expect(t, "3 s after its start", "a", podlife.Probes{})
	})
}
