package kube

import (
	"fmt"
	"slices"

	"k8s.io/client-go/tools/cache"
)

// orderedInformer is cache.NewInformerWithOptions, but it passes the objects of each list to the handler in the given
// order. client-go's own passes a streamed list in no defined order (watchList in reflector.go keeps it in a map).
func orderedInformer(o cache.InformerOptions, order func(a, b any) int) (cache.Store, cache.Controller) {
	store := cache.NewStore(cache.DeletionHandlingMetaNamespaceKeyFunc)
	queue := orderedQueue{cache.NewRealFIFOWithOptions(cache.RealFIFOOptions{
		KeyFunction: cache.MetaNamespaceKeyFunc, KnownObjects: store, Transformer: o.Transform,
	}), order}
	return store, cache.New(&cache.Config{
		Queue: queue, ListerWatcher: o.ListerWatcher, ObjectType: o.ObjectType,
		Process: func(changes any, initial bool) error { return apply(o.Handler, store, changes.(cache.Deltas), initial) },
	})
}

// orderedQueue sorts the objects of each list before they are processed.
type orderedQueue struct {
	*cache.RealFIFO
	order func(a, b any) int
}

// Replace is part of cache.Queue. It is called with a whole list.
func (q orderedQueue) Replace(all []any, version string) error {
	slices.SortFunc(all, q.order)
	return q.RealFIFO.Replace(all, version)
}

// apply applies changes to the store and passes them to the handler.
func apply(h cache.ResourceEventHandler, store cache.Store, changes cache.Deltas, initial bool) error {
	for _, c := range changes {
		switch c.Type {
		case cache.Deleted:
			if err := store.Delete(c.Object); err != nil {
				return err
			}
			h.OnDelete(c.Object)
		case cache.Sync, cache.Replaced, cache.Added, cache.Updated:
			old, known, err := store.Get(c.Object)
			if err != nil {
				return err
			}
			if err := store.Update(c.Object); err != nil {
				return err
			}
			if known {
				h.OnUpdate(old, c.Object)
			} else {
				h.OnAdd(c.Object, initial)
			}
		default:
			return fmt.Errorf("process a change of the watch: unexpected type %q", c.Type)
		}
	}
	return nil
}
