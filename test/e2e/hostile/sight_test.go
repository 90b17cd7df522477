//go:build e2e

package hostile

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// sight has the newest version of every pod, by a watch. Waiting on it costs the API server no requests, and is exact
// to milliseconds.
type sight struct {
	mu      sync.Mutex
	pods    map[string]*corev1.Pod // by namespace/name
	changed chan struct{}          // closed at each change
}

// watch runs until ctx ends.
func watch(ctx context.Context, api kubernetes.Interface) (*sight, error) {
	s := &sight{pods: map[string]*corev1.Pod{}, changed: make(chan struct{})}
	factory := informers.NewSharedInformerFactory(api, 0)
	informer := factory.Core().V1().Pods().Informer()
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { s.put(o, false) },
		UpdateFunc: func(_, o any) { s.put(o, false) },
		DeleteFunc: func(o any) { s.put(o, true) },
	}); err != nil {
		return nil, err
	}
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return nil, ctx.Err()
	}
	return s, nil
}

func (s *sight) put(o any, gone bool) {
	pod, ok := kube.Deleted[*corev1.Pod](o) // or a later version of one that still exists
	if !ok {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pods[pod.Namespace+"/"+pod.Name] = pod
	if gone {
		delete(s.pods, pod.Namespace+"/"+pod.Name)
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

// pod returns the newest version of a pod; nil if there is none of that name and UID.
func (s *sight) pod(of *corev1.Pod) (*corev1.Pod, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	pod := s.pods[of.Namespace+"/"+of.Name]
	if pod != nil && pod.UID != of.UID {
		pod = nil
	}
	return pod, s.changed
}

// until waits for a state of a pod (nil: it is gone), and returns how long that took since a moment. look is also
// called each second, because not everything that it checks is in the pod.
func (s *sight) until(ctx context.Context, of *corev1.Pod, since time.Time,
	look func(*corev1.Pod) error) (time.Duration, error) {
	for {
		pod, changed := s.pod(of)
		err := look(pod)
		if err == nil {
			return time.Since(since), nil
		}
		select {
		case <-changed:
		case <-time.After(time.Second):
		case <-ctx.Done():
			return 0, fmt.Errorf("after %v: %w", time.Since(since).Round(time.Second), err)
		}
	}
}

func absent(pod *corev1.Pod) error {
	if pod != nil {
		return fmt.Errorf("it is still there: %s", describe(pod))
	}
	return nil
}

func ready(pod *corev1.Pod) error {
	if pod != nil {
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
				return nil
			}
		}
	}
	return fmt.Errorf("it is not Ready: %s", describe(pod))
}

// describe returns what somebody who reads a failure needs to know about a pod.
func describe(pod *corev1.Pod) string {
	if pod == nil {
		return "there is none"
	}
	text := fmt.Sprintf("%s %s %.200s", pod.Status.Phase, pod.Status.Reason, pod.Status.Message)
	for i, c := range pod.Status.ContainerStatuses {
		if i == 3 {
			return fmt.Sprintf("%s; %d containers more", text, len(pod.Status.ContainerStatuses)-i)
		}
		text += fmt.Sprintf("; %s: %d restarts", c.Name, c.RestartCount)
		if w := c.State.Waiting; w != nil {
			text += fmt.Sprintf(", waits: %s %.200s", w.Reason, w.Message)
		}
		if e := c.State.Terminated; e != nil {
			text += fmt.Sprintf(", ended: %d %s %.200s", e.ExitCode, e.Reason, e.Message)
		}
	}
	return text
}

var now = metav1.DeleteOptions{GracePeriodSeconds: new(int64)}
