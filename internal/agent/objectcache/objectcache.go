// Package objectcache caches the Secrets and ConfigMaps that the pods on this node reference, and no others.
//
// The Node authorizer allows a node to read only the objects that its pods reference, one object at a time, so an
// ordinary informer cannot be used. The cache watches each referenced object by one watch that selects its name,
// however many pods reference it. Pods are tracked by UID. An object that no pod references any more is dropped at
// once. An immutable object is read once and not watched.
//
// Invariants:
//
//   - There is at most one watch per object, one goroutine per watched object, none per pod.
//   - While the API server is away, a reader gets the last known state. Before the first answer it waits, for a bounded
//     time.
//   - "Does not exist" is always an answer of the API server. A missing answer is another error.
//   - Objects are shared and must not be written to. They have only data, type and version: labels, annotations (which
//     may repeat the whole object) and managed fields are dropped on arrival.
//   - After an outage the connections do not return all at once: retries have jitter and back-off, and few run at a
//     time.
//
// The package does not decide what a missing object means for a pod, and it mounts nothing.
package objectcache

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/plimsoll-dev/plimsoll/internal/core/volumelimit"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// answerMax bounds the wait for an object's first answer. Chosen: the Node authorizer learns of a new pod within tens
// of milliseconds, and a loaded API server answers within a second or two. A longer wait would only delay the pod
// worker, which is notified when the answer arrives.
const answerMax = 5 * time.Second

// API is the part of *kube.Client that the cache uses.
type API interface {
	List(ctx context.Context, k kube.Kind, namespace string, o metav1.ListOptions, out runtime.Object) error
	Watch(ctx context.Context, k kube.Kind, namespace string, o metav1.ListOptions) (watch.Interface, error)
}

// Cache caches the objects that tracked pods reference. It is safe for concurrent use.
type Cache struct {
	ctx      context.Context
	api      API
	changed  func(types.UID)
	inFlight chan struct{} // one place per request in flight that starts or resumes a watch

	mu    sync.Mutex
	items map[Ref]*item
	pods  map[types.UID]map[Ref]bool
	away  bool          // the last request failed without an answer about its object
	back  chan struct{} // closed when an answer arrives after that
}

// item is one object. The fields from users on are guarded by Cache.mu.
type item struct {
	ref      Ref
	cancel   context.CancelFunc
	answered chan struct{} // closed by the first answer

	users  map[types.UID]bool
	known  bool          // the API server has answered
	object metav1.Object // nil while known is true: does not exist
	err    error         // why there is no answer yet
	missed bool          // a reader gave up before the first answer
}

// New returns a cache that watches objects until ctx ends. It calls changed, from any goroutine, with each pod that
// references an object that changed, appeared or was deleted. changed may be nil.
func New(ctx context.Context, api API, changed func(types.UID)) *Cache {
	if changed == nil {
		changed = func(types.UID) {}
	}
	return &Cache{
		ctx: ctx, api: api, changed: changed,
		inFlight: make(chan struct{}, inFlightMax),
		items:    map[Ref]*item{}, pods: map[types.UID]map[Ref]bool{},
		back: make(chan struct{}),
	}
}

// Track watches the objects that pod references, until Untrack. It returns at once. Tracking a pod again adjusts to its
// present references. If a pod references more objects than allowed (core/volumelimit), that is an error, and its
// former references stay.
func (c *Cache) Track(pod *corev1.Pod) error {
	wanted := References(pod)
	if why := volumelimit.Objects(len(wanted)); why != "" {
		return fmt.Errorf("follow the objects of pod %s/%s: %s", pod.Namespace, pod.Name, why)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	had := c.pods[pod.UID]
	c.pods[pod.UID] = wanted
	for ref := range wanted {
		if had[ref] {
			continue
		}
		it := c.items[ref]
		if it == nil {
			it = &item{ref: ref, answered: make(chan struct{}), users: map[types.UID]bool{}}
			c.items[ref] = it
			var ctx context.Context
			ctx, it.cancel = context.WithCancel(c.ctx)
			go c.follow(ctx, it)
		}
		it.users[pod.UID] = true
	}
	for ref := range had {
		if !wanted[ref] {
			c.dropUser(ref, pod.UID)
		}
	}
	return nil
}

// Untrack drops a pod and every object that only it referenced.
func (c *Cache) Untrack(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for ref := range c.pods[uid] {
		c.dropUser(ref, uid)
	}
	delete(c.pods, uid)
}

func (c *Cache) dropUser(ref Ref, uid types.UID) {
	it := c.items[ref]
	delete(it.users, uid)
	if len(it.users) == 0 {
		it.cancel()
		delete(c.items, ref)
	}
}

// ConfigMap returns the named ConfigMap of a tracked pod, or an API not-found error if the API server answered that it
// does not exist.
func (c *Cache) ConfigMap(ctx context.Context, namespace, name string) (*corev1.ConfigMap, error) {
	object, err := c.get(ctx, Ref{ConfigMap, namespace, name})
	if err != nil {
		return nil, err
	}
	return object.(*corev1.ConfigMap), nil
}

// Secret is like ConfigMap, for Secrets.
func (c *Cache) Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
	object, err := c.get(ctx, Ref{Secret, namespace, name})
	if err != nil {
		return nil, err
	}
	return object.(*corev1.Secret), nil
}

func (c *Cache) get(ctx context.Context, ref Ref) (metav1.Object, error) {
	c.mu.Lock()
	it := c.items[ref]
	known := it != nil && it.known
	c.mu.Unlock()
	if it == nil {
		return nil, fmt.Errorf("object %q/%q not registered: no tracked pod names this %s", ref.Namespace, ref.Name, ref.Kind)
	}
	if !known {
		timeout := time.NewTimer(answerMax)
		defer timeout.Stop()
		select {
		case <-it.answered:
		case <-timeout.C:
			return nil, c.unanswered(it, context.DeadlineExceeded)
		case <-ctx.Done():
			return nil, c.unanswered(it, ctx.Err())
		case <-c.ctx.Done():
			return nil, c.unanswered(it, c.ctx.Err())
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if it.object == nil {
		return nil, apierrors.NewNotFound(corev1.Resource(ref.Kind.String()), ref.Name)
	}
	return it.object, nil
}

// unanswered returns why there is no answer, and makes the first answer notify the pods.
func (c *Cache) unanswered(it *item, why error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	it.missed = true
	if it.err != nil {
		why = it.err
	}
	return &AwayError{it.ref, why}
}

// AwayError means that the API server has not answered yet whether an object exists. It is not a not-found error, and
// nothing follows from it.
type AwayError struct {
	Ref   Ref
	Cause error
}

func (e *AwayError) Error() string {
	return fmt.Sprintf("read %s %s/%s: no answer from the API server yet: %v", e.Ref.Kind, e.Ref.Namespace, e.Ref.Name,
		e.Cause)
}

func (e *AwayError) Unwrap() error { return e.Cause }
