package pods

import (
	"context"
	"log/slog"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/volume"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
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

// reportMounts fills in how each volume is mounted in each container.
func reportMounts(pod *corev1.Pod, out *corev1.PodStatus, canReadOnly bool) {
	for _, list := range translate.StatusLists(out) {
		for i := range list {
			c := containerNamed(pod, list[i].Name)
			if c == nil {
				continue
			}
			for j := range c.VolumeMounts {
				vm := &c.VolumeMounts[j]
				s := corev1.VolumeMountStatus{Name: vm.Name, MountPath: vm.MountPath, ReadOnly: vm.ReadOnly}
				if vm.ReadOnly {
					mode := corev1.RecursiveReadOnlyDisabled
					if deep, err := volume.RecursiveReadOnly(vm, canReadOnly); err == nil && deep { // an error keeps the container from starting
						mode = corev1.RecursiveReadOnlyEnabled
					}
					s.RecursiveReadOnly = &mode
				}
				list[i].VolumeMounts = append(list[i].VolumeMounts, s)
			}
		}
	}
}
