package explain

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/kube/topology"
)

// probeTime is how long it takes until a kind that may not be watched is tried again. Chosen: rights change rarely.
const probeTime = time.Minute

// Run watches until ctx ends. Without the right to watch nodes and pods it returns an error at once.
func (l *Live) Run(ctx context.Context) error {
	var all sync.WaitGroup
	defer all.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, k := range []kube.Kind{kube.Nodes, kube.Pods} {
		if err := l.mayWatch(ctx, k); err != nil {
			return fmt.Errorf("watch %s: %w", resourceText(k), withRole(err))
		}
	}
	l.mu.Lock()
	l.start = func(of source) {
		name := resourceText(of.kind)
		if l.began[name] {
			return
		}
		l.began[name], l.behind[name] = true, true
		all.Go(func() { l.follow(ctx, of) })
	}
	l.behind[resourceText(kube.Nodes)], l.behind[resourceText(kube.Pods)] = true, true
	for _, of := range l.s.others(func(string, *topology.Node) {}) {
		l.start(l.marking(of))
	}
	if slices.ContainsFunc(l.s.a.Config.Profiles, hasHardDefaults) {
		for _, of := range l.s.groupsOfPods() {
			l.start(l.marking(of))
		}
	}
	l.mu.Unlock()
	all.Go(func() { l.watchNodes(ctx) })
	all.Go(func() { l.watchPods(ctx) })
	<-ctx.Done()
	return nil
}

// mayWatch asks whether objects of a kind may be listed. A server that does not answer is no objection: the watch waits
// for it.
func (l *Live) mayWatch(ctx context.Context, k kube.Kind) error {
	err := l.client.List(ctx, k, "", metav1.ListOptions{Limit: 1}, k.NewList())
	if err != nil && apierrors.ReasonForError(err) == metav1.StatusReasonUnknown {
		return nil
	}
	return err
}

// follow watches a kind of objects, as soon as it may.
func (l *Live) follow(ctx context.Context, of source) {
	name := resourceText(of.kind)
	for {
		err := l.mayWatch(ctx, of.kind)
		l.update(func() {
			delete(l.unseen, name)
			if err != nil && !(of.may && apierrors.IsNotFound(err)) {
				l.unseen[name] = Unseen{What: name, Error: err.Error(), Effect: of.effect}
			}
			if err != nil {
				delete(l.behind, name)
			}
			l.waits = true
		})
		if err == nil {
			break
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(probeTime):
		}
	}
	see := func(obj any) { l.update(func() { of.see(obj.(runtime.Object)) }) }
	_, controller := l.client.Informer(of.kind, kube.Selection{}, cache.ResourceEventHandlerFuncs{
		AddFunc:    see,
		UpdateFunc: func(_, after any) { see(after) },
		DeleteFunc: func(obj any) {
			if o, ok := kube.Deleted[metav1.Object](obj); ok {
				l.update(func() { of.gone(o.GetNamespace(), o.GetName()) })
			}
		},
	})
	l.runUntilSynced(ctx, name, controller)
}

// runUntilSynced runs a watch until ctx ends, and notes when its first list is complete.
func (l *Live) runUntilSynced(ctx context.Context, name string, controller cache.Controller) {
	var note sync.WaitGroup
	note.Go(func() {
		if cache.WaitForCacheSync(ctx.Done(), controller.HasSynced) {
			l.update(func() { delete(l.behind, name) })
		}
	})
	controller.RunWithContext(ctx)
	note.Wait()
}

// marking returns of with handlers that note what changed.
func (l *Live) marking(of source) source {
	see, gone := of.see, of.gone
	reports := of.kind.Resource == kube.Topologies.Resource
	of.see = func(o runtime.Object) {
		see(o)
		if l.waits = true; reports {
			name := o.(*topology.Object).Name
			l.report[name], l.dirty[name] = o.(*topology.Object), true
		}
	}
	of.gone = func(namespace, name string) {
		gone(namespace, name)
		if l.waits = true; reports {
			delete(l.report, name)
			l.dirty[name] = true
		}
	}
	return of
}

// update changes the state, and tells if there is something to Take, or another kind of objects was listed.
func (l *Live) update(change func()) {
	l.mu.Lock()
	behind := len(l.behind)
	change()
	news := len(l.dirty)+len(l.moved) > 0 || l.waits || len(l.behind) != behind
	l.mu.Unlock()
	if !news {
		return
	}
	select {
	case l.changed <- struct{}{}:
	default:
	}
}
