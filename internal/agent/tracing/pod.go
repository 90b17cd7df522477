package tracing

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	semconv "go.opentelemetry.io/otel/semconv/v1.12.0"
	"go.opentelemetry.io/otel/trace"
)

// Pod is what a span says about its pod.
type Pod struct {
	Namespace, Name, UID string
	Stops                bool // the pod is being stopped
}

// SyncPod begins the span of a round of work on a pod. Calls with the returned context are its children. The caller
// ends it.
func (t *Tracing) SyncPod(ctx context.Context, pod Pod) (_ context.Context, end func()) {
	if t == nil {
		return ctx, func() {}
	}
	name := "syncPod"
	if pod.Stops {
		name = "syncTerminatingPod"
	}
	ctx, span := t.tracer.Start(ctx, name, trace.WithAttributes(
		semconv.K8SPodUIDKey.String(pod.UID),
		attribute.String("k8s.pod", pod.Namespace+"/"+pod.Name),
		semconv.K8SPodNameKey.String(pod.Name),
		semconv.K8SNamespaceNameKey.String(pod.Namespace),
	))
	return ctx, func() { span.End() }
}
