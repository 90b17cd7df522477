package hook

import (
	"context"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/probe"
	"github.com/plimsoll-dev/plimsoll/internal/kube/podfields"
	"github.com/plimsoll-dev/plimsoll/internal/kube/podfields/sample"
)

// TestFieldsOfHooks: every field that the table lists changes what a hook does. Requests are inspected, not sent;
// TestHTTP sends some.
func TestFieldsOfHooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		err := sample.Unproved(podfields.ObserverHook, func(pod *corev1.Pod) (any, error) {
			var seen []any
			r := Runner{Runtime: runtime(func(_ context.Context, in *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse,
				error) {
				seen = append(seen, in.Cmd)
				return &runtimeapi.ExecSyncResponse{}, nil
			})}
			for i := range pod.Spec.Containers {
				c := &pod.Spec.Containers[i]
				if c.Lifecycle == nil {
					continue
				}
				for _, h := range []*corev1.LifecycleHandler{c.Lifecycle.PostStart, c.Lifecycle.PreStop} {
					if h != nil && h.HTTPGet != nil {
						request, err := probe.Request(t.Context(), h.HTTPGet, c, "192.0.2.7", "lifecycle")
						if err != nil {
							return nil, err
						}
						seen = append(seen, request.URL.String(), request.Header)
						continue
					}
					if h == nil || h.TCPSocket != nil {
						continue
					}
					begun := time.Now()
					err := r.run(t.Context(), pod, c, h, "id", "192.0.2.7")
					seen = append(seen, err == nil, time.Since(begun))
				}
			}
			return seen, nil
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// TestTCPSocketFails: the API accepts tcpSocket hooks, and the kubelet has never run one. They fail; they are not
// skipped.
func TestTCPSocketFails(t *testing.T) {
	h := &corev1.LifecycleHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(80), Host: "127.0.0.1"}}
	if err := (Runner{}).PostStart(t.Context(), &corev1.Pod{}, with(h), "id", "127.0.0.1"); err == nil {
		t.Error("a tcpSocket hook succeeded")
	}
	if err := (Runner{}).PreStop(t.Context(), &corev1.Pod{}, with(h), "id", "127.0.0.1"); err == nil {
		t.Error("a tcpSocket hook succeeded")
	}
}

// TestEveryTypeIsRun: of the types of hooks only tcpSocket has no case in run.
func TestEveryTypeIsRun(t *testing.T) {
	types := reflect.TypeFor[corev1.LifecycleHandler]()
	for i := range types.NumField() {
		h := &corev1.LifecycleHandler{}
		field := reflect.ValueOf(h).Elem().Field(i)
		field.Set(reflect.New(field.Type().Elem()))
		ctx, cancel := context.WithCancel(t.Context())
		cancel() // the question is how run would do it, not how it ends
		r := Runner{Runtime: runtime(func(ctx context.Context, _ *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse,
			error) {
			return nil, ctx.Err()
		})}
		err := r.run(ctx, &corev1.Pod{}, &corev1.Container{}, h, "id", "127.0.0.1")
		invalid := err != nil && strings.HasPrefix(err.Error(), "invalid handler")
		if name := types.Field(i).Name; invalid != (name == "TCPSocket") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
