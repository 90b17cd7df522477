// Package runtimehandler knows the handlers of the container runtime: which of them a pod asks for, and what they can
// do.
//
// A pod's RuntimeClass names a handler; the object is read from the API for each sandbox, because it may be deleted and
// made anew with another handler. What handlers can do is read from the runtime once, by Learn: it changes only with
// the runtime's configuration. Until then, and of runtimes that do not say it, a handler is taken to lack a feature.
//
// It judges no pod: a RuntimeClass that is not there is an error of the pod's sandbox.
package runtimehandler

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// Handlers knows the handlers of one runtime.
type Handlers struct {
	client *kube.Client

	mu        sync.Mutex      // guards everything that follows
	recursive map[string]bool // by handler: it can make mounts read-only with everything below. nil: not learned yet
}

// New prepares them; client reads RuntimeClasses.
func New(client *kube.Client) *Handlers { return &Handlers{client: client} }

// Runtime says what its handlers can do.
type Runtime interface {
	Status(context.Context, *runtimeapi.StatusRequest, ...grpc.CallOption) (*runtimeapi.StatusResponse, error)
}

// Learn asks the runtime which of its handlers can make a mount read-only with everything below it. Runtimes that do
// not say (containerd before 2.0) cannot.
func (h *Handlers) Learn(ctx context.Context, runtime Runtime) error {
	status, err := runtime.Status(ctx, &runtimeapi.StatusRequest{})
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.recursive = map[string]bool{}
	for _, handler := range status.RuntimeHandlers {
		h.recursive[handler.Name] = handler.GetFeatures().GetRecursiveReadOnlyMounts()
	}
	return nil
}

// RecursiveReadOnly reports whether a handler can make a mount read-only with everything below it.
func (h *Handlers) RecursiveReadOnly(handler string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.recursive[handler]
}

// Of looks up the handler of the pod's RuntimeClass; empty means the runtime's default.
func (h *Handlers) Of(ctx context.Context, pod *corev1.Pod) (string, error) {
	if pod.Spec.RuntimeClassName == nil || *pod.Spec.RuntimeClassName == "" {
		return "", nil
	}
	name := *pod.Spec.RuntimeClassName
	body, err := h.client.REST(corev1.SchemeGroupVersion).Get().AbsPath("/apis/node.k8s.io/v1/runtimeclasses", name).
		SetHeader("Accept", "application/json").DoRaw(ctx)
	if err != nil {
		return "", fmt.Errorf("read RuntimeClass %q: %w", name, err)
	}
	var class struct {
		Handler string `json:"handler"`
	}
	if err := json.Unmarshal(body, &class); err != nil {
		return "", fmt.Errorf("read RuntimeClass %q: %w", name, err)
	}
	return class.Handler, nil
}
