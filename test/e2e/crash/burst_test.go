//go:build e2e

package crash

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// burstPods is how many pods are created at once, and later deleted at once.
const burstPods = 24

// agentInBurst kills the agent in the middle of a burst of starts, between the creation and the start of a container,
// and in the middle of a burst of deletions. Only the agent dies, so no container may start twice, unless the runtime
// cancelled a start when its caller died.
func (w *witness) agentInBurst(random *rand.Rand, others []types.UID) {
	namespace := w.c.Namespace(w.t)
	killed := w.killBetween() // create and start
	w.create(namespace)
	hit := killed()
	for range 2 {
		wait(w.t, between(random, 100*time.Millisecond, 1500*time.Millisecond))
		signal(w.t, w.c, agent, syscall.SIGKILL)
	}
	var pods []corev1.Pod
	took := rig.Eventually(w.t, soon, "the burst runs", func(ctx ctxT) (err error) {
		pods, err = running(ctx, w.c, namespace, burstPods)
		return err
	})
	w.t.Logf("the burst runs %v after the last kill; killed between create and start: %v",
		took.Round(100*time.Millisecond), hit)
	twice := 0
	for _, pod := range pods {
		s := pod.Status.ContainerStatuses[0]
		if n := w.started(pod.UID); n != 1 {
			twice++
			w.t.Logf("%s started %d times, restarts %d, last %+v", pod.Name, n, s.RestartCount,
				s.LastTerminationState.Terminated)
		}
	}
	const deaths, underWay = 3, 8
	if twice > deaths*underWay {
		w.t.Errorf("%d pods started more than once", twice)
	}
	everyone := append(slices.Clone(others), uids(pods)...)
	rig.Eventually(w.t, soon, "nothing but the pods", func(ctx ctxT) error { return w.only(ctx, everyone) })

	if err := w.c.API.CoreV1().Pods(namespace).DeleteCollection(w.t.Context(), metav1.DeleteOptions{},
		metav1.ListOptions{}); err != nil {
		w.t.Fatal(err)
	}
	for range 3 {
		wait(w.t, between(random, 50*time.Millisecond, 1000*time.Millisecond))
		signal(w.t, w.c, agent, syscall.SIGKILL)
	}
	rig.Eventually(w.t, soon, "the burst is gone", func(ctx ctxT) error {
		_, err := running(ctx, w.c, namespace, 0)
		return err
	})
	rig.Eventually(w.t, soon, "nothing is left of it", func(ctx ctxT) error { return w.only(ctx, others) })
}

func (w *witness) create(namespace string) {
	w.t.Helper()
	var all sync.WaitGroup
	for n := range burstPods {
		all.Go(func() {
			pod := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("burst-%d", n)},
				Spec:       w.spec(corev1.RestartPolicyAlways, 1, "sleep infinity"),
			}
			if _, err := w.c.API.CoreV1().Pods(namespace).Create(w.t.Context(), pod, metav1.CreateOptions{}); err != nil {
				w.t.Error(err)
			}
		})
	}
	all.Wait()
}

// killBetween kills the agent at the moment when the runtime has a container that is created and not started. The
// returned function waits for that moment, and reports whether it came.
func (w *witness) killBetween() func() bool {
	ctx, cancel := context.WithTimeout(w.t.Context(), 15*time.Second)
	pid, hit := pidOf(w.t, w.c, agent), false
	done := make(chan struct{})
	go func() {
		defer close(done)
		created := &runtimeapi.ListContainersRequest{
			Filter: &runtimeapi.ContainerFilter{
				State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_CREATED},
			},
		}
		for ctx.Err() == nil {
			list, err := w.runtime.ListContainers(ctx, created)
			if err == nil && len(list.Containers) > 0 {
				hit = syscall.Kill(pid, syscall.SIGKILL) == nil
				return
			}
			pause(ctx, time.Millisecond)
		}
	}()
	return func() bool { <-done; cancel(); return hit }
}
