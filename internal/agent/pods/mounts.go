package pods

import (
	"context"
	"log/slog"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// learnHandlers asks the runtime which of its handlers can make a mount read-only with everything below it. Runtimes that
// do not say (containerd before 2.0) cannot.
func (r *Runner) learnHandlers(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	status, err := r.Runtime.Status(ctx, &runtimeapi.StatusRequest{})
	if err != nil {
		slog.Warn("the runtime does not say what its handlers can", "err", err)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.deepReadOnly = map[string]bool{}
	for _, h := range status.RuntimeHandlers {
		r.deepReadOnly[h.Name] = h.GetFeatures().GetRecursiveReadOnlyMounts()
	}
}

// canReadOnly reports whether a handler can make a mount read-only with everything below it.
func (r *Runner) canReadOnly(handler string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.deepReadOnly[handler]
}
