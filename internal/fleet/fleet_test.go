package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// server is an API server with the nodes, leases and pods that a fleet uses.
type server struct {
	mu      sync.Mutex
	held    bool // requests wait until the test continues
	down    bool
	nodes   map[string]*corev1.Node
	leases  map[string]int // renewals
	reports map[string]int
	said    map[string]string // conditions last reported
	status  map[string]corev1.PodStatus
	deleted []string
	made    int
}

var nodesResource, leasesResource = schema.GroupResource{Resource: "nodes"}, schema.GroupResource{Resource: "leases"}

func (s *server) enter() (func(), error) {
	time.Sleep(5 * time.Millisecond) // virtual
	s.mu.Lock()
	if s.down {
		s.mu.Unlock()
		return nil, errors.New("connection refused")
	}
	return s.mu.Unlock, nil
}

func (s *server) createNode(_ context.Context, n *corev1.Node) (*corev1.Node, error) {
	leave, err := s.enter()
	if err != nil {
		return nil, err
	}
	defer leave()
	if s.nodes[n.Name] != nil {
		return nil, apierrors.NewAlreadyExists(nodesResource, n.Name)
	}
	s.made++
	n.UID = types.UID(fmt.Sprint("uid-", s.made))
	s.nodes[n.Name] = n
	return n, nil
}

func (s *server) getNode(_ context.Context, name string) (*corev1.Node, error) {
	leave, err := s.enter()
	if err != nil {
		return nil, err
	}
	defer leave()
	return s.nodes[name], nil
}

func (s *server) patchNode(_ context.Context, name string, _ types.PatchType, body []byte, sub ...string) error {
	leave, err := s.enter()
	if err != nil {
		return err
	}
	defer leave()
	if s.nodes[name] == nil {
		return apierrors.NewNotFound(nodesResource, name)
	}
	if len(sub) > 0 {
		s.reports[name]++
		s.said[name] = string(body)
	}
	return nil
}

func (s *server) createLease(_ context.Context, l *coordinationv1.Lease) (string, error) {
	leave, err := s.enter()
	if err != nil {
		return "", err
	}
	defer leave()
	if s.leases[l.Name] > 0 {
		return "", apierrors.NewAlreadyExists(leasesResource, l.Name)
	}
	s.leases[l.Name]++
	return fmt.Sprint(s.leases[l.Name]), nil
}

func (s *server) updateLease(_ context.Context, l *coordinationv1.Lease) (string, error) {
	leave, err := s.enter()
	if err != nil {
		return "", err
	}
	defer leave()
	switch {
	case s.leases[l.Name] == 0:
		return "", apierrors.NewNotFound(leasesResource, l.Name)
	case l.ResourceVersion != fmt.Sprint(s.leases[l.Name]):
		return "", apierrors.NewConflict(leasesResource, l.Name, errors.New("changed"))
	}
	s.leases[l.Name]++
	return fmt.Sprint(s.leases[l.Name]), nil
}

func (s *server) leaseVersion(_ context.Context, name string) (string, error) {
	leave, err := s.enter()
	if err != nil {
		return "", err
	}
	defer leave()
	return fmt.Sprint(s.leases[name]), nil
}

func (s *server) patchPodStatus(_ context.Context, _, name string, body []byte) error {
	leave, err := s.enter()
	if err != nil {
		return err
	}
	defer leave()
	var patch struct{ Status corev1.PodStatus }
	if err := json.Unmarshal(body, &patch); err != nil {
		return err
	}
	s.status[name] = patch.Status
	return nil
}

func (s *server) deletePod(_ context.Context, _, name string, _ types.UID) error {
	leave, err := s.enter()
	if err != nil {
		return err
	}
	defer leave()
	s.deleted = append(s.deleted, name)
	return nil
}

// bubble runs a fleet of n nodes with a server in virtual time.
func bubble(t *testing.T, n int, test func(t *testing.T, s *server, f *fleet)) {
	bubbleOf(t, Options{Nodes: n, Zones: 3}, test)
}

func bubbleOf(t *testing.T, o Options, test func(t *testing.T, s *server, f *fleet)) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		s := &server{nodes: map[string]*corev1.Node{}, leases: map[string]int{}, reports: map[string]int{},
			said: map[string]string{}, status: map[string]corev1.PodStatus{}}
		o.Client = &kube.Client{}
		o.Prefix = "h-"
		o.Capacity = DefaultCapacity()
		if err := o.check(); err != nil {
			t.Fatal(err)
		}
		f := newFleet(o, s, s)
		var done sync.WaitGroup
		done.Go(func() { f.conduct(ctx) })
		done.Go(func() { f.actors.run(ctx) })
		defer done.Wait()
		defer cancel()
		defer func() {
			if s.held {
				s.mu.Unlock()
			}
		}()
		test(t, s, f)
	})
}

// wait lets d pass, waits until everything is idle, and stops the server until the next wait so that the test can read
// its state.
func (s *server) wait(d time.Duration) {
	if s.held {
		s.mu.Unlock()
	}
	time.Sleep(d)
	synctest.Wait()
	s.mu.Lock()
	s.held = true
}

func TestNodesRegisterAndBeat(t *testing.T) {
	bubble(t, 200, func(t *testing.T, s *server, _ *fleet) {
		s.wait(2 * time.Second)
		if len(s.nodes) != 200 {
			t.Fatalf("%d nodes after 2 s", len(s.nodes))
		}
		n := s.nodes["h-7"]
		if n.Labels[LabelHollow] != "true" || n.Labels[corev1.LabelTopologyZone] != "zone-1" ||
			n.Status.Allocatable.Cpu().String() != "32" || n.Status.Addresses[0].Address != "198.18.0.8" {
			t.Errorf("node %+v", n)
		}
		s.wait(10 * time.Minute)
		for name, beats := range s.leases {
			if beats < 57 || beats > 61 { // every 10 s, plus up to 4 % of jitter
				t.Errorf("%s renewed %d times in 10 min", name, beats)
			}
		}
		if reports := s.reports["h-0"]; reports < 1 || reports > 2 {
			t.Errorf("%d reports of an unchanged status in 10 min, want one each 5 min", reports)
		}
	})
}

// TestAPIAway: after the API server was away, no node is lost, and the nodes renew again soon.
func TestAPIAway(t *testing.T) {
	bubble(t, 50, func(t *testing.T, s *server, _ *fleet) {
		s.wait(time.Minute)
		s.down = true
		s.wait(10 * time.Minute)
		s.down = false
		before := s.leases["h-3"]
		s.wait(8 * time.Second) // the longest back-off is 7 s
		if s.leases["h-3"] <= before {
			t.Error("no renewal within 8 s of the server's return")
		}
	})
}

// TestLeaseOfAnother: another client wrote the Lease, then another deleted it; the next renewal corrects that.
func TestLeaseOfAnother(t *testing.T) {
	bubble(t, 1, func(t *testing.T, s *server, _ *fleet) {
		s.wait(time.Minute)
		s.leases["h-0"] += 100
		before := s.leases["h-0"]
		s.wait(11 * time.Second)
		if s.leases["h-0"] <= before {
			t.Error("not renewed after another wrote it")
		}
		delete(s.leases, "h-0")
		s.wait(11 * time.Second)
		if s.leases["h-0"] == 0 {
			t.Error("not made anew after another deleted it")
		}
	})
}

func TestRealNodeIsNotTaken(t *testing.T) {
	bubble(t, 2, func(t *testing.T, s *server, f *fleet) {
		s.mu.Lock()
		s.nodes = map[string]*corev1.Node{"h-1": {ObjectMeta: metav1.ObjectMeta{Name: "h-1"}}}
		s.mu.Unlock()
		s.wait(time.Minute)
		if s.reports["h-1"] != 0 || s.leases["h-1"] != 0 || s.leases["h-0"] == 0 {
			t.Errorf("reports %v, leases %v", s.reports, s.leases)
		}
		s.mu.Unlock()
		s.held = false
		_, err := f.byName["h-1"].adopt(t.Context(), s, f.byName["h-1"].node(metav1.Now()))
		if err == nil || !strings.Contains(err.Error(), "--node-prefix") {
			t.Errorf("error %v", err)
		}
	})
}

// TestWhatTheWatchShows: a deleted node registers again, and a node that a controller marked silent reports its status.
func TestWhatTheWatchShows(t *testing.T) {
	bubble(t, 1, func(t *testing.T, s *server, f *fleet) {
		s.wait(time.Second)
		first := s.nodes["h-0"]
		delete(s.nodes, "h-0")
		delete(s.leases, "h-0")
		f.nodeHandler().OnDelete(first)
		s.wait(2 * time.Second)
		if s.nodes["h-0"] == nil || s.nodes["h-0"].UID == first.UID || s.leases["h-0"] == 0 {
			t.Fatalf("node %v, leases %d", s.nodes["h-0"], s.leases["h-0"])
		}
		silent := s.nodes["h-0"].DeepCopy()
		silent.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}
		f.nodeHandler().OnUpdate(nil, silent)
		s.wait(time.Second)
		if s.reports["h-0"] != 1 {
			t.Errorf("%d reports after being called silent", s.reports["h-0"])
		}
	})
}

func TestPods(t *testing.T) {
	bubble(t, 1, func(t *testing.T, s *server, f *fleet) {
		always := corev1.ContainerRestartPolicyAlways
		pod := func(name, node string) *corev1.Pod {
			return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: name, UID: types.UID(name), Generation: 1},
				Spec: corev1.PodSpec{
					NodeName:       node,
					InitContainers: []corev1.Container{{Name: "init"}, {Name: "side", RestartPolicy: &always}},
					Containers:     []corev1.Container{{Name: "c"}},
				}}
		}
		store := map[string]*corev1.Pod{}
		f.actors.lookUp = func(key string) *corev1.Pod { return store[key] }
		show := func(p *corev1.Pod) {
			store["d/"+p.Name] = p
			f.actors.handler().OnUpdate(nil, p)
			s.wait(time.Second)
		}
		show(pod("a", "h-0"))
		show(pod("b", "h-0"))
		show(pod("other", "real-node"))
		a := s.status["a"]
		if a.Phase != corev1.PodRunning || a.PodIP != "198.19.0.1" || a.HostIP != "198.18.0.1" ||
			s.status["b"].PodIP != "198.19.0.2" {
			t.Errorf("a %+v, b %+v", a, s.status["b"])
		}
		if len(a.ContainerStatuses) != 1 || a.ContainerStatuses[0].State.Running == nil ||
			a.InitContainerStatuses[0].State.Terminated == nil || a.InitContainerStatuses[1].State.Running == nil {
			t.Errorf("containers %+v %+v", a.ContainerStatuses, a.InitContainerStatuses)
		}
		if _, ok := s.status["other"]; ok {
			t.Error("wrote to a pod of a real node")
		}
		running := pod("a", "h-0")
		running.Status = a
		s.status = map[string]corev1.PodStatus{}
		show(running)
		if len(s.status) != 0 {
			t.Error("wrote to a pod that runs already")
		}
		unready := running.DeepCopy()
		unready.Status.Conditions[3].Status = corev1.ConditionFalse
		show(unready)
		if got := s.status["a"]; got.PodIP != "198.19.0.1" || !got.StartTime.Equal(a.StartTime) {
			t.Errorf("marked not ready, then %+v", got)
		}
		leaving := running.DeepCopy()
		now := metav1.Now()
		leaving.DeletionTimestamp = &now
		show(leaving)
		if len(s.deleted) != 1 || s.deleted[0] != "a" {
			t.Errorf("deleted %v", s.deleted)
		}
		f.actors.handler().OnDelete(leaving)
		f.actors.next = 0
		show(pod("c", "h-0"))
		if s.status["c"].PodIP != "198.19.0.1" {
			t.Errorf("c has %s, want the address that a gave back", s.status["c"].PodIP)
		}
	})
}

func TestOptionsAreAllChecked(t *testing.T) {
	o := Options{Nodes: 0, Prefix: "Bad_", Zones: -1}
	err := o.Check()
	for _, want := range []string{"no API client", "--nodes: 0", "--node-prefix", "--zones: -1", "--cpu", "--memory",
		"--pods: 0"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error lacks %q: %v", want, err)
		}
	}
}
