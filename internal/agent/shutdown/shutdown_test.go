package shutdown

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"github.com/plimsoll-dev/plimsoll/internal/agent/podentry"
	"github.com/plimsoll-dev/plimsoll/internal/agent/pods"
	"github.com/plimsoll-dev/plimsoll/internal/core/shutdown"
	testlogind "github.com/plimsoll-dev/plimsoll/test/logind"
)

// A table has the pods of a node. They end when the test says so.
type table struct {
	mu     sync.Mutex
	pods   []*corev1.Pod
	ended  []string // in the order in which their ends were ordered
	grace  map[string]time.Duration
	orders map[string]pods.Eviction
	stages map[types.UID]shutdown.Stage
}

func (p *table) Standing() (all []podentry.Present) {
	for _, pod := range p.pods {
		all = append(all, podentry.Present{Pod: pod})
	}
	return all
}

func (p *table) Terminate(uid types.UID, v pods.Eviction) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = append(p.ended, string(uid))
	p.grace[string(uid)] = time.Until(v.KillAt).Round(time.Second)
	p.orders[string(uid)] = v
}

func (p *table) EndOf(uid types.UID) shutdown.Stage {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stages[uid]
}

func (p *table) set(uid types.UID, to shutdown.Stage) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stages[uid] = to
}

// ordered returns whose ends were ordered.
func (p *table) ordered() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.ended, " ")
}

// A rig is a Guard on a bus of the test, on a node with one pod of each kind.
type rig struct {
	*Guard
	bus     *testlogind.Bus
	pods    *table
	events  *record.FakeRecorder
	changed atomic.Int32
	log     *logText
	end     func()
}

type logText struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func newRig(t *testing.T, bus *testlogind.Bus) *rig {
	t.Helper()
	r := &rig{
		bus: bus,
		pods: &table{
			grace:  map[string]time.Duration{},
			orders: map[string]pods.Eviction{},
			stages: map[types.UID]shutdown.Stage{},
		},
		events: record.NewFakeRecorder(10),
		log:    &logText{},
	}
	for name, priority := range map[string]int32{"web": 0, "dns": shutdown.SystemCritical} {
		seconds := int64(5)
		pod := &corev1.Pod{}
		pod.UID = types.UID(name)
		pod.Spec.Priority = &priority
		pod.Spec.TerminationGracePeriodSeconds = &seconds
		r.pods.pods = append(r.pods.pods, pod)
	}
	old := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(r.log, nil)))
	t.Cleanup(func() { slog.SetDefault(old) })
	dir := t.TempDir()
	r.Guard = New(Options{
		Periods:   shutdown.Periods(30*time.Second, 10*time.Second, nil),
		Pods:      r.pods,
		Changed:   func() { r.changed.Add(1) },
		Recorder:  r.events,
		Node:      &corev1.ObjectReference{Kind: "Node", Name: "n1"},
		StateFile: filepath.Join(dir, "graceful_node_shutdown_state"),
		Bus:       bus.Address(),
		DropIns:   filepath.Join(dir, "logind.conf.d"),
	})
	r.start(t)
	return r
}

// start runs the guard until the test ends, or until end is called.
func (r *rig) start(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = r.Run(ctx) })
	r.end = func() { cancel(); running.Wait() }
	t.Cleanup(r.end)
}

// eventually waits for a condition.
func (r *rig) eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within a minute: %s\n%s", what, r.log)
		}
	}
}

// metric returns a metric's value.
func (r *rig) metric(t *testing.T, name string) float64 {
	t.Helper()
	registry := prometheus.NewRegistry()
	r.Register(registry)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.Metric[0].GetGauge().GetValue()
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}

// TestShutdown: pods end in order, each with what it has, and the lock is held until they have.
func TestShutdown(t *testing.T) {
	r := newRig(t, testlogind.New(t, time.Minute))
	r.eventually(t, "the lock is taken", func() bool { return r.bus.Held() == 1 })
	if locks := r.bus.Locks(); !strings.HasPrefix(locks[0], "plimsoll agent: ") || r.ShuttingDown() {
		t.Errorf("lock %q, shutting down: %v", locks, r.ShuttingDown())
	}
	began := time.Now()
	r.bus.Shutdown(true)
	r.eventually(t, "the first pod is to end", func() bool { return r.pods.ordered() == "web" })
	if !r.ShuttingDown() || r.changed.Load() != 1 {
		t.Errorf("shutting down: %v; the node's status was to be reported %d times", r.ShuttingDown(), r.changed.Load())
	}
	if event := <-r.events.Events; event != "Normal NodeShutdown Shutdown manager detected shutdown event" {
		t.Errorf("event %q", event)
	}
	v := r.pods.orders["web"]
	if v.Reason != "Terminated" || v.Message != "Pod was terminated in response to imminent node shutdown." ||
		!v.Disrupts ||
		r.pods.grace["web"] != 5*time.Second {
		t.Errorf("order %+v within %v", v, r.pods.grace["web"])
	}
	r.pods.set("web", shutdown.Ended)
	r.eventually(t, "the second pod is to end", func() bool { return r.pods.ordered() == "web dns" })
	r.pods.set("dns", shutdown.Ended)
	r.pods.set("web", shutdown.Reported)
	if r.bus.Held() != 1 {
		t.Error("the lock is gone before the ends are reported")
	}
	if begun := r.metric(t, "kubelet_graceful_shutdown_start_time_seconds"); begun < float64(began.Unix()) {
		t.Errorf("began at %v, want %v or later", begun, began.Unix())
	}
	r.pods.set("dns", shutdown.Reported)
	r.eventually(t, "the lock is closed", func() bool { return r.bus.Held() == 0 })
	if !r.ShuttingDown() {
		t.Error("the node is ready although the machine shuts down")
	}
	r.end()
	next := New(r.o) // after the reboot
	next.showLast()
	again := &rig{Guard: next}
	if ended := again.metric(t, "kubelet_graceful_shutdown_end_time_seconds"); ended < float64(began.Unix()) {
		t.Errorf("ended at %v, want %v or later", ended, began.Unix())
	}
}

// TestCancelled: what is left of a shutdown that is cancelled is not done. The node is back, and delays the next one.
func TestCancelled(t *testing.T) {
	r := newRig(t, testlogind.New(t, time.Minute))
	r.eventually(t, "the lock is taken", func() bool { return r.bus.Held() == 1 })
	r.bus.Shutdown(true)
	r.eventually(t, "the first pod is to end", func() bool { return r.pods.ordered() == "web" })
	r.bus.Shutdown(false)
	r.eventually(t, "the node is back", func() bool { return !r.ShuttingDown() && len(r.bus.Locks()) == 2 })
	r.pods.set("web", shutdown.Reported)
	<-r.events.Events
	if event := <-r.events.Events; event != "Normal NodeShutdown Shutdown manager detected shutdown cancellation" {
		t.Errorf("event %q", event)
	}
	r.eventually(t, "one lock is held", func() bool { return r.bus.Held() == 1 })
	if r.pods.ordered() != "web" || r.changed.Load() != 2 {
		t.Errorf("ended are %q; the node's status was to be reported %d times", r.pods.ordered(), r.changed.Load())
	}
	r.bus.Shutdown(true)
	r.eventually(t, "the other pod is to end", func() bool { return r.pods.ordered() == "web dns" })
}

// TestLostBus: a shutdown that has begun is carried on without the bus. An agent that starts meanwhile does what is
// left. When logind answers again, the lock is taken again.
func TestLostBus(t *testing.T) {
	r := newRig(t, testlogind.New(t, time.Minute))
	r.eventually(t, "the lock is taken", func() bool { return r.bus.Held() == 1 })
	r.bus.Shutdown(true)
	r.eventually(t, "the first pod is to end", func() bool { return r.pods.ordered() == "web" })
	r.bus.Drop()
	r.pods.set("web", shutdown.Reported)
	r.eventually(t, "the second pod is to end", func() bool { return r.pods.ordered() == "web dns" })
	r.pods.set("dns", shutdown.Reported)
	r.eventually(t, "the lock is closed", func() bool { return r.bus.Held() == 0 })
	r.bus.Shutdown(false)
	r.eventually(t, "the node is back", func() bool { return !r.ShuttingDown() && r.bus.Held() == 1 })
	r.bus.Shutdown(true)
	r.eventually(t, "the node knows", r.ShuttingDown)
	r.end()
	r.pods.set("dns", shutdown.Runs)
	next := newRig(t, r.bus)
	next.eventually(t, "the pods are to end", func() bool { return next.pods.ordered() == "web" })
	if !next.ShuttingDown() {
		t.Error("an agent that starts meanwhile does not know")
	}
}

// TestDelayTooShort: logind is told to wait as long as the budget. Where that does not help, the log says what to do,
// and no lock is held that logind would not wait for.
func TestDelayTooShort(t *testing.T) {
	bus := testlogind.New(t, 5*time.Second)
	bus.OnReload(func() time.Duration { return 5 * time.Second }) // another file is stronger
	r := newRig(t, bus)
	r.eventually(t, "the log says so", func() bool { return strings.Contains(r.log.String(), "delay shutdowns") })
	for _, want := range []string{"logind waits 5s at most, shutdownGracePeriod is 30s", "InhibitDelayMaxSec",
		"after 99-kubelet.conf"} {
		if !strings.Contains(r.log.String(), want) {
			t.Errorf("the log does not say %q:\n%s", want, r.log)
		}
	}
	if r.bus.Held() != 0 {
		t.Error("a lock is held that is too short")
	}
	r.end()
	r.bus.OnReload(func() time.Duration {
		text, err := os.ReadFile(filepath.Join(r.o.DropIns, "99-kubelet.conf"))
		if err != nil || !strings.Contains(string(text), "InhibitDelayMaxSec=30\n") {
			t.Errorf("%v\n%s", err, text)
		}
		return 30 * time.Second
	})
	r.start(t)
	r.eventually(t, "the lock is taken", func() bool { return r.bus.Held() == 1 })
}

// TestRefused: a lock that is refused is said, with what happens without one.
func TestRefused(t *testing.T) {
	bus := testlogind.New(t, time.Minute)
	bus.Refuse("Inhibit", "Permission denied")
	r := newRig(t, bus)
	r.eventually(t, "the log says so", func() bool { return strings.Contains(r.log.String(), "Permission denied") })
	for _, want := range []string{"take an inhibitor lock", "pods are killed when the machine shuts down"} {
		if !strings.Contains(r.log.String(), want) {
			t.Errorf("the log does not say %q:\n%s", want, r.log)
		}
	}
}

// TestRefusedAfterwards: a shutdown is cancelled after the lock was closed, and another lock is refused. The log says
// so, and the lock is asked for again.
func TestRefusedAfterwards(t *testing.T) {
	r := newRig(t, testlogind.New(t, time.Minute))
	r.eventually(t, "the lock is taken", func() bool { return r.bus.Held() == 1 })
	r.bus.Shutdown(true)
	r.pods.set("web", shutdown.Reported)
	r.pods.set("dns", shutdown.Reported)
	r.eventually(t, "the lock is closed", func() bool { return r.bus.Held() == 0 })
	r.bus.Refuse("Inhibit", "Permission denied")
	r.bus.Shutdown(false)
	r.eventually(t, "the log says it", func() bool {
		text := r.log.String()
		return strings.Contains(text, "delay shutdowns of the machine") && strings.Contains(text, "Permission denied")
	})
	if r.ShuttingDown() {
		t.Error("the node still says that the machine shuts down")
	}
}
