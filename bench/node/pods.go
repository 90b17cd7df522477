package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"
)

const (
	namespace = "bench"
	// creators is how many requests create or delete pods concurrently: enough to keep the API server busy, few enough
	// not to measure its queues.
	creators = 8
	// phaseTimeout bounds a phase of a batch: it is thirty times what the kubelet needs for 110 pods.
	phaseTimeout = 8 * time.Minute
	// pollPeriod is the interval at which a phase looks for its end. Chosen: short against phases of seconds.
	pollPeriod = 50 * time.Millisecond
)

// life is when our watch saw the stages of one pod; created and deleted are when we asked for it. Zero: not yet.
type life struct {
	created, bound, running, ended, deleted, gone time.Time
	restarts                                      int32 // of its first container
}

// tracker watches all pods of the namespace and records when each stage was seen. mu guards all of it.
type tracker struct {
	mu      sync.Mutex
	lives   map[string]*life
	changed chan struct{} // is closed after a change, and another takes its place
	resumed int           // how often the API server ended the watch and it was resumed
	failed  error
}

// track watches pods until ctx ends.
func track(ctx context.Context, r *rig) (*tracker, error) {
	t := &tracker{lives: map[string]*life{}, changed: make(chan struct{})}
	list, err := r.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("watch pods: %w", err)
	}
	go func() {
		version := list.ResourceVersion
		for ctx.Err() == nil {
			var err error
			if version, err = t.follow(ctx, r, version); err != nil && ctx.Err() == nil {
				t.fail(fmt.Errorf("watch pods: %w", err))
				return
			}
		}
	}()
	return t, nil
}

// follow watches from version on until the API server ends the watch, as it does when a busy machine reads too slowly
// (the limit is a tenth of a second). It returns the version to continue from; nothing is missed, only seen later.
func (t *tracker) follow(ctx context.Context, r *rig, version string) (string, error) {
	w, err := r.client.CoreV1().Pods(namespace).Watch(ctx, metav1.ListOptions{ResourceVersion: version})
	if err != nil {
		return version, err
	}
	defer w.Stop()
	for event := range w.ResultChan() {
		if event.Type == watch.Error {
			return version, apierrors.FromObject(event.Object)
		}
		if pod, ok := event.Object.(*corev1.Pod); ok {
			version = pod.ResourceVersion
			t.note(time.Now(), event.Type, pod)
		}
	}
	t.mu.Lock()
	t.resumed++
	t.mu.Unlock()
	return version, nil
}

func (t *tracker) fail(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.failed = err
	t.wake()
}

// wake wakes all that wait. t.mu is locked.
func (t *tracker) wake() {
	close(t.changed)
	t.changed = make(chan struct{})
}

func (t *tracker) note(now time.Time, what watch.EventType, pod *corev1.Pod) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.of(pod.Name)
	first := func(at *time.Time, seen bool) {
		if seen && at.IsZero() {
			*at = now
		}
	}
	first(&l.bound, pod.Spec.NodeName != "")
	first(&l.running, pod.Status.Phase == corev1.PodRunning)
	first(&l.ended, pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed)
	first(&l.gone, what == watch.Deleted)
	if len(pod.Status.ContainerStatuses) > 0 {
		l.restarts = pod.Status.ContainerStatuses[0].RestartCount
	}
	t.wake()
}

// forget forgets the pods that are gone.
func (t *tracker) forget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.DeleteFunc(t.lives, func(_ string, l *life) bool { return !l.gone.IsZero() })
}

// of returns the life of a pod. t.mu is locked.
func (t *tracker) of(name string) *life {
	if t.lives[name] == nil {
		t.lives[name] = &life{}
	}
	return t.lives[name]
}

// await waits until reached holds for every named pod.
func (t *tracker) await(ctx context.Context, what string, names []string, reached func(*life) bool) error {
	ctx, cancel := context.WithTimeout(ctx, phaseTimeout)
	defer cancel()
	for {
		missing := 0
		t.mu.Lock()
		failed, changed := t.failed, t.changed
		for _, name := range names {
			if !reached(t.of(name)) {
				missing++
			}
		}
		t.mu.Unlock()
		if missing == 0 {
			return nil
		}
		if failed != nil {
			return failed
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("wait for pods %s: %d of %d are not: %w", what, missing, len(names), context.Cause(ctx))
		}
	}
}

func (t *tracker) get(name string) life {
	t.mu.Lock()
	defer t.mu.Unlock()
	return *t.of(name)
}

// podsNamed returns the pods of a batch, or a single one.
func (c config) podsNamed(names []string) []*corev1.Pod {
	var pods []*corev1.Pod
	for i, name := range names {
		pod := podNamed(name)
		if c.probes {
			probe(&pod.Spec.Containers[0])
		}
		c.addClaims(pod)
		if i < c.guaranteed && len(names) > c.guaranteed {
			guarantee(&pod.Spec.Containers[0])
		}
		pods = append(pods, pod)
	}
	return pods
}

// probe has the container serve HTTP and be asked each second, the shortest period that there is.
func probe(c *corev1.Container) {
	const port = 8080
	c.Args = []string{"http", "--port", strconv.Itoa(port)}
	c.ReadinessProbe = &corev1.Probe{
		ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/readyz", Port: intstr.FromInt32(port)}},
		PeriodSeconds: 1,
	}
}

// guarantee makes the pod of this only container Guaranteed. A tenth of a CPU lets it start without being throttled for
// long.
func guarantee(c *corev1.Container) {
	c.Resources.Requests = corev1.ResourceList{
		corev1.ResourceCPU:    resource.MustParse("100m"),
		corev1.ResourceMemory: resource.MustParse("64Mi"),
	}
	c.Resources.Limits = c.Resources.Requests.DeepCopy()
}

// podNamed returns an ordinary small pod: Burstable, with a service account token as every pod of an ordinary cluster.
// It requests so little that 500 of them, five Guaranteed, fit into two CPUs.
func podNamed(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, Labels: map[string]string{"app": "bench"}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name:            "sleep",
			Image:           "plimsoll.dev/workload:1",
			ImagePullPolicy: corev1.PullIfNotPresent,
			Args:            []string{"sleep", "infinity"},
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceCPU:    resource.MustParse("2m"),
				corev1.ResourceMemory: resource.MustParse("4Mi"),
			}},
		}}},
	}
}

// create creates the pods at once and returns when the first request was sent.
func (r *rig) create(ctx context.Context, t *tracker, names []string) (time.Time, error) {
	began := time.Now()
	return began, each(creators, r.podsNamed(names), func(pod *corev1.Pod) error {
		t.mu.Lock()
		t.of(pod.Name).created = time.Now()
		t.mu.Unlock()
		_, err := r.client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{})
		return err
	})
}

func (r *rig) remove(ctx context.Context, t *tracker, names []string) (time.Time, error) {
	began := time.Now()
	return began, each(creators, names, func(name string) error {
		t.mu.Lock()
		t.of(name).deleted = time.Now()
		t.mu.Unlock()
		return r.client.CoreV1().Pods(namespace).Delete(ctx, name, metav1.DeleteOptions{})
	})
}

// each calls f for all items, so many at a time.
func each[T any](atOnce int, items []T, f func(T) error) error {
	next := make(chan T)
	errs := make([]error, atOnce)
	var wg sync.WaitGroup
	for i := range atOnce {
		wg.Go(func() {
			for item := range next {
				errs[i] = errors.Join(errs[i], f(item))
			}
		})
	}
	for _, item := range items {
		next <- item
	}
	close(next)
	wg.Wait()
	return errors.Join(errs...)
}

// prepareNamespace waits for what the creation of pods needs: the service account, and the CA in its token volume.
func (r *rig) prepareNamespace(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, phaseTimeout)
	defer cancel()
	_, err := r.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create namespace: %w", err)
	}
	tick := time.NewTicker(pollPeriod)
	defer tick.Stop()
	for {
		_, err = r.client.CoreV1().ServiceAccounts(namespace).Get(ctx, "default", metav1.GetOptions{})
		if err == nil {
			_, err = r.client.CoreV1().ConfigMaps(namespace).Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
		}
		if err == nil {
			return r.awaitSchedulable(ctx)
		}
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("prepare namespace: %w", err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("prepare namespace: %w: %w", context.Cause(ctx), err)
		case <-tick.C:
		}
	}
}

// awaitSchedulable waits until the lifecycle controller has removed the taint of a new node.
func (r *rig) awaitSchedulable(ctx context.Context) error {
	tick := time.NewTicker(pollPeriod)
	defer tick.Stop()
	for {
		node, err := r.client.CoreV1().Nodes().Get(ctx, nodeName, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("wait for a schedulable node: %w", err)
		}
		if len(node.Spec.Taints) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for a schedulable node: taints %v: %w", node.Spec.Taints, context.Cause(ctx))
		case <-tick.C:
		}
	}
}
