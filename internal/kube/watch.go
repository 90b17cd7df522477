package kube

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// Selection narrows a watch. The zero Selection is everything in every namespace.
type Selection struct {
	Namespace string
	Fields    fields.Selector // nil: any
	Labels    string          // a label selector; empty: any
	// Trim, if set, changes each object before it is stored: it removes fields that the caller does not read, or corrects
	// those that the caller does not believe.
	Trim func(runtime.Object)
	// Keep, if set, returns what to store and to pass to the handler instead of each object: a value that implements
	// metav1.Object, or the object itself. Its argument may be a value that it returned before.
	Keep func(obj any) any
	// Order, if set, compares the objects of one list, as they were stored: the handler gets lesser ones first. It is
	// used for every list: at the start, and after a gap in the watch. Without it the order of a list is not defined.
	// Changes between lists reach the handler in the order in which they happened.
	Order func(a, b any) int
}

// LivePods leaves out pods that have ended, since they use no resources. The watch reports the end of a pod as a
// deletion.
var LivePods = fields.AndSelectors(
	fields.OneTermNotEqualSelector("status.phase", string(corev1.PodSucceeded)),
	fields.OneTermNotEqualSelector("status.phase", string(corev1.PodFailed)),
)

// Informer keeps a local copy of the selected objects of kind k and calls handler, in order, for each change. Objects
// are shared and must not be modified; managedFields are dropped on arrival. Run it with Informer(...).RunWithContext.
func (c *Client) Informer(k Kind, sel Selection, handler cache.ResourceEventHandler) (cache.Store, cache.Controller) {
	tweak := func(o *metav1.ListOptions) {
		if sel.Fields != nil {
			o.FieldSelector = sel.Fields.String()
		}
		o.LabelSelector = sel.Labels
	}
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			tweak(&o)
			return untilAnswered(ctx, func() (runtime.Object, error) {
				list := k.NewList()
				return list, c.List(ctx, k, sel.Namespace, o, list)
			})
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			tweak(&o)
			return untilAnswered(ctx, func() (watch.Interface, error) { return c.Watch(ctx, k, sel.Namespace, o) })
		},
	}
	o := cache.InformerOptions{
		ListerWatcher: lw,
		ObjectType:    k.New(),
		Handler:       handler,
		Transform: func(obj any) (any, error) {
			if o, ok := obj.(runtime.Object); ok && sel.Trim != nil {
				sel.Trim(o)
			}
			if sel.Keep != nil {
				return sel.Keep(obj), nil
			}
			return dropManagedFields(obj)
		},
	}
	if sel.Order != nil {
		return orderedInformer(o, sel.Order)
	}
	return cache.NewInformerWithOptions(o)
}

// Pauses between attempts to reach a server that does not answer at all: from the first to the longest, doubling, each
// with jitter of one half. The longest bounds the time between the return of the server and that of a watch.
// client-go's own pause is up to a minute; until its end a node may be Ready and receive no changes. For each watch, a
// fleet of N nodes sends a dead server N/7 requests per second.
const (
	unreachableFirst = 500 * time.Millisecond
	unreachableMax   = 10 * time.Second
)

// untilAnswered repeats a request until the server answers. An error that the server answers ends it too, except a
// temporaryError; the caller handles those errors.
func untilAnswered[T any](ctx context.Context, ask func() (T, error)) (T, error) {
	return untilAnsweredLogging(ctx, ask, logNoAnswer)
}

func logNoAnswer(err error) {
	slog.Warn("API server does not answer; retrying until it does", "err", err)
}

// untilAnsweredLogging is untilAnswered with another log message for the first attempt that got no answer.
func untilAnsweredLogging[T any](ctx context.Context, ask func() (T, error), log func(error)) (T, error) {
	for pause := unreachableFirst; ; pause = min(2*pause, unreachableMax) {
		answer, err := ask()
		if err == nil || ctx.Err() != nil || !errors.As(err, new(*url.Error)) && !errors.As(err, new(temporaryError)) {
			return answer, err
		}
		if pause == unreachableFirst {
			log(err)
		}
		select {
		case <-ctx.Done():
			return answer, err
		case <-time.After(pause/2 + rand.N(pause/2)):
		}
	}
}

// dropManagedFields removes managedFields, which we do not read and which are often a third of an object.
func dropManagedFields(obj any) (any, error) {
	if o, ok := obj.(metav1.Object); ok {
		o.SetManagedFields(nil)
	}
	return obj, nil
}

// Deleted returns the object of a delete notification, also when the watch missed the deletion and only the next list
// showed it. T is the type that the watch stores, or an interface that this type implements.
func Deleted[T any](obj any) (T, bool) {
	if missed, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = missed.Obj
	}
	object, ok := obj.(T)
	return object, ok
}
