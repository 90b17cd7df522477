package main

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// podSeen is what our watch has shown of a pod.
type podSeen struct {
	metav1.ObjectMeta // namespace, name, UID and labels only
	attempted, bound  bool
}

// pods is what our watch of pods without a node has shown. A pod that leaves the watch counts as bound, unless we have
// deleted it. When the API server ends a watch and a new list begins, pods that were made and bound in between are in
// neither. So a wait in which nothing happens any more lists the bound pods (missed).
type pods struct {
	list func(ctx context.Context, namespace string) ([]metav1.ObjectMeta, error) // pods that are bound

	mu      sync.Mutex
	all     map[types.UID]*podSeen
	ending  map[string]bool // namespace/name of pods that we are deleting
	bound   int
	measure *measure
	wake    chan struct{}
}

// measure is what is measured: pods of some namespaces with some labels.
type measure struct {
	namespaces  map[string]bool
	labels      map[string]string
	bound       int
	first, last time.Time // when the first and the last were bound
}

func newPods() *pods {
	return &pods{all: map[types.UID]*podSeen{}, ending: map[string]bool{}, wake: make(chan struct{}, 1)}
}

// unbound selects the pods without a node.
var unbound = fields.OneTermEqualSelector("spec.nodeName", "")

// follow starts the watch and returns when it has its first list. Pods come in bursts, so events are handled every 5
// ms: that is cheap, and precise enough.
func (p *pods) follow(ctx context.Context, config *rest.Config) error {
	clientset, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	p.list = func(ctx context.Context, namespace string) (bound []metav1.ObjectMeta, err error) {
		all, err := clientset.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName!="})
		if err != nil {
			return nil, fmt.Errorf("list bound pods of namespace %s: %w", namespace, err)
		}
		for i := range all.Items {
			bound = append(bound, all.Items[i].ObjectMeta)
		}
		return bound, nil
	}
	client, err := kube.NewClientForConfig(config)
	if err != nil {
		return err
	}
	if client, err = client.Gathering(kube.GatherBursts); err != nil {
		return err
	}
	_, informer := client.Informer(kube.Pods, kube.Selection{Fields: unbound, Keep: keepSeen},
		cache.ResourceEventHandlerFuncs{
			AddFunc:    p.see,
			UpdateFunc: func(_, pod any) { p.see(pod) },
			DeleteFunc: p.gone,
		})
	go informer.RunWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return context.Cause(ctx)
	}
	return nil
}

// keepSeen returns the part of a pod's object that is kept.
func keepSeen(obj any) any {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return obj
	}
	s := &podSeen{ObjectMeta: metav1.ObjectMeta{
		Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion, Labels: pod.Labels,
	}}
	for i := range pod.Status.Conditions {
		s.attempted = s.attempted || pod.Status.Conditions[i].Type == corev1.PodScheduled
	}
	return s
}

// see records a pod that waits.
func (p *pods) see(obj any) {
	s := obj.(*podSeen)
	p.mu.Lock()
	p.all[s.UID] = s
	p.mu.Unlock()
	p.tell()
}

// gone records that a pod no longer waits.
func (p *pods) gone(obj any) {
	now := time.Now()
	pod, ok := kube.Deleted[metav1.Object](obj)
	if !ok {
		return
	}
	id := pod.GetUID()
	p.mu.Lock()
	defer p.tell()
	defer p.mu.Unlock()
	s := p.all[id]
	switch {
	case s == nil:
	case p.ending[s.Namespace+"/"+s.Name]:
		delete(p.all, id)
	default:
		s.bound = true
		p.bound++
		p.measure.see(s, now)
	}
}

func (p *pods) tell() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// end records that we are about to delete a pod.
func (p *pods) end(namespace, name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ending[namespace+"/"+name] = true
}

func (m *measure) see(s *podSeen, now time.Time) {
	if m == nil || !m.namespaces[s.Namespace] || !labelled(s.Labels, m.labels) {
		return
	}
	if m.bound++; m.first.IsZero() {
		m.first = now
	}
	m.last = now
}

func labelled(labels, wanted map[string]string) bool {
	for k, v := range wanted {
		if labels[k] != v {
			return false
		}
	}
	return true
}

// start begins measuring, stop ends it.
func (p *pods) start(namespaces []string, labels map[string]string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.measure != nil {
		return fmt.Errorf("start measuring %v: it is being measured already", namespaces)
	}
	p.measure = &measure{namespaces: map[string]bool{}, labels: labels}
	for _, n := range namespaces {
		p.measure.namespaces[n] = true
	}
	return nil
}

func (p *pods) stop() (measure, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.measure == nil {
		return measure{}, fmt.Errorf("stop measuring: nothing is being measured")
	}
	m := *p.measure
	p.measure = nil
	return m, nil
}

// rate returns the pods per second, from the first to the last bind.
func (m measure) rate() (float64, error) {
	took := m.last.Sub(m.first).Seconds()
	if m.bound < 2 || took <= 0 {
		return 0, fmt.Errorf("%d pods bound within %v: too few for a rate", m.bound, m.last.Sub(m.first))
	}
	return float64(m.bound-1) / took, nil
}

// count returns how many pods of a namespace with these labels are bound, and of how many a scheduling attempt failed.
func (p *pods) count(namespace string, labels map[string]string) (bound, attempted int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.all {
		switch {
		case s.Namespace != namespace || !labelled(s.Labels, labels):
		case s.bound:
			bound++
		case s.attempted:
			attempted++
		}
	}
	return bound, attempted
}

// missed lists the bound pods of a namespace and counts those that the watch has not shown. They have no time, so that
// they change a rate by their number alone.
func (p *pods) missed(ctx context.Context, namespace string) error {
	bound, err := p.list(ctx, namespace)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	found := 0
	for _, pod := range bound {
		if s := p.all[pod.UID]; s != nil && s.bound || p.ending[pod.Namespace+"/"+pod.Name] {
			continue
		}
		s := &podSeen{bound: true, ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID,
			Labels: pod.Labels}}
		p.all[pod.UID] = s
		p.bound++
		if m := p.measure; m != nil && m.namespaces[s.Namespace] && labelled(s.Labels, m.labels) {
			m.bound++
		}
		found++
	}
	if found > 0 {
		fmt.Fprintf(os.Stderr, "perf: namespace %s: %d pods were bound while the watch of pods was interrupted\n", namespace,
			found)
	}
	return nil
}

// stillFor is after how long without a change a wait looks for pods that the watch has missed. Chosen: some schedulers
// rest for a few seconds; a list of 50,000 pods costs the API server a second.
const stillFor = 20 * time.Second

// lookEvery is how often a wait counts pods again. Chosen: counting 50,000 takes a millisecond or two.
const lookEvery = 20 * time.Millisecond

// await waits until count pods are bound or, with tried, were at least attempted. It fails at the limit, and when check
// returns an error.
func (p *pods) await(ctx context.Context, namespace string, labels map[string]string, tried bool, count int,
	limit time.Duration, check func() error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	last := 0
	changed := time.Now()
	for {
		bound, attempted := p.count(namespace, labels)
		if bound >= count || tried && bound+attempted >= count {
			return nil
		}
		select {
		case <-p.wake:
			select { // more pods may arrive until then
			case <-time.After(lookEvery):
			case <-ctx.Done():
			}
		case <-tick.C:
			if err := check(); err != nil {
				return err
			}
			if bound+attempted != last {
				last = bound + attempted
				changed = time.Now()
			}
			if time.Since(changed) < stillFor {
				continue
			}
			changed = time.Now()
			if err := p.missed(ctx, namespace); err != nil {
				return err
			}
		case <-ctx.Done():
			return fmt.Errorf("namespace %s: %d pods bound and %d tried in vain, not %d, after %v: %w", namespace, bound,
				attempted, count, limit, context.Cause(ctx))
		}
	}
}

// boundInAll returns how many pods were bound.
func (p *pods) boundInAll() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.bound
}
