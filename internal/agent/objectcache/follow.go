package objectcache

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

const (
	// inFlightMax is how many lists and watch requests may be in flight at once. Chosen: an API server that returns
	// gets at most 16 requests at a time from a node with a hundred objects; 16 per few ms still serves a burst of new
	// pods.
	inFlightMax = 16

	// backoffMin is the first wait after a failure. Chosen: a new pod's objects are forbidden to the node until the
	// Node authorizer has seen the pod, which usually takes less than this.
	backoffMin = 50 * time.Millisecond

	// backoffMax bounds the wait after repeated failures. Chosen: content may be this late after an outage, unless
	// another object's answer ends the wait for all; the kubelet's reflectors use 30 s too.
	backoffMax = 30 * time.Second

	// backJitter spreads the retries that start with the first answer after an outage.
	backJitter = 2 * time.Second

	// watchMin is the least timeout of a watch request. The timeout is drawn between it and its double, so that watches
	// that began together do not end together. Chosen: the API server's own minimum is 30 min; a dead connection is
	// found by HTTP/2 pings, not by this.
	watchMin = 15 * time.Minute
)

// errBrief means that a watch ended so soon that it must not be opened again at once.
var errBrief = errors.New("watch ended within a second")

// follow keeps it up to date until ctx ends or the object turns out to be immutable.
func (c *Cache) follow(ctx context.Context, it *item) {
	wait := backoffMin
	version := "" // where to resume the watch; empty: list first
	for ctx.Err() == nil {
		began := time.Now()
		done, err := false, error(nil)
		listed := version == ""
		if listed {
			version, done, err = c.list(ctx, it)
		}
		if err == nil && !done {
			version, done, err = c.watch(ctx, it, version)
		}
		switch {
		case done || ctx.Err() != nil:
			return
		case err == nil || version == "" && !listed:
			wait = backoffMin // the server closed a watch regularly, or no longer has the version: continue at once
			continue
		case time.Since(began) > backoffMax:
			wait = backoffMin // it worked for long, so this is a new failure
		}
		c.failed(it, err)
		c.pause(ctx, wait)
		wait = min(2*wait, backoffMax)
	}
}

// pause waits for d, with jitter, or until the API server answers again and a random moment after.
func (c *Cache) pause(ctx context.Context, d time.Duration) {
	c.mu.Lock()
	back := c.back
	c.mu.Unlock()
	timer := time.NewTimer(d/2 + rand.N(d))
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-back:
		timer.Reset(rand.N(min(d, backJitter)))
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
	}
}

// acquire waits for a place among the requests in flight; it returns false if ctx ended first.
func (c *Cache) acquire(ctx context.Context) bool {
	select {
	case c.inFlight <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (it *item) selector() string {
	return fields.OneTermEqualSelector(metav1.ObjectNameField, it.ref.Name).String()
}

// list reads the object and the version to watch from. The object's own version is not enough: it may have been
// compacted long ago, and an object that does not exist has none.
func (c *Cache) list(ctx context.Context, it *item) (version string, done bool, err error) {
	if !c.acquire(ctx) {
		return "", false, ctx.Err()
	}
	defer func() { <-c.inFlight }()
	kind := it.ref.Kind.api()
	list := kind.NewList()
	if err := c.api.List(ctx, kind, it.ref.Namespace, metav1.ListOptions{FieldSelector: it.selector()}, list); err != nil {
		return "", false, err
	}
	var object metav1.Object
	switch list := list.(type) {
	case *corev1.ConfigMapList:
		version = list.ResourceVersion
		if len(list.Items) > 0 {
			object = &list.Items[0]
		}
	case *corev1.SecretList:
		version = list.ResourceVersion
		if len(list.Items) > 0 {
			object = &list.Items[0]
		}
	}
	return version, c.publish(it, object), nil
}

// watch watches the object from version on. It returns the version to resume from, or empty to list again. A nil error
// means that the server closed the watch regularly.
func (c *Cache) watch(ctx context.Context, it *item, version string) (resume string, done bool, err error) {
	seconds := int64((watchMin + rand.N(watchMin)).Seconds())
	if !c.acquire(ctx) {
		return version, false, ctx.Err()
	}
	w, err := c.api.Watch(ctx, it.ref.Kind.api(), it.ref.Namespace, metav1.ListOptions{
		FieldSelector: it.selector(), ResourceVersion: version, AllowWatchBookmarks: true, TimeoutSeconds: &seconds,
	})
	<-c.inFlight
	if err != nil {
		return resumeAfter(err, version), false, err
	}
	defer w.Stop()
	c.reached()
	began := time.Now()
	for e := range w.ResultChan() {
		if e.Type == watch.Error {
			err := apierrors.FromObject(e.Object)
			return resumeAfter(err, version), false, err
		}
		object, ok := e.Object.(metav1.Object)
		if !ok || object.GetResourceVersion() == "" {
			return "", false, fmt.Errorf("watch %s: unexpected %s event of %T", it.ref, e.Type, e.Object)
		}
		version = object.GetResourceVersion()
		switch e.Type {
		case watch.Added, watch.Modified:
			done = c.publish(it, object)
		case watch.Deleted:
			done = c.publish(it, nil)
		}
		if done {
			return version, true, nil
		}
	}
	// A server that shuts down closes watches regularly too, and must not be asked again at once.
	if time.Since(began) < time.Second {
		return version, false, errBrief
	}
	return version, false, nil
}

// resumeAfter returns the version from which to continue after err: none if the server no longer has it.
func resumeAfter(err error, version string) string {
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		return ""
	}
	return version
}

// publish stores an answer and notifies the pods that use the object. It returns true if the object is immutable.
func (c *Cache) publish(it *item, object metav1.Object) (done bool) {
	object, done = strip(object)
	c.mu.Lock()
	first, same := !it.known, sameVersion(it.object, object)
	it.known = true
	it.object = object
	it.err = nil
	var tell []types.UID
	if first {
		close(it.answered)
	}
	if first && it.missed || !first && !same {
		for uid := range it.users {
			tell = append(tell, uid)
		}
	}
	c.mu.Unlock()
	c.reached()
	for _, uid := range tell {
		c.changed(uid)
	}
	return done
}

// reached records that the API server answers, and wakes those that wait for it.
func (c *Cache) reached() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.away {
		c.away = false
		close(c.back)
		c.back = make(chan struct{})
	}
}

func (c *Cache) failed(it *item, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !it.known {
		it.err = err
	}
	var answer apierrors.APIStatus
	if !errors.As(err, &answer) && err != errBrief && !c.away {
		c.away = true
		slog.Info("objects: API server away, serving last known content", "object", it.ref.String(), "error", err)
	}
}

func sameVersion(a, b metav1.Object) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return a.GetUID() == b.GetUID() && a.GetResourceVersion() == b.GetResourceVersion()
}

// strip copies the parts of an object that are read, and returns whether it is immutable.
func strip(object metav1.Object) (kept metav1.Object, immutable bool) {
	meta := func(o metav1.Object) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID(),
			ResourceVersion: o.GetResourceVersion()}
	}
	switch o := object.(type) {
	case *corev1.ConfigMap:
		return &corev1.ConfigMap{ObjectMeta: meta(o), Data: o.Data, BinaryData: o.BinaryData,
			Immutable: o.Immutable}, o.Immutable != nil && *o.Immutable
	case *corev1.Secret:
		return &corev1.Secret{ObjectMeta: meta(o), Type: o.Type, Data: o.Data, Immutable: o.Immutable}, o.Immutable != nil &&
			*o.Immutable
	}
	return nil, false
}

func (k Kind) api() kube.Kind {
	if k == Secret {
		return kube.Secrets
	}
	return kube.ConfigMaps
}
