package fleet

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/plimsoll-dev/plimsoll/internal/core/fault"
	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// actorsMax is how many pods are written at once. Chosen: together with the binds of these pods, that keeps an API
// server on two cores busy.
const actorsMax = 16

// podTimeout bounds one request about a pod (chosen). It is retried afterwards.
const podTimeout = 10 * time.Second

// podAPI is the part of the API server's interface that actors use.
type podAPI interface {
	patchPodStatus(ctx context.Context, namespace, name string, body []byte) error
	deletePod(ctx context.Context, namespace, name string, uid types.UID) error
}

func (r remote) patchPodStatus(ctx context.Context, namespace, name string, body []byte) error {
	return r.client.Patch(ctx, kube.Pods, namespace, name, types.StrategicMergePatchType, body, nil, "status")
}

func (r remote) deletePod(ctx context.Context, namespace, name string, uid types.UID) error {
	now := int64(0)
	return r.client.Delete(ctx, kube.Pods, namespace, name, metav1.DeleteOptions{GracePeriodSeconds: &now,
		Preconditions: &metav1.Preconditions{UID: &uid}})
}

// actors write the status of the pods of all hollow nodes, and delete them. The queue has the keys of pods that need a
// write; an actor reads only the pod's newest version.
type actors struct {
	api    podAPI
	nodeOf func(name string) (ip string, effect fault.Effect) // an empty ip: not one of our nodes
	lookUp func(key string) *corev1.Pod                       // the pod in the watch's store; nil: there is none
	all    func() []any                                       // the pods in the watch's store
	queue  workqueue.TypedRateLimitingInterface[string]       // keys of pods

	mu        sync.Mutex           // guards what follows
	addresses map[string]types.UID // addresses in use, with their pods
	next      int                  // number of the address that is tried next
}

func newActors(api podAPI, nodeOf func(string) (string, fault.Effect)) *actors {
	return &actors{
		api: api, nodeOf: nodeOf, lookUp: func(string) *corev1.Pod { return nil }, all: func() []any { return nil },
		queue: workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[string](100*time.Millisecond, 10*time.Second)),
		addresses: map[string]types.UID{},
	}
}

func (a *actors) handler() cache.ResourceEventHandler {
	seen := func(obj any) {
		pod := obj.(*corev1.Pod)
		ip, effect := a.nodeOf(pod.Spec.NodeName)
		if ip == "" {
			return
		}
		a.claim(pod)
		if wantsGone(pod) || wantsRunning(pod) {
			a.queue.AddAfter(pod.Namespace+"/"+pod.Name, effect.Delay)
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    seen,
		UpdateFunc: func(_, after any) { seen(after) },
		DeleteFunc: func(obj any) {
			if pod, ok := kube.Deleted[*corev1.Pod](obj); ok {
				a.release(pod)
			}
		},
	}
}

func wantsGone(pod *corev1.Pod) bool { return pod.DeletionTimestamp != nil }

// wantsRunning reports whether a pod is to become Running: a new one, and one that a controller marked as not ready
// while its node was silent.
func wantsRunning(pod *corev1.Pod) bool {
	if pod.Status.Phase != corev1.PodRunning {
		return true
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status != corev1.ConditionTrue
		}
	}
	return true
}

// isStopped reports whether a node cannot change its pods now.
func isStopped(e fault.Effect) bool { return e.Silent || e.Cut || e.NotReady }

// resume queues the pods of nodes that were stopped.
func (a *actors) resume(nodes map[string]bool) {
	for _, obj := range a.all() {
		if pod := obj.(*corev1.Pod); nodes[pod.Spec.NodeName] && (wantsGone(pod) || wantsRunning(pod)) {
			a.queue.Add(pod.Namespace + "/" + pod.Name)
		}
	}
}

// run runs the actors until ctx ends.
func (a *actors) run(ctx context.Context) {
	context.AfterFunc(ctx, a.queue.ShutDown)
	var cast sync.WaitGroup
	for range actorsMax {
		cast.Go(func() {
			for {
				key, down := a.queue.Get()
				if down {
					return
				}
				a.act(ctx, key)
				a.queue.Done(key)
			}
		})
	}
	cast.Wait()
}

func (a *actors) act(ctx context.Context, key string) {
	pod := a.lookUp(key)
	if pod == nil {
		a.queue.Forget(key)
		return
	}
	nodeIP, effect := a.nodeOf(pod.Spec.NodeName)
	if isStopped(effect) {
		a.queue.Forget(key) // resume queues it again
		return
	}
	attempt, cancel := context.WithTimeout(ctx, podTimeout)
	defer cancel()
	var err error
	switch {
	case wantsGone(pod):
		err = a.api.deletePod(attempt, pod.Namespace, pod.Name, pod.UID)
	case wantsRunning(pod):
		var body []byte
		if body, err = runningPatch(pod, nodeIP, a.addressOf(pod, nodeIP), time.Now()); err == nil {
			err = a.api.patchPodStatus(attempt, pod.Namespace, pod.Name, body)
		}
	}
	if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		a.queue.Forget(key) // done; if another pod has the name now, its own change queues it
		return
	}
	if ctx.Err() == nil {
		slog.Warn("write pod of a hollow node failed", "pod", key, "node", pod.Spec.NodeName, "err", err)
	}
	a.queue.AddRateLimited(key)
}

// claim records the address that a pod has from us or from an earlier process.
func (a *actors) claim(pod *corev1.Pod) {
	if pod.Status.PodIP == "" || pod.Spec.HostNetwork {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.addresses[pod.Status.PodIP] = pod.UID
}

func (a *actors) release(pod *corev1.Pod) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.addresses[pod.Status.PodIP] == pod.UID {
		delete(a.addresses, pod.Status.PodIP)
	}
}

// podAddresses is the number of addresses for pods in 198.19.0.0/16, without the first and the last.
const podAddresses = 1<<16 - 2

func (a *actors) addressOf(pod *corev1.Pod, nodeIP string) string {
	if pod.Spec.HostNetwork {
		return nodeIP
	}
	if pod.Status.PodIP != "" {
		return pod.Status.PodIP
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for range podAddresses {
		ip := podIP(a.next)
		a.next = (a.next + 1) % podAddresses
		if _, taken := a.addresses[ip]; !taken {
			a.addresses[ip] = pod.UID
			return ip
		}
	}
	return podIP(a.next) // all are in use: repeat
}

// runningPatch returns the status of a pod whose containers have all started.
func runningPatch(pod *corev1.Pod, hostIP, ip string, now time.Time) ([]byte, error) {
	since := metav1.NewTime(now)
	started := since
	if pod.Status.StartTime != nil {
		started = *pod.Status.StartTime
	}
	var conditions []corev1.PodCondition
	for _, t := range []corev1.PodConditionType{corev1.PodReadyToStartContainers, corev1.PodInitialized,
		corev1.ContainersReady, corev1.PodReady} {
		conditions = append(conditions, corev1.PodCondition{Type: t, Status: corev1.ConditionTrue, LastTransitionTime: since,
			ObservedGeneration: pod.Generation})
	}
	status := corev1.PodStatus{
		ObservedGeneration: pod.Generation, Phase: corev1.PodRunning, Conditions: conditions, StartTime: &started,
		HostIP: hostIP, HostIPs: []corev1.HostIP{{IP: hostIP}}, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}},
	}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		status.InitContainerStatuses = append(status.InitContainerStatuses, containerStatus(pod, c, started,
			translate.IsSidecar(c)))
	}
	for i := range pod.Spec.Containers {
		status.ContainerStatuses = append(status.ContainerStatuses, containerStatus(pod, &pod.Spec.Containers[i], started,
			true))
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID}, "status": status})
	if err != nil {
		return nil, fmt.Errorf("write pod %s/%s of a hollow node: %w", pod.Namespace, pod.Name, err)
	}
	return body, nil
}

// containerStatus returns the status of a running container, or of a completed init container.
func containerStatus(pod *corev1.Pod, c *corev1.Container, started metav1.Time, runs bool) corev1.ContainerStatus {
	id := fmt.Sprintf("hollow://%s/%s", pod.UID, c.Name)
	s := corev1.ContainerStatus{Name: c.Name, Image: c.Image, ImageID: "hollow://" + c.Image, ContainerID: id, Ready: true,
		Started: &runs}
	if runs {
		s.State.Running = &corev1.ContainerStateRunning{StartedAt: started}
	} else {
		s.State.Terminated = &corev1.ContainerStateTerminated{Reason: podlife.ReasonCompleted, StartedAt: started,
			FinishedAt: started, ContainerID: id}
	}
	return s
}
