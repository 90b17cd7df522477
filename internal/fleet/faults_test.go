package fleet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/core/fault"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// order executes an order as the socket does, and returns the number of its nodes.
func (s *server) order(t *testing.T, f *fleet, text string) int {
	t.Helper()
	if s.held {
		s.mu.Unlock()
		s.held = false
	}
	o, err := readOrder(text)
	if err != nil {
		t.Fatal(err)
	}
	var nodes []string
	f.onConductor(t.Context(), func() { nodes, err = f.execute(t.Context(), o) })
	if err != nil {
		t.Fatal(err)
	}
	return len(nodes)
}

// beatsIn returns how often each node renews within d.
func (s *server) beatsIn(d time.Duration) map[string]int {
	s.wait(0)
	before := maps.Clone(s.leases)
	s.wait(d)
	beats := map[string]int{}
	for name, n := range s.leases {
		beats[name] = n - before[name]
	}
	return beats
}

func countBeats(beats map[string]int, is func(int) bool) (n int) {
	for _, b := range beats {
		if is(b) {
			n++
		}
	}
	return n
}

func none(n int) bool { return n == 0 }

func TestFaults(t *testing.T) {
	for order, want := range map[string]struct {
		nodes, silent int // of 30 in 3 zones, in a minute that begins 11 s after the order
	}{
		"silence count=7":                  {7, 7},
		"silence zone=zone-1":              {10, 10},
		"partition percent=50 zone=zone-2": {5, 5},
		"slow delay=2s":                    {30, 0},
		"slow delay=10s nodes=h-1":         {1, 1}, // a request gets no answer before its time-out
		"notready count=3":                 {3, 0},
		"flap up=1s down=10m nodes=h-1":    {1, 1},
	} {
		t.Run(order, func(t *testing.T) {
			bubble(t, 30, func(t *testing.T, s *server, f *fleet) {
				s.wait(30 * time.Second)
				if n := s.order(t, f, order); n != want.nodes {
					t.Errorf("the order was for %d nodes, want %d", n, want.nodes)
				}
				s.wait(11 * time.Second)
				if strings.HasPrefix(order, "flap") {
					s.wait(10 * time.Minute) // its first silence begins within one period
				}
				if got := countBeats(s.beatsIn(time.Minute), none); got != want.silent {
					t.Errorf("%d nodes are silent, want %d", got, want.silent)
				}
				s.order(t, f, "return")
				s.wait(8 * time.Second) // those that were cut off wait for their back-off
				if got := countBeats(s.beatsIn(11*time.Second), none); got != 0 {
					t.Errorf("%d nodes are silent after their return", got)
				}
			})
		})
	}
}

// TestFaultEndsByItself: a node that was marked silent renews again when its fault ends.
func TestFaultEndsByItself(t *testing.T) {
	bubble(t, 3, func(t *testing.T, s *server, f *fleet) {
		s.wait(time.Second)
		s.order(t, f, "silence nodes=h-0 for=3m")
		s.wait(time.Minute)
		unknown := s.nodes["h-0"].DeepCopy()
		unknown.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}
		for range 100 { // each change in the watch would otherwise be kept for the node
			f.nodeHandler().OnUpdate(nil, unknown)
		}
		s.wait(time.Minute)
		if s.reports["h-0"] != 0 || len(f.byName["h-0"].missed) > 2 {
			t.Fatalf("%d reports of a silent node, which missed %v", s.reports["h-0"], f.byName["h-0"].missed)
		}
		s.wait(61 * time.Second)
		if s.reports["h-0"] != 1 || !strings.Contains(s.said["h-0"], `"status":"True"`) {
			t.Errorf("%d reports after its return: %s", s.reports["h-0"], s.said["h-0"])
		}
	})
}

func TestNotReadyIsReported(t *testing.T) {
	bubble(t, 1, func(t *testing.T, s *server, f *fleet) {
		s.wait(time.Minute)
		s.order(t, f, "notready for=1m")
		s.wait(time.Second)
		if !strings.Contains(s.said["h-0"], `"reason":"KubeletNotReady"`) {
			t.Fatalf("said %s", s.said["h-0"])
		}
		shown := s.nodes["h-0"].DeepCopy()
		shown.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse}}
		f.nodeHandler().OnUpdate(nil, shown)
		s.wait(30 * time.Second)
		if s.reports["h-0"] != 1 {
			t.Errorf("%d reports, want one for the change", s.reports["h-0"])
		}
		s.wait(30 * time.Second)
		if s.reports["h-0"] != 2 || !strings.Contains(s.said["h-0"], `"reason":"KubeletReady"`) {
			t.Errorf("%d reports; said %s", s.reports["h-0"], s.said["h-0"])
		}
	})
}

func TestScriptBeginsWhenAllAreRegistered(t *testing.T) {
	script, err := fault.ParseScript("at 1m silence zone=zone-0\nat 2m return")
	if err != nil {
		t.Fatal(err)
	}
	bubbleOf(t, Options{Nodes: 30, Zones: 3, Script: script}, func(t *testing.T, s *server, _ *fleet) {
		s.wait(72 * time.Second)
		if got := countBeats(s.beatsIn(45*time.Second), none); got != 10 {
			t.Errorf("%d nodes are silent in the second minute, want 10", got)
		}
		s.wait(15 * time.Second)
		if got := countBeats(s.beatsIn(11*time.Second), none); got != 0 {
			t.Errorf("%d nodes are silent in the third minute, want none", got)
		}
	})
}

// TestPodsOfStoppedNodes: pods of a stopped node do not change until it returns; then all changes are made.
func TestPodsOfStoppedNodes(t *testing.T) {
	bubble(t, 2, func(t *testing.T, s *server, f *fleet) {
		pod := func(name string) *corev1.Pod {
			return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: name, UID: types.UID(name)},
				Spec: corev1.PodSpec{NodeName: "h-0", Containers: []corev1.Container{{Name: "c"}}}}
		}
		now := metav1.Now()
		starts, leaves := pod("starts"), pod("leaves")
		leaves.DeletionTimestamp = &now
		store := map[string]*corev1.Pod{"d/starts": starts, "d/leaves": leaves}
		f.actors.lookUp = func(key string) *corev1.Pod { return store[key] }
		f.actors.all = func() []any { return []any{starts, leaves} }
		s.wait(time.Second)
		s.order(t, f, "partition nodes=h-0 for=1m")
		f.actors.handler().OnAdd(starts, false)
		f.actors.handler().OnUpdate(nil, leaves)
		s.wait(50 * time.Second)
		if len(s.status)+len(s.deleted) != 0 {
			t.Errorf("status %v, deleted %v, of pods on a node that is cut off", s.status, s.deleted)
		}
		s.wait(11 * time.Second)
		if s.status["starts"].Phase != corev1.PodRunning || !slices.Equal(s.deleted, []string{"leaves"}) {
			t.Errorf("after its return: status %v, deleted %v", s.status, s.deleted)
		}
	})
}

// TestControl sends orders over a fleet's socket, in real time.
func TestControl(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s := &server{nodes: map[string]*corev1.Node{}, leases: map[string]int{}, reports: map[string]int{},
		said: map[string]string{}, status: map[string]corev1.PodStatus{}}
	o := Options{Client: &kube.Client{}, Nodes: 6, Prefix: "h-", Capacity: DefaultCapacity(), Zones: 2}
	if err := o.check(); err != nil {
		t.Fatal(err)
	}
	f := newFleet(o, s, s)
	socket := filepath.Join(t.TempDir(), "s")
	stop, err := f.serveControl(ctx, socket)
	if err != nil {
		t.Fatal(err)
	}
	var done sync.WaitGroup
	done.Go(func() { f.conduct(ctx) })
	defer done.Wait()
	defer cancel()
	if _, err := listenUnix(socket); err == nil || !strings.Contains(err.Error(), "another fleet") {
		t.Errorf("a second fleet on the socket: %v", err)
	}
	obeyed, err := Command(ctx, socket, "silence zone=zone-1 for=1h")
	if err != nil || fmt.Sprint(obeyed) != "{silence zone=zone-1 for=1h0m0s [h-1 h-3 h-5]}" {
		t.Errorf("%v, %v", obeyed, err)
	}
	for _, order := range []string{"explode", "silence zone=moon", "at 5m silence"} {
		if _, err := Command(ctx, socket, order); !errors.As(err, new(RefusedError)) {
			t.Errorf("%s: %v", order, err)
		}
	}
	status, err := Look(ctx, socket)
	if err != nil || status.Nodes != 6 || status.Now["silent"] != 3 || status.Faults[fault.Silence] != 3 ||
		status.Zones["zone-0"] != 3 {
		t.Errorf("%+v, %v", status, err)
	}
	stop()
	if _, err := Look(ctx, socket); err == nil || !strings.Contains(err.Error(), "is one running") {
		t.Errorf("no fleet there: %v", err)
	}
	l, err := listenUnix(socket)
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
}
