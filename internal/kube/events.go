package kube

import (
	"context"
	"fmt"
	"hash/fnv"
	"log/slog"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
)

// NewRecorder returns a recorder that writes Events as component on this host, with client-go's aggregation and spam
// filter, until ctx ends.
func NewRecorder(ctx context.Context, c *Client, component, host string) record.EventRecorder {
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	broadcaster.StartRecordingToSink(eventSink{ctx, c})
	context.AfterFunc(ctx, broadcaster.Shutdown)
	slog.Debug("events start", "component", component, "host", host)
	return broadcaster.NewRecorder(scheme, corev1.EventSource{Component: component, Host: host})
}

// eventSink lets client-go's broadcaster write through our client.
type eventSink struct {
	ctx context.Context
	c   *Client
}

// AnnotationOnce marks an Event that is made once, whoever makes it: its name follows from the annotation's value, and the
// API server refuses a second of that name. (Nodes may make Events, and may not read them.)
const AnnotationOnce = "plimsoll.dev/once"

func (s eventSink) Create(e *corev1.Event) (*corev1.Event, error) {
	if once := e.Annotations[AnnotationOnce]; once != "" {
		h := fnv.New64a()
		fmt.Fprintf(h, "%s %s", e.InvolvedObject.UID, once)
		name := e.InvolvedObject.Name
		e.Name = fmt.Sprintf("%s.%016x", name[:min(len(name), 200)], h.Sum64()) // an object's name has at most 253 bytes
	}
	out := &corev1.Event{}
	return out, s.c.Create(s.ctx, Events, namespaceOf(e), "", e, out)
}

func (s eventSink) Update(e *corev1.Event) (*corev1.Event, error) {
	out := &corev1.Event{}
	return out, s.c.Update(s.ctx, Events, namespaceOf(e), e.Name, e, out)
}

func (s eventSink) Patch(e *corev1.Event, data []byte) (*corev1.Event, error) {
	out := &corev1.Event{}
	return out, s.c.Patch(s.ctx, Events, namespaceOf(e), e.Name, types.StrategicMergePatchType, data, out)
}

// namespaceOf puts events about cluster-scoped objects where upstream puts them.
func namespaceOf(e *corev1.Event) string {
	if e.Namespace == "" {
		return metav1.NamespaceDefault
	}
	return e.Namespace
}
