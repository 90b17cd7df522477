package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// nodes is the state of all nodes in our watch, and since when. mu guards all fields after it.
type nodes struct {
	client *kubernetes.Clientset

	mu   sync.Mutex
	by   map[string]*nodeSeen
	wake chan struct{}

	announced time.Time // when the last Event about a registered node arrived

	second         int64 // the current second of the wall clock
	inSecond, most int   // changes seen in it, and in the busiest second since count
}

// count begins to count the changes of nodes per second.
func (n *nodes) count() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.second = 0
	n.inSecond = 0
	n.most = 0
}

func (n *nodes) busiestSecond() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.most
}

// marked returns for how many of the nodes is holds, and when the last of them was tainted.
func (n *nodes) marked(names []string, is func(*nodeSeen) bool) (count int, last time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, name := range names {
		if s := n.by[name]; is(s) {
			count++
			last = later(last, later(s.unknownAt, s.taintedAt))
		}
	}
	return count, last
}

type nodeSeen struct {
	ready   corev1.ConditionStatus
	tainted bool // NoSchedule, because it is unreachable
	ours    int  // number of taints of a lifecycle controller

	unknownAt, taintedAt time.Time // since when
}

func watchNodes(ctx context.Context, client *kubernetes.Clientset) *nodes {
	n := &nodes{client: client, by: map[string]*nodeSeen{}, wake: make(chan struct{}, 1)}
	list := cache.NewFilteredListWatchFromClient(client.CoreV1().RESTClient(), "nodes", metav1.NamespaceAll,
		func(*metav1.ListOptions) {})
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: list, ObjectType: &corev1.Node{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(obj any) { n.see(obj.(*corev1.Node)) },
			UpdateFunc: func(_, obj any) { n.see(obj.(*corev1.Node)) },
		},
	})
	go informer.RunWithContext(ctx)
	events := cache.NewFilteredListWatchFromClient(client.CoreV1().RESTClient(), "events", metav1.NamespaceAll,
		func(o *metav1.ListOptions) {
			o.FieldSelector = "reason=RegisteredNode"
		})
	_, informer = cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: events, ObjectType: &corev1.Event{},
		Handler: cache.ResourceEventHandlerFuncs{AddFunc: func(any) { n.announce() },
			UpdateFunc: func(any, any) { n.announce() }},
	})
	go informer.RunWithContext(ctx)
	return n
}

func (n *nodes) announce() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.announced = time.Now()
}

func (n *nodes) sinceAnnounced() time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	return time.Since(n.announced)
}

func (n *nodes) see(node *corev1.Node) {
	now := time.Now()
	n.mu.Lock()
	defer n.mu.Unlock()
	if second := now.Unix(); second != n.second {
		n.second, n.inSecond = second, 0
	}
	n.inSecond++
	n.most = max(n.most, n.inSecond)
	s := n.by[node.Name]
	if s == nil {
		s = &nodeSeen{}
		n.by[node.Name] = s
	}
	before := *s
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			s.ready = c.Status
		}
	}
	s.tainted, s.ours = false, 0
	for _, t := range node.Spec.Taints {
		if t.Key == corev1.TaintNodeUnreachable || t.Key == corev1.TaintNodeNotReady {
			s.ours++
		}
		s.tainted = s.tainted || t.Key == corev1.TaintNodeUnreachable && t.Effect == corev1.TaintEffectNoSchedule
	}
	if s.ready == corev1.ConditionUnknown && before.ready != corev1.ConditionUnknown {
		s.unknownAt = now
	}
	if s.tainted && !before.tainted {
		s.taintedAt = now
	}
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// await waits until is returns true.
func (n *nodes) await(ctx context.Context, limit time.Duration, what string, is func(*nodes) bool) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		n.mu.Lock()
		done := is(n)
		n.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-n.wake:
		case <-ctx.Done():
			return fmt.Errorf("wait for nodes to %s: not within %v: %s", what, limit, n.describe())
		}
	}
}

func (n *nodes) describe() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	ready := 0
	unknown := 0
	taints := 0
	for _, s := range n.by {
		switch s.ready {
		case corev1.ConditionTrue:
			ready++
		case corev1.ConditionUnknown:
			unknown++
		}
		taints += s.ours
	}
	return fmt.Sprintf("%d nodes, %d Ready, %d Unknown, %d taints", len(n.by), ready, unknown, taints)
}

// well reports whether every node is Ready and none has a taint of a lifecycle controller.
func (n *nodes) well() bool {
	for _, s := range n.by {
		if s.ready != corev1.ConditionTrue || s.ours > 0 {
			return false
		}
	}
	return true
}

func (n *nodes) all(names []string, is func(*nodeSeen) bool) bool {
	return !slices.ContainsFunc(names, func(name string) bool { return !is(n.by[name]) })
}

// wronged counts nodes outside names that are not Ready: a controller marked them as silent.
func (n *nodes) wronged(names []string) (wronged int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	meant := map[string]bool{}
	for _, name := range names {
		meant[name] = true
	}
	for name, s := range n.by {
		if !meant[name] && s.ready != corev1.ConditionTrue {
			wronged++
		}
	}
	return wronged
}

// renewed returns when each of the nodes last renewed its lease.
func (n *nodes) renewed(ctx context.Context) (map[string]time.Time, error) {
	list, err := n.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	at := map[string]time.Time{}
	for _, l := range list.Items {
		if l.Spec.RenewTime != nil {
			at[l.Name] = l.Spec.RenewTime.Time
		}
	}
	return at, nil
}
