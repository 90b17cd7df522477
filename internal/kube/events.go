package kube

import (
	"context"
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

func (s eventSink) Create(e *corev1.Event) (*corev1.Event, error) {
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
