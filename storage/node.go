package main

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
)

// awaitNode waits until this node's Node object exists, which becomes the owner of the node's CSIStorageCapacity
// objects. gone is closed when the Node is deleted or replaced by another one of its name. Then the process must end:
// the garbage collector removes everything that the old Node owns.
func (s *shared) awaitNode(ctx context.Context) (gone <-chan struct{}, err error) {
	own := informers.NewSharedInformerFactoryWithOptions(s.client, 0, informers.WithTweakListOptions(
		func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, s.node).String()
		}))
	found, left := make(chan *corev1.Node, 1), make(chan struct{})
	var first *corev1.Node
	leave := sync.OnceFunc(func() { close(left) })
	see := func(object any) {
		node, ok := object.(*corev1.Node)
		switch {
		case !ok:
		case first == nil:
			first = node
			found <- node
		case node.UID != first.UID:
			leave()
		}
	}
	_, err = own.Core().V1().Nodes().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    see,
		UpdateFunc: func(_, is any) { see(is) },
		DeleteFunc: func(any) { leave() },
	})
	if err != nil {
		return nil, err
	}
	klog.InfoS("waiting for the Node object", "node", s.node)
	own.Start(ctx.Done())
	select {
	case node := <-found:
		s.owner = ownerOf(node)
		return left, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for the Node object %s: %w", s.node, ctx.Err())
	}
}

// ownerOf returns the reference by which a Node owns objects. The capacity controller takes an object for its own only
// if that owner is the object's controller.
func ownerOf(node *corev1.Node) metav1.OwnerReference {
	yes := true
	return metav1.OwnerReference{
		APIVersion: "v1",
		Kind:       "Node",
		Name:       node.Name,
		UID:        node.UID,
		Controller: &yes,
	}
}

// recorder makes what writes this program's own Events. Upstream's controllers have recorders of their own.
func (s *shared) recorder() record.EventRecorder {
	broadcaster := record.NewBroadcaster()
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: s.client.CoreV1().Events("")})
	return broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "plimsoll-storage", Host: s.node})
}
