//go:build e2e

package scheduler

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

const (
	// bindsInFlight is so low that a leader decides on more pods than it can send binds for.
	bindsInFlight = 8
	// decidesAhead is how long a leader gets no answers before it has decided on further pods (hungAfter in
	// internal/scheduler, 1 s, and some time to decide). It must be less than the renew deadline.
	decidesAhead = 1200 * time.Millisecond
	wide         = "wide" // name of a node with room for wideRoom pods, with the number of the try
	wideRoom     = 100
	full         = "full" // name of a node with room for one pod of another size, which is on it
	// slowMachine is how often a leader may lose its Lease before the test stops it. On a busy machine it may not get
	// to renew it between two calls of the test.
	slowMachine = 5
)

// stopLeader stops the leader while the API server hangs, when it has decided on binds and an eviction that it could
// not send. It continues the process when another one leads and all nodes are cordoned. From then on no pod may be
// bound or evicted. The process must end. Often it ends before it could send anything, so this test rarely sees the
// checks before each write.
func (s *storm) stopLeader(t *testing.T, replicas ...*rig.Program) {
	t.Helper()
	for try := range slowMachine {
		if s.stopLeaderOnce(t, try, replicas) {
			s.cordon(t, false, "")
			return
		}
		t.Log("the leader lost its Lease before it was stopped: once more")
	}
	t.Fatalf("the leader lost its Lease %d times before it was stopped", slowMachine)
}

// stopLeaderOnce is one try. It returns false if the leader ended before it was stopped.
func (s *storm) stopLeaderOnce(t *testing.T, try int, replicas []*rig.Program) bool {
	t.Helper()
	full, wide := full+strconv.Itoa(try), wide+strconv.Itoa(try)
	server := s.PID(t, "kube-apiserver")
	low := onlyCPU("low"+full, "1")
	low.Spec.NodeName, low.Spec.TerminationGracePeriodSeconds = full, new(int64)
	s.make(t, low)
	s.roomFor(t, full, 10)
	s.cordon(t, true, full)
	s.afterLastBind(t)
	s.queue(t, wideRoom+bindsInFlight)

	holder := s.ledByAnother(t, "")
	leader := knownAs(t, holder, replicas)
	pid := leader.PID()
	high := onlyCPU("high"+full, "1")
	high.Spec.PriorityClassName, high.Spec.NodeSelector = "system-cluster-critical",
		map[string]string{corev1.LabelHostname: full}
	before := s.w.boundSoFar()
	s.roomFor(t, wide, wideRoom)
	s.make(t, high)
	signal(t, server, syscall.SIGSTOP)
	time.Sleep(decidesAhead)
	stopped := syscall.Kill(pid, syscall.SIGSTOP)
	unsent := wideRoom - bindsInFlight - (s.w.boundSoFar() - before)
	signal(t, server, syscall.SIGCONT)
	if stopped != nil || leader.PID() != pid {
		return false
	}
	s.cordon(t, true, "")
	s.afterLastBind(t) // what was sent is done
	s.ledByAnother(t, holder)
	bound, victim := s.afterLastBind(t), s.pod(t, low.Name)
	leader.Signal(t, syscall.SIGCONT)
	rig.Eventually(t, placedTimeout, "the one that was stopped ends", func(context.Context) error {
		if leader.PID() == pid {
			return errors.New("it runs")
		}
		return nil
	})
	if now := s.afterLastBind(t); now != bound {
		t.Errorf("the scheduler that was stopped bound %d pods", now-bound)
	}
	if now := s.pod(t, low.Name); victim != nil && (now == nil || now.DeletionTimestamp != nil) {
		t.Error("the scheduler that was stopped evicted a pod")
	}
	t.Logf("%d binds were not sent when it was stopped, of %d; its victim was there: %v", unsent, wideRoom, victim != nil)
	return true
}

// queue creates pods until so many wait for a node, because the storm's pods may all be bound.
func (s *storm) queue(t *testing.T, count int) {
	t.Helper()
	rig.Eventually(t, placedTimeout, fmt.Sprintf("%d pods that wait", count), func(ctx context.Context) error {
		list, err := s.api.CoreV1().Pods(s.ns).List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName="})
		if err != nil || len(list.Items) >= count {
			return err
		}
		for range count - len(list.Items) {
			s.make(t, onlyCPU(fmt.Sprintf("more%03d", s.more), "100m"))
			s.more++
		}
		return fmt.Errorf("%d waited", len(list.Items))
	})
}

// ledByAnother waits until the Lease has a holder other than the given one, and returns that holder.
func (s *storm) ledByAnother(t *testing.T, than string) (holder string) {
	t.Helper()
	rig.Eventually(t, placedTimeout, "another leads", func(ctx context.Context) error {
		lease, err := s.api.CoordinationV1().Leases("kube-system").Get(ctx, "kube-scheduler", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity == "" || *lease.Spec.HolderIdentity == than {
			return errors.New("nobody does")
		}
		holder = *lease.Spec.HolderIdentity
		return nil
	})
	return holder
}

// knownAs returns the replica whose log has the given holder's name.
func knownAs(t *testing.T, identity string, replicas []*rig.Program) *rig.Program {
	t.Helper()
	for _, p := range replicas {
		text, err := os.ReadFile(p.LogFile())
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if identity != "" && strings.Contains(line, "waiting to lead") && strings.Contains(line, identity) {
				return p
			}
		}
	}
	t.Fatalf("no replica is called %q", identity)
	return nil
}

// cordon cordons all nodes except one, or uncordons them.
func (s *storm) cordon(t *testing.T, closed bool, but string) {
	t.Helper()
	list, err := s.api.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	patch := fmt.Appendf(nil, `{"spec":{"unschedulable":%v}}`, closed)
	for i := range list.Items {
		name := list.Items[i].Name
		if name == but {
			continue
		}
		if _, err := s.api.CoreV1().Nodes().Patch(t.Context(), name, types.MergePatchType, patch,
			metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// afterLastBind waits until no pod has been bound for a while, and returns how many are bound.
func (s *storm) afterLastBind(t *testing.T) (bound int) {
	t.Helper()
	const still = 700 * time.Millisecond // longer than any pause of a scheduler that may act, except its back-off
	for bound = -1; bound != s.w.boundSoFar(); {
		bound = s.w.boundSoFar()
		time.Sleep(still)
	}
	return bound
}

func (s *storm) make(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	if _, err := s.api.CoreV1().Pods(s.ns).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// pod returns the pod of that name, nil if there is none.
func (s *storm) pod(t *testing.T, name string) *corev1.Pod {
	t.Helper()
	pod, err := s.api.CoreV1().Pods(s.ns).Get(t.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

func signal(t *testing.T, pid int, signal syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, signal); err != nil {
		t.Fatalf("%v: %v", signal, err)
	}
}
