//go:build e2e

package scheduler

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

const (
	pods    = 600
	nodes   = 30
	perNode = 30 // pods that a node has room for
	// placedTimeout bounds the wait until all pods have nodes, with the restart of the API server and the expiry of a
	// Lease.
	placedTimeout = 3 * time.Minute
)

// witness remembers every node that a pod ever had.
type witness struct {
	mu    sync.Mutex
	on    map[types.UID]string
	moved []string
	bound int
}

func (w *witness) see(pod *corev1.Pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	was := w.on[pod.UID]
	switch {
	case was == "" && pod.Spec.NodeName != "":
		w.on[pod.UID] = pod.Spec.NodeName
		w.bound++
	case was != pod.Spec.NodeName:
		w.moved = append(w.moved, fmt.Sprintf("%s: from %q to %q", pod.Name, was, pod.Spec.NodeName))
	}
}

func (w *witness) boundSoFar() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.bound
}

type storm struct {
	*rig.Cluster
	api kubernetes.Interface // without a client-side limit of requests
	ns  string
	w   witness

	more int // pods that were created in addition to those of the storm
}

// TestStorm checks that every pod is bound once, to a node with room for it, whatever happens meanwhile.
func TestStorm(t *testing.T) {
	alone := rig.Options{NoNode: true, UpFlags: []string{"--no-scheduler", "--no-lifecycle"}}
	s := &storm{Cluster: rig.New(t, "storm", alone), w: witness{on: map[types.UID]string{}}}
	config := rest.CopyConfig(s.Config)
	config.QPS = -1
	s.api = kubernetes.NewForConfigOrDie(config)
	s.ns = s.Namespace(t)
	for i := range nodes {
		s.node(t, fmt.Sprintf("n%02d", i))
	}
	s.watch(t)
	flags := []string{"scheduler", "--secure-port=0", "--leader-elect-lease-duration=4s",
		"--leader-elect-renew-deadline=3s", "--leader-elect-retry-period=500ms",
		"--binds-in-flight=" + strconv.Itoa(bindsInFlight)}
	left := s.Keep(t, "left", flags...)
	first := s.ledByAnother(t, "")
	right := s.Keep(t, "right", flags...)

	var creating sync.WaitGroup
	creating.Go(func() { s.create(t) })
	s.reach(t, pods/6)
	left.Crash()
	deleted := s.deleteSome(t)
	s.ledByAnother(t, first)
	s.reach(t, pods/3)
	s.stopLeader(t, left, right)
	for i := range nodes / 6 {
		if err := s.api.CoreV1().Nodes().Delete(t.Context(), fmt.Sprintf("n%02d", i), metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
		s.node(t, fmt.Sprintf("new%02d", i))
	}
	s.reach(t, pods/2)
	if pid := s.PID(t, "kube-apiserver"); pid == 0 {
		t.Error("kube-apiserver does not run")
	} else if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Errorf("kill kube-apiserver: %v", err)
	}
	creating.Wait()
	s.allPlaced(t, deleted)
	for _, p := range []*rig.Program{left, right} {
		if err := rig.Forgotten(p.LogFile()); err != nil {
			t.Error(err)
		}
	}
}

// node creates a Node with room for perNode pods.
func (s *storm) node(t *testing.T, name string) {
	t.Helper()
	s.roomFor(t, name, perNode)
}

func (s *storm) roomFor(t *testing.T, node string, pods int) {
	t.Helper()
	labels := map[string]string{corev1.LabelHostname: node}
	makeNode(t, s.api.CoreV1().Nodes(), node, fmt.Sprintf("%dm", 100*pods), labels)
}

func (s *storm) watch(t *testing.T) {
	factory := informers.NewSharedInformerFactoryWithOptions(s.api, 0, informers.WithNamespace(s.ns))
	_, err := factory.Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { s.w.see(obj.(*corev1.Pod)) },
		UpdateFunc: func(_, obj any) { s.w.see(obj.(*corev1.Pod)) },
	})
	if err != nil {
		t.Fatal(err)
	}
	factory.Start(t.Context().Done())
}

// reach waits until the given number of pods has been bound.
func (s *storm) reach(t *testing.T, count int) {
	t.Helper()
	rig.Eventually(t, placedTimeout, fmt.Sprintf("%d pods bound", count), func(context.Context) error {
		if n := s.w.boundSoFar(); n < count {
			return fmt.Errorf("%d are", n)
		}
		return nil
	})
}

// create creates all pods; it repeats requests that got no answer.
func (s *storm) create(t *testing.T) {
	turns := make(chan int)
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for i := range turns {
				pod := onlyCPU(fmt.Sprintf("p%03d", i), "100m")
				until := time.Now().Add(placedTimeout)
				for {
					_, err := s.api.CoreV1().Pods(s.ns).Create(t.Context(), pod, metav1.CreateOptions{})
					if err == nil || apierrors.IsAlreadyExists(err) {
						break
					}
					if time.Now().After(until) || t.Context().Err() != nil {
						t.Errorf("create %s: %v", pod.Name, err)
						return
					}
					select { // the API server does not answer
					case <-time.After(100 * time.Millisecond):
					case <-t.Context().Done():
					}
				}
			}
		})
	}
	for i := range pods {
		turns <- i
	}
	close(turns)
	group.Wait()
}

// deleteSome deletes every tenth pod, bound or not, and returns their names.
func (s *storm) deleteSome(t *testing.T) map[string]bool {
	list, err := s.api.CoreV1().Pods(s.ns).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	gone := map[string]bool{}
	atOnce := metav1.DeleteOptions{GracePeriodSeconds: new(int64)}
	for i := len(list.Items) - 1; i >= 0; i -= 10 {
		name := list.Items[i].Name
		if err := s.api.CoreV1().Pods(s.ns).Delete(t.Context(), name, atOnce); err != nil {
			t.Errorf("delete %s: %v", name, err)
		}
		gone[name] = true
	}
	return gone
}

// allPlaced waits until every pod that was not deleted has a node, and checks the result. Pods of deleted nodes may
// have been deleted by the controller that collects orphans.
func (s *storm) allPlaced(t *testing.T, deleted map[string]bool) {
	orphan := func(p *corev1.Pod) bool {
		return len(p.Spec.NodeName) == 3 && p.Spec.NodeName < fmt.Sprintf("n%02d", nodes/6)
	}
	var list *corev1.PodList
	rig.Eventually(t, placedTimeout, "every pod on a node", func(ctx context.Context) error {
		var err error
		if list, err = s.api.CoreV1().Pods(s.ns).List(ctx, metav1.ListOptions{}); err != nil {
			return err
		}
		for i := range list.Items {
			if p := &list.Items[i]; p.Spec.NodeName == "" {
				return fmt.Errorf("%s waits: %v", p.Name, p.Status.Conditions)
			}
		}
		return nil
	})
	held, names := map[string]int{}, map[string]bool{}
	for i := range list.Items {
		p := &list.Items[i]
		names[p.Name] = true
		room := perNode
		if strings.HasPrefix(p.Spec.NodeName, wide) {
			room = wideRoom
		}
		if held[p.Spec.NodeName]++; held[p.Spec.NodeName] > room && !orphan(p) {
			t.Errorf("node %s has more pods than the %d that it has room for", p.Spec.NodeName, room)
		}
		if deleted[p.Name] {
			t.Errorf("pod %s was deleted, and is there", p.Name)
		}
	}
	if missing := pods + s.more - len(deleted) - len(names); missing > nodes/6*perNode {
		t.Errorf("%d pods are missing, more than were on nodes that are gone", missing)
	}
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	for _, m := range s.w.moved {
		t.Errorf("a pod was bound twice: %s", m)
	}
}
