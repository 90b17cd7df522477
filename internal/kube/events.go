package kube

import (
	"context"
	"fmt"
	"hash/fnv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/core/throttle"
)

// eventSink writes Events for Recorders through our client.
type eventSink struct {
	c *Client
	// the Events' priority rises while they wait, so that they keep up with the other writes; see NewRecorders
	keepsUp bool
}

// AnnotationOnce marks an Event that is written at most once, by whichever process: its name is computed from the
// annotation's value, and the API server refuses a second Event of that name. (A node's credentials may create Events
// and may not read them.)
const AnnotationOnce = "plimsoll.dev/once"

func (s eventSink) create(ctx context.Context, since time.Time, e *corev1.Event) (*corev1.Event, error) {
	if once := e.Annotations[AnnotationOnce]; once != "" {
		h := fnv.New64a()
		fmt.Fprintf(h, "%s %s", e.InvolvedObject.UID, once)
		name := e.InvolvedObject.Name
		e.Name = fmt.Sprintf("%s.%016x", name[:min(len(name), 200)], h.Sum64()) // an object's name has at most 253 bytes
	}
	out := &corev1.Event{}
	return out, s.c.Create(s.as(ctx, since, e), Events, namespaceOf(e), "", e, out)
}

func (s eventSink) patch(ctx context.Context, since time.Time, e *corev1.Event, data []byte) (*corev1.Event, error) {
	out := &corev1.Event{}
	return out, s.c.Patch(s.as(ctx, since, e), Events, namespaceOf(e), e.Name, types.StrategicMergePatchType, data, out)
}

// as returns the context for a write of e. It says which kind of write a Throttle takes it for.
func (s eventSink) as(ctx context.Context, since time.Time, e *corev1.Event) context.Context {
	first, then, after := throttle.EventKind(e.Type == corev1.EventTypeWarning)
	if !s.keepsUp {
		return As(ctx, first)
	}
	return AsUntil(ctx, first, since.Add(after), then)
}

// namespaceOf returns the namespace of e; Events about cluster-scoped objects go to the namespace that upstream uses.
func namespaceOf(e *corev1.Event) string {
	if e.Namespace == "" {
		return metav1.NamespaceDefault
	}
	return e.Namespace
}
